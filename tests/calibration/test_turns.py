"""Calls that are timed in turns, on a clock that the test moves."""

import math
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from attenuator.calibration import turns
from attenuator.calibration.turns import MIN_ROUNDS, Timing, in_turns


class Clock:
    """Stands in for the machine's: calls move it by what they take."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        monkeypatch.setattr(turns.time, "perf_counter", lambda: self.now)

    def call(self, seconds: Iterator[float] | float) -> Callable[[], None]:
        def run() -> None:
            self.now += seconds if isinstance(seconds, float) else next(seconds)

        return run


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def test_every_call_runs_as_often_in_turns_and_once_to_warm_up() -> None:
    order: list[str] = []
    calls = in_turns([lambda: order.append("first"), lambda: order.append("second")], 0.0)
    assert order == ["first", "second"] * (len(order) // 2)
    assert len(order) // 2 > MIN_ROUNDS
    assert all(math.isfinite(call.seconds) for call in calls)


def test_turns_end_at_the_most_or_when_the_time_is_spent(clock: Clock) -> None:
    calls: list[int] = []
    in_turns([lambda: calls.append(1)], 60.0, max_rounds=5)
    assert len(calls) == 6
    assert in_turns([clock.call(1.0), clock.call(0.5)], 6.0) == [Timing(1, 1, 1, 1), Timing(0.5, 2, 2, 2)]
    assert clock.now == 1.5 * 5


def test_a_ratio_is_that_of_the_turns_whatever_else_the_machine_does(clock: Clock) -> None:
    """Half of the turns are three times as slow, and single calls are held up at random."""
    random = np.random.default_rng(0)

    def slowed(seconds: float, held_up: float) -> Iterator[float]:
        for turn in range(1000):
            yield seconds * (3.0 if turn % 4 < 2 else 1.0) * (1 + 8 * (random.random() < held_up))

    first, second = in_turns([clock.call(slowed(1.0, 0.2)), clock.call(slowed(0.8, 0.2))], 200.0)
    assert first.gain == 1
    assert second.gain == pytest.approx(1.25)
    assert (second.low, second.high) == (pytest.approx(1.25), pytest.approx(1.25))
    assert (first.seconds, second.seconds) == (pytest.approx(1.0), pytest.approx(0.8))
    assert second.credible()


def test_turns_go_on_where_they_do_not_agree_and_say_so_at_the_end(clock: Clock) -> None:
    random = np.random.default_rng(1)
    calls = [clock.call(iter(np.exp(2 * random.standard_normal(10_000)))) for _ in range(2)]
    _, second = in_turns(calls, 50.0)
    assert clock.now > 200
    assert not second.credible()


def test_a_gain_that_the_model_rules_out_is_not_credible() -> None:
    timing = Timing(0.2, 4.91, 4.7, 5.1)
    assert timing.credible()
    assert not timing.credible(most=1.02)
    assert timing.credible(most=1.02, than=4.5), "over another call that is as fast"
