"""Calls that are timed in turns."""

import math

from attenuator.commands.turns import MIN_ROUNDS, shortest_s


def test_every_call_runs_as_often_in_turns_and_once_to_warm_up() -> None:
    order: list[str] = []
    seconds = shortest_s([lambda: order.append("first"), lambda: order.append("second")], 0.0)
    assert order == ["first", "second"] * (MIN_ROUNDS + 1)
    assert len(seconds) == 2
    assert all(math.isfinite(value) for value in seconds)


def test_turns_end_at_the_most_or_when_the_time_is_spent() -> None:
    calls: list[int] = []
    shortest_s([lambda: calls.append(1)], 60.0, max_rounds=5)
    assert len(calls) == 6
