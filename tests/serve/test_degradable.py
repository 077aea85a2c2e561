"""Brownout over HTTP: who is lowered, what the answer says, and that it is the answer of those knobs."""

import asyncio
import re
import time
from pathlib import Path
from typing import Any

import httpx
from engines import service

from attenuator.clients import AsyncClient
from attenuator.serve.engine import Engine

REVIEWS = Path(__file__).resolve().parents[2] / "examples" / "bundles" / "reviews"
TEXT = "a very good film and not a bad plot"
ASKED = {"inputs": [TEXT, "bad"], "num_hashes": 64, "seed": 5, "return_logits": True}
BY_DEFAULT = {"inputs": TEXT, "seed": 5}
FLOOR = {"num_hashes": 8}


def load(engine: Engine, share: float) -> None:
    """As if newcomers had to wait for a share of the target."""
    engine.brownout.level().observe(share * 1e3, 0.0, time.monotonic())


def test_a_busy_service_lowers_those_that_allow_it_and_nobody_else(bundles: dict[str, Path]) -> None:
    async def scenario() -> None:
        async with (
            service(bundles["yoso"], brownout_to="num_hashes=8,keep=0.5") as (engine, transport),
            httpx.AsyncClient(transport=transport, base_url="http://service") as client,
        ):

            async def answered(body: dict[str, Any], **fields: Any) -> dict[str, Any]:
                answer = await client.post("/v1/classify", json=body | fields)
                assert answer.status_code == 200, answer.text
                return dict(answer.json())

            idle = await answered(ASKED, degradable_to=FLOOR)
            assert (idle["knobs"], idle["chosen_by"]) == ({"num_hashes": 64}, "caller")
            load(engine, 0.75)
            lowered = await answered(ASKED, degradable_to=FLOOR)
            assert 8 < lowered["knobs"]["num_hashes"] < 64
            assert (lowered["chosen_by"], lowered["requested"]) == ("brownout", {"num_hashes": 64})
            load(engine, 1.5)
            metrics = (await client.get("/metrics")).text
            assert float(re.search(r"^attenuator_brownout_level ([\d.]+)$", metrics, re.MULTILINE)[1]) > 0.99
            floor = await answered(ASKED, degradable_to=FLOOR)
            assert (floor["knobs"], floor["chosen_by"]) == (FLOOR, "brownout")
            plain = await answered(ASKED)
            assert (plain["knobs"], plain["chosen_by"]) == ({"num_hashes": 64}, "caller")
            policy = await answered(BY_DEFAULT)
            assert (policy["knobs"], policy["chosen_by"], policy["requested"]) == (FLOOR, "brownout", {})
            excepted = await answered(BY_DEFAULT, degradable_to={})
            assert (excepted["knobs"], excepted["chosen_by"]) == ({"num_hashes": 32}, "default")
            for each in (lowered, floor):
                same = await answered(ASKED, **each["knobs"])
                assert each["predictions"] == same["predictions"], "bit for bit that of a request with those knobs"
                assert each["predictions"] != plain["predictions"]

    asyncio.run(scenario())


def test_without_a_policy_a_request_that_says_nothing_is_never_lowered(bundles: dict[str, Path]) -> None:
    async def scenario() -> None:
        async with service(bundles["yoso"]) as (engine, transport):
            load(engine, 2.0)
            async with AsyncClient("http://service", transport=transport) as client:
                answer = await client.classify(TEXT)
                assert (answer.chosen_by, answer.knobs) == ("default", {"num_hashes": 32})
                answer = await client.classify(TEXT, degradable_to=FLOOR)
                assert (answer.chosen_by, answer.knobs, answer.requested) == ("brownout", FLOOR, {})

    asyncio.run(scenario())
