"""The table of docs/own-model.md says which attention a checkpoint of each family can have."""

import re
from pathlib import Path

import pytest
from checkpoints import CHECKPOINTS

from attenuator.export.architectures import architecture_of
from attenuator.export.families import FAMILIES, OWN_ENCODER, Family
from attenuator.export.packed import OPERATOR_BY_KEY

PAGE = (Path(__file__).resolve().parents[2] / "docs/own-model.md").read_text(encoding="utf-8")


def table() -> dict[str, set[str]]:
    """Attentions by the title of each family."""
    lines = PAGE.partition("| checkpoint | `--attention` |\n|---|---|\n")[2].partition("\n\n")[0].splitlines()
    rows = [line.strip("| ").split(" | ") for line in lines]
    return {title: set(re.findall(r"`(\w+)`", keys)) for titles, keys in rows for title in re.split("[,;] ", titles)}


def allowed(config: object, model_type: str) -> set[str]:
    operators = [OPERATOR_BY_KEY[key] for key in architecture_of(model_type).operators(config)]
    return {operator.asked_as or operator.key for operator in operators}


@pytest.mark.parametrize(
    "family", [one for one in FAMILIES if one.model_type != OWN_ENCODER], ids=lambda one: one.title
)
def test_a_familys_attentions_are_those_of_the_page(family: Family) -> None:
    assert table()[family.title] == allowed(CHECKPOINTS[family.model_type].config, family.model_type)


def test_a_deberta_without_terms_for_distances_has_those_of_the_first_row() -> None:
    config = type(CHECKPOINTS["deberta"].config)(relative_attention=False)
    assert table()["DeBERTa without relative positions"] == allowed(config, "deberta")
    assert (
        not set(table())
        - {family.title for family in FAMILIES}
        - {
            "DeBERTa without relative positions",
            "the project's own encoder",
        }
    )
