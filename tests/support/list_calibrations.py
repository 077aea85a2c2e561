"""Calibrations on lists for tests, written down."""

from collections.abc import Mapping, Sequence
from typing import Any

from calibrations import CONFIDENCE, calibration

from attenuator.calibration.proportions import proportion
from attenuator.runtime import Model

TOPS, SHARES, TRIALS = [1, 5], [0.0, 0.2, 0.5, 1.0], 100


def list_calibration(
    model: Model,
    settings: Sequence[tuple[Mapping[str, float], Sequence[Sequence[int]]]],
    reference: str | None = None,
) -> dict[str, Any]:
    """The content of a `calibration.json` that says what first steps keep of the order of lists.

    Args:
        model: the bundle.
        settings: of the first step, each with how many of 100 lists keep their top, `[TOPS][SHARES]`.
        reference: revision of the model that scores again; None where it is the same.
    """
    rows = [
        {
            "knobs": dict(knobs),
            "same_top": [[proportion(count, TRIALS, CONFIDENCE).model_dump() for count in row] for row in kept],
            "overlap": [1.0] * len(SHARES),
        }
        for knobs, kept in settings
    ]
    lists = {
        "data": "lists.jsonl",
        "data_sha256": "0" * 64,
        "lists": TRIALS,
        "documents": 40,
        "reference": reference,
        "tops": TOPS,
        "shares": SHARES,
        "settings": rows,
    }
    texts = [(model.knobs.exact(), [1000])]
    return calibration(model.manifest.revision, [model.manifest.max_tokens], texts) | {"lists": lists}
