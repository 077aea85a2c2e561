"""Numbers as people write them."""

from decimal import Decimal


def plain(value: float) -> str:
    """Three digits that count, without an exponent: 1,100 and 0.0000107."""
    return f"{Decimal(f'{value:.3g}'):,f}"
