"""The whole way: a checkpoint is exported, served by a process of its own, and called by everything that can call."""

import asyncio
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkpoints import CHECKPOINTS, reference, save
from service import Started

from attenuator.__main__ import main
from attenuator.bundle import read_manifest
from attenuator.clients import AsyncClient, Classification, Client
from attenuator.errors import InvalidRequest

ROOT = Path(__file__).resolve().parent.parent.parent
DEMO = ROOT / "examples" / "bundles"
DEMO_NAMES = {"reviews", "reviews-mca", "contracts", "pii"}
TEXTS = ["the quick brown fox", "a film so bad that it is good again", "42 tokens and spaces", "fox"]
# checkpoint, attention, knob, exact value, another value
WAYS = {
    "encoder-yoso": ("encoder-yoso", "yoso", "num_hashes", 0, 16),
    "modernbert-softmax": ("modernbert", "softmax", None, None, None),
    "bert-multi-label-mca": ("bert-multi-label", "mca", "alpha", 0.0, 0.3),
    "bert-regression-mca": ("bert-regression", "mca", "alpha", 0.0, 0.3),
}

Commands = Callable[..., list[dict[str, Any]]]


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Checkpoint folder by way."""
    root = tmp_path_factory.mktemp("checkpoints")
    return {way: save(CHECKPOINTS[name], root / way) for way, (name, *_) in WAYS.items()}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory, checkpoints: dict[str, Path]) -> Iterator[tuple[str, Path]]:
    """Address of a server of bundles that `attenuator export` wrote, and the folder they lie in."""
    root = tmp_path_factory.mktemp("bundles")
    for way, (_, attention, *_) in WAYS.items():
        arguments = ["export", str(checkpoints[way]), "--attention", attention, "--output", str(root / way)]
        assert main(arguments) == 0
    service = Started([root / way for way in WAYS])
    yield f"http://{service.host}:{service.port}", root
    assert service.stop() == 0, service.log()


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Commands:
    """Runs `attenuator classify ... --json` and reads its lines."""

    def run(*arguments: str) -> list[dict[str, Any]]:
        capsys.readouterr()
        assert main(["classify", *arguments, "--json"]) == 0
        return [json.loads(line) for line in capsys.readouterr().out.splitlines()]

    return run


@pytest.mark.parametrize("way", WAYS)
def test_exact_answers_are_pytorchs(served: tuple[str, Path], checkpoints: dict[str, Path], way: str) -> None:
    url, root = served
    _, _, knob, exact, _ = WAYS[way]
    eager = reference(checkpoints[way])
    random = np.random.default_rng(5)
    manifest = read_manifest(root / way)
    rows = [random.integers(5, manifest.vocab_size, length) for length in (1, 3, 17, 60)]
    types = [random.integers(0, 2, len(ids)) if "token_type_ids" in manifest.inputs else None for ids in rows]
    expected = np.stack([eager(ids, kinds) for ids, kinds in zip(rows, types, strict=True)])
    with Client(url) as client:
        inputs = [
            {"token_ids": ids} | ({} if kinds is None else {"token_type_ids": kinds})
            for ids, kinds in zip(rows, types, strict=True)
        ]
        answer = client.classify(inputs, model=way, return_logits=True, **({knob: exact} if knob else {}))
    logits = np.array([prediction.logits for prediction in answer.predictions])
    np.testing.assert_allclose(logits, expected, atol=2e-5 * max(1.0, float(np.abs(expected).max())))


@pytest.mark.parametrize("way", WAYS)
def test_every_caller_gets_the_same_answer(served: tuple[str, Path], command: Commands, way: str) -> None:
    url, root = served
    _, _, knob, _, value = WAYS[way]
    knobs = {knob: value} if knob else {}
    flags = [f"--{str(knob).replace('_', '-')}", str(value)] if knob else []
    with Client(url) as client:
        answer = client.classify(TEXTS, model=way, seed=3, return_logits=True, **knobs)

    async def ask() -> Classification:
        async with AsyncClient(url) as client:
            each = (client.classify(text, model=way, seed=3, return_logits=True, **knobs) for text in TEXTS)
            answers = await asyncio.gather(*each)
        return answers[0].model_copy(update={"predictions": tuple(answer.predictions[0] for answer in answers)})

    arguments = ["--seed", "3", "--logits", *flags, *TEXTS]
    served_lines = command("--url", url, "--model", way, *arguments)
    local_lines = command("--bundle", str(root / way), *arguments)
    assert asyncio.run(ask()).predictions == answer.predictions
    assert served_lines == local_lines
    assert [tuple(line["logits"]) for line in served_lines] == [each.logits for each in answer.predictions]
    assert answer.revision == read_manifest(root / way).revision == served_lines[0]["revision"]


def test_a_regression_answers_plain_numbers(served: tuple[str, Path]) -> None:
    url, _ = served
    pairs = [{"text": text, "text_pair": TEXTS[0]} for text in TEXTS]
    with Client(url) as client:
        [info] = [info for info in client.models() if info.name == "bert-regression-mca"]
        answer = client.classify(pairs, model=info.name, top_k=1, return_logits=True)
        with pytest.raises(InvalidRequest, match="top_k is 2, must be a whole number from 1 to 1"):
            client.classify(pairs, model=info.name, top_k=2)
    assert (info.task, info.labels) == ("regression", ("similarity",))
    for prediction in answer.predictions:
        assert prediction.logits == (prediction.score,)
        assert [(each.label, each.score) for each in prediction.scores or ()] == [("similarity", prediction.score)]
        assert (prediction.label, prediction.labels) == ("similarity", None)


def test_bundles_do_not_tell_where_they_were_made(served: tuple[str, Path]) -> None:
    _, root = served
    for file in (file for folder in (root, DEMO) for file in folder.glob("*/*")):
        for trace in (str(ROOT), str(root), sys.prefix, 'File "'):
            assert trace.encode() not in file.read_bytes(), f"{file} holds {trace}"


def test_seeds_move_sampled_answers_and_only_those(served: tuple[str, Path]) -> None:
    url, _ = served
    with Client(url) as client:

        def logits(seed: int, num_hashes: int) -> Any:
            answer = client.classify(
                TEXTS[1], model="encoder-yoso", seed=seed, num_hashes=num_hashes, return_logits=True
            )
            return answer.predictions[0].logits

        assert logits(1, 8) == logits(1, 8)
        assert logits(1, 8) != logits(2, 8)
        assert logits(1, 0) == logits(2, 0)
        exact = np.array(logits(0, 0))
        far, near = (np.mean([np.abs(np.array(logits(seed, m)) - exact).max() for seed in range(12)]) for m in (4, 256))
        assert near < far / 3  # m^-1/2 says 8


def test_demo_bundles_are_there() -> None:
    assert {folder.name for folder in DEMO.iterdir() if folder.is_dir()} == DEMO_NAMES


@pytest.fixture(scope="module")
def demo() -> Iterator[str]:
    """Address of a server of the demo bundles."""
    service = Started([DEMO / name for name in sorted(DEMO_NAMES)])
    yield f"http://{service.host}:{service.port}"
    assert service.stop() == 0, service.log()


REVIEWS = {
    "A masterpiece. Moving, funny, beautifully acted: the best film I have seen in years, I loved every minute.": 1,
    "Dreadful. Boring plot, terrible acting, a complete waste of time; the worst movie of the year, avoid it.": 0,
}


@pytest.mark.parametrize(
    ("model", "knobs"),
    [
        ("reviews", [{}, {"num_hashes": 0}, {"num_hashes": 32}, {"num_hashes": 128}]),
        ("reviews-mca", [{}, {"alpha": 0.0}]),
    ],
)
def test_demo_models_tell_praise_from_blame(demo: str, model: str, knobs: list[dict[str, float]]) -> None:
    with Client(demo) as client:
        labels = next(info.labels for info in client.models() if info.name == model)
        for chosen in knobs:
            answer = client.classify(list(REVIEWS), model=model, **chosen)
            predicted = [labels.index(prediction.label) for prediction in answer.predictions]
            assert predicted == list(REVIEWS.values()), chosen


def test_demo_contracts_finds_clauses_in_a_long_document(demo: str) -> None:
    clause = (
        "This Agreement shall be governed by and construed in accordance with the laws of the State of New York. "
        "Neither party may assign this Agreement without the prior written consent of the other party. "
    )
    with Client(demo) as client:
        info = next(info for info in client.models() if info.name == "contracts")
        assert len(info.labels) == 33
        assert info.task == "multi_label"
        answer = client.classify(clause * 400, model="contracts", num_hashes=16, top_k=33)
    assert answer.tokens[0] > 10_000
    [prediction] = answer.predictions
    assert prediction.labels is not None
    assert len(prediction.scores or ()) == 33
