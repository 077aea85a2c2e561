"""Requests in which an input is several rows, whose answers become one: pairs with candidate labels, or windows."""

from collections.abc import Mapping
from typing import Any

from attenuator.bundle import Manifest
from attenuator.errors import InvalidRequest
from attenuator.runtime.windows import JOIN, LONG_TEXTS, Windows
from attenuator.runtime.zero_shot import LABELS, ZERO_SHOT, Candidates

GROUPING = (*ZERO_SHOT, *LONG_TEXTS)
Grouped = Candidates | Windows


def grouping(fields: Mapping[str, Any], manifest: Manifest) -> Grouped:
    """What the fields of a request say, of which one at least is of `GROUPING`.

    Raises:
        InvalidRequest: one is wrong, or candidate labels stand beside windows.
    """
    if fields.keys().isdisjoint(LONG_TEXTS):
        return Candidates.of(fields, manifest)
    for name in ZERO_SHOT:
        if name in fields:
            allowed = f"left out beside {JOIN}"
            sentence = f"{name} stands beside {JOIN}, must be {allowed}: {LABELS} are judged on whole texts"
            raise InvalidRequest(sentence, param=name, allowed=allowed)
    return Windows.of(fields, manifest)
