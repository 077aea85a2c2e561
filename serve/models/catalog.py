"""The models that a service serves: loads them at the start, and replaces and unloads them while it runs.

A loaded model is one revision of a bundle. Requests hold the one that they began with, so that a replaced model answers
them to their end; with the last of them its session is freed. What was learned about a revision goes with it.
"""

import asyncio
import logging
import math
import os
import time
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from attenuator.bundle import MANIFEST, MODEL, Manifest, manifest_content, parse_manifest
from attenuator.errors import AttenuatorError, BundleError, InvalidRequest, NotReady, UnknownModel
from attenuator.runtime import Device, Model, choose, load
from attenuator.runtime.calibrated import exact_by_default
from attenuator.serve.events import Listeners
from attenuator.serve.models.tokenizing import STOPPED, HeapTrim, TokenEstimate
from attenuator.serve.models.warmup import Speed, warm_up
from attenuator.serve.settings import ServeSettings

log = logging.getLogger(__name__)
T = TypeVar("T")
LOADING_THREADS = 2
REOPEN_INTERVAL_S = 30.0  # at least, between two attempts: requests that always fail must not keep the disk busy
MAX_NAMED = 16  # models in an error sentence


def bundles_in(folder: Path) -> list[Path]:
    """The bundles in a folder, by name: every folder and every link that leads nowhere, hidden ones left out.

    So one that is not whole, or cannot be read, is refused and not overlooked. A bundle itself, and a missing folder,
    is given as it is.

    Raises:
        BundleError: the folder cannot be read.
    """
    try:
        names = sorted(os.listdir(folder))
        if MANIFEST in names or MODEL in names:
            return [folder]
        bundles = [folder / name for name in names if name[0] != "." and name != "lost+found"]
        bundles = [each for each in bundles if not each.exists() or each.is_dir()]
    except (FileNotFoundError, NotADirectoryError):
        return [folder]
    except OSError as error:
        raise BundleError(f"bundle {folder}: {error.filename} cannot be read: {error.strerror}") from None
    if not bundles:
        log.warning("no bundle lies in %s", folder)
    return bundles


def check_name(manifest: Manifest, name: str) -> None:
    """Refuses a bundle that has another name than a request's path."""
    if manifest.name != name:
        asked = name[:128]
        raise InvalidRequest(
            f"bundle holds a model called '{manifest.name}', must be called '{asked}' as in the path",
            param="bundle",
            allowed=f"a bundle whose name is '{asked}'",
        )


class Catalog:
    """The models of one service.

    Attributes:
        models: those that new requests get, by name.
        estimates: tokens to expect of a text, also of models that are replaced and still answer requests.
    """

    def __init__(
        self,
        settings: ServeSettings,
        on_served: Callable[[Model, Speed], None],
        listeners: Listeners,
    ) -> None:
        """Starts without models; `on_served` is called with each before new requests get it."""
        self.models: dict[str, Model] = {}
        self.estimates: WeakKeyDictionary[Model, TokenEstimate] = WeakKeyDictionary()
        self._on_served = on_served
        self._listeners = listeners
        self._reopened_s: WeakKeyDictionary[Model, float] = WeakKeyDictionary()
        self._reopening: set[asyncio.Task[None]] = set()
        self._settings = settings
        self._device: Device | None = None
        self._threads = ThreadPoolExecutor(LOADING_THREADS, thread_name_prefix="load")
        self._heap = HeapTrim(self._threads)
        self._changing = asyncio.Lock()
        self._stopped = False

    async def start(self, folders: Sequence[Path]) -> None:
        """Loads the bundles of the start.

        A bundle that cannot be served ends the start, so that a rollout keeps the servers that it was to replace.

        Raises:
            BundleError: a bundle is damaged or has the name of another, or there is none.
            OperatorLibraryMissing: the operators are not built, or not for the device.
            DeviceUnavailable: the device in the settings cannot be used.
        """
        settings = self._settings
        choice = await self._in_thread(partial(choose, settings.device, settings.device_id))
        if settings.device != "cpu":
            level = logging.WARNING if choice.device.kind == "cpu" else logging.INFO
            log.log(level, "running on %s: %s", choice.device, choice.reason)
        self._device = choice.device
        bundles = [each for folder in folders for each in await self._in_thread(partial(bundles_in, folder))]
        if not bundles:
            raise BundleError(f"there is nothing to serve: no bundle lies in {', '.join(map(str, folders))}")
        if len(bundles) > 1:
            log.info("loading %d bundles", len(bundles))
        models = await asyncio.gather(*(self._in_thread(partial(self._load, bundle)) for bundle in bundles))
        for bundle, model in zip(bundles, models, strict=True):
            name = model.manifest.name
            if name in self.models:
                raise BundleError(
                    f"bundle {bundle}: bundle.json: name is '{name}', must differ from that of the other bundles"
                )
            self._serve(model, await self._in_thread(partial(self._warm_up, model)))

    async def put(self, name: str, folder: Path) -> tuple[Model, bool]:
        """Loads a bundle that must have the name and gives it to new requests; one at a time, checked as at the start.

        Gives the model, and whether it replaces another.

        Raises:
            BundleError: the bundle cannot be served; other errors of loading as `start` has them.
            InvalidRequest: the bundle has another name.
            NotReady: the service was stopped meanwhile.
        """
        async with self._changing:
            said = await self._in_thread(lambda: parse_manifest(manifest_content(folder), folder))
            check_name(said, name)  # before it takes a minute to load
            model = await self._in_thread(partial(self._load, folder))
            check_name(model.manifest, name)  # the bundle may have been replaced meanwhile
            speed = await self._in_thread(partial(self._warm_up, model))
            if self._stopped:
                raise NotReady(STOPPED)
            replaces = name in self.models
            self._serve(model, speed)
            return model, replaces

    @property
    def served(self) -> str:
        """The models that new requests get, in words."""
        others = len(self.models) - MAX_NAMED
        names = ", ".join(islice(self.models, MAX_NAMED)) + (f" and {others} more" if others > 0 else "")
        return names or "none: no model is loaded"

    def named(self, name: str) -> Model:
        """The model that new requests get by a name; UnknownModel where none has it."""
        if name not in self.models:
            served = self.served
            raise UnknownModel(f"model '{name[:128]}' is not served, must be one of {served}", allowed=served)
        return self.models[name]

    def serving(self, model: Model) -> bool:
        """Whether new requests get a model."""
        return self.models.get(model.manifest.name) is model

    async def remove(self, name: str) -> None:
        """Gives a model to no new request any more; UnknownModel where none has that name."""
        async with self._changing:
            self.named(name)
            log.info("unloaded %s: requests that have begun are still answered", name)
            del self.models[name]

    def reopen(self, model: Model, _: str = "") -> None:
        """Makes a model's session again, unless that was tried just now, while the old one goes on; told of failures.

        What made ONNX Runtime fail on a batch may have broken it for good.
        """
        now_s = time.monotonic()
        if self._stopped or now_s < self._reopened_s.get(model, -math.inf) + REOPEN_INTERVAL_S:
            return
        self._reopened_s[model] = now_s
        task = asyncio.create_task(self._reopen(model))
        self._reopening.add(task)
        task.add_done_callback(self._reopening.discard)

    async def _reopen(self, model: Model) -> None:
        name = model.manifest.name
        try:
            await self._in_thread(model.reopen)
        except AttenuatorError as error:
            log.error("the session of model '%s' could not be made again after a failure: %s", name, error)
        else:
            for tell in self._listeners.session_restarted:
                tell(model)
            log.warning("made the session of model '%s' again after a failure", name)

    def stop(self) -> None:
        """Loads nothing more."""
        self._stopped = True
        self._heap.cancel()
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _load(self, folder: Path) -> Model:
        assert self._device is not None
        model = load(folder, device=self._device, threads=self._settings.threads)
        if self._settings.default == "exact":
            model.knobs, model.calibration = exact_by_default(model.knobs, model.calibration)
        return model

    def _warm_up(self, model: Model) -> Speed:
        return warm_up(model, self._settings.max_batch_tokens, self._settings.threads)

    def _serve(self, model: Model, speed: Speed) -> None:
        manifest = model.manifest
        self.estimates[model] = TokenEstimate()
        self._on_served(model, speed)
        self.models[manifest.name] = model
        log.info("loaded %s (%s, revision %.12s)", manifest.name, manifest.attention.operator, manifest.revision)
        loop = asyncio.get_running_loop()
        named = f"{manifest.name}, revision {manifest.revision[:12]}"
        freed = weakref.finalize(model, self._free, loop, named, vars(model))
        freed.atexit = False

    def _free(self, loop: asyncio.AbstractEventLoop, named: str, parts: dict[str, Any]) -> None:
        """Frees the attributes of a model that is gone, in a thread: the end of a session takes 3 to 30 ms."""
        if self._stopped or loop.is_closed():
            return
        log.info("freed %s", named)
        self._threads.submit(parts.clear)
        loop.call_soon_threadsafe(self._heap.soon)

    async def _in_thread(self, call: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, call)
