"""Reranking by both clients and by `attenuator.load`: one real reranker, the same answers and errors from each."""

import asyncio
import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import tiny
from service import Service
from wire import ONCE, Wire

import attenuator
from attenuator import errors
from attenuator.clients import AsyncClient, Client, Ranking
from attenuator.local import LocalModel

QUERY = "is the plot of the film good"
DOCUMENTS = ["the plot was very good", "a contract shall renew", "bad actor", "law", "the plot was very good", "a film"]
SCRIPTS = ["好电影", "фильм", "ça — 😀", "चलचित्र", "فيلم جيد"]
RANDOM = np.random.default_rng(11)
MANY = [" ".join(RANDOM.choice(tiny.WORDS, int(count))) for count in RANDOM.integers(1, 12, 1000)]
KNOBS = {"alpha": 0.2, "keep": 0.3, "seed": 5}
ANSWER = {
    "model": "m",
    "results": [{"index": 0, "relevance_score": 0.5, "step": 1, "newer": 1}],
    "steps": [{"model": "m", "knobs": {"keep": 0.5}, "documents": 1}],
    "usage": {"total_tokens": 9},
    "timing_ms": {"total": 1.5},
    "a field of a newer server": True,
}

Ask = Callable[..., Any]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.reranker(tmp_path_factory.mktemp("rankers") / "rank")


@pytest.fixture(scope="module")
def address(folder: Path, bundles: dict[str, Path]) -> Iterator[str]:
    """Of a server of the reranker, of another one called `base`, and of a classifier."""
    base = tiny.reranker(folder.parent / "base", seed=3)
    service = Service([folder, base, bundles["yoso"]])
    yield f"http://{service.host}:{service.port}"
    assert service.stop() == 0, service.log()


@pytest.fixture(scope="module")
def here(folder: Path) -> Iterator[LocalModel]:
    with attenuator.load(folder, threads=2) as model:
        yield model


def blocking(url: str, *args: Any, transport: Any = None, **fields: Any) -> Ranking:
    with Client(url, transport=transport, **ONCE) as client:
        return client.rerank(*args, **fields)


def awaiting(url: str, *args: Any, transport: Any = None, **fields: Any) -> Ranking:
    async def run() -> Ranking:
        async with AsyncClient(url, transport=transport, **ONCE) as client:
            return await client.rerank(*args, **fields)

    return asyncio.run(run())


@pytest.fixture(params=[blocking, awaiting])
def ask(request: pytest.FixtureRequest, address: str) -> Ask:
    """Asks the server."""
    return lambda *args, **fields: request.param(address, *args, **{"model": "rank"} | fields)


@pytest.fixture(params=["blocking", "awaiting", "here"])
def rerank(request: pytest.FixtureRequest, address: str, here: LocalModel) -> Ask:
    """Asks the server by each client, or the bundle in this process."""
    if request.param == "here":
        return here.rerank
    verb = {"blocking": blocking, "awaiting": awaiting}[request.param]
    return lambda *args, **fields: verb(address, *args, model="rank", **fields)


def sent(**fields: Any) -> Any:
    """The body that a call sends."""
    wire = Wire(httpx.Response(200, json=ANSWER))
    blocking("http://service", QUERY, **{"documents": ["a"], **fields}, transport=httpx.MockTransport(wire))
    return wire.bodies[0]


def test_only_what_was_set_is_sent() -> None:
    assert sent() == {"query": QUERY, "documents": ["a"]}
    fields = {"top_n": 0, "rescore": 5, "max_cost": 2.5, "cascade": ["a", "b"], "return_documents": True, "keep": 0.5}
    goals = {"min_agreement": 0.9, "max_latency_ms": 50.0, "timeout_ms": 90.0, "seed": None, "priority": "batch"}
    assert sent(**fields, **goals, alpha=None, truncate=False) == sent() | fields | goals
    for several in (iter(["a", "b"]), ("a", "b"), np.array(["a", "b"]), {"x": "a", "y": "b"}.values()):
        assert sent(documents=several)["documents"] == ["a", "b"]
    with pytest.raises(errors.UnknownField, match="^rescor is not a knob"):
        sent(rescor=3)


def test_both_clients_show_every_knob_and_answers_are_typed(ask: Ask) -> None:
    assert inspect.signature(Client.rerank).parameters == inspect.signature(AsyncClient.rerank).parameters
    assert set(attenuator.ops.KNOBS) < set(inspect.signature(Client.rerank).parameters)
    response = httpx.Response(200, json=ANSWER, headers={"X-Request-Id": "id-7"})
    answer = ask(QUERY, ["a"], transport=httpx.MockTransport(Wire(response)))
    assert (answer.steps[0].knobs, answer.results[0].step, answer.timing_ms) == ({"keep": 0.5}, 1, {"total": 1.5})
    assert (answer.status, answer.request_id) == (200, "id-7")


@pytest.mark.parametrize("documents", [DOCUMENTS[:1], MANY[:50], MANY, ["law"] * 9, SCRIPTS], ids=len)
@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"rescore": 4},
        {"rescore": 20, **KNOBS},
        {"top_n": 3, "return_documents": True, "rescore": 2, **KNOBS},
        {"rescore": 3, "alpha": 0, "keep": 1},
    ],
    ids=str,
)
def test_a_bundle_here_ranks_as_the_service_does(
    ask: Ask, here: LocalModel, documents: list[str], fields: dict[str, Any]
) -> None:
    there, own = ask(QUERY, documents, **fields), here.rerank(QUERY, documents, **fields)
    assert there.model_dump(exclude={"timing_ms"}) == own.model_dump(exclude={"timing_ms"})
    assert own.timing_ms.keys() <= there.timing_ms.keys()
    assert len(own.results) == min(fields.get("top_n", 1000), len(documents))
    assert [each.documents for each in own.steps] == [
        len(documents),
        *([min(fields["rescore"], len(documents))] if "rescore" in fields and fields.get("keep") != 1 else []),
    ]
    scores = [(each.step, each.relevance_score) for each in own.results]
    assert scores == sorted(scores, reverse=True)
    assert all((each.document is not None) == ("top_n" in fields) for each in there.results)
    if len(set(documents)) == 1:
        assert [each.index for each in own.results] == list(range(len(own.results)))


def test_budgets_and_cascades_are_kept_by_a_service(ask: Ask) -> None:
    answer = ask(QUERY, MANY[:50], model=None, cascade=("rank", "base"), rescore=5, **KNOBS)
    assert [(each.model, each.documents) for each in answer.steps] == [("rank", 50), ("base", 5)]
    exact = {each.index: each.relevance_score for each in ask(QUERY, MANY[:50], model="base", alpha=0, keep=1).results}
    assert all(each.relevance_score == exact[each.index] for each in answer.results if each.step == 2)
    with pytest.raises(errors.InvalidRequest, match="^max_cost is ") as caught:
        ask(QUERY, MANY[:50], max_cost=1e-9, **KNOBS)
    least = float(str(caught.value.allowed).split()[0])
    answer = ask(QUERY, MANY[:50], max_cost=1.5 * least, **KNOBS)
    assert 0 < answer.steps[1].documents < 50
    assert ask(QUERY, MANY[:50], max_latency_ms=60_000, **KNOBS).steps[1].documents == 50
    with pytest.raises(errors.NotCalibrated, match="^max_cost needs a calibration on lists"):
        ask(QUERY, DOCUMENTS, max_cost=5)
    with pytest.raises(errors.UnknownModel) as unknown:
        ask(QUERY, DOCUMENTS, model=None, cascade=["rank", "none"], rescore=2)
    assert "none" in str(unknown.value)


def test_documents_may_be_objects(rerank: Ask) -> None:
    expected = rerank(QUERY, DOCUMENTS, **KNOBS).results
    for several in ([{"text": each} for each in DOCUMENTS], [{"text": DOCUMENTS[0]}, *DOCUMENTS[1:]], iter(DOCUMENTS)):
        assert rerank(QUERY, several, **KNOBS).results == expected
    assert rerank(QUERY, np.array(DOCUMENTS), **KNOBS).results == expected


def test_a_second_step_scores_the_best_again_exactly(here: LocalModel) -> None:
    exact = {each.index: each.relevance_score for each in here.rerank(QUERY, MANY[:50], alpha=0, keep=1).results}
    first = here.rerank(QUERY, MANY[:50], **KNOBS).results
    answer = here.rerank(QUERY, MANY[:50], rescore=7, **KNOBS)
    top, others = answer.results[:7], answer.results[7:]
    assert {each.index for each in top} == {each.index for each in first[:7]}
    assert [(each.relevance_score, each.step) for each in top] == sorted(
        ((exact[each.index], 2) for each in top), reverse=True
    )
    assert others == first[7:]
    assert [(step.documents, step.knobs) for step in answer.steps] == [
        (50, {"alpha": 0.2, "keep": 0.3}),
        (7, {"alpha": 0.0, "keep": 1.0}),
    ]
    everything = here.rerank(QUERY, MANY[:50], rescore=99, **KNOBS)
    assert {each.index: each.relevance_score for each in everything.results} == exact
    assert here.rerank(QUERY, MANY[:50], rescore=7, top_n=2, **KNOBS).results == answer.results[:2]


@pytest.mark.parametrize(
    ("fields", "kind", "part"),
    [
        ({"documents": []}, errors.InvalidRequest, "documents has 0 items"),
        ({"documents": ["a", " "]}, errors.InvalidRequest, "documents[1] is empty"),
        ({"documents": ["a", 3]}, errors.InvalidRequest, 'documents[1] is 3, must be a text or {"text": ..}'),
        ({"documents": [{"text": "a", "txt": "b"}]}, errors.UnknownField, "documents[0].txt"),
        ({"documents": ["good " * 9000]}, errors.InputTooLong, "documents[0] has"),
        ({"query": ""}, errors.InvalidRequest, "query is empty"),
        ({"query": 3}, errors.InvalidRequest, "query is 3, must be a text"),
        ({"top_n": -1}, errors.InvalidRequest, "top_n is -1, must be a whole number of at least 0"),
        ({"top_n": True}, errors.InvalidRequest, "top_n is true"),
        ({"keep": 3}, errors.KnobOutOfRange, "keep is 3"),
        ({"num_hashes": 3}, errors.UnknownField, "model 'rank' has no knob num_hashes"),
    ],
    ids=str,
)
def test_what_is_wrong_is_named(rerank: Ask, fields: dict[str, Any], kind: type[Exception], part: str) -> None:
    with pytest.raises(errors.InvalidRequest) as caught:
        rerank(**{"query": QUERY, "documents": DOCUMENTS, **fields})
    assert type(caught.value) is kind
    assert part in str(caught.value)


def test_a_model_of_labels_does_not_rank(ask: Ask, bundles: dict[str, Path]) -> None:
    sentence = "must be a reranker, which has one output"
    with pytest.raises(errors.InvalidRequest, match=sentence):
        ask(QUERY, DOCUMENTS, model="yoso")
    with attenuator.load(bundles["yoso"], check=False) as model, pytest.raises(errors.InvalidRequest, match=sentence):
        model.rerank(QUERY, DOCUMENTS)
    with pytest.raises(errors.UnknownModel):
        ask(QUERY, DOCUMENTS, model="other")


@pytest.mark.parametrize("name", ["max_cost", "cascade", "max_latency_ms", "min_agreement", "timeout_ms", "model"])
def test_what_needs_a_service_is_refused_here(here: LocalModel, name: str) -> None:
    sentence = f"^{name} is a field of a service's requests; here the fields are top_n, return_documents, rescore, seed"
    with pytest.raises(errors.UnknownField, match=sentence):
        here.rerank(QUERY, DOCUMENTS, **{name: 1})


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"rescore": 0}, "rescore is 0, must be a whole number of at least 1"),
        ({"topn": 3}, "the field 'topn' is unknown; did you mean top_n?"),
        ({"documents": "text"}, "documents is of type str, must be a list"),
        ({"documents": {"text": "a"}}, "documents is of type dict, must be a list"),
        ({"documents": None}, "documents is of type NoneType"),
    ],
    ids=str,
)
def test_what_a_program_gets_wrong_here(here: LocalModel, fields: dict[str, Any], sentence: str) -> None:
    with pytest.raises(errors.InvalidRequest) as caught:
        here.rerank(**{"query": QUERY, "documents": DOCUMENTS, **fields})
    assert str(caught.value).startswith(sentence)


def test_no_service_is_told() -> None:
    for verb in (blocking, awaiting):
        with pytest.raises(errors.ServiceUnreachable, match="cannot be reached"):
            verb("http://127.0.0.1:1", QUERY, ["a"])
    wire = Wire(httpx.Response(503, headers={"Retry-After": "0"}), httpx.Response(200, json=ANSWER))
    with Client("http://service", transport=httpx.MockTransport(wire), max_retries=1) as client:
        assert client.rerank(QUERY, iter(["a"])).model == "m"
    assert wire.bodies[0] == wire.bodies[1]
