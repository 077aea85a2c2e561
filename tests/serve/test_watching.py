"""A watched folder: what comes, changes and goes in it is served, replaced and unloaded, and nothing half-copied."""

import asyncio
import logging
import os
import shutil
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import tiny

from attenuator import bundle
from attenuator.runtime import Model
from attenuator.serve.engine import Engine
from attenuator.serve.observe.logs import TextFormatter
from attenuator.serve.settings import ServeSettings


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Bundles to copy from: two revisions of one model, and another one."""
    root = tmp_path_factory.mktemp("store")
    tiny.write(root / "first", "yoso", name="yoso")
    tiny.write(root / "second", "yoso", name="yoso", seed=2)
    tiny.write(root / "other", "softmax", name="other")
    return root


def revision(folder: Path) -> str:
    return bundle.parse_manifest(bundle.manifest_content(folder), folder).revision


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    watched = tmp_path / "watched"
    watched.mkdir()
    return watched


@asynccontextmanager
async def watching(folder: Path) -> AsyncIterator[tuple[Engine, Callable[[], Awaitable[None]]]]:
    """An engine over a folder, and a function that looks at it twice, as two seconds would."""
    engine = Engine(ServeSettings(threads=1, watch=folder))
    await engine.start([])
    engine.watch.stop()

    async def look() -> None:
        for _ in range(2):
            await engine.watch._look(folder)

    try:
        yield engine, look
    finally:
        await engine.stop()


def served(engine: Engine) -> dict[str, str]:
    return {name: model.manifest.revision for name, model in engine.models.items()}


def copy(source: Path, target: Path) -> None:
    """Puts a whole bundle in place at once."""
    shutil.copytree(source, target.with_name(f".{target.name}"))
    target.with_name(f".{target.name}").rename(target)


def test_bundles_come_change_and_go(store: Path, folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    first, second = revision(store / "first"), revision(store / "second")
    (folder / "notes").mkdir()
    copy(store / "first", folder / "one")

    async def scenario() -> None:
        async with watching(folder) as (engine, look):
            assert served(engine) == {"yoso": first}, "what is there at the start is served from the start"
            model = engine.models["yoso"]
            await look()
            assert engine.models["yoso"] is model, "what has not changed is not loaded again"
            copy(store / "other", folder / "two")
            await look()
            assert set(served(engine)) == {"yoso", "other"}
            (folder / "one").rename(folder / ".old")
            await engine.watch._look(folder)
            copy(store / "second", folder / "one")
            await look()
            assert served(engine)["yoso"] == second
            shutil.rmtree(folder / "two")
            await engine.watch._look(folder)
            assert "other" in served(engine), "it may be about to be replaced"
            await look()
            assert served(engine) == {"yoso": second}
            assert engine.watch.states() == {"serving": 1, "incomplete": 0, "refused": 0}

    with caplog.at_level(logging.INFO):
        asyncio.run(scenario())
    assert caplog.text.count("unloaded") == 1, "not between the two revisions"


def test_half_a_bundle_is_not_loaded_and_a_whole_one_stays(
    store: Path, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Copied file by file, `bundle.json` first, the weights in two parts; then the watched folder is away."""
    source, target = store / "first", folder / "one"

    async def scenario() -> None:
        async with watching(folder) as (engine, look):
            target.mkdir()
            for name in sorted(os.listdir(source), key=lambda each: (each == bundle.MODEL, each != bundle.MANIFEST)):
                await look()
                assert (served(engine), caplog.text) == ({}, "")
                if name != bundle.MODEL:
                    shutil.copy(source / name, target)
            assert engine.watch.states()["incomplete"] == 1
            content = (source / bundle.MODEL).read_bytes()
            (target / bundle.MODEL).write_bytes(content[:1000])
            await engine.watch._look(folder)
            assert caplog.text == "", "it changed since the last look"
            (target / bundle.MODEL).write_bytes(content)
            await look()
            assert served(engine) == {"yoso": revision(source)}
            assert caplog.text == ""
            folder.rename(folder.with_name("away"))
            await look()
            assert set(served(engine)) == {"yoso"}, "a folder that cannot be read unloads nothing"
            folder.with_name("away").rename(folder)
            await look()
            assert len(caplog.messages) == 1

    asyncio.run(scenario())


def test_a_bundle_that_was_away_while_it_was_loaded_is_loaded_when_it_is_back(
    store: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when a share is remounted: its files are the same afterwards, and so is its version."""
    target, hidden = folder / "one", folder / ".away"

    async def scenario() -> None:
        async with watching(folder) as (engine, look):
            copy(store / "first", target)
            put = engine.catalog.put

            async def away(name: str, path: Path) -> tuple[Model, bool]:
                target.rename(hidden)
                return await put(name, path)

            with monkeypatch.context() as patch:
                patch.setattr(engine.catalog, "put", away)
                await look()
            assert (served(engine), engine.watch.states()["refused"]) == ({}, 1)
            hidden.rename(target)
            await look()
            assert served(engine) == {"yoso": revision(store / "first")}
            assert engine.watch.states() == {"serving": 1, "incomplete": 0, "refused": 0}

    asyncio.run(scenario())


def test_links_that_lead_nowhere_hold_up_no_other_bundle(
    store: Path, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (folder / "circle").symlink_to("circle")
    (folder / "gone").symlink_to("nowhere")
    (folder / "linked").symlink_to(store / "first")

    async def scenario() -> None:
        async with watching(folder) as (engine, look):
            assert served(engine) == {"yoso": revision(store / "first")}
            (folder / "linked").unlink()
            await look()
            assert served(engine) == {}

    with caplog.at_level(logging.WARNING):
        asyncio.run(scenario())
    assert caplog.text == ""


def test_a_folders_name_is_no_line_of_the_log(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A name may have line breaks, and what a terminal obeys."""
    bad = folder / "a\n2026-11-22 ERROR forged: line\x1b[31m\u202e"
    bad.mkdir()
    (bad / bundle.MANIFEST).write_text("{}")

    async def scenario() -> None:
        async with watching(folder):
            pass

    asyncio.run(scenario())
    [record] = [each for each in caplog.records if each.levelno == logging.ERROR]
    line = TextFormatter("%(levelname)s %(message)s").format(record)
    assert line.isprintable()
    assert "a 2026-11-22 ERROR forged: line" in line
    try:
        raise ValueError("kept")
    except ValueError:
        record.exc_info = sys.exc_info()
    assert len(TextFormatter("%(message)s").format(record).splitlines()) > 2, "a traceback keeps its lines"


def test_a_bad_bundle_is_one_line_and_the_old_one_stays(
    store: Path, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    copy(store / "first", folder / "one")
    first = revision(store / "first")

    async def scenario() -> None:
        async with watching(folder) as (engine, look):
            with (folder / "one" / bundle.MODEL).open("r+b") as file:
                file.seek(5000)
                file.write(b"\x00\x01\x02\x03")
            await look()
            await look()
            assert served(engine) == {"yoso": first}
            assert engine.watch.states() == {"serving": 0, "incomplete": 0, "refused": 1}
            [line] = caplog.messages
            assert f"the bundle in {folder / 'one'} is not loaded: " in line
            assert line.endswith(f"; revision {first[:12]} is still served")
            shutil.rmtree(folder / "one")
            copy(store / "second", folder / "one")
            await look()
            assert served(engine) == {"yoso": revision(store / "second")}

    asyncio.run(scenario())


def test_a_name_is_one_folders_at_a_time(store: Path, folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    copy(store / "first", folder / "one")

    async def scenario() -> None:
        async with watching(folder) as (engine, look):
            copy(store / "second", folder / "two")
            await look()
            assert served(engine) == {"yoso": revision(store / "first")}
            assert f"its name 'yoso' is that of the bundle in {folder / 'one'}" in caplog.text
            shutil.rmtree(folder / "one")
            await look()
            await look()
            assert served(engine) == {"yoso": revision(store / "second")}, "taken once the other is gone"
            shutil.rmtree(folder / "two")
            copy(store / "other", folder / "two")
            await look()
            assert set(served(engine)) == {"other"}, "the folder's old name is given up"
            await engine.catalog.put("other", store / "other")
            shutil.rmtree(folder / "two")
            await look()
            assert set(served(engine)) == {"other"}, "what an admin put in its place is not unloaded"

    asyncio.run(scenario())


def test_the_setting_must_be_a_folder(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="it must be a folder"):
        ServeSettings(watch=tmp_path / "none")
