"""Answers and times of one bundle."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from attenuator.calibration.turns import Timing, in_turns
from attenuator.commands.calibrate.runs import batches_of
from attenuator.commands.calibrate.timing import row_of
from attenuator.commands.cost import TimeModel
from attenuator.compare.grid import Setting
from attenuator.compare.partial import Logits, Progressed
from attenuator.ops.knobs import KnobValue
from attenuator.runtime import Encoded, Model, Row

SECONDS_PER_RUN = 0.1  # to spend on one setting at one length
ATTEMPTS = 2  # at the times of one length
MAX_ROUNDS = 100
PROBES = 16
FAR_SLOWER = 1.5  # times the exact answer's time: more than clocks err by

Step = Callable[[int], None]


class TimeUp(Exception):
    """The time to spend is over."""


class Deadline:
    """The time that a comparison may take.

    Args:
        seconds: from now on.
    """

    def __init__(self, seconds: float) -> None:
        self._end = time.monotonic() + seconds

    @property
    def left(self) -> float:
        """Seconds that are left; negative when it is over."""
        return self._end - time.monotonic()

    def check(self) -> None:
        """Ends the work under way.

        Raises:
            TimeUp: the time is over.
        """
        if self.left < 0:
            raise TimeUp


@dataclass(frozen=True, slots=True)
class Times:
    """How long one text alone takes at some lengths.

    Attributes:
        seconds: of each setting at each length, `[settings][lengths]`.
        exact: of the reference's exact setting, taken in turns with them, `[lengths]`.
        slowest: upper ends of the intervals of `seconds`, `[settings][lengths]`.
        credible: whether the clock was not disturbed, `[settings][lengths]`; see `times`.
    """

    seconds: list[list[float]]
    exact: list[float]
    slowest: list[list[float]]
    credible: list[list[bool]]

    def of(self, places: Sequence[int]) -> Times:
        """Those of some of the settings."""
        return Times(
            [self.seconds[place] for place in places],
            self.exact,
            [self.slowest[place] for place in places],
            [self.credible[place] for place in places],
        )

    def far_slower(self) -> list[bool]:
        """Of each setting whether it is far slower than the exact one at every length."""
        return [
            all(mine > FAR_SLOWER * exact for mine, exact in zip(row, self.exact, strict=True)) for row in self.seconds
        ]


def seconds_per_text(model: Model, texts: Sequence[Encoded]) -> float:
    """About how long an exact answer takes, from a few texts spread over the lengths."""
    ordered = sorted(texts, key=lambda each: len(each.token_ids))
    count = min(PROBES, len(ordered))
    probes = [ordered[len(ordered) * (2 * place + 1) // (2 * count)] for place in range(count)]
    knobs = model.knobs.exact()
    model.run([Row(probes[0].token_ids, probes[0].type_ids, knobs)])
    begun = time.perf_counter()
    for probe in probes:
        model.run([Row(probe.token_ids, probe.type_ids, knobs)])
    return (time.perf_counter() - begun) / count


def answers(
    name: str,
    model: Model | None,
    texts: Sequence[Encoded],
    settings: Sequence[Setting],
    results: Progressed,
    deadline: Deadline,
    step: Step,
) -> list[Logits]:
    """Runs the texts at each setting, but for the batches that an earlier run has measured.

    The seed of a text is its place, so that the noise of sampling counts in the agreement as the texts' own does.

    Args:
        name: of the method.
        model: its bundle; None where everything is measured.
        texts: to run.
        settings: to run them at.
        results: keeps each batch as it is done.
        deadline: of the comparison.
        step: called after each batch with the number of its texts.

    Returns:
        Logits `[texts, labels]` of each setting.

    Raises:
        TimeUp: what is done is kept in `results`.
        EngineError: ONNX Runtime failed.
    """
    groups = batches_of(texts)
    everything = []
    for place, setting in enumerate(settings):
        parts = []
        for batch, rows in enumerate(groups):
            done = results.logits(name, place, batch)
            if done is None:
                assert model is not None
                deadline.check()
                done = _run(model, texts, rows, setting)
                results.put(name, place, batch, done)
            parts.append(done)
            step(len(rows))
        stacked = np.concatenate(parts)
        logits = np.empty_like(stacked)
        logits[np.concatenate(groups)] = stacked
        everything.append(logits)
    return everything


def _run(model: Model, texts: Sequence[Encoded], places: Sequence[int], setting: Setting) -> Logits:
    """Logits `[places, labels]` of some texts."""
    knobs = model.knobs.check(setting)
    rows = [Row(texts[place].token_ids, texts[place].type_ids, knobs, seed=place) for place in places]
    return np.stack([row.logits for row in model.run(rows)])


def times(
    model: Model,
    settings: Sequence[Setting],
    reference: Model,
    texts: Sequence[Encoded],
    lengths: Sequence[int],
    modelled: TimeModel,
    *,
    threads: int | None = None,
) -> Times:
    """Times each setting at each length, in turns with the exact model.

    A time is not credible where its turns do not agree, or where it wins more over the bundle's own exact setting than
    the time model allows; such times are taken again, once.

    Args:
        model: the bundle.
        settings: of it.
        reference: the bundle of the exact model.
        texts: what fills the lengths.
        lengths: in tokens.
        modelled: times of the bundle.
        threads: of both; as many as there are cores by default.

    Raises:
        EngineError: ONNX Runtime failed.
    """
    checked: list[tuple[Model, Mapping[str, KnobValue]]] = [(reference, reference.knobs.exact())]
    checked += [(model, model.knobs.exact()), *((model, model.knobs.check(setting)) for setting in settings)]
    columns, credible = [], []
    for tokens in lengths:
        runs = [partial(each.run, [row_of(texts, tokens, knobs)]) for each, knobs in checked]

        def is_credible(timings: Sequence[Timing], tokens: int = tokens) -> list[bool]:
            own = timings[1].gain
            return [
                timing.credible(modelled.most(tokens, setting), own)
                for timing, setting in zip(timings[2:], settings, strict=True)
            ]

        for _ in range(ATTEMPTS):
            timings = in_turns(runs, SECONDS_PER_RUN * len(runs), threads=threads, max_rounds=MAX_ROUNDS)
            if all(is_credible(timings)):
                break
        columns.append(timings)
        credible.append(is_credible(timings))
    exact = [timings[0].seconds for timings in columns]
    rows = list(zip(*(timings[2:] for timings in columns), strict=True))
    return Times(
        [[timing.seconds for timing in row] for row in rows],
        exact,
        [[seconds / timing.low for seconds, timing in zip(exact, row, strict=True)] for row in rows],
        [list(row) for row in zip(*credible, strict=True)],
    )
