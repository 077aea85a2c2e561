"""Makes a model's session again after ONNX Runtime has failed on a batch: what broke it may have broken it for good."""

import asyncio
import logging
import math
import time
from concurrent.futures import ThreadPoolExecutor
from weakref import WeakKeyDictionary

from attenuator.errors import AttenuatorError
from attenuator.runtime import Model
from attenuator.serve.metrics import Metrics

log = logging.getLogger(__name__)
INTERVAL_S = 30.0  # at least, between two attempts for a model: requests that always fail must not keep the disk busy


class SessionKeeper:
    """Makes sessions again in a thread of its own, while the old ones go on."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="reopen")
        self._attempted_s: WeakKeyDictionary[Model, float] = WeakKeyDictionary()
        self._tasks: set[asyncio.Task[None]] = set()
        self._stopped = False

    def failed(self, model: Model) -> None:
        """ONNX Runtime has failed on a batch of a model; its session is made again unless that was tried just now."""
        now_s = time.monotonic()
        if self._stopped or now_s < self._attempted_s.get(model, -math.inf) + INTERVAL_S:
            return
        self._attempted_s[model] = now_s
        task = asyncio.create_task(self._reopen(model))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def stop(self) -> bool:
        """Makes no more sessions.

        Returns:
            Whether the thread is still working.
        """
        self._stopped = True
        self._thread.shutdown(wait=False, cancel_futures=True)
        return bool(self._tasks)

    async def _reopen(self, model: Model) -> None:
        name = model.manifest.name
        try:
            await asyncio.get_running_loop().run_in_executor(self._thread, model.reopen)
        except AttenuatorError as error:
            log.error("the session of model '%s' could not be made again after a failure: %s", name, error)
        else:
            self._metrics.session_restarted(name)
            log.warning("made the session of model '%s' again after a failure", name)
