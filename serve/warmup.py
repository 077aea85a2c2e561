"""Runs a model before its first request, so that code, memory and random planes are ready for it."""

import logging
import time

import numpy as np

from attenuator.runtime import Model, Row
from attenuator.runtime.work import ROW_KNOBS
from attenuator.serve.jobs import Pace

log = logging.getLogger(__name__)
SHORT_TOKENS = (16, 256)
CPU_LIMIT_S = 0.1
SILENT_S = 3.0


def warm_up(model: Model, max_batch_tokens: int) -> Pace:
    """Runs short inputs twice, then the largest batch.

    A CUDA device loads kernels and takes memory at first use, so it runs the largest batch whatever that takes. On the
    CPU a first long run costs little more than a second one: there the batch is halved until it is predicted to take
    at most `CPU_LIMIT_S`.

    Args:
        model: just loaded.
        max_batch_tokens: tokens of the largest batch; an input longer than that runs alone.

    Returns:
        How fast it runs here.
    """
    began = time.monotonic()
    pace = Pace()
    for tokens in SHORT_TOKENS:
        batch = rows_of(model, min(tokens, model.manifest.max_tokens))
        for _ in range(2):
            pace = run_timed(model, batch)
    largest = max(max_batch_tokens, model.manifest.max_tokens)
    if model.device.kind == "cpu":
        while pace.seconds(cost_of(model, rows_of(model, largest))) > CPU_LIMIT_S:
            largest //= 2
    if largest > SHORT_TOKENS[-1]:
        if time.monotonic() - began > SILENT_S:
            log.info("warming up %s: short inputs done, now %d tokens", model.manifest.name, largest)
        pace = run_timed(model, rows_of(model, largest))
    seconds = time.monotonic() - began
    level = logging.INFO if seconds > SILENT_S else logging.DEBUG
    log.log(level, "warmed up %s with up to %d tokens in %.1f s", model.manifest.name, largest, seconds)
    return pace


def rows_of(model: Model, tokens: int) -> list[Row]:
    """Rows as long as the model allows, with `tokens` tokens in all, every one of which goes on to the last layer."""
    longest = model.manifest.max_tokens
    lengths = [longest] * (tokens // longest) + [tokens % longest] * (tokens % longest > 0)
    exact = model.knobs.exact()
    knobs = model.knobs.defaults() | {name: exact[name] for name in ROW_KNOBS & exact.keys()}
    # The last id: the check at load has run it.
    ids = np.full(longest, model.manifest.vocab_size - 1, dtype=np.int64)
    return [Row(ids[:length], np.zeros(length, dtype=np.int64), knobs) for length in lengths]


def cost_of(model: Model, rows: list[Row]) -> float:
    """Predicted multiply-adds of a batch."""
    return sum(model.predict_cost(len(row.token_ids), row.knobs) for row in rows)


def run_timed(model: Model, rows: list[Row]) -> Pace:
    """Runs a batch and says how fast it went."""
    started = time.monotonic()
    model.run(rows)
    return Pace(max(1e8, cost_of(model, rows) / max(time.monotonic() - started, 1e-5)))
