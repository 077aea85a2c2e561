"""What a service tells those who listen, and when."""

import asyncio
import dataclasses
from pathlib import Path

import httpx
from engines import service

EXPECTED = ["request_began", "request_admitted", "answered", "request_ended"]


def test_one_request_is_told_of_from_its_header_to_its_answer(bundles: dict[str, Path]) -> None:
    heard: list[str] = []

    async def scenario() -> None:
        async with service(bundles["yoso"]) as (engine, transport):
            for event in dataclasses.fields(engine.listeners):
                getattr(engine.listeners, event.name).append(lambda *told, name=event.name: heard.append(name))
            async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
                answer = await client.post("/v1/classify", json={"inputs": "good film", "num_hashes": 8})
                assert answer.status_code == 200
                await asyncio.sleep(0)
                heard.remove("batch_ran")
                assert heard == EXPECTED, "a batch is told behind the answers, which need not wait for it"
                assert (await client.post("/v1/classify", json={"inputs": 1})).status_code == 422
        assert heard[len(EXPECTED) :] == ["request_began", "request_admitted", "request_ended", "stopping"]

    asyncio.run(scenario())
