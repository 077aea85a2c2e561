"""`papers.long_range_arena` with tiny tasks: every attention trains, runs go on to the same bits, the tables."""

import argparse
import gzip
import json
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import torch
from benchmarks.contenders.settings import trainable
from benchmarks.papers import long_range_arena
from benchmarks.papers.lra import tasks, training
from benchmarks.papers.lra.tasks import PIXELS, Size, examples

from attenuator.export.encoder_attention import ATTENTIONS

TINY = {
    "listops": Size(10, 40, 24, 10, steps=6, warmup=2, batch=4, learning_rate=1e-3),
    "text": Size(0, 30, 20, 8, steps=4, warmup=2, batch=4, learning_rate=1e-2),
    "pathfinder": Size(PIXELS, PIXELS, 2, 2, steps=1, warmup=0, batch=1),
}


@pytest.fixture(autouse=True)
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(tasks.SIZES, "small", TINY)


@pytest.fixture(scope="module")
def reviews(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Reviews sorted by label, as such files are."""
    folder = tmp_path_factory.mktemp("reviews")
    for split in tasks.SPLITS:
        rows = [
            {"text": f"{'good gööd' if label else 'bad'} {i}" * 9, "label": label}
            for label in (0, 1)
            for i in range(15)
        ]
        with gzip.open(folder / f"{split}.jsonl.gz", "wt", encoding="utf-8") as file:
            file.writelines(json.dumps(row) + "\n" for row in rows)
    return folder


def test_tasks_are_sequences_of_bytes_of_their_size(reviews: Path, tmp_path: Path) -> None:
    for key, size in TINY.items():
        made = {split: examples(key, size, split, data=reviews, work=tmp_path) for split in tasks.SPLITS}
        for split, count in (("train", size.train), ("test", size.test)):
            lengths = np.diff(made[split].starts)
            assert len(lengths) == len(made[split].labels) == count
            assert lengths.max() <= size.longest
            assert made[split].tokens.max() < tasks.TASKS[key].vocabulary
            assert len(set(made[split].labels.tolist())) > 1, "not in the order of labels"
        again = examples(key, size, "test", data=reviews, work=tmp_path)
        assert all((one == other).all() for one, other in zip(again, made["test"], strict=True))
    sequences = [
        {bytes(one.tokens[begin:end]) for begin, end in zip(one.starts, one.starts[1:], strict=False)}
        for one in (examples("listops", TINY["listops"], split, data=None, work=tmp_path) for split in tasks.SPLITS)
    ]
    assert not sequences[0] & sequences[1]
    with pytest.raises(ValueError, match="--data"):
        examples("text", TINY["text"], "train", data=None, work=tmp_path)
    with pytest.raises(ValueError, match="30 texts"):
        examples("text", Size(0, 30, 31, 8, 1, 1), "train", data=reviews, work=tmp_path)


@pytest.mark.parametrize("key", ["listops", "pathfinder"])
def test_a_drawing_that_was_stopped_goes_on(key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the same sequences; what was written is not drawn again."""
    size = Size(10, 40, 7, 1, 1, 0) if key == "listops" else Size(PIXELS, PIXELS, 7, 1, 1, 0)
    at_once = examples(key, size, "train", data=None, work=tmp_path / "at once")
    monkeypatch.setattr(tasks, "PART", 2)
    whole = tasks.TASKS[key].draw
    assert whole is not None
    firsts: list[int] = []

    def stopped_once(size: Size, split: str, first: int) -> Iterator[tasks.Pair]:
        firsts.append(first)
        yield from islice(whole(size, split, first), 5)
        assert first, "the first time"

    monkeypatch.setitem(tasks.TASKS, key, tasks.TASKS[key]._replace(draw=stopped_once))
    with pytest.raises(AssertionError, match="the first time"):
        examples(key, size, "train", data=None, work=tmp_path)
    resumed = examples(key, size, "train", data=None, work=tmp_path)
    assert firsts == [0, 4]
    assert all((one == other).all() for one, other in zip(resumed, at_once, strict=True))


def test_every_attention_is_trained_once_and_shown(
    reviews: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "long_range_arena.json"
    command = ["--work", str(tmp_path / "work"), "--data", str(reviews), "--output", str(output), "--seeds", "1"]
    assert long_range_arena.main([*command, "--minutes", "0"]) == 0
    assert not output.exists()
    assert long_range_arena.main([*command, "--tasks", "text"]) == 0
    result = json.loads(output.read_text())
    assert [row["attention"] for row in result["rows"]] == list(ATTENTIONS)
    assert all(0 <= row["accuracy"] <= 1 and row["steps"] == 4 for row in result["rows"])
    with pytest.MonkeyPatch.context() as nothing_more:
        nothing_more.setattr(long_range_arena, "trained", lambda *_: pytest.fail("trained again"))
        assert long_range_arena.main([*command, "--tasks", "text"]) == 0
    baseline = next(iter(ATTENTIONS))
    assert long_range_arena.main([*command, "--tasks", "pathfinder", "--attentions", baseline]) == 0
    shown = capsys.readouterr().out
    assert all(f"| {key} |" in shown for key in ATTENTIONS)


@pytest.mark.parametrize("text", ["softmax", "yoso:num_hashes=4"])
def test_a_run_that_was_cut_short_goes_on_to_the_same_bits(text: str, tmp_path: Path) -> None:
    size = TINY["listops"]
    data = examples("listops", size, "train", data=None, work=tmp_path)
    config = long_range_arena.config(trainable(text), "listops", size)
    losses: dict[str, list[float]] = {"whole": [], "parts": []}
    whole = training.Run(config, size, 0, tmp_path / "whole.pt")
    assert whole.train(data, np.inf, lambda _, loss: losses["whole"].append(loss))
    for _ in range(size.steps):
        run = training.Run(config, size, 0, tmp_path / "parts.pt")
        run.advance(data)
        losses["parts"].append(run.loss)
        done = run.train(data, 0.0, lambda *_: pytest.fail("trained after the end"))
        assert done == (run.step == size.steps)
    assert losses["parts"] == losses["whole"]
    assert len(losses["whole"]) == size.steps
    other = training.Run(config, size, 1, tmp_path / "other.pt")
    assert not torch.equal(
        other.model.classifier.weight, training.Run(config, size, 0, tmp_path / "no.pt").model.classifier.weight
    )


def test_an_epoch_has_each_sequence_once_and_the_rate_rises_and_falls() -> None:
    size = Size(0, 1, 10, 1, steps=20, warmup=4, batch=5, learning_rate=1.0)
    chosen = [training.chosen_at(step, size, 0) for step in range(4)]
    assert sorted(np.concatenate(chosen[:2])) == sorted(np.concatenate(chosen[2:])) == list(range(10))
    assert list(np.concatenate(chosen[:2])) != list(np.concatenate(chosen[2:]))
    rates = [training.rate(step, size) for step in range(20)]
    assert rates[:4] == [0.25, 0.5, 0.75, 1.0]
    assert rates[4:] == sorted(rates[4:], reverse=True)
    assert rates[-1] == 1 / 16


def test_a_learnable_task_is_learnt(tmp_path: Path) -> None:
    size = Size(0, 6, 64, 64, steps=60, warmup=5, batch=16, learning_rate=1e-2)
    labels = np.arange(64) % 2
    data = tasks.Examples(np.repeat(labels, 6).astype(np.uint8), np.arange(65) * 6, labels)
    config = long_range_arena.config(trainable("softmax"), "text", size)
    run = training.Run(config, size, 0, tmp_path / "run.pt")
    assert training.accuracy(run.model, data, 16) <= 0.5
    run.model.train()
    assert run.train(data, np.inf, lambda *_: None)
    assert training.accuracy(run.model, data, 16) == 1.0


def test_settings_of_an_attention() -> None:
    made = trainable("yoso:num_hashes=8,conv_size=5,hash_bits=6")
    config = long_range_arena.config(made, "pathfinder", TINY["pathfinder"])
    assert (config.knobs, config.conv_size, config.hash_bits) == ({"num_hashes": 8}, 5, 6)
    assert (config.max_tokens, config.num_labels, config.hidden_size) == (1024, 2, 64)
    assert trainable("linformer:projected_tokens=16").fields["sizes"] == {"projected_tokens": 16}
    for wrong in (
        "nothing",
        "mca",
        "softmax:num_hashes=3",
        "yoso:num_hashes=many",
        "yoso:num_hashes=-1",
        "linear:conv_size=3",
    ):
        with pytest.raises(argparse.ArgumentTypeError):
            trainable(wrong)
