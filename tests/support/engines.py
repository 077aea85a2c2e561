"""An engine in this process, for tests of what it does with rows, and with requests that do not pass a socket."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import httpx

from attenuator.ops.knobs import Knobs
from attenuator.runtime import Input, Model, Row
from attenuator.serve.access.keys import KeyRing
from attenuator.serve.accuracy.plan import Plan
from attenuator.serve.app import create_app
from attenuator.serve.engine import Engine
from attenuator.serve.settings import ServeSettings


@asynccontextmanager
async def started(folder: Path, **settings: object) -> AsyncIterator[tuple[Engine, Model]]:
    """An engine of one bundle, and its model; stopped in the end."""
    engine = Engine(ServeSettings.model_validate({"threads": 1, **settings}))
    await engine.start([folder])
    try:
        yield engine, engine.model(None)
    finally:
        await engine.stop()


@asynccontextmanager
async def service(folder: Path, **settings: object) -> AsyncIterator[tuple[Engine, httpx.ASGITransport]]:
    """The whole service of one bundle; a brownout's level falls by nothing that a test could notice."""
    chosen = ServeSettings.model_validate({"threads": 1, "brownout_target_ms": 1e6, **settings})
    engine = Engine(chosen)
    await engine.start([folder])
    try:
        yield engine, httpx.ASGITransport(create_app(engine, chosen, KeyRing(None, None)))
    finally:
        await engine.stop()


def planned(knobs: Knobs) -> Plan:
    """The plan of a request that runs with what it set."""
    return Plan(knobs, "caller", knobs, {})


async def rows_of(engine: Engine, model: Model, *inputs: Input) -> list[Row]:
    """The rows of inputs, at the exact value of every knob."""
    knobs = model.knobs.exact()
    encoded = await engine.encode(model, inputs, planned(knobs), truncate=False)
    return [Row(item.token_ids, item.type_ids, knobs) for item in encoded]


async def until(happened: Callable[[], bool]) -> None:
    """Lets the event loop go on until something has happened, for 20 s at most."""
    async with asyncio.timeout(20):
        while not happened():
            await asyncio.sleep(0)
