"""One replica: the application of `attenuator serve` over an engine of its own, asked through Ray."""

import asyncio
import logging
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

from ray import serve

from attenuator.bundle import read_manifest
from attenuator.rayserve.autoscaling import ARRIVED_S, QUEUE_S
from attenuator.rayserve.calls import Answer, Call, run, settings_of
from attenuator.rayserve.prices import Prices, prices_of
from attenuator.rayserve.router import QUEUE_STAT
from attenuator.serve.access.keys import KeyRing
from attenuator.serve.app import create_app, observe
from attenuator.serve.engine import Engine
from attenuator.serve.models.catalog import bundles_in
from attenuator.serve.observe import logs
from attenuator.serve.observe.tracing import open_traces

log = logging.getLogger(__name__)


class Replica:
    """An engine and what asks it; every method runs on the event loop of one process."""

    def __init__(self, settings: dict[str, Any]) -> None:
        """Prepares the engine; `reconfigure`, which Serve calls next, loads the bundles."""
        self._settings = settings_of(settings)
        logs.set_up(self._settings.log_format, self._settings.log_level)
        self._traces = open_traces(self._settings.otel)
        self._engine = Engine(self._settings)
        metrics = observe(self._engine, self._settings, self._traces)
        keys = KeyRing(self._settings.api_key, self._settings.api_keys)
        self._app = create_app(self._engine, self._settings, keys, metrics)
        self._watched = asyncio.create_task(keys.watch())
        self._name = serve.get_replica_context().replica_id.unique_id
        self._in_progress: dict[str, float] = defaultdict(float)  # predicted seconds by front
        self._arrived_s = 0.0
        self._reported_s = time.monotonic()

    async def reconfigure(self, config: dict[str, Any]) -> None:
        """Loads the bundles, or replaces them while requests are answered.

        Args:
            config: `bundles` names the folders.

        Raises:
            BundleError: one cannot be served. At the start the replica fails; later Serve stops it, and the replicas
                that still serve the bundles of before take its requests.
        """
        folders = [Path(folder) for folder in config["bundles"]]
        if self._engine.state == "starting":
            await self._engine.start(folders)
            return
        names = set()
        for folder in [bundle for root in folders for bundle in await asyncio.to_thread(bundles_in, root)]:
            manifest = await asyncio.to_thread(read_manifest, folder)
            names.add(manifest.name)
            served = self._engine.models.get(manifest.name)
            if served is None or served.manifest.revision != manifest.revision:
                await self._engine.catalog.put(manifest.name, folder)
        for name in self._engine.models.keys() - names:
            await self._engine.catalog.remove(name)

    async def answer(self, call: Call) -> Answer:
        """Answers a request as `attenuator serve` would."""
        self._in_progress[call.front] += call.seconds
        self._arrived_s += call.seconds
        try:
            status, headers, body = await run(self._app, call)
        finally:
            self._in_progress[call.front] -= call.seconds
        return Answer(status, headers, body, self._name, status == 503 and self._engine.state != "ready")

    async def prices(self) -> Prices:
        """What requests cost here, for the fronts."""
        return prices_of(self._engine)

    def record_routing_stats(self) -> dict[str, Any]:
        """What fronts cannot know: the work that other fronts have sent."""
        return {QUEUE_STAT: {front: round(max(0.0, seconds), 4) for front, seconds in self._in_progress.items()}}

    def record_autoscaling_stats(self) -> dict[str, float]:
        """What the number of replicas follows: the work that waits, and how much of it arrives in a second."""
        now_s = time.monotonic()
        rate = self._arrived_s / max(now_s - self._reported_s, 1e-3)
        self._arrived_s, self._reported_s = 0.0, now_s
        return {QUEUE_S: sum(entry.seconds for _, entry in self._engine.waiting()), ARRIVED_S: rate}

    def check_health(self) -> None:
        """Fails where the engine does its work no more, so that Serve replaces this replica.

        Raises:
            NotReady: says why.
        """
        if self._engine.state == "ready" and self._engine.models:
            self._engine.check_healthy()

    async def __del__(self) -> None:
        """Stops once Serve has waited for the requests in progress."""
        self._watched.cancel()
        await self._engine.drain()
        await self._engine.stop()
        if self._traces is not None:
            await self._traces.stop()
