"""The order of the queue, simulated: virtual time, many patterns of arrival, two lanes that run side by side."""

import asyncio
import random
from collections.abc import Iterator

import pytest
from queue_simulation import SHORT_S, Request, bulk, shorts, simulate

from attenuator.serve.scheduling.fairness import OLDEST_SHARE
from attenuator.serve.scheduling.queue import BATCH_S
from attenuator.serve.scheduling.requests import HEAVY_S


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    created = asyncio.new_event_loop()
    yield created
    created.close()


@pytest.mark.parametrize("row_s", [0.002, 0.02, 0.049, 0.099, 0.5])
@pytest.mark.parametrize("clients", [1, 4, 32])
@pytest.mark.parametrize("together", [True, False])
def test_a_short_request_waits_for_about_one_batch_whatever_others_queue(
    loop: asyncio.AbstractEventLoop, row_s: float, clients: int, together: bool
) -> None:
    large = [bulk(0.0 if together else 0.37 * client, row_s) for client in range(clients)]
    small = shorts(0.21, 10.0)
    simulate(loop, large + small)
    # The batch under way, one that the oldest leads, its own.
    longest = max(BATCH_S, min(row_s, HEAVY_S) if row_s <= HEAVY_S else 0.0)
    assert max(request.wait_s for request in small) <= 2 * longest + BATCH_S + 1e-6


@pytest.mark.parametrize("seed", range(10))
def test_no_short_request_waits_long_in_any_mixture(loop: asyncio.AbstractEventLoop, seed: int) -> None:
    draw = random.Random(seed)
    large = [
        Request(
            draw.uniform(0, 5),
            [draw.choice([0.005, 0.03, 0.08, 0.3, 2.0]) for _ in range(draw.randint(2, 256))],
            draw.choice("mn"),
        )
        for _ in range(draw.randint(1, 30))
    ]
    small = [Request(draw.uniform(0, 20), [SHORT_S], draw.choice("mn")) for _ in range(100)]
    simulate(loop, large + small)
    # With two models, one batch more: a batch holds one.
    assert max(request.wait_s for request in small) <= 3 * HEAVY_S + BATCH_S


@pytest.mark.parametrize("row_s", [0.02, 0.09, 0.4])
def test_short_requests_without_end_do_not_starve_a_large_one(loop: asyncio.AbstractEventLoop, row_s: float) -> None:
    """They fill the lane alone; the large one still gets its share of the time."""
    large = bulk(0.0, row_s, rows=20)
    newcomers_s = SHORT_S if row_s <= HEAVY_S else 2 * HEAVY_S
    small = [Request(step * newcomers_s * 0.9, [newcomers_s]) for step in range(int(20 * row_s * 8 / newcomers_s))]
    simulate(loop, [large, *small])
    assert large.wait_s <= (20 * row_s + max(row_s, HEAVY_S)) / OLDEST_SHARE
    assert large.wait_s >= 20 * row_s * 1.5, "nothing held it back: the test shows nothing"


@pytest.mark.parametrize("seed", range(10))
def test_everything_ends_within_a_multiple_of_first_come_first_served(
    loop: asyncio.AbstractEventLoop, seed: int
) -> None:
    draw = random.Random(seed)
    requests = [
        Request(draw.uniform(0, 4), [draw.choice([0.001, 0.01, 0.06])] * draw.randint(1, 100), draw.choice("mn"))
        for _ in range(40)
    ]
    simulate(loop, requests)
    first_come_s = 0.0
    for request in sorted(requests, key=lambda request: request.at_s):
        first_come_s = max(first_come_s, request.at_s) + sum(request.seconds)
        assert request.wait_s <= (first_come_s - request.at_s + 2 * HEAVY_S) / OLDEST_SHARE


def test_large_requests_take_turns(loop: asyncio.AbstractEventLoop) -> None:
    for row_s in (0.02, 0.4):
        first, second = bulk(0.0, row_s, 50), bulk(row_s / 2, row_s, 50)
        simulate(loop, [first, second])
        for share in (10, 25, 40):  # neither is ever far ahead of the other
            assert abs(first.ends_s[share] - second.ends_s[share]) <= 3 * max(row_s, BATCH_S)


def test_a_heavy_request_waits_for_one_row_of_another(loop: asyncio.AbstractEventLoop) -> None:
    large, single = bulk(0.0, 2.0, 20), Request(3.0, [0.3])
    simulate(loop, [large, single])
    assert single.wait_s <= 2.0 + 2.0 + 0.3
