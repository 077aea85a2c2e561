"""Runs a model before its first request, so that code, memory and random planes are ready for it."""

import logging
import time

import numpy as np

from attenuator.calibration.times import LatencyTable
from attenuator.runtime import Model, Row
from attenuator.runtime.device import hardware
from attenuator.runtime.session import cpu_count
from attenuator.runtime.work import ROW_KNOBS
from attenuator.serve.latency import LatencyModel

log = logging.getLogger(__name__)
SHORT_TOKENS = (16, 256)
CPU_LIMIT_S = 0.1
SILENT_S = 3.0
NOISY = 1.3  # factor between times and their fit from which on they are not used


def warm_up(model: Model, max_batch_tokens: int, threads: int | None = None) -> LatencyModel:
    """Runs short inputs twice, then the largest batch.

    A CUDA device loads kernels and takes memory at first use, so it runs the largest batch whatever that takes. On the
    CPU a first long run costs little more than a second one: there the batch is halved until it is predicted to take
    at most `CPU_LIMIT_S`.

    Args:
        model: just loaded.
        max_batch_tokens: tokens of the largest batch; an input longer than that runs alone.
        threads: inside one run; every core this process may use by default.

    Returns:
        How long its rows take here.
    """
    began = time.monotonic()
    for tokens in SHORT_TOKENS:
        batch = rows_of(model, min(tokens, model.manifest.max_tokens))
        for _ in range(2):
            seconds = run_timed(model, batch)
    cost_per_s = cost_of(model, batch) / seconds
    largest = max(max_batch_tokens, model.manifest.max_tokens)
    if model.device.kind == "cpu":
        while cost_of(model, rows_of(model, largest)) / cost_per_s > CPU_LIMIT_S:
            largest //= 2
    if largest > SHORT_TOKENS[-1]:
        if time.monotonic() - began > SILENT_S:
            log.info("warming up %s: short inputs done, now %d tokens", model.manifest.name, largest)
        batch = rows_of(model, largest)
        seconds = run_timed(model, batch)
        cost_per_s = cost_of(model, batch) / seconds
    log_end(model, largest, time.monotonic() - began)
    table = table_of(model, threads or cpu_count())
    latency = LatencyModel(model.cost.predict, cost_per_s=max(1e8, cost_per_s), table=table)
    latency.learn(latency.row_times([len(row.token_ids) for row in batch], batch[0].knobs), seconds)
    return latency


def table_of(model: Model, threads: int) -> LatencyTable | None:
    """The times of the model's calibration that were taken on this device with as many threads.

    None without such, or where they are noise.
    """
    here = hardware(model.device)
    for measured in model.calibration.latency if model.calibration else ():
        if measured.device == here and measured.threads == threads and measured.speeds:
            table = LatencyTable(measured, model.cost.predict)
            if table.noise <= NOISY:
                return table
            log.info(
                "%s: the times of its calibration contradict each other by a factor of %.1f, so they are not used; "
                "take them again on an idle machine, with attenuator calibrate's --only-times",
                model.manifest.name,
                table.noise,
            )
    return None


def log_end(model: Model, tokens: int, seconds: float) -> None:
    """Says what was done, at a level that rises with the time that it took."""
    level = logging.INFO if seconds > SILENT_S else logging.DEBUG
    log.log(level, "warmed up %s with up to %d tokens in %.1f s", model.manifest.name, tokens, seconds)


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


def run_timed(model: Model, rows: list[Row]) -> float:
    """Runs a batch and returns the seconds that it took."""
    started = time.monotonic()
    model.run(rows)
    return max(time.monotonic() - started, 1e-5)
