"""Lists in two steps: the best documents of a cheap first step are scored again, exactly, by one model or by two."""

import json
import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import calibrations
import numpy as np
import pytest
import tiny
from list_calibrations import list_calibration
from service import Service

from attenuator.runtime import Model, load
from attenuator.runtime.scores import sigmoid
from attenuator.serve.api.peers.forms import RESULT_HEADER
from attenuator.serve.api.schema import HEADER

QUERY = "is the plot of the film good"
RANDOM = random.Random(3)
DOCUMENTS = [" ".join(RANDOM.choices(tiny.WORDS, k=RANDOM.randint(3, 60))) for _ in range(40)]
CHEAP = {"keep": 0.3, "alpha": 0.8}
EXACT = {"keep": 1.0, "alpha": 0.0}
HASHES = {"num_hashes": 4}
BOTH = ["mini", "rank"]
KEYS = [
    {"name": "plain", "key": "plain-key-3141", "tokens_per_s": 1e-6, "burst_tokens": 1e6},
    {"name": "capped", "key": "capped-key-2718", "ceilings": {"alpha": 0.3}},
]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Rerankers with random weights: a larger one, a smaller one before it, and one that no list was measured for."""
    root = tmp_path_factory.mktemp("lists")
    written = [
        tiny.write(root / "rank", "keep", labels=("relevance",)),
        tiny.write(root / "mini", "yoso", labels=("relevance",), seed=5),
        tiny.write(root / "plain", "mca", labels=("relevance",), seed=7),
    ]
    for folder in written:
        tiny.sign(folder, task="regression")
    rank, mini, _ = (load(folder, check=False) for folder in written)
    settings: list[tuple[dict[str, float], list[list[int]]]] = [
        (EXACT, [[100] * 4, [100] * 4]),
        ({"keep": 0.5, "alpha": 0.4}, [[80, 90, 99, 100], [60, 80, 98, 100]]),
        (CHEAP, [[40, 70, 95, 100], [20, 50, 90, 100]]),
    ]
    calibrations.write(written[0], list_calibration(rank, settings))
    before: list[tuple[dict[str, float], list[list[int]]]] = [
        ({"num_hashes": 0}, [[50, 80, 99, 100], [30, 70, 97, 100]]),
        (HASHES, [[30, 60, 90, 100], [10, 40, 80, 100]]),
    ]
    calibrations.write(written[1], list_calibration(mini, before, reference=rank.manifest.revision))
    return written


@pytest.fixture(scope="module")
def rank(folders: list[Path]) -> Model:
    return load(folders[0], check=False)


@pytest.fixture(scope="module")
def mini(folders: list[Path]) -> Model:
    return load(folders[1], check=False)


@pytest.fixture(scope="module")
def ranker(folders: list[Path], bundles: dict[str, Path]) -> Iterator[Service]:
    started = Service([*folders, bundles["yoso"]])
    yield started
    assert started.stop() == 0, started.log()


def rerank(service: Service, path: str = "/v1/rerank", **fields: Any) -> Any:
    body = {"query": QUERY, "documents": DOCUMENTS, **fields}
    if body.get("cascade", ...) is ...:
        body.setdefault("model", "rank")
    answer = service.client.post(path, json={name: value for name, value in body.items() if value is not ...})
    assert answer.status_code == 200, answer.text
    return answer.json()


def scores(service: Service, model: str = "rank", documents: list[str] = DOCUMENTS, **knobs: Any) -> list[float]:
    """The score of each document by a step, as the own route gives it."""
    inputs = [{"text": QUERY, "text_pair": document} for document in documents]
    answer = service.classify({"model": model, "inputs": inputs, **knobs}).json()
    return [float(sigmoid(np.float32(prediction["score"]))) for prediction in answer["predictions"]]


def two_steps(first: list[float], last: list[float], count: int) -> list[dict[str, Any]]:
    """What the answer has to be."""
    order = sorted(range(len(first)), key=lambda place: -first[place])
    best = sorted(order[:count], key=lambda place: -last[place])
    return [{"index": place, "relevance_score": last[place], "step": 2} for place in best] + [
        {"index": place, "relevance_score": first[place], "step": 1} for place in order[count:]
    ]


def cost(model: Model, lengths: list[int], knobs: dict[str, Any]) -> float:
    return model.total_cost(lengths, knobs) / 1e9


def lengths(model: Model, documents: list[str] = DOCUMENTS) -> list[int]:
    return [len(model.encode(QUERY, text_pair=document).token_ids) for document in documents]


@pytest.mark.parametrize("count", [1, 7, 40, 1000])
def test_the_best_are_scored_again_exactly_and_stand_first(ranker: Service, count: int) -> None:
    answer = rerank(ranker, rescore=count, seed=3, **CHEAP)
    first, last = scores(ranker, seed=3, **CHEAP), scores(ranker, seed=3, **EXACT)
    count = min(count, 40)
    assert answer["results"] == two_steps(first, last, count)
    assert answer["model"] == "rank"
    assert answer["steps"] == [
        {"model": "rank", "knobs": {"alpha": 0.8, "keep": 0.3}, "documents": 40},
        {"model": "rank", "knobs": {"alpha": 0.0, "keep": 1.0}, "documents": count},
    ]
    changed = [each["index"] for each in answer["results"]] != sorted(range(40), key=lambda place: -first[place])
    assert changed or count == 1


def test_the_first_of_two_models_scores_all_and_the_last_the_best(ranker: Service, mini: Model, rank: Model) -> None:
    answer = rerank(ranker, cascade=BOTH, rescore=9, **HASHES)
    expected = two_steps(scores(ranker, "mini", **HASHES), scores(ranker, **EXACT), 9)
    assert answer["results"] == expected
    assert (answer["model"], [step["model"] for step in answer["steps"]]) == ("rank", BOTH)
    best = [DOCUMENTS[each["index"]] for each in expected[:9]]
    assert answer["usage"]["total_tokens"] == sum(lengths(mini)) + sum(lengths(rank, best))
    assert rerank(ranker, cascade=BOTH, rescore=9, model="rank", **HASHES)["results"] == expected
    ranker.wait_for_log("POST /v1/rerank 200", "model=mini", "knobs.num_hashes=4", "rescored=9")


def test_without_knobs_the_first_step_runs_at_the_default(ranker: Service) -> None:
    answer = rerank(ranker, rescore=5)
    default = {"keep": 1.0, "alpha": 0.2}
    knobs = answer["steps"][0]["knobs"]
    assert answer["results"] == two_steps(scores(ranker), scores(ranker, **EXACT), 5), (knobs, default)


def test_a_first_step_that_is_exact_has_no_second(ranker: Service) -> None:
    answer = rerank(ranker, rescore=5, **EXACT)
    assert answer["results"] == rerank(ranker, **EXACT)["results"]
    assert len(answer["steps"]) == 1


def test_the_form_of_text_embeddings_inference_says_the_step_only_where_two_ran(ranker: Service) -> None:
    body = {"model": "rank", "query": QUERY, "texts": DOCUMENTS}
    one = ranker.client.post("/rerank", json=body | CHEAP)
    two = ranker.client.post("/rerank", json=body | CHEAP | {"rescore": 6})
    assert all(set(each) == {"index", "score"} for each in one.json())
    expected = two_steps(scores(ranker, **CHEAP), scores(ranker, **EXACT), 6)
    assert two.json() == [
        {"index": each["index"], "score": each["relevance_score"], "step": each["step"]} for each in expected
    ]
    assert [step["documents"] for step in json.loads(two.headers[RESULT_HEADER])["steps"]] == [40, 6]


def test_the_fields_may_stand_in_the_header(ranker: Service) -> None:
    header = {HEADER: json.dumps({"cascade": BOTH, "rescore": 3} | HASHES)}
    answer = ranker.client.post("/v2/rerank", json={"query": QUERY, "documents": DOCUMENTS}, headers=header)
    assert answer.json()["results"] == rerank(ranker, cascade=BOTH, rescore=3, **HASHES)["results"]
    wrong = {HEADER: json.dumps({"cascade": ["mini"]})}
    refused = ranker.client.post("/v2/rerank", json={"query": QUERY, "documents": DOCUMENTS}, headers=wrong)
    assert (refused.status_code, refused.json()["param"]) == (422, f"{HEADER}.cascade")


def test_top_n_cuts_what_two_steps_gave(ranker: Service) -> None:
    whole = rerank(ranker, rescore=4, **CHEAP)["results"]
    assert rerank(ranker, rescore=4, top_n=6, **CHEAP)["results"] == whole[:6]


@pytest.mark.parametrize("cascade", [None, BOTH])
def test_a_budget_of_cost_is_kept_and_fills_itself(
    ranker: Service, rank: Model, mini: Model, cascade: list[str] | None
) -> None:
    model, knobs = (rank, CHEAP) if cascade is None else (mini, HASHES)
    first = cost(model, lengths(model), model.knobs.check(knobs))
    whole = cost(rank, lengths(rank), rank.knobs.exact())
    before = scores(ranker, model.manifest.name, **knobs)
    order = sorted(range(40), key=lambda place: -before[place])
    counts = []
    for part in (0.0, 0.1, 0.5, 1.01):
        fields: dict[str, Any] = {"max_cost": first + part * whole, "cascade": cascade or ..., **knobs}
        answer = rerank(ranker, **fields)
        counts.append(sum(each["step"] == 2 for each in answer["results"]))
        best = [DOCUMENTS[each["index"]] for each in answer["results"][: counts[-1]]]
        spent = first + cost(rank, lengths(rank, best), rank.knobs.exact())
        assert spent <= fields["max_cost"]
        if counts[-1] < 40:
            after = DOCUMENTS[order[counts[-1]]]
            assert spent + cost(rank, lengths(rank, [after]), rank.knobs.exact()) > fields["max_cost"]
        assert answer["results"] == rerank(ranker, **fields)["results"]
    assert counts[0] == 0 < counts[1] < counts[2] < counts[3] == 40


def test_a_budget_chooses_among_measured_settings(ranker: Service, rank: Model) -> None:
    whole = cost(rank, lengths(rank), rank.knobs.exact())
    exact = rerank(ranker, max_cost=1.0001 * whole)
    assert exact["results"] == rerank(ranker, **EXACT)["results"]
    less = rerank(ranker, max_cost=0.9 * whole, top_n=3)
    first = less["steps"][0]["knobs"]
    assert first in ({"alpha": 0.4, "keep": 0.5}, {"alpha": 0.8, "keep": 0.3})
    assert [step["documents"] for step in less["steps"]][0] == 40
    count = less["steps"][1]["documents"]
    assert less["results"] == rerank(ranker, rescore=count, top_n=3, **first)["results"]
    ranker.wait_for_log("chosen_by=goal", f"max_cost={0.9 * whole}", f"rescored={count}")


def test_all_documents_by_the_last_model_where_the_budget_holds_them(ranker: Service, rank: Model) -> None:
    whole = cost(rank, lengths(rank), rank.knobs.exact())
    answer = rerank(ranker, cascade=BOTH, max_cost=1.0002 * whole)
    assert answer["results"] == rerank(ranker, **EXACT)["results"]
    assert answer["steps"] == [{"model": "rank", "knobs": {"alpha": 0.0, "keep": 1.0}, "documents": 40}]
    ranker.wait_for_log("model=rank", "chosen_by=goal", f"max_cost={1.0002 * whole}")


@pytest.mark.parametrize(("goal", "share"), [(0.3, None), (0.75, 0.2), (0.93, 0.5), (1, 1.0)])
def test_an_agreement_of_lists_is_kept_by_the_cheapest_steps(ranker: Service, goal: float, share: float | None) -> None:
    answer = ranker.client.post(
        "/v1/rerank",
        json={"model": "rank", "query": QUERY, "documents": DOCUMENTS, "min_agreement": goal, "top_n": 1},
    )
    result, steps = json.loads(answer.headers[RESULT_HEADER]), answer.json()["steps"]
    assert result["chosen_by"] == "goal"
    rescored = steps[1]["documents"] if len(steps) > 1 else 0
    if goal == 1:
        assert (steps[0]["knobs"], rescored) == ({"alpha": 0.0, "keep": 1.0}, 0)
        return
    assert result["expected_agreement"] > goal
    knobs = steps[0]["knobs"]
    expected = rerank(ranker, top_n=1, **knobs, **({"rescore": rescored} if rescored else {}))
    assert answer.json()["results"] == expected["results"]


def test_a_latency_that_is_over_leaves_the_fastest_first_step_alone(ranker: Service) -> None:
    for fields in ({}, {"cascade": BOTH}, {"keep": 0.3}):
        answer = rerank(ranker, max_latency_ms=1e-3, **fields)
        assert [step["documents"] for step in answer["steps"]] == [40]
        assert {each["step"] for each in answer["results"]} == {1}
    ample = rerank(ranker, max_latency_ms=60_000, **CHEAP)
    assert [step["documents"] for step in ample["steps"]] == [40, 40]


def test_where_no_list_was_measured_a_latency_chooses_as_for_texts(ranker: Service, folders: list[Path]) -> None:
    answer = ranker.client.post(
        "/v1/rerank", json={"model": "plain", "query": QUERY, "documents": DOCUMENTS, "max_latency_ms": 10}
    )
    assert (answer.status_code, answer.json()["param"]) == (422, "max_latency_ms")
    assert "needs a calibration, and model 'plain' has none" in answer.json()["message"]
    budget = rerank(ranker, model="plain", max_latency_ms=60_000, alpha=0.9)
    assert [step["documents"] for step in budget["steps"]] == [40, 40]


def test_lists_beside_other_traffic_have_the_scores_that_they_have_alone(ranker: Service) -> None:
    fields: list[dict[str, Any]] = [
        {"rescore": 5, "seed": 1, **CHEAP},
        {"rescore": 20, "seed": 2, "keep": 0.5},
        {"cascade": BOTH, "rescore": 10, **HASHES},
        {"max_cost": 0.08, **CHEAP},
    ]
    alone = [rerank(ranker, **each)["results"] for each in fields]
    with ThreadPoolExecutor(8) as threads:
        other = threads.map(lambda n: ranker.classify({"model": "yoso", "inputs": DOCUMENTS, "seed": n}), range(20))
        together = list(threads.map(lambda each: rerank(ranker, **each)["results"], fields * 3))
        assert all(answer.status_code == 200 for answer in other)
    assert together == alone * 3
    for result in alone[0][:8]:
        [single] = rerank(ranker, documents=[DOCUMENTS[result["index"]]], seed=1, rescore=1, **CHEAP)["results"]
        [first] = rerank(ranker, documents=[DOCUMENTS[result["index"]]], seed=1, **CHEAP)["results"]
        assert result["relevance_score"] == (single if result["step"] == 2 else first)["relevance_score"]


REFUSED: dict[str, tuple[str, str, dict[str, Any]]] = {
    "zero": ("rescore", "is 0, must be a whole number of at least 1", {"rescore": 0}),
    "in words": ("rescore", "is a text, must be a whole number", {"rescore": "ten"}),
    "part of one": ("rescore", "is 1.5, must be a whole number", {"rescore": 1.5}),
    "null": ("rescore", "is null", {"rescore": None}),
    "one name": ("cascade", "has 1 name, must be a list of two different names", {"cascade": ["mini"], "rescore": 1}),
    "three": ("cascade", "has 3 names", {"cascade": ["mini", "rank", "plain"], "rescore": 1}),
    "a name": ("cascade", "is a text, must be a list", {"cascade": "mini", "rescore": 1}),
    "no names": ("cascade", "is null, must be a list", {"cascade": None, "rescore": 1}),
    "number": ("cascade[1]", "is 3, must be the name of a served model", {"cascade": ["mini", 3], "rescore": 1}),
    "labels first": ("cascade[0]", "is 'yoso', a single_label classifier", {"cascade": ["yoso", "rank"], "rescore": 1}),
    "labels last": ("cascade[1]", "is 'yoso', a single_label classifier", {"cascade": ["rank", "yoso"], "rescore": 1}),
    "twice": ("cascade", "names 'rank' twice", {"cascade": ["rank", "rank"], "rescore": 1}),
    "model beside": (
        "model",
        "must be left out there or name its last one, 'rank'",
        {"cascade": BOTH, "model": "mini"},
    ),
    "no count": ("cascade", "does not say how many documents", {"cascade": BOTH}),
    "no cost": ("max_cost", "is 0, must be a number above 0", {"max_cost": 0}),
    "negative": ("max_cost", "is -1, must be a number above 0", {"max_cost": -1, **CHEAP}),
    "endless": ("max_cost", "must be a number above 0", {"max_cost": "1e400"}),
    "too little": ("max_cost", "is 1e-06, must be at least", {"max_cost": 1e-6}),
    "too little for knobs": ("max_cost", "once at alpha 0.8, keep 0.3", {"max_cost": 1e-6, **CHEAP}),
    "not measured": ("max_cost", "needs a calibration on lists, and model 'plain'", {"max_cost": 1, "model": "plain"}),
    "pair not measured": (
        "min_agreement",
        "model 'plain' before 'rank' has none",
        {"cascade": ["plain", "rank"], "min_agreement": 0.5},
    ),
    "count and cost": ("rescore", "stands beside max_cost, which says itself", {"rescore": 3, "max_cost": 1, **CHEAP}),
    "count and time": ("rescore", "stands beside max_latency_ms", {"rescore": 3, "max_latency_ms": 9}),
    "count and goal": ("rescore", "stands beside min_agreement", {"rescore": 3, "min_agreement": 0.5}),
    "goal and knobs": ("min_agreement", "stands beside keep", {"min_agreement": 0.5, "keep": 0.5}),
    "goal, cost and knobs": ("min_agreement", "stands beside keep", {"min_agreement": 0.5, "keep": 0.5, "max_cost": 1}),
    "goal above cost": ("max_cost", "min_agreement 0.9 takes", {"min_agreement": 0.9, "max_cost": 0.01}),
    "goal above time": ("max_latency_ms", "min_agreement 1 takes about", {"min_agreement": 1, "max_latency_ms": 1e-3}),
    "escalating": ("rescore", "stands beside escalate", {"rescore": 3, "escalate": True, "min_agreement": 0.5}),
    "escalating cost": ("max_cost", "stands beside escalate", {"max_cost": 3, "escalate": True, "min_agreement": 0.5}),
    "explained": ("explain", "is not accepted here", {"rescore": 3, "explain": True}),
    "knob of the last": ("keep", "model 'mini' has no knob keep", {"cascade": BOTH, "rescore": 3, "keep": 0.5}),
    "misspelt": ("rescored", "did you mean rescore?", {"rescored": 3}),
}


@pytest.mark.parametrize("case", REFUSED)
@pytest.mark.parametrize("form", ["documents", "texts"])
def test_what_is_wrong_is_refused_in_one_sentence(ranker: Service, form: str, case: str) -> None:
    param, part, fields = REFUSED[case]
    body = {"query": QUERY, form: DOCUMENTS} | ({} if "cascade" in fields else {"model": "rank"}) | fields
    answer = ranker.client.post("/rerank", content=json.dumps(body).replace('"1e400"', "1e400"))
    error = answer.json()
    assert (answer.status_code, error["param"]) == (422, param), answer.text
    assert part in error["message"]


@pytest.mark.parametrize("place", [0, 1])
def test_a_model_that_is_not_served_is_not_found(ranker: Service, place: int) -> None:
    cascade = ["rank", "rank"]
    cascade[place] = "none"
    answer = ranker.client.post(
        "/v1/rerank", json={"query": QUERY, "documents": DOCUMENTS, "cascade": cascade, "rescore": 1}
    )
    assert (answer.status_code, answer.json()["param"]) == (404, f"cascade[{place}]")
    assert "model 'none' is not served, must be one of rank" in answer.json()["message"]


@pytest.mark.parametrize("value", ["NaN", "Infinity", "1e400"])
def test_a_budget_is_a_finite_number(ranker: Service, value: str) -> None:
    body = json.dumps({"model": "rank", "query": QUERY, "documents": DOCUMENTS, "max_cost": 0.5})
    answer = ranker.client.post("/v1/rerank", content=body.replace("0.5", value))
    assert answer.status_code in (400, 422), answer.text


@pytest.mark.parametrize("field", [{"rescore": 3}, {"max_cost": 3}, {"cascade": BOTH}])
def test_other_routes_know_no_steps(ranker: Service, field: dict[str, Any]) -> None:
    bodies: dict[str, dict[str, Any]] = {
        "/v1/classify": {"inputs": "a"},
        "/v1/score": {"text_1": "a", "text_2": ["b"]},
        "/predict": {"inputs": "a"},
    }
    for path, body in bodies.items():
        answer = ranker.client.post(path, json={"model": "rank", **body, **field})
        assert answer.status_code in (400, 422), answer.text
        assert f"the field '{next(iter(field))}' is unknown" in answer.text
