"""The latency model, on a machine that exists only as a formula: no clock, no runs."""

import copy
import math
import random
from collections import Counter
from collections.abc import Callable, Mapping
from itertools import pairwise

import numpy as np
import pytest
from calibrations import calibration, parsed

from attenuator.calibration.schema import Latency, Speed
from attenuator.calibration.times import LatencyTable, RowTime
from attenuator.runtime import Model
from attenuator.runtime.device import hardware
from attenuator.serve.models.warmup import table_of
from attenuator.serve.scheduling.times import (
    MAX_REMEMBERED,
    MAX_STEP,
    MODEL_BOUND,
    SIZE_BOUND,
    LatencyModel,
    coarse_lengths,
)

Machine = Callable[[list[RowTime]], float]


def cost(tokens: int, knobs: Mapping[str, float]) -> float:
    """Linear work and a knob that multiplies the quadratic part."""
    return 1e6 * tokens + 100.0 * tokens * tokens * knobs.get("share", 1.0)


def times_of(latency: LatencyModel, *tokens: int, share: float = 1.0) -> list[RowTime]:
    return latency.row_times(tokens, {"share": share})


def learn(latency: LatencyModel, machine: Machine, *tokens: int, batches: int = 60) -> None:
    for _ in range(batches):
        times = times_of(latency, *tokens)
        latency.learn(times, machine(times))


def slower(factor: float) -> Machine:
    """A machine that takes so many times what is predicted beforehand."""
    return lambda times: factor * sum(time.added_s for time in times)


@pytest.mark.parametrize("factor", [0.25, 1.0, 3.0, 20.0])
def test_predictions_follow_what_batches_take(factor: float) -> None:
    latency = LatencyModel(cost)
    learn(latency, slower(factor), 100, 200, 400, batches=120)
    for tokens, tolerance in (([100, 200, 400], 0.03), ([100, 100, 400], 0.2), ([400], 0.25), ([100], 0.4)):
        times = times_of(latency, *tokens)
        assert latency.batch_s(Counter(times)) == pytest.approx(slower(factor)(times), rel=tolerance)
    assert latency.upper_s(1.0) < 1.1, "it has become sure"


def test_the_first_batches_count_most() -> None:
    """Times that were taken on an idle machine are soon corrected on a busy one."""
    latency = LatencyModel(cost)
    learn(latency, slower(3.0), 300, batches=4)
    assert 2.4 < latency.correction(*times_of(latency, 300)) < 3.6


def test_what_slows_one_size_is_learned_for_that_size_and_partly_for_others() -> None:
    """Long rows take three times what is predicted, short ones as much as is predicted."""
    latency = LatencyModel(cost)
    for _ in range(300):
        learn(latency, slower(1.0), 50, batches=1)
        learn(latency, slower(3.0), 8000, batches=1)
    [short], [long] = times_of(latency, 50), times_of(latency, 8000)
    assert latency.batch_s(Counter([long])) == pytest.approx(3 * long.added_s, rel=0.25)
    assert latency.batch_s(Counter([short])) == pytest.approx(short.added_s, rel=0.25)
    unseen = latency.correction(*times_of(latency, 1_000_000))
    assert 1 < unseen < 3


def test_rows_that_are_little_of_a_batch_learn_little_from_it() -> None:
    latency = LatencyModel(cost)
    for _ in range(60):
        learn(latency, slower(3.0), 10, 4000, batches=1)
        learn(latency, slower(1.0), 500, batches=1)
    short, long = (latency.correction(*times_of(latency, tokens)) for tokens in (10, 4000))
    assert long > 1.1 * short


def test_a_machine_that_gets_faster_again_is_noticed_by_sizes_that_do_not_run() -> None:
    """Else a goal would never choose a slow setting again, which then would never run and be learned from."""
    latency = LatencyModel(cost)
    learn(latency, slower(8.0), 8000, batches=100)
    learn(latency, slower(1.0), 50, batches=100)
    assert latency.correction(*times_of(latency, 8000)) < 4


def test_one_outlier_moves_the_prediction_little_and_many_cannot_make_it_absurd() -> None:
    latency = LatencyModel(cost)
    learn(latency, slower(1.0), 100, batches=20)
    times = times_of(latency, 100)
    before = latency.batch_s(Counter(times))
    latency.learn(times, 3600.0)
    assert latency.batch_s(Counter(times)) < before * math.exp(MAX_STEP) ** 0.2
    for seconds in (1e9, 0.0):
        for _ in range(500):
            latency.learn(times, seconds)
        assert abs(math.log(latency.correction(times[0]))) <= MODEL_BOUND + SIZE_BOUND + 1e-9
        assert math.isfinite(latency.upper_s(latency.batch_s(Counter(times))))


def test_a_long_queue_does_not_teach_the_same_error_many_times() -> None:
    """All rows were predicted on arrival, before the first of them ran: no overshoot."""
    latency = LatencyModel(cost)
    waiting = [times_of(latency, 500) for _ in range(400)]
    corrections = []
    for times in waiting:
        latency.learn(times, slower(2.0)(times))
        corrections.append(latency.correction(times[0]))
    assert max(corrections) < 2.05
    assert corrections[-1] == pytest.approx(2.0, rel=0.02)


def test_noise_widens_the_limit_and_most_batches_stay_below_it() -> None:
    draw = random.Random(3)
    latency = LatencyModel(cost)
    within = []
    for batch in range(2000):
        times = times_of(latency, draw.randint(20, 2000))
        seconds = slower(1.5 * math.exp(draw.gauss(0, 0.3)))(times)
        if batch > 200:
            within.append(seconds <= latency.upper_s(latency.batch_s(Counter(times))))
        latency.learn(times, seconds)
    assert 0.18 < latency.spread < 0.4, "the mean size of the error is 0.24"
    assert np.mean(within) > 0.7


def table(**fields: object) -> LatencyTable:
    lengths, shares = [16, 256, 4096], [0.25, 0.5, 1.2]
    speeds = [
        Speed(knobs={"share": 1.0}, seconds=[0.001, 0.01, 0.5]),
        Speed(knobs={"share": 0.1}, seconds=[0.001, 0.008, 0.2]),
    ]
    measured = Latency(device="cpu", threads=1, tokens=lengths, batch_share=shares, speeds=speeds)
    return LatencyTable(measured.model_copy(update=fields), cost)


def test_times_of_a_calibration_go_before_the_cost_and_are_interpolated() -> None:
    latency = LatencyModel(cost, table=table())
    short, middle, between, long = times_of(latency, 4, 256, 1024, 4096)
    assert short.alone_s == pytest.approx(0.001), "no time is known of shorter texts"
    assert (middle.alone_s, middle.added_s) == (pytest.approx(0.01), pytest.approx(0.005))
    assert between.alone_s == pytest.approx(math.sqrt(0.01 * 0.5))
    assert long.added_s == long.alone_s, "a batch never costs more than its rows one by one"
    assert times_of(latency, 256, share=0.1)[0].alone_s == pytest.approx(0.008)
    assert latency.batch_s(Counter([middle])) == pytest.approx(0.01)
    assert latency.batch_s(Counter([middle] * 10)) == pytest.approx(0.055)


def test_lengths_and_settings_that_were_not_timed_are_scaled_by_cost() -> None:
    latency = LatencyModel(cost, table=table())
    [beyond] = times_of(latency, 8192)
    ratio = cost(8192, {"share": 1.0}) / cost(4096, {"share": 1.0})
    assert beyond.alone_s == pytest.approx(0.5 * ratio)
    [other] = times_of(latency, 256, share=0.05)
    assert other.alone_s == pytest.approx(0.008 * cost(256, {"share": 0.05}) / cost(256, {"share": 0.1}))
    [both] = times_of(latency, 8192, share=0.05)
    assert both.alone_s == pytest.approx(0.2 * cost(8192, {"share": 0.05}) / cost(4096, {"share": 0.1}))


@pytest.mark.parametrize("tokens", [1, 16, 64, 700, 4096, 100_000])
def test_more_hashes_never_take_less_time_between_those_that_were_timed(tokens: int) -> None:
    """Which timed setting costs about as much depends on the length: the expectation, 0, is quadratic."""

    def hashing(length: int, knobs: Mapping[str, float]) -> float:
        return 1e6 * length + (knobs["hashes"] * 1e5 * length if knobs["hashes"] else 2e4 * length * length)

    lengths, speeds = [16 << step for step in range(9)], []
    for hashes in (0.0, 64.0, 32.0, 16.0, 8.0):
        seconds = [3e-4 + hashing(length, {"hashes": hashes}) / 5e9 for length in lengths]
        speeds.append(Speed(knobs={"hashes": hashes}, seconds=seconds))
    measured = Latency(device="cpu", threads=1, tokens=lengths, batch_share=[1.0] * 9, speeds=speeds)
    table = LatencyTable(measured, hashing)
    times = [table.row_times([tokens], {"hashes": float(hashes)})[0].alone_s for hashes in range(8, 65)]
    assert all(after >= before * 0.98 for before, after in pairwise(times))
    timed_length = max(tokens, lengths[0])  # no time is known of shorter texts
    expected = [3e-4 + hashing(timed_length, {"hashes": hashes}) / 5e9 for hashes in range(8, 65)]
    assert times == pytest.approx(expected, rel=0.25)


def timed(noise: Callable[[int, int], float]) -> LatencyTable:
    """Eight settings at nine lengths, each time off by a factor."""
    lengths, shares = [16 << step for step in range(9)], [step / 8 for step in range(1, 9)]
    speeds = [
        Speed(
            knobs={"share": share},
            seconds=[
                cost(length, {"share": share}) / 5e9 * noise(row, column) for column, length in enumerate(lengths)
            ],
        )
        for row, share in enumerate(shares)
    ]
    return LatencyTable(Latency(device="cpu", threads=1, tokens=lengths, batch_share=[1.0] * 9, speeds=speeds), cost)


def test_a_time_that_stands_out_is_drawn_to_the_others() -> None:
    """One that was taken while the machine did something else; what a setting or a length has in common stays."""
    busy = {(0, 3): 40.0, (2, 7): 8.0, (5, 3): 0.1}
    clean = LatencyModel(cost, table=timed(lambda row, column: 1.0 + row / 8 + column / 4))
    table = timed(lambda row, column: (1.0 + row / 8 + column / 4) * busy.get((row, column), 1.0))
    assert table.noise < 1.15
    latency = LatencyModel(cost, table=table)
    for row in range(8):
        share = (row + 1) / 8
        for column in range(9):
            [time], [expected] = (times_of(each, 16 << column, share=share) for each in (latency, clean))
            tolerance = 0.6 if (row, column) in busy else 1e-3
            assert time.alone_s == pytest.approx(expected.alone_s, rel=tolerance)


def test_the_noise_of_a_table_is_measured() -> None:
    draw = random.Random(1)
    assert timed(lambda row, column: math.exp(draw.gauss(0, 0.05))).noise < 1.1
    assert timed(lambda row, column: math.exp(draw.gauss(0, 1.0))).noise > 1.5


@pytest.mark.parametrize(("threads", "noise", "used"), [(1, 0.05, True), (2, 0.05, False), (1, 1.0, False)])
def test_times_of_this_device_and_thread_count_are_used_unless_they_are_noise(
    models: dict[str, Model], threads: int, noise: float, used: bool
) -> None:
    draw = random.Random(2)
    model = copy.copy(models["yoso"])
    lengths, settings = [16, 128, 1024, 8192], [{"num_hashes": value} for value in (0, 64, 16, 4)]
    latency = {
        "device": hardware(model.device),
        "threads": 1,
        "tokens": lengths,
        "batch_share": [1.0] * 4,
        "speeds": [
            {
                "knobs": knobs,
                "seconds": [model.predict_cost(n, knobs) / 5e9 * math.exp(draw.gauss(0, noise)) for n in lengths],
            }
            for knobs in settings
        ],
    }
    counts: list[tuple[dict[str, int], list[int]]] = [(knobs, [9]) for knobs in settings]
    content = calibration(model.manifest.revision, [8192], counts, trials=9, latency=[latency])
    model.calibration = parsed(content)
    assert (table_of(model, threads) is not None) == used


def test_what_is_remembered_is_bounded_though_callers_may_set_any_knob() -> None:
    latency = LatencyModel(cost)
    for step in range(MAX_REMEMBERED + 1000):
        share = step / MAX_REMEMBERED
        [time] = times_of(latency, 10, share=share)
        assert time.added_s == pytest.approx(cost(10, {"share": share}) / 5e9)
    assert len(latency._beforehand) <= 1000


def test_many_lengths_are_predicted_as_few() -> None:
    lengths = [random.Random(5).randint(1, 20_000) for _ in range(5000)]
    coarse = coarse_lengths(lengths)
    assert sum(coarse.values()) == 5000
    assert len(coarse) < 8 * math.log2(20_000)
    assert sum(lengths) <= sum(length * count for length, count in coarse.items()) < 1.1 * sum(lengths)
    assert coarse_lengths([301, 19_999, 301]) == {301: 2, 19_999: 1}
    assert coarse_lengths([3] * 5 + [5] * 4) == {3: 5, 5: 4}, "by a tenth at most"
