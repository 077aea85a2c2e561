"""Long texts in windows: each is a row like any other, nothing is left out, and the answers are joined by label."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
from service import Service
from tokenizers import Tokenizer, models, pre_tokenizers, processors

import attenuator
from attenuator.api import MAX_INPUTS, Classification
from attenuator.clients import Client
from attenuator.errors import InvalidRequest
from attenuator.local import LocalModel
from attenuator.runtime.grouping import split_fields
from attenuator.runtime.scores import SCORES
from attenuator.runtime.tokens import Input, TextEncoder
from attenuator.runtime.windows import Windows

RANDOM = np.random.default_rng(3)
TEXTS = [" ".join(RANDOM.choice(tiny.WORDS, count)) for count in (1, 40, 14, 15, 200, 3)]
SIZE, ROOM = 16, 14  # tokens of a window, and those of them that are the text's
PAIR = "very good film"


def written(root: Path, kind: str) -> Path:
    if kind == "multi":
        labels = [f"clause {index}" for index in range(5)]
        return tiny.write(root / kind, "yoso", labels=labels, multi_label=True, pooling="mean")
    if kind == "score":
        folder = tiny.write(root / kind, "softmax", labels=("score",))
        tiny.sign(folder, task="regression")
        return folder
    return tiny.write(root / kind, kind)


@pytest.fixture(scope="module", params=["mca", "multi", "score"])
def here(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalModel]:
    """A bundle of each task."""
    with attenuator.load(written(tmp_path_factory.mktemp("windows"), request.param), threads=2, check=False) as model:
        yield model


def windows_of(model: LocalModel, text: str, step: int, pair: str | None = None) -> list[dict[str, Any]]:
    """The windows of a text as token ids, cut by hand from the tokens of the whole."""
    ids = model.model.encode(text).token_ids[1:-1].tolist()
    end = [] if pair is None else model.model.encode(pair).token_ids[1:].tolist()
    room = ROOM - len(end)
    starts = [start for start in range(0, len(ids), step) if start == 0 or start + room - step < len(ids)]
    rows = [[2, *ids[start : start + room], 3] for start in starts]
    types = [[0] * len(row) + [1] * len(end) for row in rows]
    return [{"token_ids": row + end, "token_type_ids": own} for row, own in zip(rows, types, strict=True)]


def content(answer: Classification) -> dict[str, Any]:
    return answer.model_dump(exclude={"timing_ms"})


@pytest.mark.parametrize("join", ["mean", "max", "first"])
@pytest.mark.parametrize(
    ("stride", "pair"), [(None, None), (5, None), (ROOM, None), (1, None), (None, PAIR), (4, PAIR)]
)
def test_an_answer_is_that_of_its_windows_joined_by_label(
    here: LocalModel, join: Any, stride: int | None, pair: str | None
) -> None:
    labels = len(here.labels)
    fields: dict[str, Any] = {"top_k": labels, "return_logits": True, "seed": 7}
    inputs: list[Any] = [text if pair is None else (text, pair) for text in TEXTS]
    answer = here.classify(inputs, join=join, window=SIZE, stride=stride, **fields)
    room = ROOM - (0 if pair is None else len(here.model.encode(PAIR).token_ids) - 1)
    for text, prediction, tokens in zip(TEXTS, answer.predictions, answer.tokens, strict=True):
        rows = windows_of(here, text, stride or room, pair)[: 1 if join == "first" else None]
        alone = here.classify(rows, **fields)
        assert tokens == sum(alone.tokens)
        logits = np.array([each.logits for each in alone.predictions], np.float32)
        scores = SCORES[here.model.manifest.task](logits)
        merge = np.max if join == "max" else np.mean
        expected = dict(zip(here.labels, merge(scores, axis=0), strict=True))
        assert {each.label: each.score for each in prediction.scores} == pytest.approx(expected, abs=1e-12)
        assert prediction.logits == pytest.approx(merge(logits, axis=0), abs=1e-6)
        assert prediction.score == pytest.approx(max(expected.values()), abs=1e-12)
        if here.model.manifest.task == "multi_label":
            assert prediction.labels == tuple(label for label in here.labels if expected[label] >= 0.5)


def test_a_text_that_fits_has_the_answer_that_it_has_without_and_one_beside_long_ones_that_alone(
    here: LocalModel,
) -> None:
    texts, fields = [TEXTS[0], TEXTS[2], TEXTS[5]], {"top_k": 1, "return_logits": True}
    whole = content(here.classify(texts, **fields))
    for join in ("mean", "max", "first"):
        assert content(here.classify(texts, join=join, **fields)) == whole
        assert content(here.classify(texts, join=join, window=SIZE, **fields)) == whole
    together = here.classify(TEXTS, join="max", window=SIZE)
    each = here.classify_each([*TEXTS, {"token_ids": [2, 3]}], join="max", window=SIZE)
    assert [one.predictions[0] for one in each[:-1]] == list(together.predictions)
    assert "is token ids, must be a text beside join" in str(each[-1])


@pytest.mark.parametrize("kind", ["bert", "roberta", "template"])
def test_every_kind_of_special_tokens_stands_in_every_window(kind: str, tmp_path: Path) -> None:
    tokenizer = Tokenizer(models.WordLevel({word: index for index, word in enumerate(tiny.VOCAB)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    ends = ("[SEP]", tiny.VOCAB["[SEP]"]), ("[CLS]", tiny.VOCAB["[CLS]"])
    if kind == "bert":
        tokenizer.post_processor = processors.BertProcessing(*ends)
    elif kind == "roberta":
        tokenizer.post_processor = processors.RobertaProcessing(*ends)
    else:
        tokenizer.post_processor = tiny.tokenizer().post_processor
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    encoder = TextEncoder(tmp_path / "tokenizer.json", max_tokens=64, vocab_size=len(tiny.VOCAB), token_types=2)
    for pair in (None, "law shall"):
        windows = encoder.windows(TEXTS[4], pair, size=SIZE, stride=6, most=100, param="inputs")
        whole = [tiny.VOCAB[word] for word in TEXTS[4].split()]
        end = encoder.encode("good", pair, truncate=False, param="inputs").token_ids[2:].tolist()
        room = SIZE - 1 - len(end)
        for place, window in enumerate(windows):
            part = whole[6 * place : 6 * place + room]
            assert window.token_ids.tolist() == [tiny.VOCAB["[CLS]"], *part, *end]
        assert 6 * place + room >= len(whole) > 6 * place + room - 6


@pytest.fixture(scope="module")
def mca(bundles: dict[str, Path]) -> Iterator[Service]:
    started = Service([bundles["mca"]])
    yield started
    assert started.stop() == 0, started.log()


def test_the_service_and_its_client_answer_as_in_process(mca: Service, bundles: dict[str, Path]) -> None:
    inputs = [*TEXTS, {"text": TEXTS[1], "text_pair": PAIR}]
    with attenuator.load(bundles["mca"], check=False) as here, Client(f"http://{mca.host}:{mca.port}") as client:
        for join in ("mean", "max", "first"):
            for more in ({}, {"alpha": 0.5, "seed": 3, "top_k": 2, "return_logits": True, "stride": 5}):
                fields: dict[str, Any] = {"join": join, "window": SIZE, **more}
                expected = here.classify(inputs, **fields)
                assert content(client.classify(inputs, **fields)) == content(expected)
        text = "good plot " * 4500  # longer than the model takes
        answer = client.classify(text, join="mean")
        assert content(answer) == content(here.classify(text, join="mean"))
        assert answer.tokens[0] == 9000 + 2 * 2


@pytest.mark.parametrize(
    ("fields", "param", "sentence"),
    [
        ({"join": "sum"}, "join", """is 'sum', must be "mean", "max" or "first\""""),
        ({"join": ..., "window": 20}, "join", "is missing"),
        ({"join": ..., "window": ..., "stride": 4}, "join", "is missing"),
        ({"window": 8193}, "window", "is 8193, must be at most 8192, the tokens that the model takes"),
        ({"window": 10**300}, "window", "is a number with more than 18 digits, must be at most 8192"),
        ({"stride": 10**300}, "stride", "is a number with more than 18 digits, must be at most"),
        ({"window": 2}, "window", "is 2, must be at least 3: special tokens and a second text fill the rest"),
        ({"window": 0}, "window", "is 0, must be a whole number of at least 1"),
        ({"stride": 15}, "stride", "is 15, must be at most 14, as many as a window has of the text"),
        ({"stride": 1.5}, "stride", "is 1.5"),
        ({"truncate": True}, "truncate", "is true, must be left out beside join"),
        ({"explain": True}, "explain", "is true, must be left out beside join"),
        ({"escalate": True, "min_agreement": 0.9}, "escalate", "is true, must be left out beside join"),
        ({"candidate_labels": ["a"]}, "candidate_labels", "stands beside join, must be left out beside join"),
        ({"inputs": [{"token_ids": [2, 5]}]}, "inputs[0].token_ids", "is token ids, must be a text beside join"),
        ({"inputs": ["good", " "]}, "inputs[1]", "is empty"),
        ({"inputs": {}}, "inputs", "is an object"),
        ({"inputs": [{"text": "a", "text_pair": "good " * 20}]}, "window", "must be at least"),
        ({"inputs": "good " * (14 * MAX_INPUTS + 1)}, "inputs", "have more than 256 windows, must have at most 256"),
        ({"inputs": ["good " * 15] * 129}, "inputs", "have more than 256 windows"),
        ({"windows": 3}, "windows", "did you mean window"),
    ],
)
def test_what_is_wrong_is_said(mca: Service, fields: dict[str, Any], param: str, sentence: str) -> None:
    body = {"inputs": TEXTS, "join": "mean", "window": SIZE, **fields}
    response = mca.classify({name: value for name, value in body.items() if value is not ...})
    assert response.status_code == 422, response.text
    assert response.json()["param"] == param
    assert sentence in response.json()["error"]


def test_a_text_in_windows_counts_as_long_as_it_is(here: LocalModel) -> None:
    windows, _ = split_fields({"join": "mean", "window": SIZE}, [], here.model.manifest)
    assert isinstance(windows, Windows)
    [item] = windows.inputs([Input("inputs", text="a" * 9999)])
    assert item.size == 9999


def test_as_many_windows_as_there_may_be_and_a_text_of_megabytes_for_its_first(mca: Service) -> None:
    full = mca.classify({"inputs": "good " * (14 * MAX_INPUTS), "join": "max", "window": SIZE})
    assert full.status_code == 200, full.text
    assert full.json()["tokens"] == [16 * MAX_INPUTS]
    first = mca.classify({"inputs": "good " * 600_000, "join": "first", "window": SIZE})
    assert first.status_code == 200, first.text
    assert first.json()["tokens"] == [SIZE]


def test_window_is_the_knob_of_a_model_that_has_one_unless_join_is_there(here: LocalModel) -> None:
    manifest = here.model.manifest
    alone = {"window": 4, "seed": 1}
    assert split_fields(alone, ["window"], manifest) == (None, alone)
    windows, others = split_fields(alone | {"join": "mean"}, ["window"], manifest)
    assert isinstance(windows, Windows)
    assert (windows.size, others) == (4, {"seed": 1})
    with pytest.raises(InvalidRequest, match="join is missing"):
        split_fields(alone, ["alpha"], manifest)
    with pytest.raises(InvalidRequest, match="natural language inference"):
        split_fields(alone | {"candidate_labels": ["a"]}, ["window"], manifest)
