"""How a model of Long Range Arena learns: the same way whichever attention it has; it may be stopped at any step."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from attenuator.export.encoder import Encoder, EncoderConfig
from benchmarks.papers.lra.tasks import Examples, Size

SHAPE: dict[str, Any] = {
    "num_hidden_layers": 2,
    "hidden_size": 64,
    "num_attention_heads": 2,
    "intermediate_size": 128,
    "dropout": 0.1,
}
CLIP = 1.0
SAVE_EVERY_S = 30.0
EVALUATION_SEED = 1
Batch = tuple[Tensor, Tensor, Tensor, Tensor]


def batch_of(data: Examples, chosen: NDArray[np.int64]) -> Batch:
    """Token ids, positions, starts and labels of some sequences."""
    rows = [data.tokens[data.starts[row] : data.starts[row + 1]] for row in chosen]
    starts = np.cumsum([0, *map(len, rows)])
    positions = np.concatenate([np.arange(len(row)) for row in rows])
    ids = torch.from_numpy(np.concatenate(rows).astype(np.int64))
    return (
        ids,
        torch.from_numpy(positions),
        torch.from_numpy(starts.astype(np.int32)),
        torch.from_numpy(data.labels[chosen]),
    )


@lru_cache(maxsize=2)
def order(seed: int, epoch: int, count: int) -> NDArray[np.int64]:
    """The order of an epoch."""
    return np.random.default_rng([seed, epoch]).permutation(count)


def chosen_at(step: int, size: Size, seed: int) -> NDArray[np.int64]:
    """Which sequences a step learns from: a function of step and seed alone, so that a run goes on anywhere."""
    places = range(step * size.batch, (step + 1) * size.batch)
    return np.array([order(seed, place // size.train, size.train)[place % size.train] for place in places])


def rate(step: int, size: Size) -> float:
    """The learning rate: up over the warm-up, then down to 0, both in a line."""
    rising = (step + 1) / max(size.warmup, 1)
    falling = (size.steps - step) / max(size.steps - size.warmup, 1)
    return size.learning_rate * min(rising, falling, 1.0)


class Run:
    """One model in training.

    Args:
        config: the model's.
        size: of the task.
        seed: of weights, order, dropout and whatever the attention draws.
        kept: the file that an interrupted run leaves, and goes on from.

    Attributes:
        step: steps done.
        cpu_s: CPU time of the steps.
        loss: mean over about the last 20 steps.
    """

    def __init__(self, config: EncoderConfig, size: Size, seed: int, kept: Path) -> None:
        torch.manual_seed(seed)
        self.model = Encoder(config).train()
        self.model.set_knobs(config.knobs)
        self.model.compute_through_operator()
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=size.learning_rate)
        self.size, self.seed, self.kept = size, seed, kept
        self.step, self.cpu_s, self.loss = 0, 0.0, math.nan
        if kept.is_file():
            state: dict[str, Any] = torch.load(kept, weights_only=True)
            self.model.load_state_dict(state["model"])
            self.optimizer.load_state_dict(state["optimizer"])
            torch.set_rng_state(state["random"])
            self.step, self.cpu_s, self.loss = state["step"], state["cpu_s"], state["loss"]

    def save(self) -> None:
        """Keeps the run for later, whole or not at all."""
        self.kept.parent.mkdir(parents=True, exist_ok=True)
        staging = self.kept.with_suffix(".new")
        state = {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}
        state |= {"random": torch.get_rng_state(), "step": self.step, "cpu_s": self.cpu_s, "loss": self.loss}
        torch.save(state, staging)
        staging.replace(self.kept)

    def advance(self, data: Examples) -> None:
        """One step."""
        begun = time.process_time()
        for group in self.optimizer.param_groups:
            group["lr"] = rate(self.step, self.size)
        ids, positions, starts, labels = batch_of(data, chosen_at(self.step, self.size, self.seed))
        loss = functional.cross_entropy(self.model(ids, positions, starts), labels)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), CLIP)
        self.optimizer.step()
        latest = loss.item()
        self.loss = latest if math.isnan(self.loss) else 0.95 * self.loss + 0.05 * latest
        self.step += 1
        self.cpu_s += time.process_time() - begun

    def train(self, data: Examples, end: float, tell: Callable[[int, float], None]) -> bool:
        """Trains until all steps are done, or until `end` of `time.monotonic`; whether all are done.

        Args:
            data: the training file.
            end: when to stop; what was learnt is kept.
            tell: is given step and loss after each step.
        """
        saved = time.monotonic()
        while self.step < self.size.steps:
            if time.monotonic() >= end:
                self.save()
                return False
            self.advance(data)
            tell(self.step, self.loss)
            if time.monotonic() - saved > SAVE_EVERY_S:
                self.save()
                saved = time.monotonic()
        return True


@torch.no_grad()
def accuracy(model: Encoder, data: Examples, batch: int) -> float:
    """Share of a file's sequences whose label the model gives, attention as in training."""
    model.eval()
    torch.manual_seed(EVALUATION_SEED)
    right, count = 0, len(data.labels)
    for first in range(0, count, batch):
        ids, positions, starts, labels = batch_of(data, np.arange(first, min(first + batch, count)))
        right += int((model(ids, positions, starts).argmax(dim=1) == labels).sum())
    return right / count
