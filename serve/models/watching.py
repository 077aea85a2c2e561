"""A watched folder: the bundles in it are served, and loaded, replaced and unloaded as they come, change and go.

The folder is looked at every second, as the file of API keys is. Notifications of the system would need another
library, and say nothing of what other machines write to a shared volume.

*Whole bundles alone.* Every folder inside whose name does not begin with a dot is a bundle once it has a `bundle.json`
and every file that this names. It is loaded when two looks in a row found it unchanged, and unloaded when two did not
find it: so two renames may replace it. Loading compares every hash, so that a copy that stalls for longer is refused
once and taken when it has changed again.

*What is served stays.* A bundle that is refused leaves the model of its folder as it was, with one line in the log.
Where the watched folder itself cannot be read, nothing is unloaded.

*One folder a name.* A bundle whose name another folder's bundle has is refused until that one is gone. A model that
the command line or an admin gave is replaced; one that an admin put in place of the folder's is not unloaded with it.
"""

import asyncio
import logging
import os
import weakref
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from attenuator.bundle import MANIFEST, manifest_content, parse_manifest
from attenuator.errors import AttenuatorError
from attenuator.runtime import Model
from attenuator.serve.file_version import ABSENT, FileVersion, version_of
from attenuator.serve.models.catalog import Catalog

log = logging.getLogger(__name__)
INTERVAL_S = 1.0

Version = frozenset[tuple[str, FileVersion]]
UNREADABLE: Version = frozenset({(MANIFEST, ABSENT)})  # loading it says why
State = Literal["serving", "incomplete", "refused"]
STATES: tuple[State, ...] = ("serving", "incomplete", "refused")


@dataclass(slots=True)
class WatchedBundle:
    """A folder inside the watched one.

    Attributes:
        seen: its version at the last look; None where it was not there.
        handled: the version that was loaded or refused.
        state: what came of it.
        model: that serves it.
        name: of the model.
        waits_for: a name that another folder's bundle has, for which this one was refused.
    """

    seen: Version | None = None
    handled: Version | None = None
    state: State = "incomplete"
    model: weakref.ref[Model] | None = None
    name: str = ""
    waits_for: str = ""


class Watch:
    """Keeps a catalog as the folder is."""

    def __init__(self, folder: Path | None, catalog: Catalog) -> None:
        """Makes it.

        Args:
            folder: holds the bundles' folders; None watches none.
            catalog: of the service.
        """
        self._folder = folder
        self._catalog = catalog
        self._places: dict[Path, WatchedBundle] = {}
        self._unreadable = False
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Loads what the folder holds, and begins to watch it."""
        if self._folder is not None:
            await self._look(self._folder, first=True)
            self._task = asyncio.create_task(self._run(self._folder))

    def stop(self) -> None:
        """Watches no more."""
        if self._task is not None:
            self._task.cancel()

    def states(self) -> Mapping[State, int]:
        """How many bundles there are in each state, none where no folder is watched."""
        if self._folder is None:
            return {}
        return {state: 0 for state in STATES} | Counter(place.state for place in self._places.values())

    async def _run(self, folder: Path) -> None:
        while True:
            await asyncio.sleep(INTERVAL_S)
            try:
                await self._look(folder)
            except Exception:  # the next look may fare better
                log.exception("the watched folder %s could not be followed", folder)

    async def _look(self, folder: Path, *, first: bool = False) -> None:
        """Loads, replaces and unloads what has changed; the first look takes everything as it is."""
        try:
            present = await asyncio.to_thread(versions, folder)
        except OSError as error:
            if not self._unreadable:
                log.error("the watched folder %s cannot be read: %s; its models stay", folder, error.strerror)
            self._unreadable = True
            return
        self._unreadable = False
        for path in sorted(present.keys() | self._places.keys()):
            place, version = self._places.setdefault(path, WatchedBundle()), present.get(path)
            settled = first or version == place.seen
            place.seen = version
            if settled and version is None:
                await self._gone(path, place)
            elif settled and version != place.handled:
                place.handled = version
                await self._changed(path, place)
                if place.state != "serving" and await asyncio.to_thread(bundle_version, path) != version:
                    place.handled = None  # it changed or was away meanwhile, so it is tried again

    async def _gone(self, path: Path, place: WatchedBundle) -> None:
        del self._places[path]
        await self._give_up(place)

    async def _changed(self, path: Path, place: WatchedBundle) -> None:
        place.waits_for = ""
        before = WatchedBundle(model=place.model, name=place.name)
        try:
            manifest = await asyncio.to_thread(lambda: parse_manifest(manifest_content(path), path))
            missing = [name for name in manifest.files if not (path / name).exists()]
            if missing:
                place.state = "incomplete"
                log.debug("the bundle in %s has no %s yet", path, missing[0])
                return
            owner = next((other for other, each in self._places.items() if each.name == manifest.name), path)
            if owner != path:
                place.waits_for = manifest.name
                raise AttenuatorError(f"its name '{manifest.name}' is that of the bundle in {owner}")
            model, _ = await self._catalog.put(manifest.name, path)
        except AttenuatorError as error:
            place.state = "refused"
            served = self._served(place)
            stays = f"; revision {served.manifest.revision[:12]} is still served" if served is not None else ""
            log.error("the bundle in %s is not loaded: %s%s", path, error, stays)
            return
        place.model, place.name, place.state = weakref.ref(model), model.manifest.name, "serving"
        if before.name != place.name:
            await self._give_up(before)

    async def _give_up(self, place: WatchedBundle) -> None:
        """Unloads a place's model, and lets another folder have its name."""
        if self._served(place) is not None:
            await self._catalog.remove(place.name)
        for other in self._places.values():
            if place.name and other.waits_for == place.name:
                other.handled = None

    def _served(self, place: WatchedBundle) -> Model | None:
        """The model of a place, if new requests still get it."""
        model = None if place.model is None else place.model()
        return model if model is not None and self._catalog.serving(model) else None


def versions(folder: Path) -> dict[Path, Version]:
    """The bundles in a folder, with what changes when a file of theirs is written or replaced.

    Raises:
        OSError: the folder cannot be read.
    """
    with os.scandir(folder) as entries:
        inside = [Path(entry.path) for entry in entries if not entry.name.startswith(".") and is_folder(entry)]
    every = {path: bundle_version(path) for path in inside}
    return {path: version for path, version in every.items() if any(name == MANIFEST for name, _ in version)}


def is_folder(entry: os.DirEntry[str]) -> bool:
    """Whether an entry is a folder or leads to one; what leads in a circle, or where nobody may look, is none."""
    try:
        return entry.is_dir()
    except OSError:
        return False


def bundle_version(bundle: Path) -> Version:
    """Names, times, sizes and inodes of a bundle's files; of one that cannot be read, a version of its own."""
    try:
        with os.scandir(bundle) as entries:
            return frozenset((entry.name, version_of(entry)) for entry in entries)
    except FileNotFoundError:  # it is being removed
        return frozenset()
    except OSError:
        return UNREADABLE
