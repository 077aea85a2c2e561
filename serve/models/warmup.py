"""The runs of a model before its first request, so that code, memory and random planes are ready for it."""

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from attenuator.calibration.times import LatencyTable
from attenuator.ops.knobs import Knobs
from attenuator.runtime import Model, Row
from attenuator.runtime.device import hardware
from attenuator.runtime.explaining import cost_of_rows
from attenuator.runtime.session import cpu_count
from attenuator.runtime.work import ROW_KNOBS

log = logging.getLogger(__name__)
SHORT_TOKENS = (16, 256)
CPU_LIMIT_S = 0.1
SILENT_S = 3.0
NOISY = 1.3  # factor between times and their fit from which on they are not used


@dataclass(frozen=True, slots=True)
class Speed:
    """How fast a model was at its warm-up: multiply-adds per second, and the seconds of one batch.

    The table has the measured times of its calibration; None where there are none from here.
    """

    cost_per_s: float
    table: LatencyTable | None
    tokens: Sequence[int]
    knobs: Knobs
    seconds: float


def warm_up(model: Model, max_batch_tokens: int, threads: int | None = None) -> Speed:
    """Runs short inputs twice, then the largest batch.

    A CUDA device loads kernels and takes memory at first use, so it runs the largest batch whatever that takes. On the
    CPU a first long run costs little more than a second one: there the batch is halved until it is predicted to take
    at most `CPU_LIMIT_S`.
    """
    began = time.monotonic()
    name = model.manifest.name
    for tokens in SHORT_TOKENS:
        batch = rows_of(model, min(tokens, model.manifest.max_tokens))
        for _ in range(2):
            seconds = run_timed(model, batch)
    largest = max(max_batch_tokens, model.manifest.max_tokens)
    if model.device.kind == "cpu":
        while cost_of_rows(model, rows_of(model, largest)) * seconds / cost_of_rows(model, batch) > CPU_LIMIT_S:
            largest //= 2
    if largest > SHORT_TOKENS[-1]:
        if time.monotonic() - began > SILENT_S:
            log.info("warming up %s: short inputs done, now %d tokens", name, largest)
        batch = rows_of(model, largest)
        seconds = run_timed(model, batch)
    took_s = time.monotonic() - began
    level = logging.INFO if took_s > SILENT_S else logging.DEBUG
    log.log(level, "warmed up %s with up to %d tokens in %.1f s", name, largest, took_s)
    cost_per_s = max(1e8, cost_of_rows(model, batch) / seconds)
    lengths = [len(row.token_ids) for row in batch]
    return Speed(cost_per_s, table_of(model, threads or cpu_count()), lengths, batch[0].knobs, seconds)


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


def rows_of(model: Model, tokens: int) -> list[Row]:
    """Rows as long as the model allows, with `tokens` tokens in all, every one of which goes on to the last layer."""
    longest = model.manifest.max_tokens
    lengths = [longest] * (tokens // longest) + [tokens % longest] * (tokens % longest > 0)
    exact = model.knobs.exact()
    knobs = model.knobs.defaults() | {name: exact[name] for name in ROW_KNOBS & exact.keys()}
    # The last id: the check at load has run it.
    ids = np.full(longest, model.manifest.vocab_size - 1, dtype=np.int64)
    return [Row(ids[:length], np.zeros(length, dtype=np.int64), knobs) for length in lengths]


def run_timed(model: Model, rows: list[Row]) -> float:
    """Runs a batch and returns the seconds that it took."""
    started = time.monotonic()
    model.run(rows)
    return max(time.monotonic() - started, 1e-5)
