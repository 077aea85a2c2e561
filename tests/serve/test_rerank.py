"""Reranking in the forms of Cohere, Jina, vLLM and text-embeddings-inference, and scores of pairs in that of vLLM."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
from schema_requests import accepted, ask, narrowed
from schemathesis.generation import GenerationMode
from service import Service

from attenuator.runtime.pairs import MAX_REPEATED
from attenuator.runtime.scores import sigmoid
from attenuator.serve.api.peers.forms import RESULT_HEADER
from attenuator.serve.api.schema import HEADER

PATHS = ("/v1/rerank", "/v2/rerank", "/rerank")
SCORES = ("/v1/score", "/score")
QUERY = "is the plot of the film good"
DOCUMENTS = ["the plot was very good", "a contract shall renew", "bad actor", "law", "the plot was very good", "a film"]
KEYS = [
    {"name": "plain", "key": "plain-key-3141", "ceilings": {"alpha": 0.3}},
    {"name": "slow", "key": "slow-key-1414", "requests_per_s": 1e-6},
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cross-encoder with random weights and two knobs, `alpha` and `keep`."""
    written = tiny.write(tmp_path_factory.mktemp("rankers") / "rank", "keep", labels=("relevance",))
    tiny.sign(written, task="regression")
    return written


@pytest.fixture(scope="module")
def ranker(folder: Path, bundles: dict[str, Path]) -> Iterator[Service]:
    """A server of the cross-encoder and of classifiers."""
    started = Service([folder, bundles["yoso"], bundles["multi"]])
    yield started
    assert started.stop() == 0, started.log()


def post(service: Service, path: str, headers: dict[str, str] | None = None, **fields: Any) -> Any:
    answer = service.client.post(path, json={"model": "rank", **fields}, headers=headers)
    assert answer.status_code == 200, answer.text
    return answer.json()


def rerank(service: Service, path: str = "/v1/rerank", **fields: Any) -> dict[str, Any]:
    return dict(post(service, path, **{"query": QUERY, "documents": DOCUMENTS, **fields}))


def own(service: Service, pairs: list[tuple[str, str]], **fields: Any) -> list[float]:
    """The model's output for each pair, by the service's own route."""
    inputs = [{"text": text, "text_pair": pair} for text, pair in pairs]
    answer = service.classify({"model": "rank", "inputs": inputs, **fields}).json()
    return [prediction["score"] for prediction in answer["predictions"]]


def of_query(documents: list[str]) -> list[tuple[str, str]]:
    return [(QUERY, document) for document in documents]


@pytest.mark.parametrize("path", PATHS)
def test_the_best_documents_come_first_with_the_scores_of_the_own_route(ranker: Service, path: str) -> None:
    outputs = own(ranker, of_query(DOCUMENTS))
    assert outputs[0] == outputs[4]
    answer = rerank(ranker, path, request_id="r-7")
    order = sorted(range(len(DOCUMENTS)), key=lambda place: (-outputs[place], place))
    assert answer["results"] == [
        {"index": place, "relevance_score": float(sigmoid(np.float32(outputs[place]))), "step": 1} for place in order
    ]
    assert [(step["model"], step["documents"]) for step in answer["steps"]] == [("rank", len(DOCUMENTS))]
    assert set(answer["timing_ms"]) == {"tokenize", "queue", "compute", "total"}
    assert (answer["id"], answer["model"]) == ("rerank-r-7", "rank")
    inputs = [{"text": QUERY, "text_pair": document} for document in DOCUMENTS]
    tokens = sum(ranker.classify({"model": "rank", "inputs": inputs}).json()["tokens"])
    assert answer["usage"]["total_tokens"] == answer["meta"]["tokens"]["input_tokens"] == tokens
    raw = rerank(ranker, path, use_activation=False)["results"]
    assert [result["relevance_score"] for result in raw] == [outputs[place] for place in order]


def test_a_score_does_not_depend_on_the_other_documents(ranker: Service) -> None:
    together = {result["index"]: result["relevance_score"] for result in rerank(ranker)["results"]}
    for place, document in enumerate(DOCUMENTS):
        [alone] = rerank(ranker, documents=[document])["results"]
        assert alone == {"index": 0, "relevance_score": together[place], "step": 1}


def test_documents_as_objects_and_their_return(ranker: Service) -> None:
    objects: list[Any] = [{"text": document} for document in DOCUMENTS]
    answer = rerank(ranker, documents=objects[:3] + DOCUMENTS[3:], return_documents=True)
    assert [DOCUMENTS[result["index"]] for result in answer["results"]] == [
        result.pop("document")["text"] for result in answer["results"]
    ]
    assert answer["results"] == rerank(ranker)["results"]


@pytest.mark.parametrize(("top_n", "count"), [(1, 1), (4, 4), (6, 6), (99, 6), (0, 6), (None, 6), (2.0, 2)])
def test_so_many_of_the_best_are_returned(ranker: Service, top_n: float | None, count: int) -> None:
    assert rerank(ranker, top_n=top_n)["results"] == rerank(ranker)["results"][:count]


def test_the_form_of_text_embeddings_inference(ranker: Service) -> None:
    ranks = post(ranker, "/rerank", query=QUERY, texts=DOCUMENTS)
    results = rerank(ranker)["results"]
    assert ranks == [{"index": each["index"], "score": each["relevance_score"]} for each in results]
    raw = post(ranker, "/rerank", query=QUERY, texts=DOCUMENTS, raw_scores=True, return_text=True, truncate=None)
    outputs = own(ranker, of_query(DOCUMENTS))
    assert raw == [
        {"index": each["index"], "score": outputs[each["index"]], "text": DOCUMENTS[each["index"]]} for each in results
    ]


@pytest.mark.parametrize("path", SCORES)
def test_scores_of_one_with_many_and_of_many_with_many(ranker: Service, path: str) -> None:
    others = [QUERY, "law", *DOCUMENTS[:4]]
    for first, second, pairs in [
        (QUERY, DOCUMENTS, of_query(DOCUMENTS)),
        ([QUERY], DOCUMENTS, of_query(DOCUMENTS)),
        (others, DOCUMENTS, list(zip(others, DOCUMENTS, strict=True))),
        (QUERY, "law", [(QUERY, "law")]),
    ]:
        answer = post(ranker, path, text_1=first, text_2=second, use_activation=False, request_id="s-1")
        scores = own(ranker, pairs)
        assert answer["data"] == [
            {"index": index, "object": "score", "score": score} for index, score in enumerate(scores)
        ]
        assert (answer["id"], answer["object"], answer["model"]) == ("score-s-1", "list", "rank")
        assert answer["usage"]["prompt_tokens"] > 0
        activated = post(ranker, path, text_1=first, text_2=second)["data"]
        assert [each["score"] for each in activated] == sigmoid(np.float32(scores)).tolist()


def test_knobs_in_the_body_or_the_header(ranker: Service) -> None:
    knobs = {"keep": 0.3, "alpha": 0.2, "seed": 5}
    outputs = own(ranker, of_query(DOCUMENTS), **knobs)
    assert outputs != own(ranker, of_query(DOCUMENTS))
    header = {HEADER: json.dumps(knobs)}
    bodies: dict[str, dict[str, Any]] = {
        **{path: {"query": QUERY, "documents": DOCUMENTS, "use_activation": False} for path in PATHS},
        **{path: {"text_1": QUERY, "text_2": DOCUMENTS, "use_activation": False} for path in SCORES},
    }
    for path, body in bodies.items():
        for fields, headers in ((knobs, {}), ({}, header)):
            answer = ranker.client.post(path, json={"model": "rank", **body, **fields}, headers=headers)
            rows = answer.json()["data" if path in SCORES else "results"]
            assert {row["index"]: row.get("score", row.get("relevance_score")) for row in rows} == dict(
                enumerate(outputs)
            )
            result = json.loads(answer.headers[RESULT_HEADER])
            assert (result["knobs"], result["chosen_by"]) == ({"alpha": 0.2, "keep": 0.3}, "caller")
    texts = post(ranker, "/rerank", query=QUERY, texts=DOCUMENTS, raw_scores=True, priority="batch", **knobs)
    assert {rank["index"]: rank["score"] for rank in texts} == dict(enumerate(outputs))


@pytest.mark.parametrize("priority", [0, 1, -3, "batch", "interactive"])
def test_priorities_are_classes_or_numbers(ranker: Service, priority: int | str) -> None:
    assert rerank(ranker, priority=priority)["results"] == rerank(ranker)["results"]


def test_long_pairs_are_cut_where_that_is_asked_for(ranker: Service) -> None:
    long = "good film " * 5000
    cut = own(ranker, [(QUERY, long)], truncate=True)
    ways: list[tuple[dict[str, Any], dict[str, str]]] = [
        ({"truncate": True}, {}),
        ({"truncate_prompt_tokens": -1}, {}),
        ({"max_tokens_per_doc": 8192}, {}),
        ({}, {HEADER: '{"truncate": true}'}),
    ]
    for fields, headers in ways:
        body = {"query": QUERY, "documents": [long], "use_activation": False, **fields}
        assert [each["relevance_score"] for each in post(ranker, "/v2/rerank", headers, **body)["results"]] == cut
    ranks = post(ranker, "/rerank", query=QUERY, texts=[long], raw_scores=True, truncate=True)
    assert [rank["score"] for rank in ranks] == cut
    scores = post(ranker, "/score", text_1=QUERY, text_2=long, use_activation=False, truncate_prompt_tokens=8192)
    assert [each["score"] for each in scores["data"]] == cut


def test_a_thousand_documents(ranker: Service) -> None:
    documents = [f"{DOCUMENTS[index % 6]} {'abcdefghij'[index // 100]} {index % 7}" for index in range(1000)]
    answer = rerank(ranker, documents=[{"text": document} for document in documents], return_documents=True)
    scores = [result["relevance_score"] for result in answer["results"]]
    assert scores == sorted(scores, reverse=True)
    assert sorted(result["index"] for result in answer["results"]) == list(range(1000))
    for result in answer["results"][::100]:
        alone = own(ranker, [(QUERY, documents[result["index"]])])
        assert result["relevance_score"] == float(sigmoid(np.float32(alone[0])))
        assert result["document"]["text"] == documents[result["index"]]


def test_lists_at_the_same_time_have_the_scores_that_they_have_alone(ranker: Service) -> None:
    fields = [{"keep": keep, "alpha": alpha, "seed": 1} for keep in (1.0, 0.5) for alpha in (0.0, 0.4)]
    alone = [rerank(ranker, **each)["results"] for each in fields]
    with ThreadPoolExecutor(8) as threads:
        together = list(threads.map(lambda each: rerank(ranker, **each)["results"], fields * 4))
    assert together == alone * 4


REFUSED: dict[str, tuple[str, str, dict[str, Any]]] = {
    "no query": ("query", "is missing", {"query": ...}),
    "empty query": ("query", "is empty", {"query": " "}),
    "query's type": ("query", "is a list, must be a text", {"query": [QUERY]}),
    "long query": ("query", f"has 17000 characters, must be a text of at most {MAX_REPEATED}", {"query": "a " * 8500}),
    "no documents": ("documents", "is missing, must be a list of 1 to 1000 texts", {"documents": ...}),
    "empty list": ("documents", "has 0 items, must have 1 to 1000", {"documents": []}),
    "too many": ("documents", "has 1001 items", {"documents": ["a"] * 1001}),
    "one text": ("documents", "is a text", {"documents": "a"}),
    "empty document": ("documents[1]", "is empty", {"documents": ["a", ""]}),
    "empty object": ("documents[0].text", "is null", {"documents": [{}]}),
    "empty text of an object": ("documents[1].text", "is empty", {"documents": ["a", {"text": " "}]}),
    "number": ("documents[1]", 'is 3, must be a text or {"text": ..}', {"documents": ["a", 3]}),
    "null": ("documents[0]", "is null", {"documents": [None]}),
    "list in a list": ("documents[0]", "is a list", {"documents": [["a"]]}),
    "image": ("documents[0].image", "is unknown", {"documents": [{"text": "a", "image": "b"}]}),
    "half of a pair": ("documents[0]", "surrogate", {"documents": ["a\ud800"]}),
    "too long": (
        "documents[1]",
        "must have at most 8192, query included, or set truncate",
        {"documents": ["a", "good " * 9000]},
    ),
    "negative": ("top_n", "is -1, must be a whole number of at least 0", {"top_n": -1}),
    "no number": ("top_n", "is true", {"top_n": True}),
    "shorter documents": ("max_tokens_per_doc", "at least 8192, the length of 'rank'", {"max_tokens_per_doc": 512}),
    "shorter pairs": ("truncate_prompt_tokens", "must be -1 or 8192", {"truncate_prompt_tokens": 16}),
    "side": ("truncation_side", "must be right", {"truncation_side": "left"}),
    "return": ("return_documents", "true or false", {"return_documents": 1}),
    "misspelt": ("top_m", "did you mean top_n?", {"top_m": 1}),
    "older field": ("rank_fields", "is unknown", {"rank_fields": ["text"]}),
    "own name": ("inputs", "is unknown", {"inputs": ["a"]}),
    "knob": ("keep", "from", {"keep": 3}),
    "no such knob": ("num_hashes", "model 'rank' has no knob", {"num_hashes": 3}),
    "goal": ("min_agreement", "needs a calibration", {"min_agreement": 0.9}),
    "explain": ("explain", "is not accepted here", {"explain": True}),
    "labels": ("model", "'yoso', a single_label classifier with 3 labels, must be a reranker", {"model": "yoso"}),
    "many labels": ("model", "a multi_label classifier with 33 labels", {"model": "multi"}),
    "no model": ("model", f"in the body and in the header {HEADER}, must be one of", {"model": ...}),
}


KINDS = {  # of those that are not just wrong values, as POST /v1/classify has them
    **dict.fromkeys(("image", "misspelt", "older field", "own name", "no such knob", "explain"), "unknown_field"),
    "too long": "input_too_long",
    "knob": "knob_out_of_range",
    "goal": "not_calibrated",
}


@pytest.mark.parametrize("case", REFUSED)
@pytest.mark.parametrize("path", PATHS)
def test_what_is_wrong_is_refused_in_one_sentence(ranker: Service, path: str, case: str) -> None:
    param, part, fields = REFUSED[case]
    body = {"model": "rank", "query": QUERY, "documents": DOCUMENTS, **fields}
    body = {name: value for name, value in body.items() if value is not ...}
    answer = ranker.client.post(path, content=json.dumps(body))
    error = answer.json()
    assert (answer.status_code, error["error_type"], error["param"]) == (422, "Validation", param), answer.text
    assert part in error["error"]
    assert error["error"] == error["message"] == error["detail"]
    assert error["code"] == KINDS.get(case, "invalid_request")


def test_ten_thousand_documents_are_refused(ranker: Service) -> None:
    answer = ranker.client.post("/v1/rerank", json={"model": "rank", "query": QUERY, "documents": ["a"] * 10_000})
    assert answer.status_code == 422
    assert "more than 2048 values" in answer.json()["message"]


REFUSED_TEXTS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "both": ("texts", "is unknown", {"texts": ["a"], "documents": ["a"]}),
    "object": ("texts[0]", "is an object, must be a text", {"texts": [{"text": "a"}]}),
    "empty": ("texts[1]", "is empty", {"texts": ["a", ""]}),
    "empty list": ("texts", "has 0 items", {"texts": []}),
    "other form's field": ("top_n", "is unknown", {"texts": ["a"], "top_n": 1}),
    "priority": ("priority", "must be", {"texts": ["a"], "priority": 3}),
    "side": ("truncation_direction", "must be right", {"texts": ["a"], "truncation_direction": "Left"}),
    "raw scores": ("raw_scores", "true or false", {"texts": ["a"], "raw_scores": 1}),
    "too long": ("texts[0]", "at most 8192, query included, or set truncate", {"texts": ["good " * 9000]}),
    "labels": ("model", "must be a reranker", {"texts": ["a"], "model": "yoso"}),
}


@pytest.mark.parametrize("case", REFUSED_TEXTS)
def test_what_is_wrong_in_the_form_of_text_embeddings_inference(ranker: Service, case: str) -> None:
    param, part, fields = REFUSED_TEXTS[case]
    answer = ranker.client.post("/rerank", json={"model": "rank", "query": QUERY, **fields})
    assert (answer.status_code, answer.json()["param"]) == (422, param), answer.text
    assert part in answer.json()["error"]


REFUSED_PAIRS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "missing": ("text_2", "is missing", {"text_2": ...}),
    "counts": ("text_2", "has 3 texts, must be 2 texts, as many as", {"text_1": ["a", "b"], "text_2": ["a"] * 3}),
    "one on the right": ("text_2", "has 1 texts, must be 2", {"text_1": ["a", "b"], "text_2": "a"}),
    "empty": ("text_1", "is empty", {"text_1": ""}),
    "empty in a list": ("text_2[1]", "is empty", {"text_2": ["a", ""]}),
    "empty list": ("text_1", "has 0 items", {"text_1": []}),
    "object": ("text_1", "is an object", {"text_1": {"text": "a"}}),
    "object in a list": ("text_2[0]", "is an object, must be a text", {"text_2": [{"text": "a"}]}),
    "too long": ("text_2", "text_1 included, or set truncate_prompt_tokens", {"text_2": "good " * 9000}),
    "labels": ("model", "must be a reranker", {"model": "yoso"}),
    "truncate": ("truncate", "is unknown", {"truncate": True}),
}


@pytest.mark.parametrize("case", REFUSED_PAIRS)
@pytest.mark.parametrize("path", SCORES)
def test_what_is_wrong_in_pairs(ranker: Service, path: str, case: str) -> None:
    param, part, fields = REFUSED_PAIRS[case]
    body = {"model": "rank", "text_1": "a", "text_2": "b", **fields}
    answer = ranker.client.post(path, json={name: value for name, value in body.items() if value is not ...})
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["param"]) == (400, 400, param), answer.text
    assert part in error["message"]


def test_keys_and_limits(folder: Path) -> None:
    service = Service([folder], "--api-keys", json.dumps(KEYS), "--max-body-bytes", "3000")
    body = {"query": QUERY, "documents": DOCUMENTS}
    bodies: dict[str, dict[str, Any]] = {
        **dict.fromkeys(PATHS, body),
        **dict.fromkeys(SCORES, {"text_1": QUERY, "text_2": "law"}),
    }
    try:
        plain, slow = ({"Authorization": f"Bearer {each['key']}"} for each in KEYS)
        assert service.client.post(PATHS[0], json=body, headers=slow).status_code == 200
        for path, good in bodies.items():
            assert service.client.post(path, json=good, headers=plain).status_code == 200
            above = service.client.post(path, json=good | {"alpha": 0.1}, headers=plain)
            limited = service.client.post(path, json=good, headers=slow)
            late = service.client.post(path, json=good | {"timeout_ms": 0.001}, headers=plain)
            large = service.client.post(path, content=json.dumps(good) + " " * 3000, headers=plain)
            missing = service.client.post(path, json=good)
            broken = service.client.post(path, content=b"{", headers=plain)
            answers = (missing, above, limited, late, large, broken)
            refused = 400 if path in SCORES else 422
            assert [each.status_code for each in answers] == [401, refused, 429, 504, 413, 400]
            for answer in answers:
                error = answer.json()["error"]
                assert set(error) >= {"message", "code"} if path in SCORES else answer.json()["message"] == error
            assert int(limited.headers["Retry-After"]) > 1
    finally:
        assert service.stop() == 0, service.log()


def test_coheres_client(ranker: Service) -> None:
    cohere = pytest.importorskip("cohere")
    url = f"http://{ranker.host}:{ranker.port}"
    asked = {"model": "rank", "query": QUERY, "documents": DOCUMENTS}
    knobs = {"keep": 0.3, "alpha": 0.2, "seed": 5}
    with cohere.ClientV2("not-checked-here", base_url=url) as client:
        answer = client.rerank(**asked, top_n=3, max_tokens_per_doc=8192)
        lowered = client.rerank(**asked, request_options={"additional_body_parameters": knobs})
        with pytest.raises(cohere.UnprocessableEntityError) as refused:
            client.rerank(**asked | {"documents": ["a", ""]})
    for each_answer, fields in ((answer, {"top_n": 3}), (lowered, knobs)):
        own_results = [(each["index"], each["relevance_score"]) for each in rerank(ranker, **fields)["results"]]
        assert [(each.index, each.relevance_score) for each in each_answer.results] == own_results
    assert answer.meta.tokens.input_tokens > 0
    assert refused.value.body["message"].startswith("documents[1] is empty")
    with cohere.Client("not-checked-here", base_url=url) as older:
        documents = [{"text": document} for document in DOCUMENTS]
        [best] = older.rerank(**asked | {"documents": documents}, return_documents=True, top_n=1).results
    assert best.document.text == DOCUMENTS[best.index]


def test_info_says_that_the_model_ranks(ranker: Service) -> None:
    info = ranker.client.get("/info", headers={HEADER: '{"model": "rank"}'}).json()
    assert info["model_type"] == {"reranker": {"id2label": {"0": "relevance"}, "label2id": {"relevance": 0}}}


def test_the_list_of_models_says_which_of_them_rank(ranker: Service) -> None:
    models = {each["name"]: each["ranks"] for each in ranker.client.get("/v1/models").json()["models"]}
    assert models == {"rank": True, "yoso": False, "multi": False}
    for name, ranks in models.items():
        answer = ranker.client.post("/v1/rerank", json={"model": name, "query": QUERY, "documents": DOCUMENTS})
        assert answer.is_success == ranks, name


def test_the_reference_says_which_bodies_a_route_takes(ranker: Service) -> None:
    link = '<a href="#{0}">{0}</a>'.format
    assert f"{link('RerankRequest')} or {link('RankRequest')}" in ranker.client.get("/docs").text


def test_requests_generated_from_the_description(ranker: Service) -> None:
    models = ranker.client.get("/v1/models").json()["models"]
    description = narrowed(ranker.client.get("/openapi.json").json(), models, "rank")
    description["paths"] = {path: description["paths"][path] for path in (*PATHS, *SCORES)}
    counts = ask(ranker, description, 12, GenerationMode.POSITIVE)
    for path in (*PATHS, *SCORES):
        assert accepted(counts, f"POST {path}") > 0.75, counts
