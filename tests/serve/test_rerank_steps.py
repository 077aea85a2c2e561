"""The second step of a list inside the service: where it finds no room, in time, or while others are answered."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import calibrations
import httpx
import pytest
import tiny
from list_calibrations import list_calibration
from pydantic import SecretStr
from tokenizers.models import WordPiece

from attenuator.api import Goals
from attenuator.bundle import TOKENIZER
from attenuator.runtime import Row, load
from attenuator.serve.access.keys import KeyRing
from attenuator.serve.accuracy.cost import Work
from attenuator.serve.accuracy.list_steps import Second, Steps
from attenuator.serve.accuracy.plan import FILLED, Asked, Limits
from attenuator.serve.api.second_step import held, limited
from attenuator.serve.app import create_app
from attenuator.serve.engine import Engine, RequestRun
from attenuator.serve.scheduling.requests import ANYONE
from attenuator.serve.settings import ServeSettings

DOCUMENTS = [" ".join(tiny.WORDS[(place * 7 + step) % len(tiny.WORDS)] for step in range(30)) for place in range(20)]
CHEAP = {"keep": 0.3, "alpha": 0.8}
BODY: dict[str, Any] = {"query": "a good film", "documents": DOCUMENTS}
ALL = Second(10)
KEY = '[{"name": "k", "key": "key-of-k-3141", "tokens_per_s": 1, "burst_tokens": 100000}]'


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A reranker whose lists were measured."""
    written = tiny.write(tmp_path_factory.mktemp("steps") / "rank", "keep", labels=("relevance",))
    tiny.sign(written, task="regression")
    model = load(written, check=False)
    kept = [(model.knobs.exact(), [[100] * 4] * 2), (model.knobs.check(CHEAP), [[50, 99, 100, 100]] * 2)]
    calibrations.write(written, list_calibration(model, kept))
    return written


@asynccontextmanager
async def serving(
    *folders: Path, keys: KeyRing | None = None, **fields: Any
) -> AsyncIterator[tuple[Engine, httpx.AsyncClient]]:
    """The service of bundles in this process, with settings, and a client."""
    chosen = ServeSettings.model_validate({"threads": 1, "brownout_target_ms": 1e6, **fields})
    engine = Engine(chosen)
    await engine.start(folders)
    transport = httpx.ASGITransport(create_app(engine, chosen, keys or KeyRing(None, None)))
    try:
        async with httpx.AsyncClient(transport=transport, base_url="http://test", timeout=60) as client:
            yield engine, client
    finally:
        await engine.stop()


def fill_after_first_step(engine: Engine, filled: ExitStack) -> Callable[..., None]:
    """A listener that takes all room of the queue as soon as a first step is answered."""

    def fill(*_: object) -> None:
        engine.listeners.answered.clear()
        for _ in range(8):  # a single request takes a part of it at most
            filled.enter_context(engine._queue.reserved({"light": 10**9, "heavy": 10**9}))

    return fill


@pytest.mark.parametrize("fields", [{"rescore": 5}, {"max_cost": 1e9}, {"max_latency_ms": 60_000}])
def test_a_second_step_that_finds_no_room_is_left_out(folder: Path, fields: dict[str, Any]) -> None:
    async def scenario() -> None:
        async with serving(folder) as (engine, client):
            alone = (await client.post("/v1/rerank", json=BODY | CHEAP)).json()
            with ExitStack() as filled:
                engine.listeners.answered.append(fill_after_first_step(engine, filled))
                answer = await client.post("/v1/rerank", json=BODY | CHEAP | fields)
            assert answer.status_code == 200
            assert (answer.json()["results"], answer.json()["steps"]) == (alone["results"], alone["steps"])
            again = (await client.post("/v1/rerank", json=BODY | CHEAP | fields)).json()
            assert len(again["steps"]) == 2, "there is room again"

    asyncio.run(scenario())


def test_a_second_model_that_finds_no_room_is_left_out(folder: Path, tmp_path: Path) -> None:
    async def scenario() -> None:
        small = tiny.write(tmp_path / "small", "yoso", labels=("relevance",), seed=5)
        tiny.sign(small, task="regression")
        async with serving(folder, small) as (engine, client):
            alone = (await client.post("/v1/rerank", json=BODY | {"model": "small"})).json()
            both = BODY | {"cascade": ["small", "rank"], "rescore": 5}
            with ExitStack() as filled:
                engine.listeners.answered.append(fill_after_first_step(engine, filled))
                answer = (await client.post("/v1/rerank", json=both)).json()
            assert (answer["results"], answer["steps"]) == (alone["results"], alone["steps"])
            assert len((await client.post("/v1/rerank", json=both)).json()["steps"]) == 2, "there is room again"

    asyncio.run(scenario())


def test_a_goal_that_the_first_step_alone_does_not_keep_is_refused_where_there_is_no_room(folder: Path) -> None:
    async def scenario() -> None:
        async with serving(folder) as (engine, client):
            goal = BODY | {"min_agreement": 0.9, "top_n": 1}
            assert len((await client.post("/v1/rerank", json=goal)).json()["steps"]) == 2
            with ExitStack() as filled:
                engine.listeners.answered.append(fill_after_first_step(engine, filled))
                assert (await client.post("/v1/rerank", json=goal)).status_code == 429

    asyncio.run(scenario())


@pytest.mark.parametrize("limit", ["max_latency_ms", "timeout_ms"])
def test_as_many_are_scored_again_as_are_predicted_to_be_in_time_and_within_the_cost(folder: Path, limit: str) -> None:
    goals: Goals = {"max_latency_ms": 100_000} if limit == "max_latency_ms" else {}
    timeout_ms = None if goals else 100_000 / FILLED

    async def scenario() -> None:
        async with serving(folder) as (engine, _):
            model = engine.model(None)
            exact, cheap = model.knobs.exact(), model.knobs.check(CHEAP)
            rows = [Row(model.from_ids([5] * 4000).token_ids, None, exact) for _ in range(10)]
            work = Work(model, [4000] * 10)

            async def count(left_s: float, steps: Steps, second: Second = ALL, max_cost: float | None = None) -> int:
                """For how many there is room `left_s` before the end of the second that they all have."""
                limits = Limits(max_cost=max_cost)
                run = RequestRun(engine, work, limits, ANYONE, time.perf_counter() + left_s - 100, timeout_ms)
                using = limited(run, work, Asked(exact, goals=goals, steps=steps), second)
                return await held(using, second, rows, work.cost(cheap) * 1e9)

            taken = [engine.admission.forecast(model, [4000] * few, exact).total_s for few in range(1, 11)]
            assert taken == sorted(taken)
            assert taken[0] > 0.01, "long enough that the time of the test itself does not count"
            assert await count(99, Steps(model)) == 10
            assert await count(0, Steps(model)) == 0
            assert await count(0, Steps(model), Second(10, least=10)) == 10, "a goal of agreement does not give way"
            for few in (1, 4, 9):
                assert await count((taken[few - 1] + taken[few]) / 2, Steps(model)) == few
            one = model.predict_cost(4000, exact) / 1e9
            for few in (0, 1, 4, 10):
                allowed = work.cost(cheap) + (few + 0.5) * one
                assert await count(99, Steps(model, max_cost=allowed)) == few
                assert await count(99, Steps(model), max_cost=allowed) == few
                assert await count(99, Steps(model, max_cost=2 * allowed), max_cost=allowed) == few

    asyncio.run(scenario())


@pytest.mark.parametrize("first", ["words", "letters"])
def test_the_second_step_is_predicted_by_the_lengths_that_its_own_tokenizer_gives(tmp_path: Path, first: str) -> None:
    """One model has a token a word, the other one a letter: four times as many."""

    async def scenario() -> None:
        folders = {name: tiny.reranker(tmp_path / name) for name in ("words", "letters")}
        letters = tiny.tokenizer()
        vocab = {token: place for token, place in tiny.VOCAB.items() if token not in tiny.WORDS}
        letters.model = WordPiece(vocab, unk_token="[UNK]")
        letters.save(str(folders["letters"] / TOKENIZER))
        tiny.sign(folders["letters"])
        models_of = {name: load(folder, check=False) for name, folder in folders.items()}
        last = models_of["letters" if first == "words" else "words"]
        costs = {}
        for name, model in models_of.items():
            lengths = [len(model.encode(BODY["query"], text).token_ids) for text in DOCUMENTS]
            costs[name] = Work(model, lengths).cost(model.knobs.exact())
        limit = costs[first] + costs[last.manifest.name] * 11 / 20  # of twenty alike, each with a twentieth of it
        body = BODY | {"cascade": [first, last.manifest.name], **models_of[first].knobs.exact()}
        async with serving(*folders.values(), max_cost=limit) as (_, client):
            kept = await client.post("/v1/rerank", json=body | {"rescore": 9})
            assert kept.status_code == 200, kept.text
            assert [each["documents"] for each in kept.json()["steps"]] == [20, 9]
            assert (await client.post("/v1/rerank", json=body | {"rescore": 13})).status_code == 422

    asyncio.run(scenario())


def test_a_key_pays_for_both_steps_and_its_metrics_count_both(folder: Path) -> None:
    async def scenario() -> None:
        keys = KeyRing(None, SecretStr(KEY))
        async with serving(folder, keys=keys) as (_, client):
            headers = {"Authorization": "Bearer key-of-k-3141"}
            tokens = keys.check("key-of-k-3141").tokens
            assert tokens is not None
            spent = []
            for fields in ({}, {"rescore": 8}):
                before = tokens.spare
                answer = await client.post("/v1/rerank", json=BODY | CHEAP | fields, headers=headers)
                spent.append(before - tokens.spare)
                assert answer.json()["usage"]["total_tokens"] == pytest.approx(spent[-1], abs=20)  # some come back
            assert spent[1] > 1.3 * spent[0]

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("fields", "status"),
    [(CHEAP | {"max_cost": 1e9}, 200), (CHEAP | {"rescore": 5}, 504), ({"min_agreement": 0.9, "top_n": 1}, 504)],
    ids=str,
)
def test_a_second_step_that_would_end_after_the_deadline_is_left_out_where_a_budget_asks_for_it(
    folder: Path, fields: dict[str, Any], status: int
) -> None:
    """It takes far longer than was predicted."""

    async def scenario() -> None:
        async with serving(folder) as (engine, client):
            first = (await client.post("/v1/rerank", json=BODY | CHEAP)).json()

            async def hang(*_: object) -> None:
                await asyncio.sleep(60)

            engine.listeners.answered.append(lambda *_: setattr(engine, "run", hang))
            answer = await client.post("/v1/rerank", json=BODY | fields | {"timeout_ms": 3000})
            assert answer.status_code == status, answer.text
            if status == 200:
                assert (answer.json()["results"], answer.json()["steps"]) == (first["results"], first["steps"])

    asyncio.run(scenario())


def test_a_deadline_ends_both_steps(folder: Path) -> None:
    async def scenario() -> None:
        async with serving(folder) as (engine, client):
            late = await client.post("/v1/rerank", json=BODY | {"rescore": 20, "timeout_ms": 0.01})
            assert late.status_code == 504
            await engine.idle.wait()
            assert not list(engine.waiting())

    asyncio.run(scenario())


def test_short_requests_are_answered_before_a_list_of_a_thousand(folder: Path) -> None:
    async def scenario() -> None:
        async with serving(folder) as (engine, client):
            ended: list[str] = []

            async def ask(name: str, path: str, body: dict[str, Any]) -> None:
                answer = await client.post(path, json=body)
                assert answer.status_code == 200, answer.text
                ended.append(name)

            documents = [f"{DOCUMENTS[place % 20]} {place}" for place in range(1000)]
            long = BODY | {"documents": documents, "rescore": 1000, **CHEAP}
            listed = asyncio.create_task(ask("list", "/v1/rerank", long))
            second = asyncio.Event()
            engine.listeners.answered.append(lambda *_: second.set())
            for when in (engine.admission._queue.vacant, lambda: not second.is_set()):
                while when():
                    await asyncio.sleep(0.001)
                await asyncio.gather(*(ask("short", "/v1/classify", {"inputs": "a good film"}) for _ in range(5)))
            await listed
            assert ended == ["short"] * 10 + ["list"]

    asyncio.run(scenario())
