"""Token selection in exported models: its operators, and how one share of tokens spreads over the layers.

Each selecting layer has two nodes. One turns the lengths of the sequences and the knob into how many rows of each go
on, on the host, so that nothing on a GPU is waited for. The other copies the most important rows. A selecting layer
leaves keep^exponent of its rows. The sums of a model's exponents up to each layer have the mean 1, so that schedules
spend about the same at equal `keep`; most leave less than that share in the end.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate

from attenuator.ops import OPERATORS
from attenuator.ops.spec import UNMERGED_CU_SEQLENS, Operator

__all__ = [
    "DEFAULT",
    "DROPPED",
    "EVERYWHERE",
    "LENGTHS",
    "MERGES",
    "NONE",
    "SCHEDULES",
    "SELECT",
    "Schedule",
    "Selection",
    "can_merge",
    "can_select",
    "exponents",
    "selection_of",
]

# What links the two operators of a selection: the one computes the lengths that the other takes.
_KEPT_LENGTHS = "kept_cu_seqlens"
LENGTHS = next(row for row in OPERATORS if any(item.name == _KEPT_LENGTHS for item in row.outputs))
SELECT = next(row for row in OPERATORS if any(item.name == _KEPT_LENGTHS for item in row.inputs))


# Exports without selection nodes.
NONE = "none"
# What becomes of the tokens that a selection leaves out, by the choices of the operator's attribute.
[_MERGE] = [item for item in LENGTHS.attributes if item.name == "merge"]
DROPPED = str(_MERGE.default)
MERGES = {
    DROPPED: "they are dropped",
    "mean": "they become one row more, their mean, which later layers attend to as often as it stands for tokens",
}

# What exports ask an attention operator for, best first. A row matters as much as the row that weighs it most. The
# first token's own weights choose worse in pretrained models, even where they classify by that token: its early layers
# look elsewhere (benchmarks/models/keep.md). An operator that never has all weights may offer nothing else.
IMPORTANCES = ("maximum", "first")


@dataclass(frozen=True, slots=True)
class Selection:
    """Which layers select rows, and by what.

    Attributes:
        exponents: one a layer, 0 where it selects nothing.
        importance: how attention weighs a row; a choice of the attention operators' attribute of that name.
        merge: what becomes of the other rows; a key of `MERGES`.
    """

    exponents: tuple[float, ...] = ()
    importance: str = IMPORTANCES[0]
    merge: str = DROPPED

    @property
    def merges(self) -> bool:
        """Whether the other rows become one."""
        return self.merge != DROPPED

    @property
    def layers(self) -> int:
        """How many layers select."""
        return sum(exponent > 0 for exponent in self.exponents)

    def exponent(self, layer: int) -> float:
        """Of one layer; 0 where it selects nothing."""
        return self.exponents[layer] if layer < len(self.exponents) else 0.0


def importance_of(operator: Operator) -> str | None:
    """The best way in which an attention operator says how important each row is; None where it has no way."""
    choices = {choice for item in operator.attributes if item.name == "importance" for choice in item.choices}
    return next((name for name in IMPORTANCES if name in choices), None)


def can_select(operator: Operator) -> bool:
    """Whether an attention operator says how important each row is."""
    return importance_of(operator) is not None


def can_merge(operator: Operator) -> bool:
    """Whether an attention operator attends to a row that stands for several."""
    return any(item.name == UNMERGED_CU_SEQLENS.name for item in operator.inputs)


def _first(count: int) -> list[float]:
    return [1.0] + [0.0] * (count - 1)


def _even(count: int) -> list[float]:
    return [1.0] * count


def _halving(count: int) -> list[float]:
    return [2.0**-index for index in range(1, count)] + [2.0 ** (1 - count)]


def _early(count: int) -> list[float]:
    half = (count + 1) // 2
    return [1.0] * half + [0.0] * (count - half)


def _second(count: int) -> list[float]:
    return _behind(count, 1)


def _middle(count: int) -> list[float]:
    return _behind(count, count // 2)


def _behind(count: int, index: int) -> list[float]:
    place = min(index, count - 1)
    return [float(at == place) for at in range(count)]


def _rising(count: int) -> list[float]:
    return [1.0 + index for index in range(count)]


@dataclass(frozen=True, slots=True)
class Schedule:
    """How one share of tokens spreads over the layers.

    Attributes:
        doc: for the help of the command.
        weights: exponents of as many layers as can select, in proportion to one another.
    """

    doc: str
    weights: Callable[[int], list[float]]

    def exponents(self, count: int) -> list[float]:
        """The exponents of as many layers as can select.

        From layer i on keep^(e_1 + ... + e_i) of the text's tokens go on; the mean of those sums is 1, or less where
        the first of them are 0: no exponent is above 1.
        """
        weights = self.weights(count)
        factor = min(count / sum(accumulate(weights)), 1 / max(weights))
        return [weight * factor for weight in weights]


SCHEDULES: dict[str, Schedule] = {
    "rising": Schedule("little at first, from layer to layer more (exponents as 1 : 2 : 3 ...)", _rising),
    "geometric": Schedule("the same share of its rows after every layer", _even),
    "first": Schedule("all at once after the first layer", _first),
    "early": Schedule("the same share after each layer of the first half, nothing after the others", _early),
    "second": Schedule("all at once after the second layer: later, so dearer at equal keep", _second),
    "middle": Schedule("all at once after the middle layer: dearer still", _middle),
    "halving": Schedule("most after the first layer, from layer to layer half as much (of the exponent)", _halving),
}
# The schedule by which every layer that can select does.
EVERYWHERE = "rising"
# Where no texts were given to choose by: where few labels may change it keeps most at equal work
# (benchmarks/models/keep.md).
DEFAULT = EVERYWHERE


def places(num_layers: int, pooling: str) -> int:
    """Layers that can select: of models that classify by the first token the last layer computes that row alone."""
    return num_layers - 1 if pooling == "first" else num_layers


def exponents(schedule: str, num_layers: int, pooling: str) -> tuple[float, ...]:
    """One exponent a layer.

    Args:
        schedule: a key of `SCHEDULES`, or `NONE`.
        num_layers: layers of the model.
        pooling: `first` or `mean`.

    Returns:
        Exponents; zeros where nothing is selected.
    """
    count = places(num_layers, pooling)
    if schedule == NONE or count == 0:
        return (0.0,) * num_layers
    return (*SCHEDULES[schedule].exponents(count), *[0.0] * (num_layers - count))


def selection_of(operator: Operator, schedule: str, num_layers: int, pooling: str, merge: str = DROPPED) -> Selection:
    """Which layers of a model select, and by what.

    Args:
        operator: of attention; without an importance of rows nothing is selected.
        schedule: a key of `SCHEDULES`, or `NONE`.
        num_layers: layers of the model.
        pooling: `first` or `mean`.
        merge: a key of `MERGES`.
    """
    importance = importance_of(operator)
    if importance is None:
        return Selection(exponents(NONE, num_layers, pooling))
    return Selection(exponents(schedule, num_layers, pooling), importance, merge)
