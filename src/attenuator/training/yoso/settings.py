"""Settings that YOSO attention is trained with; the names are those of the operator's attributes and knob."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from attenuator.ops.yoso.spec import NUM_HASHES, SPEC

__all__ = ["GRADIENTS", "L2", "RATIO", "RAW", "SEARCHED", "Settings", "starting"]

GRADIENTS = ("bound", "collided", "cheapest")
RAW, L2, RATIO = range(3)
# What `attenuator adapt` varies to come near the attention of another model.
SEARCHED = ("hash_bits", "norm_lift")
_ATTRIBUTES: dict[str, Any] = {item.name: item for item in SPEC.attributes}


@dataclass(frozen=True, slots=True)
class Settings:
    """How attention is computed and differentiated.

    Attributes:
        num_hashes: hash tables, m in the paper; 0 computes the expectation, in time quadratic in the length.
        hash_bits: bits per hash, tau in the paper.
        hash: family of hyperplanes, `gaussian` or `hadamard`.
        normalize: `RAW` (0) is the mean over tables; `L2` (1) scales each head's row to length 1 (N-YOSO); `RATIO` (2)
            divides by the share of collisions, a weighted mean of the values, as softmax's is.
        norm_lift: bound on the squared norms of queries and keys, which get a coordinate more each and that norm, so
            that their products count and not their angles (appendix 1.1); 0 for none.
        gradient: `bound`, the lower bound of the paper's eq. 4; `collided`, *YOSO of its appendix; or `cheapest`, of
            the two the one that is predicted to take less time for the lengths of a batch, `collided` where they take
            about as long: one text may so have another estimate beside other texts, and training on other batches.

    Raises:
        ValueError: a value that is not allowed.
    """

    num_hashes: int = 32
    hash_bits: int = 8
    hash: str = "gaussian"
    normalize: int = L2
    norm_lift: float = 0.0
    gradient: str = "bound"

    def __post_init__(self) -> None:
        """Checks every field."""
        bits = _ATTRIBUTES["hash_bits"]
        self._check_range("num_hashes", NUM_HASHES.low, NUM_HASHES.high)
        self._check_range("hash_bits", bits.low, bits.high)
        self._check_range("normalize", RAW, RATIO)
        lift = _ATTRIBUTES["norm_lift"]
        if not lift.fits(self.norm_lift):
            raise ValueError(f"norm_lift is {self.norm_lift!r}, must be {lift.allowed}")
        self._check_choice("hash", _ATTRIBUTES["hash"].choices)
        self._check_choice("gradient", GRADIENTS)

    def _check_range(self, name: str, low: float, high: float) -> None:
        value: Any = getattr(self, name)
        if type(value) is not int or not low <= value <= high:
            raise ValueError(f"{name} is {value!r}, must be a whole number in [{low:g}, {high:g}]")

    def _check_choice(self, name: str, choices: tuple[str, ...]) -> None:
        value = getattr(self, name)
        if value not in choices:
            raise ValueError(f"{name} is {value!r}, must be one of: {', '.join(choices)}")


def starting() -> Settings:
    """Where the search for settings begins: a weighted mean of values, which is what softmax attention is."""
    return Settings(normalize=RATIO)
