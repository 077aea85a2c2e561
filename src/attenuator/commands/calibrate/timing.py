"""Times a bundle on this device: tokens by settings, one text a run, and what a full batch saves."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np

from attenuator.calibration.schema import Latency, Speed
from attenuator.commands.turns import shortest_s
from attenuator.ops.knobs import KnobValue
from attenuator.runtime import Encoded, Model, Row
from attenuator.runtime.device import hardware

SHORTEST_LENGTH = 16
MAX_ROUNDS = 100
SECONDS_PER_RUN = 0.1  # to spend on one setting at one length
BATCH_TOKENS, BATCH_TEXTS = 8192, 32


def lengths_to_time(max_tokens: int) -> list[int]:
    """Doubling lengths that end at the longest."""
    lengths = [SHORTEST_LENGTH << step for step in range(32) if SHORTEST_LENGTH << step < max_tokens]
    return [*lengths, max_tokens]


def row_of(texts: Sequence[Encoded], tokens: int, knobs: Mapping[str, KnobValue]) -> Row:
    """A row of some length, from the text that is nearest in length: repeated, or cut at its end."""
    nearest = min(texts, key=lambda each: abs(len(each.token_ids) - tokens))
    return Row(np.resize(nearest.token_ids, tokens), np.resize(nearest.type_ids, tokens), knobs)


def time_settings(
    model: Model,
    texts: Sequence[Encoded],
    settings: Sequence[Mapping[str, KnobValue]],
    *,
    threads: int,
    progress: Callable[[int], None],
) -> Latency:
    """Times each setting at each length, and the defaults in a full batch.

    Args:
        model: the bundle.
        texts: what fills the lengths; what some operators save depends on the text.
        settings: checked values by knob name.
        threads: inside one run of the model.
        progress: called with each length before it is timed.

    Returns:
        The table.

    Raises:
        EngineError: ONNX Runtime failed.
    """
    defaults = model.knobs.defaults()
    lengths = lengths_to_time(model.manifest.max_tokens)
    by_length, shares = [], []
    for tokens in lengths:
        progress(tokens)
        count = max(1, min(BATCH_TEXTS, BATCH_TOKENS // tokens))
        alone = [[row_of(texts, tokens, knobs)] for knobs in [*settings, defaults]]
        runs = [partial(model.run, rows) for rows in [*alone, alone[-1] * count]]
        *seconds, single, batch = shortest_s(runs, SECONDS_PER_RUN * len(runs), max_rounds=MAX_ROUNDS)
        by_length.append(seconds)
        shares.append(batch / count / single)
    return Latency(
        device=hardware(model.device),
        threads=threads,
        tokens=lengths,
        batch_share=shares,
        speeds=[
            Speed(knobs=dict(knobs), seconds=list(column))
            for knobs, column in zip(settings, zip(*by_length, strict=True), strict=True)
        ],
    )
