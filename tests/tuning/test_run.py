"""Runs of training: an interrupted one ends as one that was not; deadlines, early ends, batches."""

import os
import signal
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from checkpoints import CHECKPOINTS, save
from refusals import files_up_to
from training_data import LABELS, write

from attenuator.errors import AttenuatorError
from attenuator.tuning import checkpoints, data
from attenuator.tuning.batches import LengthBatches, Rows, predict
from attenuator.tuning.plan import Plan
from attenuator.tuning.run import Estimate, Outcome, Trainer, run

HASHES = {"num_hashes": 4, "hash_bits": 4}
CASES = {
    "bert-softmax": ("bert", "softmax", {}),
    "bert-yoso": ("bert", "yoso", HASHES),
    "encoder-softmax": ("encoder-softmax", "softmax", {}),
    "encoder-yoso": ("encoder-yoso", "yoso", HASHES),
}


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> data.Data:
    return data.read(write(tmp_path_factory.mktemp("data") / "texts.jsonl", 64), labelled=True)


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("sources")
    return {name: save(CHECKPOINTS[name], folder / name) for name in {case[0] for case in CASES.values()}}


class Setting:
    """A fresh model with its texts, ready to run."""

    def __init__(self, case: str, sources: dict[str, Path], texts: data.Data) -> None:
        name, attention, settings = CASES[case]
        source = sources[name] / "config.json"  # weights drawn anew
        self.trainable = checkpoints.load(
            source, attention, settings=settings, labels=LABELS, task="single_label", seed=3
        )
        kept, held_out = data.split(texts.texts, 0.25, seed=0)
        self.rows, self.held_out = self.of(kept), self.of(held_out)

    def of(self, texts: list[data.Text]) -> Rows:
        targets = np.array([LABELS.index(text.labels[0]) for text in texts if text.labels])
        return Rows(data.encode(texts, self.trainable.texts, truncate=False), targets)

    def run(self, folder: Path, **changes: Any) -> Outcome:
        options = {name: changes.pop(name) for name in ("trainer_class", "announce", "options") if name in changes}
        plan = Plan(folder, **{"epochs": 2, "learning_rate": 4e-3, "batch_tokens": 256, "better": "accuracy"} | changes)
        return run(
            self.trainable.model, self.trainable.collator, self.rows, self.held_out, plan, metrics=accuracy, **options
        )

    def weights(self) -> dict[str, torch.Tensor]:
        return {name: tensor.clone() for name, tensor in self.trainable.model.state_dict().items()}


def accuracy(prediction: Any) -> dict[str, float]:
    return {"accuracy": float((prediction.predictions.argmax(1) == prediction.label_ids).mean())}


class Interrupted(Trainer):
    """Gets a Ctrl-C in the middle of a step."""

    def __init__(self, at: int, **options: Any) -> None:
        super().__init__(**options)
        self.at = at

    def compute_loss(self, *arguments: Any, **options: Any) -> Any:
        if self.state.global_step == self.at - 1 and self.model.training and self.is_in_train:
            os.kill(os.getpid(), signal.SIGINT)
        return super().compute_loss(*arguments, **options)


@pytest.mark.parametrize("case", ["bert-yoso", "encoder-softmax", "encoder-yoso"])
def test_an_interrupted_run_that_goes_on_ends_with_the_same_bits(
    case: str, sources: dict[str, Path], texts: data.Data, tmp_path: Path
) -> None:
    whole = Setting(case, sources, texts)
    outcome = whole.run(tmp_path / "whole")
    assert outcome.reason == "finished"
    assert outcome.steps == outcome.planned
    begin = Setting(case, sources, texts).weights()
    assert any(not torch.equal(tensor, begin[name]) for name, tensor in whole.weights().items())

    parts = Setting(case, sources, texts)
    middle = outcome.steps // 2 + 1  # within an epoch
    first = parts.run(tmp_path / "parts", trainer_class=Interrupted, options={"at": middle})
    assert (first.reason, first.steps) == ("interrupted", middle)
    estimates: list[Estimate] = []
    parts = Setting(case, sources, texts)
    unfinished = tmp_path / "parts" / f"checkpoint-{middle + 1}"  # as a process leaves it that is killed while it saves
    unfinished.mkdir()
    (unfinished / "model.safetensors").write_bytes(b"half")
    second = parts.run(tmp_path / "parts", announce=estimates.append)
    assert (second.reason, second.steps, estimates[0].steps_done) == ("finished", outcome.steps, middle)
    for name, tensor in parts.weights().items():
        assert torch.equal(tensor, whole.weights()[name]), name


def test_a_deadline_cuts_the_plan(sources: dict[str, Path], texts: data.Data, tmp_path: Path) -> None:
    setting = Setting("bert-softmax", sources, texts)
    estimates: list[Estimate] = []
    outcome = setting.run(tmp_path, epochs=1000, max_minutes=1e-4, announce=estimates.append)
    assert estimates[0].steps < estimates[0].steps_asked
    assert outcome.steps <= estimates[0].steps
    held = predict(setting.trainable.model, setting.held_out, setting.trainable.collator, 256)
    assert held.shape == (len(setting.held_out), 2)


def test_a_deadline_ends_a_run_whose_steps_are_planned_already(
    sources: dict[str, Path], texts: data.Data, tmp_path: Path
) -> None:
    outcome = Setting("bert-softmax", sources, texts).run(tmp_path, max_steps=8, max_minutes=1e-4)
    assert (outcome.reason, outcome.ended) == ("time", "1 of 8 steps, since the time was over")
    assert (tmp_path / "checkpoint-1").is_dir(), "from which it goes on"


def test_a_run_saves_by_the_clock_between_evaluations(
    sources: dict[str, Path], texts: data.Data, tmp_path: Path
) -> None:
    outcome = Setting("bert-softmax", sources, texts).run(tmp_path, epochs=1, better=None, save_minutes=0.0)
    assert outcome.steps > 1
    assert {path.name for path in tmp_path.iterdir()} == {f"checkpoint-{outcome.steps - back}" for back in (0, 1)}


def test_no_gain_ends_the_run(sources: dict[str, Path], texts: data.Data, tmp_path: Path) -> None:
    outcome = Setting("bert-softmax", sources, texts).run(tmp_path, epochs=30, learning_rate=0.0, patience=2)
    assert outcome.reason == "early"
    assert outcome.steps < outcome.planned


@pytest.mark.parametrize("rate", [1e9, 1e30])
def test_a_run_that_diverges_says_so(rate: float, sources: dict[str, Path], texts: data.Data, tmp_path: Path) -> None:
    """Also where the weights that were best are finite: those of the first step, whose answers are no numbers."""
    for case in ("encoder-softmax", "bert-softmax"):
        with pytest.raises(AttenuatorError, match="training diverged: .* lower --learning-rate"):
            Setting(case, sources, texts).run(tmp_path / case, learning_rate=rate, epochs=1)


@pytest.mark.parametrize("name", ["optimizer.pt", "scheduler.pt", "rng_state.pth", "model.safetensors"])
def test_a_damaged_checkpoint_is_refused(name: str, sources: dict[str, Path], texts: data.Data, tmp_path: Path) -> None:
    first = Setting("bert-softmax", sources, texts).run(tmp_path, trainer_class=Interrupted, options={"at": 2})
    assert first.reason == "interrupted"
    path = tmp_path / "checkpoint-2" / name
    for damage in (partial(path.write_bytes, b"half"), path.unlink):
        damage()
        with pytest.raises(
            AttenuatorError, match="checkpoint-2' cannot be gone on with: .*; without it, --resume goes"
        ):
            Setting("bert-softmax", sources, texts).run(tmp_path)


def test_every_text_is_in_one_batch_of_each_epoch_and_batches_keep_to_their_tokens() -> None:
    lengths = np.random.default_rng(0).integers(1, 200, 500)
    batches = LengthBatches(lengths, 1000, seed=5)
    epochs = []
    for epoch in range(2):
        batches.set_epoch(epoch)
        drawn = list(batches)
        assert len(drawn) == len(batches)
        assert sorted(index for batch in drawn for index in batch) == list(range(500))
        assert max(len(batch) * lengths[batch].max() for batch in drawn) <= 1200
        epochs.append(drawn)
    assert epochs[0] != epochs[1]
    batches.set_epoch(0)
    assert list(batches) == epochs[0]
    longest_first = list(LengthBatches(lengths, 1000))
    assert max(len(batch) * lengths[batch].max() for batch in longest_first) <= 1000


def test_a_full_disk_is_one_sentence_and_leaves_no_half_of_a_checkpoint(
    sources: dict[str, Path], texts: data.Data, tmp_path: Path
) -> None:
    setting = Setting("bert-softmax", sources, texts)
    with files_up_to(4096), pytest.raises(AttenuatorError, match="cannot be written: .*--resume goes on from the last"):
        setting.run(tmp_path)
    assert not list(tmp_path.rglob("checkpoint-*"))
