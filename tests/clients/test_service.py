"""Both clients against a real server: answers, errors, deadlines, load."""

import asyncio
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from attenuator import errors
from attenuator.bundle import read_manifest
from attenuator.clients import AsyncClient, Classification, Client, ModelInfo, Outcome
from attenuator.ops import KNOBS

TEXTS = ["the quick brown fox", "a film so bad that it is good again", "42 tokens and spaces"]
LONG = "good " * 8200

Ask = Callable[..., Any]


def blocking(url: str, verb: str, *args: Any, key: str | None, **kwargs: Any) -> Any:
    with Client(url, api_key=key) as client:
        return getattr(client, verb)(*args, **kwargs)


def awaiting(url: str, verb: str, *args: Any, key: str | None, **kwargs: Any) -> Any:
    async def run() -> Any:
        async with AsyncClient(url, api_key=key) as client:
            return await getattr(client, verb)(*args, **kwargs)

    return asyncio.run(run())


@pytest.fixture(params=[blocking, awaiting])
def ask(request: pytest.FixtureRequest, url: str, key: str) -> Ask:
    chosen: Ask = request.param
    return lambda *args, **kwargs: chosen(url, *args, **{"key": key} | kwargs)


def same(one: Classification, other: Classification) -> bool:
    return one.model_dump(exclude={"timing_ms"}) == other.model_dump(exclude={"timing_ms"})


def test_models_tell_what_the_bundles_hold(ask: Ask, bundles: dict[str, Path]) -> None:
    models: dict[str, ModelInfo] = {model.name: model for model in ask("models")}
    assert models.keys() == bundles.keys()
    for name, folder in bundles.items():
        manifest = read_manifest(folder)
        model = models[name]
        assert (model.revision, model.task, list(model.labels)) == (manifest.revision, manifest.task, manifest.labels)
        assert model.max_tokens == manifest.max_tokens
        assert [knob.model_dump() for knob in model.knobs] == [knob.model_dump() for knob in manifest.knobs]


def test_ready_without_a_key(ask: Ask) -> None:
    assert ask("ready", key=None) is True


def test_an_answer_says_what_it_ran_with(ask: Ask) -> None:
    answer = ask("classify", TEXTS, model="yoso", num_hashes=16, seed=5, top_k=3, return_logits=True)
    assert answer.knobs == answer.requested == {"num_hashes": 16}
    assert (answer.chosen_by, answer.seed, answer.model, answer.device) == ("caller", 5, "yoso", "cpu")
    assert len(answer.predictions) == len(answer.tokens) == len(TEXTS)
    assert answer.value_flops is None
    assert {"tokenize", "queue", "compute", "total"} <= answer.timing_ms.keys()
    for prediction in answer.predictions:
        assert len(prediction.scores) == len(prediction.logits) == 3
        assert (prediction.scores[0].label, prediction.scores[0].score) == (prediction.label, prediction.score)
        assert sum(each.score for each in prediction.scores) == pytest.approx(1)
        assert prediction.labels is None


def test_multi_label_answers_hold_sets(ask: Ask) -> None:
    answer = ask("classify", TEXTS[0], model="multi", num_hashes=12, top_k=33)
    [prediction] = answer.predictions
    assert set(prediction.labels) == {each.label for each in prediction.scores if each.score >= 0.5}
    assert prediction.scores[0].label == prediction.label


def test_mca_answers_tell_what_was_spent(ask: Ask) -> None:
    answer = ask("classify", [*TEXTS, LONG[:1000]], model="mca", alpha=1)
    assert len(answer.value_flops) == 4
    assert all(0 < share <= 1 for share in answer.value_flops)
    assert answer.value_flops[3] < 0.5
    assert ask("classify", TEXTS, model="mca", alpha=0).value_flops == (1.0, 1.0, 1.0)


def test_unset_seed_is_the_servers_and_none_draws(ask: Ask) -> None:
    default = ask("classify", TEXTS[0], model="yoso", num_hashes=8)
    assert same(default, ask("classify", TEXTS[0], model="yoso", num_hashes=8))
    drawn = [ask("classify", TEXTS[0], model="yoso", num_hashes=8, seed=None) for _ in range(3)]
    assert len({answer.seed for answer in drawn}) == 3
    assert same(drawn[0], ask("classify", TEXTS[0], model="yoso", num_hashes=8, seed=drawn[0].seed))


def test_default_knobs_are_the_bundles(ask: Ask, bundles: dict[str, Path]) -> None:
    answer = ask("classify", TEXTS[0], model="mca")
    assert answer.knobs == {knob.name: knob.default for knob in read_manifest(bundles["mca"]).knobs}
    assert (answer.requested, answer.chosen_by) == ({}, "default")


def test_texts_pairs_and_token_ids(ask: Ask) -> None:
    one = ask("classify", {"text": "a fox", "text_pair": "a dog"}, model="mca", return_logits=True)
    many = ask(
        "classify",
        [{"text": "a fox", "text_pair": "a dog"}, {"token_ids": [2, 5, 3]}, {"text": "a fox"}],
        model="mca",
        return_logits=True,
    )
    assert many.predictions[0] == one.predictions[0]
    assert many.tokens[1] == 3
    types = np.array([0, 1, 1])
    typed = [
        ask("classify", {"token_ids": [2, 5, 3], "token_type_ids": type_ids}, model="mca", return_logits=True)
        for type_ids in (types, types.tolist(), types * 0)
    ]
    assert typed[0].predictions == typed[1].predictions
    assert typed[0].predictions[0] != typed[2].predictions[0] == many.predictions[1]
    with pytest.raises(errors.InvalidRequest, match="has 2, must have 3 token types") as caught:
        ask("classify", {"token_ids": [2, 5, 3], "token_type_ids": [0, 1]}, model="mca")
    assert caught.value.param == "inputs[0].token_type_ids"
    assert many.predictions[2] != many.predictions[0]


@pytest.mark.parametrize(
    ("args", "kwargs", "kind", "param"),
    [
        (["x"], {"model": "nope"}, errors.UnknownModel, None),
        (["x"], {}, errors.AttenuatorError, None),
        (["x"], {"model": "mca", "num_hashes": 8}, errors.UnknownField, "num_hashes"),
        (["x"], {"model": "softmax", "alpha": 0.5}, errors.UnknownField, "alpha"),
        ([" "], {"model": "mca"}, errors.InvalidRequest, "inputs"),
        ([[]], {"model": "mca"}, errors.InvalidRequest, "inputs"),
        ([["x"] * 257], {"model": "mca"}, errors.InvalidRequest, "inputs"),
        ([["ok", LONG]], {"model": "mca"}, errors.InputTooLong, "inputs[1]"),
        ([[{"token_ids": [1, 100_000]}]], {"model": "mca"}, errors.InvalidRequest, "inputs[0].token_ids[1]"),
        ([[{"text": "x", "txt": "y"}]], {"model": "mca"}, errors.UnknownField, "inputs[0].txt"),
        (["x"], {"model": "mca", "top_k": 4}, errors.InvalidRequest, "top_k"),
        (["x"], {"model": "mca", "top_k": 0}, errors.InvalidRequest, "top_k"),
        (["x"], {"model": "mca", "timeout_ms": -1}, errors.InvalidRequest, "timeout_ms"),
        (["x" * 4_300_000], {"model": "mca"}, errors.InvalidRequest, None),
        (["x"], {"model": "mca", "key": "wrong"}, errors.Unauthorized, None),
        (["x"], {"model": "mca", "key": None}, errors.Unauthorized, None),
    ],
    ids=lambda value: str(value)[:40] if isinstance(value, dict | list) else None,
)
def test_the_servers_errors_are_typed(
    ask: Ask, args: list[Any], kwargs: dict[str, Any], kind: type[errors.AttenuatorError], param: str | None
) -> None:
    with pytest.raises(errors.AttenuatorError) as caught:
        ask("classify", *args, **kwargs)
    assert isinstance(caught.value, kind)
    assert "\n" not in str(caught.value)
    if param is not None:
        assert str(caught.value.param).startswith(param)
        assert caught.value.allowed
    assert ask("classify", "good after bad", model="mca").tokens[0] > 2


def test_truncate_takes_what_is_too_long(ask: Ask, bundles: dict[str, Path]) -> None:
    answer = ask("classify", LONG, model="mca", truncate=True)
    assert answer.tokens == (read_manifest(bundles["mca"]).max_tokens,)


def test_a_deadline_that_cannot_be_met_is_told(ask: Ask) -> None:
    with pytest.raises(errors.DeadlineExceeded):
        ask("classify", [LONG[:4000]] * 200, model="yoso", num_hashes=512, timeout_ms=1)


def test_concurrent_requests_with_different_knobs_answer_as_alone(url: str, key: str) -> None:
    low, high = int(KNOBS["num_hashes"].low), 49
    text = TEXTS[1]

    async def all_at_once() -> list[Classification]:
        async with AsyncClient(url, api_key=key) as client:
            calls = (
                client.classify(text, model="yoso", num_hashes=m, seed=m % 3, return_logits=True)
                for m in range(low, high + 1)
            )
            return await asyncio.gather(*calls)

    together = asyncio.run(all_at_once())
    assert len(together) == 50
    with Client(url, api_key=key) as client:
        for num_hashes, answer in zip(range(low, high + 1), together, strict=True):
            alone = client.classify(text, model="yoso", num_hashes=num_hashes, seed=num_hashes % 3, return_logits=True)
            assert same(alone, answer)


def test_shed_requests_are_repeated_only_when_asked(narrow_url: str) -> None:
    async def storm(max_retries: int) -> list[Classification | BaseException]:
        async with AsyncClient(narrow_url, max_retries=max_retries, max_pause_s=5) as client:
            calls = (client.classify([LONG[:4000]] * 20, num_hashes=64, seed=i) for i in range(4))
            return await asyncio.gather(*calls, return_exceptions=True)

    shed = [answer for answer in asyncio.run(storm(0)) if isinstance(answer, BaseException)]
    assert shed
    assert all(isinstance(error, errors.Overloaded) and (error.retry_after_s or 0) > 0 for error in shed)
    assert [answer for answer in asyncio.run(storm(20)) if isinstance(answer, BaseException)] == []


def test_one_served_model_needs_no_name(narrow_url: str) -> None:
    with Client(narrow_url) as client:
        assert client.classify(TEXTS[0]).model == "yoso"


def test_many_inputs_are_answered_as_one_by_one(url: str, key: str) -> None:
    texts = [f"{TEXTS[number % 3]} {number}" for number in range(40)]
    options: dict[str, Any] = {"model": "yoso", "num_hashes": 16, "return_logits": True}

    async def together() -> list[Outcome]:
        async with AsyncClient(url, api_key=key) as client:
            return [outcome async for outcome in client.classify_many([*texts, " "], concurrency=16, **options)]

    awaited = asyncio.run(together())
    with Client(url, api_key=key) as client:
        blocked = list(client.classify_many(iter([*texts, " "]), concurrency=16, **options))
        alone = [client.classify([text], **options) for text in texts]
    for outcomes in (awaited, blocked):
        assert all(same(outcome.result(), answer) for outcome, answer in zip(outcomes, alone, strict=False))
        assert isinstance(outcomes[-1].error, errors.InvalidRequest)
        assert len(outcomes) == 41


def test_an_overloaded_service_answers_many_in_the_end(narrow_url: str) -> None:
    with Client(narrow_url, max_retries=50) as client:
        outcomes = list(client.classify_many([LONG[:2000]] * 12, concurrency=6, num_hashes=64))
    assert len({outcome.result().predictions for outcome in outcomes}) == 1


KILLED = """
import sys
from attenuator.clients import Client
url, key, file = sys.argv[1:]
with Client(url, api_key=key) as client:
    texts = (f"good film {number}" for number in range(200))
    for outcome in client.classify_many(texts, concurrency=2, resume=file, model="yoso"):
        print(outcome.index, flush=True)
"""


def test_a_killed_process_goes_on_where_it_ended(url: str, key: str, tmp_path: Path) -> None:
    file = tmp_path / "answers.jsonl"
    command = [sys.executable, "-c", KILLED, url, key, str(file)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        passed = [int(line) for line, _ in zip(process.stdout, range(20), strict=False)]
        process.kill()
    finished = file.read_bytes().splitlines(keepends=True)
    assert set(passed) <= {json.loads(line)["index"] for line in finished[1:] if line.endswith(b"\n")}
    assert len(finished) < 150, "it was killed before it came to the end"
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    assert [int(line) for line in done.stdout.split()] == list(range(200))
    lines = file.read_bytes().splitlines(keepends=True)
    assert len(lines) == 201
    kept = [line for line in finished if line.endswith(b"\n")]
    assert lines[: len(kept)] == kept, "nothing was asked twice"
