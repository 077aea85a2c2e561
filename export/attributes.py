"""The operators' attributes that a user of export chooses, by the attentions that have them."""

from __future__ import annotations

from attenuator.errors import ExportError
from attenuator.ops import OPERATORS

__all__ = ["CHOICES", "DEFAULT_ESTIMATORS", "ESTIMATORS", "RANDOM_BLOCKS", "TABLE_PRECISIONS", "check_choice"]


def choices_of(attribute: str) -> dict[str, tuple[str, ...]]:
    """The choices of an attribute, by the key of each operator that has it."""
    return {
        operator.key: item.choices for operator in OPERATORS for item in operator.attributes if item.name == attribute
    }


ESTIMATORS = choices_of("estimator")
TABLE_PRECISIONS = choices_of("table_precision")
RANDOM_BLOCKS = choices_of("random_blocks")
# The same by the attribute's name.
CHOICES = {"estimator": ESTIMATORS, "table_precision": TABLE_PRECISIONS, "random_blocks": RANDOM_BLOCKS}
# By pooling, what keeps more labels at equal work
# (benchmarks/operators/mca.md): a mean over many tokens evens random errors out. Where every
# token is classified it was not measured.
DEFAULT_ESTIMATORS = {"first": "deterministic", "mean": "sampled", "none": "deterministic"}


def check_choice(name: str, choice: str | None, attention: str, choices: dict[str, tuple[str, ...]]) -> None:
    """Refuses an attribute's value that the attention, or the attribute, does not have.

    Args:
        name: of the attribute.
        choice: its value; None where none was chosen.
        attention: key of the operator.
        choices: by operator, as above.

    Raises:
        ExportError: names what is allowed.
    """
    if choice is not None and attention not in choices:
        raise ExportError(f"{name} is '{choice}', but attention '{attention}' has none, must be {' or '.join(choices)}")
    if choice is not None and choice not in choices[attention]:
        raise ExportError(f"{name} is '{choice}', must be one of: {', '.join(choices[attention])}")
