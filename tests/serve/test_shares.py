"""How API keys and classes share a lane, simulated as in test_fairness."""

import asyncio
import random
from collections.abc import Iterator

import pytest
from queue_simulation import SHORT_S, Request, bulk, simulate

from attenuator.serve.scheduling.fairness import OLDEST_SHARE
from attenuator.serve.scheduling.queue import BATCH_CLASS_SHARE, BATCH_S
from attenuator.serve.scheduling.requests import HEAVY_S, Flow

FLOOD, OTHER, LATER = Flow("flood"), Flow("other"), Flow("later", "batch")


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    created = asyncio.new_event_loop()
    yield created
    created.close()


def of(flow: Flow, *requests: Request) -> list[Request]:
    for request in requests:
        request.flow = flow
    return list(requests)


def singles(every_s: float, until_s: float, row_s: float = SHORT_S) -> list[Request]:
    return [Request(step * every_s, [row_s]) for step in range(int(until_s / every_s))]


def done_s(requests: list[Request], until_s: float) -> float:
    """Predicted seconds of the rows that were done by then."""
    return sum(
        request.seconds[index] for request in requests for index, end_s in request.ends_s.items() if end_s <= until_s
    )


@pytest.mark.parametrize(
    "flood",
    [
        pytest.param([bulk(0.1 * index, 0.01) for index in range(20)], id="batches of 256"),
        pytest.param(singles(0.0004, 4.0), id="more single requests than can run"),
        pytest.param([bulk(0.0, 0.09, 100), *singles(0.0005, 3.0)], id="both"),
    ],
)
def test_single_requests_of_a_key_keep_their_latency_whatever_another_key_sends(
    loop: asyncio.AbstractEventLoop, flood: list[Request]
) -> None:
    small = of(OTHER, *singles(0.11, 5.0))
    simulate(loop, of(FLOOD, *flood) + small)
    # The batch under way, and its own with what joins it.
    assert max(request.wait_s for request in small) <= HEAVY_S + BATCH_S + 1e-6
    assert max(request.wait_s for request in flood) > 1.0, "there was no flood"


@pytest.mark.parametrize("row_s", [0.002, 0.04, 0.3])
def test_keys_that_always_wait_share_by_weight(loop: asyncio.AbstractEventLoop, row_s: float) -> None:
    """Whatever one sends in single requests and the other in large ones."""
    count = 800
    light = of(Flow("light"), *(Request(0.0, [row_s]) for _ in range(count)))
    heavy = of(Flow("heavy", weight=3.0), bulk(0.0, row_s, count // 2), bulk(0.0, row_s, count // 2))
    simulate(loop, light + heavy)
    for share in (0.25, 0.5, 1.0):
        until_s = share * count * row_s
        assert done_s(light, until_s) == pytest.approx(until_s / 4, abs=2 * BATCH_S + 2 * row_s)


@pytest.mark.parametrize("row_s", [0.002, 0.04, 0.3])
@pytest.mark.parametrize("keys", [1, 5])
def test_batch_gets_its_least_share_of_a_saturated_lane_and_no_more(
    loop: asyncio.AbstractEventLoop, row_s: float, keys: int
) -> None:
    count = 1000
    interactive = [
        request
        for key in range(keys)
        for request in of(Flow(f"k{key}"), *(Request(0.0, [row_s]) for _ in range(count // keys)))
    ]
    later = of(LATER, bulk(0.0, row_s, count))
    simulate(loop, interactive + later)
    for share in (0.3, 0.6, 1.0):
        until_s = share * count * row_s
        assert done_s(later, until_s) == pytest.approx(BATCH_CLASS_SHARE * until_s, abs=BATCH_S + row_s)


def test_batch_gets_all_that_nobody_else_wants_and_does_not_hold_up_interactive(
    loop: asyncio.AbstractEventLoop,
) -> None:
    small, later = of(OTHER, *singles(0.1, 10.0)), of(LATER, *(bulk(0.0, 0.02) for _ in range(2)))
    simulate(loop, small + later)
    assert max(request.wait_s for request in small) <= BATCH_S + SHORT_S + 1e-6
    assert max(request.wait_s for request in later) <= 2 * 256 * 0.02 + 100 * SHORT_S + 1e-6


@pytest.mark.parametrize("seed", range(10))
def test_everything_ends_within_its_share_of_the_time(loop: asyncio.AbstractEventLoop, seed: int) -> None:
    """No request of any key or class starves: the bound that the scheduler's description states."""
    draw = random.Random(seed)
    flows = [Flow(key, priority) for key in "abc" for priority in ("interactive", "batch")]
    requests = [
        Request(
            draw.uniform(0, 4),
            [draw.choice([0.001, 0.01, 0.06])] * draw.randint(1, 100),
            draw.choice("mn"),
            draw.choice(flows),
        )
        for _ in range(80)
    ]
    simulate(loop, requests)
    for flow in flows:
        least = (BATCH_CLASS_SHARE if flow.priority == "batch" else 1 - BATCH_CLASS_SHARE) / 3
        first_come_s = 0.0  # of a service of its own that is as slow as the flow's share
        for request in sorted((each for each in requests if each.flow == flow), key=lambda each: each.at_s):
            first_come_s = max(first_come_s, request.at_s) + sum(request.seconds) / least
            assert request.wait_s <= (first_come_s - request.at_s + 2 * HEAVY_S / least) / OLDEST_SHARE
