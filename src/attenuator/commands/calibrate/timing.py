"""Times of a bundle on this device: tokens by settings, one text a run, and what a full batch saves.

Times that the machine's other work has spoilt, whose turns do not agree or which win more than the time model allows,
are taken again; what stays so is priced by the time model.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np

from attenuator.calibration.schema import Latency, Speed
from attenuator.calibration.turns import Timing, in_turns
from attenuator.commands.cost import TimeModel
from attenuator.ops.knobs import KnobValue
from attenuator.runtime import Encoded, Model, Row
from attenuator.runtime.device import hardware

SHORTEST_LENGTH = 16
MAX_ROUNDS = 100
SECONDS_PER_RUN = 0.1  # to spend on one setting at one length
ATTEMPTS = 2  # at the times of one length
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
    modelled: TimeModel,
    progress: Callable[[int], None],
) -> tuple[Latency, int]:
    """Times each setting at each length, and the defaults in a full batch.

    Args:
        model: the bundle.
        texts: what fills the lengths; what some operators save depends on the text.
        settings: checked values by knob name.
        threads: inside one run of the model.
        modelled: times of the same model.
        progress: called with each length before it is timed.

    Returns:
        The table, and how many of its times are modelled, the machine being too busy to take them.

    Raises:
        EngineError: ONNX Runtime failed.
    """
    lengths = lengths_to_time(model.manifest.max_tokens)
    by_length, shares, priced = [], [], 0
    for tokens in lengths:
        progress(tokens)
        timings, share, doubtful = _time_length(model, texts, settings, tokens, threads, modelled)
        by_length.append(timings)
        shares.append(share)
        priced += doubtful
    latency = Latency(
        device=hardware(model.device),
        threads=threads,
        tokens=lengths,
        batch_share=[_rounded(share) for share in shares],
        speeds=[
            Speed(
                knobs=dict(knobs),
                seconds=[_rounded(each.seconds) for each in column],
                gain=[(_rounded(each.low), _rounded(each.high)) for each in column],
            )
            for knobs, column in zip(settings, zip(*by_length, strict=True), strict=True)
        ],
    )
    return latency, priced


def _rounded(value: float) -> float:
    """As many digits as a clock has."""
    return float(f"{value:.4g}")


def _time_length(
    model: Model,
    texts: Sequence[Encoded],
    settings: Sequence[Mapping[str, KnobValue]],
    tokens: int,
    threads: int,
    modelled: TimeModel,
) -> tuple[list[Timing], float, int]:
    """Times each setting at one length, and the defaults in a full batch; arguments as `time_settings` has them.

    Returns:
        The time of each setting; what a text takes in the batch, as a share of what it takes alone; and how many of the
        times are modelled.
    """
    every = [*settings, model.knobs.defaults()]
    count = max(1, min(BATCH_TEXTS, BATCH_TOKENS // tokens))
    alone = [[row_of(texts, tokens, knobs)] for knobs in every]
    runs = [partial(model.run, rows) for rows in [*alone, alone[-1] * count]]
    on_threads = threads if model.device.kind == "cpu" else None
    for _ in range(ATTEMPTS):
        timings = in_turns(runs, SECONDS_PER_RUN * len(runs), threads=on_threads, max_rounds=MAX_ROUNDS)
        doubtful = _doubtful(timings, every, tokens, modelled)
        if not doubtful:
            break
    for place in doubtful:
        gain = modelled.gain(tokens, every[place])
        timings[place] = Timing(timings[0].seconds / gain, gain, gain, gain)
    *alone_timings, single, full = timings
    return alone_timings, full.seconds / count / single.seconds, len(doubtful)


def _doubtful(
    timings: Sequence[Timing], settings: Sequence[Mapping[str, KnobValue]], tokens: int, modelled: TimeModel
) -> list[int]:
    """Places of the settings whose times are not credible; the batch, which is last, is not looked at."""
    return [place for place, knobs in enumerate(settings) if not timings[place].credible(modelled.most(tokens, knobs))]
