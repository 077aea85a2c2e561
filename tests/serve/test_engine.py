"""The engine without HTTP: runs that nobody waits for, stopping, refusals before tokenizing, turns of the tokenizer."""

import asyncio
import shutil
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from engines import planned, rows_of, started, until

from attenuator.bundle import MANIFEST, MODEL
from attenuator.errors import BundleError, EngineError, NotReady, Overloaded
from attenuator.ops.knobs import Knobs
from attenuator.runtime import Cancellation, Input, Model, Row, RowResult
from attenuator.serve.accuracy.brownout import Floors
from attenuator.serve.accuracy.cost import Work
from attenuator.serve.accuracy.plan import Asked, Limits, Plan, plan
from attenuator.serve.engine import Engine
from attenuator.serve.models.tokenizing import LARGE_SIZE, SLICE_SIZE, TokenEstimate, TokenizerThreads, slices
from attenuator.serve.scheduling.requests import ANYONE, Job
from attenuator.serve.settings import ServeSettings

LONG = Input("inputs", "good film " * 4000)
SHORT = Input("inputs", "good film")


def test_a_run_is_cancelled_once_all_its_clients_have_left(
    bundles: dict[str, Path], caplog: pytest.LogCaptureFixture
) -> None:
    """Not before; and the lane goes on with what others wait for."""

    async def scenario() -> None:
        async with started(bundles["yoso"]) as (engine, model):
            [row] = await rows_of(engine, model, LONG)
            cancelled, remaining = (asyncio.create_task(engine.run(model, [row])) for _ in range(2))
            await until(lambda: engine.running("heavy") == 1)
            cancelled.cancel()
            await until(lambda: "nobody waits" in caplog.text)
            assert not remaining.done(), "one row of the heavy lane runs at a time"
            job = await remaining
            assert job.results[0] is not None

    with caplog.at_level("INFO"):
        asyncio.run(scenario())


def test_a_run_goes_on_while_one_of_its_clients_waits(
    bundles: dict[str, Path], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    others_left = threading.Event()
    run = Model.run

    def run_once_others_left(
        model: Model, rows: Sequence[Row], cancellation: Cancellation | None = None
    ) -> list[RowResult]:
        others_left.wait(20)
        return run(model, rows, cancellation)

    async def scenario() -> None:
        async with started(bundles["yoso"]) as (engine, model):
            rows = await rows_of(engine, model, SHORT)
            monkeypatch.setattr(Model, "run", run_once_others_left)
            tasks = [asyncio.create_task(engine.run(model, rows)) for _ in range(3)]
            await until(lambda: engine.running("light") == 3)
            for task in tasks[:2]:
                task.cancel()
            await asyncio.gather(*tasks[:2], return_exceptions=True)
            others_left.set()
            job = await tasks[2]
            assert job.results[0] is not None

    with caplog.at_level("INFO"):
        asyncio.run(scenario())
    assert "nobody waits" not in caplog.text


def test_requests_in_progress_end_with_one_sentence_when_the_engine_stops(bundles: dict[str, Path]) -> None:
    """Those that run, wait, or are being tokenized, however large their text is."""

    async def scenario() -> list[Job | BaseException]:
        async with started(bundles["yoso"], max_queue_tokens=10**7) as (engine, model):
            rows = await rows_of(engine, model, *[LONG] * 4)
            huge = [Input("inputs", "good film " * (LARGE_SIZE // 5))]
            usual = [LONG] * 8
            knobs = model.knobs.exact()
            tasks = [
                *(asyncio.create_task(engine.run(model, rows)) for _ in range(3)),
                *(
                    asyncio.create_task(engine.encode(model, inputs, planned(knobs), truncate=False))
                    for inputs in (huge, huge, usual, usual, usual)
                ),
            ]
            await until(lambda: engine.running("heavy") > 0)
            await engine.stop()
            return await asyncio.gather(*tasks, return_exceptions=True)

    outcomes = asyncio.run(scenario())
    assert {(type(outcome), str(outcome)) for outcome in outcomes} == {
        (NotReady, "the service is stopping: this request was not finished")
    }


def test_a_full_queue_refuses_before_it_tokenizes(bundles: dict[str, Path]) -> None:
    """By an estimate for texts; requests that are still being tokenized count."""

    async def scenario() -> None:
        async with started(bundles["yoso"], max_queue_tokens=30_000) as (engine, model):
            for _ in range(50):  # the tiny vocabulary has other tokens per byte than a natural one
                await engine.encode(model, [SHORT], planned({}), truncate=False)
            knobs = model.knobs.exact()
            begun = [engine.encode(model, [LONG], planned(knobs), truncate=False) for _ in range(3)]
            first = [asyncio.create_task(encoding) for encoding in begun]
            await asyncio.sleep(0)
            with pytest.raises(Overloaded):  # not InputTooLong, which only tokenizing can tell
                await engine.encode(model, [Input("inputs", "good film " * 20_000)], planned(knobs), truncate=False)
            await engine.encode(model, [SHORT], planned(knobs), truncate=False)
            await asyncio.gather(*first)

    asyncio.run(scenario())


def test_what_would_be_refused_for_room_is_lowered_to_its_floor_instead(bundles: dict[str, Path]) -> None:
    """And takes as much less room as it takes time."""

    async def scenario() -> None:
        async with started(bundles["yoso"], max_queue_tokens=3000) as (engine, model):
            knobs, floors = {"num_hashes": 512}, {"num_hashes": 8}
            text = Input("inputs", "good film " * 500)
            [encoded] = await engine.encode(model, [text], planned(knobs), truncate=False)
            tokens = [len(encoded.token_ids)]

            def lowered_to(floors: Floors) -> Plan:
                asked = Asked(knobs, knobs, degradable_to=floors)
                return plan(model, asked, Limits(), engine.load(Work(model, tokens), ANYONE, time.perf_counter()))

            async def run(chosen: Knobs) -> Job:
                return await engine.run(model, [Row(encoded.token_ids, encoded.type_ids, chosen)], knobs)

            waiting = [asyncio.create_task(run(knobs)) for _ in range(3)]
            await asyncio.sleep(0)
            with pytest.raises(Overloaded):
                await run(knobs)
            assert (lowered_to({}).knobs, lowered_to({}).by) == (knobs, "caller")
            lowered = lowered_to(floors)
            assert (lowered.knobs, lowered.by) == ({"num_hashes": 8}, "brownout")
            waiting += [asyncio.create_task(run(lowered.knobs)) for _ in range(5)]
            await asyncio.gather(*waiting)
            assert lowered_to(floors).knobs != {"num_hashes": 8}, "there is room again"

    asyncio.run(scenario())


def test_a_body_that_finds_no_room_is_refused_unread(bundles: dict[str, Path]) -> None:
    async def scenario() -> None:
        async with started(bundles["yoso"], max_queue_tokens=500) as (engine, model):
            rows = await rows_of(engine, model, *[Input("inputs", "good film " * 20)] * 10)
            engine.check_open(1000)
            waiting = [asyncio.create_task(engine.run(model, [row])) for row in rows]
            await asyncio.sleep(0)
            with pytest.raises(Overloaded):
                engine.check_open(1000)
            engine.check_open(300_000)  # it may be for the other lane, where nothing waits
            async with engine.admitted(1):
                engine.check_open()  # of a size that is not known
            await asyncio.gather(*waiting)
            engine.check_open(1000)

    asyncio.run(scenario())


def test_a_body_that_might_be_lowered_is_read_during_a_brownout(bundles: dict[str, Path]) -> None:
    """Only the body tells whether its request may be lowered, and so how much room it needs."""

    async def scenario() -> None:
        async with started(bundles["yoso"], max_queue_tokens=500, brownout_target_ms=1e6) as (engine, model):
            rows = await rows_of(engine, model, *[Input("inputs", "good film " * 20)] * 10)
            waiting = [asyncio.create_task(engine.run(model, [row])) for row in rows]
            await asyncio.sleep(0)
            with pytest.raises(Overloaded):
                engine.check_open(1000)
            engine.brownout.level().observe(1e6, 0.0, time.monotonic())
            engine.check_open(1000)
            await asyncio.gather(*waiting)

    asyncio.run(scenario())


def test_a_place_among_the_requests_in_progress_is_given_back(bundles: dict[str, Path]) -> None:
    """After an answer, an error and a client that left; draining then has nothing to wait for."""

    async def enter(engine: Engine, outcome: BaseException | None) -> None:
        async with engine.admitted():
            with pytest.raises(Overloaded, match="1 requests are in progress"):
                engine.check_open()
            if outcome is not None:
                raise outcome

    async def scenario() -> None:
        async with started(bundles["softmax"], max_requests=1) as (engine, _):
            await enter(engine, None)
            for outcome in (EngineError("failed"), asyncio.CancelledError()):
                with pytest.raises(type(outcome)):
                    await enter(engine, outcome)
            engine.check_open()
            assert engine.requests == 0
            async with asyncio.timeout(20):
                await engine.drain()

    asyncio.run(scenario())


def test_tokenizing_takes_turns(models: dict[str, Model]) -> None:
    """A request of one slice is done before one of many that came first."""

    async def scenario() -> list[str]:
        threads = TokenizerThreads()
        order: list[str] = []

        async def encode(name: str, inputs: list[Input]) -> None:
            await threads.encode(models["yoso"], inputs, truncate=True)
            order.append(name)

        many = [Input("inputs", "good film " * (SLICE_SIZE // 10))] * 15
        one = [Input("inputs", "good film " * 500)]
        huge = [Input("inputs", "good film " * (LARGE_SIZE // 2))] * 2
        await asyncio.gather(encode("huge", huge), encode("many", many), encode("one", one))
        threads.stop()
        return order

    order = asyncio.run(scenario())
    assert order[0] == "one"
    assert sorted(order) == ["huge", "many", "one"]


def test_slices_cover_all_inputs_in_order() -> None:
    for sizes in (
        [],
        [1],
        [SLICE_SIZE * 3],
        [SLICE_SIZE, 1],
        [10] * 9000,
        [SLICE_SIZE // 2 + 1] * 5,
        [1, SLICE_SIZE, 1],
    ):
        cuts = list(slices(sizes))
        assert [index for first, last in cuts for index in range(first, last)] == list(range(len(sizes)))
        assert all(last - first == 1 or sum(sizes[first:last]) <= SLICE_SIZE for first, last in cuts)
        assert len(cuts) <= 2 + 2 * sum(sizes) // SLICE_SIZE


def test_token_estimate_follows_the_tokenizer(models: dict[str, Model]) -> None:
    estimate = TokenEstimate()
    items = [Input("inputs", "good film " * 100), Input("inputs", "very good", "a bad film")]
    encoded = [item.encode(models["yoso"].encoder, False) for item in items]
    for _ in range(100):
        estimate.learn(items, encoded)
    tokens = sum(len(item.token_ids) for item in encoded)
    assert sum(estimate.tokens(item, 4096) for item in items) == pytest.approx(tokens, rel=0.1)
    assert estimate.tokens(items[0], 50) == 50, "no more than the model takes"
    ids = Input("inputs", token_ids=[5] * 77)
    assert estimate.tokens(ids, 4096) == 77
    before = estimate.tokens_per_byte
    estimate.learn([ids], [ids.encode(models["yoso"].encoder, False)])
    assert estimate.tokens_per_byte == before


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory, bundles: dict[str, Path]) -> Path:
    """A folder as an operator has it: bundles, one that is being copied under a hidden name, and what is no bundle."""
    folder = tmp_path_factory.mktemp("repository")
    for name, source in {"a film": "yoso", ".copying": "yoso", "e": "mca"}.items():
        shutil.copytree(bundles[source], folder / name)
    (folder / "lost+found").mkdir()
    (folder / "notes.txt").touch()
    return folder


async def served(*folders: Path) -> list[str]:
    """The models that an engine serves which was started with these folders."""
    engine = Engine(ServeSettings(threads=1))
    try:
        await engine.start(folders)
        return list(engine.models)
    finally:
        await engine.stop()


def test_every_bundle_in_a_folder_is_served(repository: Path, bundles: dict[str, Path], tmp_path: Path) -> None:
    assert asyncio.run(served(tmp_path, repository, bundles["multi"])) == ["yoso", "mca", "multi"]


@pytest.mark.parametrize("part", [MODEL, MANIFEST])
def test_a_bundle_in_a_folder_that_is_not_whole_stops_the_start(
    part: str, bundles: dict[str, Path], tmp_path: Path
) -> None:
    shutil.copytree(bundles["yoso"], tmp_path / "whole")
    half = Path(shutil.copytree(bundles["mca"], tmp_path / "half"))
    (half / part).unlink()
    with pytest.raises(BundleError, match=f"half: {part} is missing"):
        asyncio.run(served(tmp_path))


@pytest.mark.parametrize("name", ["copied just now", "gone"])
def test_a_folder_that_is_no_bundle_yet_and_a_link_that_leads_nowhere_stop_the_start(
    name: str, bundles: dict[str, Path], tmp_path: Path
) -> None:
    shutil.copytree(bundles["yoso"], tmp_path / "whole")
    (tmp_path / "copied just now").mkdir() if name != "gone" else (tmp_path / "gone").symlink_to("nowhere")
    with pytest.raises(BundleError, match=f"{name}(: bundle.json is missing| is not a folder)"):
        asyncio.run(served(tmp_path))


def test_a_folder_that_cannot_be_read_stops_the_start(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def refuse(path: Path) -> list[str]:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr("attenuator.serve.models.catalog.os.listdir", refuse)  # root may read everything
    with pytest.raises(BundleError, match=f"{tmp_path} cannot be read: Permission denied"):
        asyncio.run(served(tmp_path))


@pytest.mark.parametrize(
    ("names", "sentence"),
    [
        ([".", "a film"], "a film: bundle.json: name is 'yoso', must differ from that of the other bundles"),
        (["lost+found"], "there is nothing to serve: no bundle lies in .*lost.found"),
        (["gone"], "gone is not a folder"),
    ],
)
def test_a_start_without_a_bundle_or_with_one_twice_is_refused(
    repository: Path, names: list[str], sentence: str
) -> None:
    with pytest.raises(BundleError, match=sentence):
        asyncio.run(served(*(repository / name for name in names)))


def test_a_bundle_that_lacks_its_manifest_is_no_folder_of_bundles(bundles: dict[str, Path], tmp_path: Path) -> None:
    half = Path(shutil.copytree(bundles["yoso"], tmp_path / "half"))
    (half / MANIFEST).unlink()
    with pytest.raises(BundleError, match="half: bundle.json is missing"):
        asyncio.run(served(bundles["mca"], half))
