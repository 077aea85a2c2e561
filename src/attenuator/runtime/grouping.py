"""Requests whose answers are put together from rows: pairs with candidate labels, windows, or the tokens of a text."""

from collections.abc import Collection, Mapping
from typing import Any

from attenuator.bundle import Manifest
from attenuator.errors import InvalidRequest
from attenuator.runtime.entities import ENTITIES, Tagging, refuse_entities
from attenuator.runtime.windows import JOIN, LONG_TEXTS, SIZE, Windows
from attenuator.runtime.zero_shot import LABELS, ZERO_SHOT, Candidates

GROUPING = (*ZERO_SHOT, *LONG_TEXTS, *ENTITIES)
Grouped = Candidates | Windows | Tagging


def split_fields(
    fields: Mapping[str, Any], knobs: Collection[str], manifest: Manifest
) -> tuple[Grouped | None, dict[str, Any]]:
    """What the fields of `GROUPING` say, and the others; without `join`, `window` is the knob of a model that has it.

    Args:
        fields: of a request.
        knobs: the model's.
        manifest: likewise.

    Returns:
        None in place of the first where each input is one row, with one answer.

    Raises:
        InvalidRequest: one of `GROUPING` is wrong, or candidate labels stand beside windows.
    """
    ours = set(GROUPING) - ({SIZE} if SIZE in knobs and JOIN not in fields else set())
    others = {name: value for name, value in fields.items() if name not in ours}
    own = {name: value for name, value in fields.items() if name in ours}
    if not own and not manifest.reads_tokens:
        return None, others
    own |= {name: value for name, value in others.items() if name != SIZE}  # what may not stand beside them is there
    return _grouped(own, manifest), others


def _grouped(fields: Mapping[str, Any], manifest: Manifest) -> Grouped:
    """What the fields say, of which one is of `GROUPING` at least unless the model classifies tokens."""
    if not fields.keys().isdisjoint(ZERO_SHOT):
        if not fields.keys().isdisjoint(LONG_TEXTS):
            name = next(name for name in ZERO_SHOT if name in fields)
            allowed = f"left out beside {JOIN}"
            sentence = f"{name} stands beside {JOIN}, must be {allowed}: {LABELS} are judged on whole texts"
            raise InvalidRequest(sentence, param=name, allowed=allowed)
        refuse_entities(fields, manifest)
        return Candidates.of(fields, manifest)
    if manifest.reads_tokens:
        return Tagging.of(fields, manifest)
    refuse_entities(fields, manifest)
    return Windows.of(fields, manifest)
