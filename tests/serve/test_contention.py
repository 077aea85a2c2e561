"""How the lanes slow each other down: what is predicted from it, and that it is learned."""

import asyncio
import math
from pathlib import Path

import pytest
from engines import planned

from attenuator.runtime import Input, Row
from attenuator.runtime.session import cpu_count
from attenuator.serve.engine import Engine
from attenuator.serve.scheduling.times import MEMORY_S, MOST_CONTENTION, BusyTime, Contention
from attenuator.serve.settings import ServeSettings


def test_it_begins_with_the_threads_of_both_runs_over_the_cores() -> None:
    assert [Contention(threads, 8).factor for threads in (1, 4, 6, 8, 16)] == [1.0, 1.0, 1.5, 2.0, 2.0]


def test_time_beside_the_other_lane_is_counted_while_both_run() -> None:
    contention = Contention(2, 2)
    heavy = contention.begin("heavy", 10.0)
    light = contention.begin("light", 11.0)
    contention.end("light", 11.5)
    assert contention.beside_s("light", light, 11.5) == pytest.approx(0.5)
    contention.begin("light", 12.0)
    assert contention.beside_s("heavy", heavy, 12.25) == pytest.approx(0.75)
    contention.end("light", 13.0)
    assert contention.beside_s("heavy", heavy, 20.0) == pytest.approx(1.5)
    assert contention.alone_s(10.0, 1.5) == pytest.approx(9.25)


def test_work_takes_longer_while_the_other_lane_has_work() -> None:
    contention = Contention(2, 2)
    assert contention.shared_s("light", 0.2, 0.0, 1.0) == 0.2
    assert contention.shared_s("light", 0.2, 5.0, 1.0) == pytest.approx(0.4)
    assert contention.shared_s("heavy", 3.0, 1.0, 1.0) == pytest.approx(4.0)
    assert Contention(1, 2).shared_s("light", 0.2, 5.0, 1.0) == 0.2


def test_a_lane_that_was_busy_lately_is_expected_to_be_so() -> None:
    contention = Contention(2, 2)
    for second in range(60):  # half of the time
        contention.begin("heavy", float(second))
        contention.end("heavy", second + 0.5)
    assert contention.shared_s("light", 2.0, 0.0, 60.0) == pytest.approx(3.0, abs=0.1)
    assert contention.shared_s("light", 2.0, 1.0, 60.0) == pytest.approx(3.5, abs=0.1), "after what waits there now"
    assert contention.shared_s("light", 2.0, 0.0, 60.0 + 10 * MEMORY_S) == pytest.approx(2.0, abs=0.01)


def test_busy_time_does_not_depend_on_when_it_is_asked() -> None:
    one, other = BusyTime(), BusyTime()
    for lane in (one, other):
        lane.at(1.0).busy = True
    for _ in range(3):
        one.at(2.0)
    one.at(2.5).busy = True
    for lane in (one, other):
        lane.at(4.0).busy = False
    assert one.at(9.0).total_s == other.at(9.0).total_s == 3.0
    assert one.share == pytest.approx(other.share)
    assert 0 < one.share < 1


@pytest.mark.parametrize("truth", [1.0, 1.4, 2.0, 3.0])
def test_the_factor_follows_the_batches_that_ran_beside_another(truth: float) -> None:
    contention = Contention(2, 2)
    for index in range(300):
        beside = (0.3, 0.8, 1.0)[index % 3]
        alone_s = 0.1
        seconds = alone_s / (1 - beside * (1 - 1 / truth))
        contention.learn(seconds, beside * seconds, alone_s)
    assert contention.factor == pytest.approx(truth, rel=0.05)


def test_batches_that_ran_alone_teach_nothing_and_one_that_was_stopped_little() -> None:
    contention = Contention(2, 2)
    contention.learn(50.0, 0.0, 0.1)
    assert contention.factor == 2.0
    contention.learn(50.0, 50.0, 0.1)
    assert 2.0 < contention.factor < 2.2
    for _ in range(1000):
        contention.learn(50.0, 50.0, 0.1)
    assert contention.factor == MOST_CONTENTION
    assert math.isfinite(contention.alone_s(50.0, 50.0))


def test_a_batch_beside_another_is_never_thought_to_be_faster() -> None:
    contention = Contention(1, 2)
    for _ in range(1000):
        contention.learn(0.01, 0.01, 0.1)
    assert contention.factor == 1.0


def test_a_short_request_is_predicted_to_take_longer_while_a_long_one_runs(bundles: dict[str, Path]) -> None:
    """Its own lane is empty; the other one uses the same cores."""

    async def scenario() -> None:
        engine = Engine(ServeSettings(threads=cpu_count()))
        await engine.start([bundles["yoso"]])
        model = engine.model(None)
        knobs = model.knobs.exact()
        [encoded] = await engine.encode(model, [Input("inputs", "good film " * 4000)], planned(knobs), truncate=False)
        assert engine.admission.forecast(model, [10], knobs).queue_s == 0
        running = asyncio.create_task(engine.run(model, [Row(encoded.token_ids, encoded.type_ids, knobs)]))
        async with asyncio.timeout(20):
            while not engine.running("heavy"):
                await asyncio.sleep(0)
        busy = engine.admission.forecast(model, [10], knobs)
        assert 0 < busy.queue_s <= busy.run_s, "at most twice as long"
        await running
        await engine.stop()

    asyncio.run(scenario())
