"""Draws what was measured on GPUs."""

from pathlib import Path


def draw(folder: Path) -> None:
    """Writes the plots."""
