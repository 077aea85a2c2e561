"""Requests whose answers are put together from rows: pairs with candidate labels, windows, or the tokens of a text."""

from collections.abc import Collection, Mapping
from typing import Any

from attenuator.bundle import Manifest
from attenuator.errors import InvalidRequest
from attenuator.runtime.entities import TAGS, Tagging, refuse_tags
from attenuator.runtime.windows import JOIN, LONG_TEXTS, SIZE, Windows
from attenuator.runtime.zero_shot import LABELS, ZERO_SHOT, Candidates

GROUPING = (*ZERO_SHOT, *LONG_TEXTS, *TAGS)
Grouped = Candidates | Windows | Tagging


def apart(fields: Mapping[str, Any], knobs: Collection[str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The fields of `GROUPING`, and the others; `window` is the knob of a model that has one, unless `join` is there.

    Args:
        fields: of a request.
        knobs: the model's.
    """
    is_knob = SIZE in knobs and JOIN not in fields
    own = {name for name in fields if name in GROUPING and not (is_knob and name == SIZE)}
    ours: dict[str, Any] = {name: value for name, value in fields.items() if name in own}
    return ours, {name: value for name, value in fields.items() if name not in own}


def grouping(fields: Mapping[str, Any], manifest: Manifest) -> Grouped | None:
    """What the fields of a request say; None where each input is one row, with one answer.

    Raises:
        InvalidRequest: one of `GROUPING` is wrong, or candidate labels stand beside windows.
    """
    if manifest.reads_tokens and fields.keys().isdisjoint(ZERO_SHOT):
        return Tagging.of(fields, manifest)
    if not manifest.reads_tokens:
        refuse_tags(fields, manifest)
    if fields.keys().isdisjoint(GROUPING):
        return None
    if fields.keys().isdisjoint(LONG_TEXTS):
        return Candidates.of(fields, manifest)
    for name in ZERO_SHOT:
        if name in fields:
            allowed = f"left out beside {JOIN}"
            sentence = f"{name} stands beside {JOIN}, must be {allowed}: {LABELS} are judged on whole texts"
            raise InvalidRequest(sentence, param=name, allowed=allowed)
    return Windows.of(fields, manifest)
