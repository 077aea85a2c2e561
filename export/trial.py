"""A traced model on a user's texts, at any schedule and share of tokens: what agrees, its work and its time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir

from attenuator import bundle
from attenuator.bundle import Manifest
from attenuator.calibration.turns import Timing, in_turns
from attenuator.export import int8
from attenuator.export.lower import write_model
from attenuator.export.selection import DROPPED, EVERYWHERE, LENGTHS, exponents
from attenuator.export.taught import TaughtWeights
from attenuator.export.trace import PackedClassifier, trace
from attenuator.runtime import Row, create
from attenuator.runtime.batch import pack
from attenuator.runtime.cost import CostModel, cost_model
from attenuator.runtime.graph import read_graph
from attenuator.runtime.request import KnobTable
from attenuator.runtime.scores import agrees
from attenuator.runtime.tokens import Encoded

__all__ = ["KNOB", "Setting", "Trial", "spread"]

[KNOB] = LENGTHS.knobs
TOKENS_PER_BATCH = 4096
# Timed: texts spread over the lengths, about so many tokens in all, for so many seconds; once more where disturbed.
TIMED_TOKENS, TIMED_S, ATTEMPTS = 2048, 1.0, 2

Logits = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Setting:
    """One way to select.

    Attributes:
        merge: what becomes of the tokens left out, a key of `MERGES`.
        schedule: its name.
        share: value of the knob.
        cost: predicted work of all texts, as a share of the exact model's.
        agreement: share of the texts whose answers agree; an upper bound where too many had changed to go on.
    """

    merge: str
    schedule: str
    share: float
    cost: float
    agreement: float

    @property
    def named(self) -> str:
        """In words."""
        merged = "" if self.merge == DROPPED else f", merge {self.merge}"
        return f"{KNOB.name} {self.share:g}, schedule {self.schedule}{merged}"


def spread(texts: Sequence[Encoded]) -> list[Encoded]:
    """Texts spread evenly over the lengths, of about `TIMED_TOKENS` tokens in all."""
    ordered = sorted(texts, key=lambda text: len(text.token_ids))
    count = max(1, min(len(ordered), TIMED_TOKENS * len(ordered) // sum(len(text.token_ids) for text in ordered)))
    return [ordered[len(ordered) * (2 * place + 1) // (2 * count)] for place in range(count)]


class Trial:
    """The model, traced with one way to merge, on the texts, at any schedule and setting.

    The exact answers are those in fp32, whatever the bundle's precision; an int8 bundle's settings run in int8, those
    of half precision in fp32.

    Args:
        classifier: is traced, with selection wherever a layer can select, as it merges now.
        manifest: what the bundle will say; its knobs have their defaults, but for the one that is chosen.
        texts: at least one.
        folder: for the graph; nothing else may be in it.
        exact: float32 `[texts, labels]`, the exact answers where they are known.
        taught: weights that answer below a share, where the checkpoint has some.
    """

    def __init__(
        self,
        classifier: PackedClassifier,
        manifest: Manifest,
        texts: Sequence[Encoded],
        folder: Path,
        exact: Logits | None = None,
        taught: TaughtWeights | None = None,
    ) -> None:
        self.manifest = manifest
        self.texts = texts
        self.merge = classifier.merge
        self.layers, self.pooling = classifier.num_layers, classifier.pooling
        self.files = [folder / bundle.MODEL]
        self.knobs = KnobTable(manifest.name, manifest.knobs)
        self.below = 0.0
        classifier.choose(EVERYWHERE)
        graph = trace(classifier)
        write_model(graph, folder)
        self.sessions: list[Any] = []
        self.cost: CostModel
        self.open(EVERYWHERE)
        self.exact = np.concatenate(list(self.logits(self.knobs.exact()))) if exact is None else exact
        self.exact_cost = self.work(self.knobs.exact())
        self.changes = np.zeros(len(texts), dtype=np.int64)  # answers of each text that a setting changed
        self.close()  # another trial may be next
        self.round(graph, folder)
        if taught is not None:
            self.below = taught.below
            beside = folder / "taught"
            beside.mkdir()
            with taught.within(classifier.model):
                graph = trace(classifier)
                write_model(graph, beside)
                self.round(graph, beside)
            self.files.append(beside / bundle.MODEL)

    def round(self, graph: ir.Model, folder: Path) -> None:
        """Writes a graph over its fp32 form where the bundle is in int8."""
        if self.manifest.precision == "int8":
            int8.quantise(graph)
            write_model(graph, folder)

    def close(self) -> None:
        """Frees the sessions' weights until it is opened again."""
        self.sessions = []

    def open(self, schedule: str, threads: int | None = None) -> None:
        """Goes on with another schedule, on as many threads; the weights' files stay as they are."""
        self.close()  # frees the other one's weights first
        for file in self.files:
            model = onnx.load(str(file), load_external_data=False)
            nodes = [node for node in model.graph.node if node.op_type == LENGTHS.name]
            for node, exponent in zip(nodes, exponents(schedule, self.layers, self.pooling), strict=False):
                [attribute] = [item for item in node.attribute if item.name == "exponent"]
                attribute.f = exponent
            onnx.save(model, str(file))
            self.sessions.append(create(file, threads=threads))
        self.cost = cost_model(read_graph(self.files[0]))

    def session(self, knobs: Mapping[str, float]) -> Any:
        """What answers at a setting."""
        return self.sessions[-1 if knobs[KNOB.name] < self.below else 0]

    def logits(self, knobs: Mapping[str, float], order: Sequence[int] | None = None) -> Iterator[Logits]:
        """Logits `[B, labels]` of the texts, some at a time, in their order or in another one."""
        rows: list[Row] = []
        tokens = 0
        order = range(len(self.texts)) if order is None else order
        for place, index in enumerate(order):
            text = self.texts[index]
            rows.append(Row(text.token_ids, text.type_ids, knobs, seed=index))
            tokens += len(text.token_ids)
            if tokens >= TOKENS_PER_BATCH or place == len(order) - 1:
                yield self.session(knobs).run(["logits"], pack(rows, self.manifest))[0]
                rows, tokens = [], 0

    def work(self, knobs: Mapping[str, float]) -> float:
        """Predicted multiply-adds of all texts."""
        return sum(self.cost.predict(len(text.token_ids), knobs) for text in self.texts)

    def knobs_at(self, share: float) -> dict[str, Any]:
        """The bundle's defaults, with that share of the tokens."""
        return self.knobs.check({KNOB.name: share})

    def cost_at(self, share: float) -> float:
        """Predicted work as a share of the exact model's."""
        return self.work(self.knobs_at(share)) / self.exact_cost

    def gain(self, setting: Setting) -> Timing:
        """How many times as fast the defaults are with a setting as with every token: text by text, on one thread."""
        self.open(setting.schedule, threads=1)
        timed = spread(self.texts)

        def answering(share: float) -> Callable[[], None]:
            knobs = self.knobs_at(share)
            feeds = [pack([Row(text.token_ids, text.type_ids, knobs)], self.manifest) for text in timed]

            def answer() -> None:
                for each in feeds:
                    self.session(knobs).run(["logits"], each)

            return answer

        runs = [answering(KNOB.exact), answering(setting.share)]
        for _ in range(ATTEMPTS):
            _, timing = in_turns(runs, TIMED_S, threads=1)
            if timing.credible():
                break
        self.open(setting.schedule)
        return timing

    def agreement(self, share: float, least: float) -> float:
        """Share of the texts whose answers agree with the exact ones, given up where it must be below `least`.

        The texts whose answers other settings have changed come first: they are the ones to change again.
        """
        order = np.argsort(-self.changes, kind="stable")
        task, thresholds = self.manifest.task, self.manifest.thresholds
        done, same = 0, len(order)  # texts that have not run count as unchanged
        for batch in self.logits(self.knobs_at(share), order.tolist()):
            places = order[done : done + len(batch)]
            differs = ~agrees(batch, self.exact[places], task=task, thresholds=thresholds)
            self.changes[places] += differs
            done, same = done + len(batch), same - int(differs.sum())
            if same / len(order) < least:
                break
        return same / len(order)
