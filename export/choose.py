"""Chooses by a user's texts how token selection spreads over the layers, and its knob's default.

The model is traced once, with selection wherever it can be; a schedule is then a row of exponents, 0 where a layer
selects nothing. Of the settings whose answers agree with those of the exact values on `AGREEMENT` of the texts, the one
of least predicted work is tried by the clock, and chosen if it wins there; else every token goes on. Shares are tried
from the smallest, and a setting is given up as soon as too many answers have changed.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx

from attenuator import bundle
from attenuator.bundle import ChosenSelection, Manifest
from attenuator.calibration.proportions import fewest_texts, wilson
from attenuator.calibration.turns import Timing, in_turns
from attenuator.errors import ExportError
from attenuator.export import int8
from attenuator.export.lower import Progress, write_model
from attenuator.export.selection import DEFAULT, EVERYWHERE, LENGTHS, SCHEDULES, exponents
from attenuator.export.trace import PackedClassifier, trace
from attenuator.runtime import Input, Row, create
from attenuator.runtime.batch import pack
from attenuator.runtime.cost import CostModel, cost_model
from attenuator.runtime.graph import read_graph
from attenuator.runtime.knobs import KnobTable
from attenuator.runtime.scores import agrees
from attenuator.runtime.tokens import Encoded, TextEncoder
from attenuator.texts import lines_of

__all__ = ["AGREEMENT", "FEWEST_TEXTS", "KNOB", "SelectionOptions", "choose_selection"]

# What a default must keep of the exact answers.
AGREEMENT = 0.99
CONFIDENCE = 0.95
# With fewer texts, even if no answer changed, an agreement below `AGREEMENT` would not be unlikely enough.
FEWEST_TEXTS = fewest_texts(AGREEMENT, CONFIDENCE)
# Of more texts, that many evenly spread: the interval is narrow enough.
MOST_TEXTS = 2000
[KNOB] = LENGTHS.knobs
SHARES = (KNOB.low, *(step / 20 for step in range(2, 20)))
TOKENS_PER_BATCH = 4096
# Timed: texts spread over the lengths, about so many tokens in all, for so many seconds; once more where disturbed.
TIMED_TOKENS, TIMED_S, ATTEMPTS = 2048, 1.0, 2

Logits = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Setting:
    """One way to select.

    Attributes:
        schedule: its name.
        share: value of the knob.
        cost: predicted work of all texts, as a share of the exact model's.
        agreement: share of the texts whose answers agree; an upper bound where too many had changed to go on.
    """

    schedule: str
    share: float
    cost: float
    agreement: float


@dataclass(frozen=True, slots=True)
class SelectionOptions:
    """What the caller says about the selection.

    Attributes:
        schedule: its name, None to choose it.
        share: the default of the knob, None to choose it.
        texts: a file to choose by, None to take the defaults.
    """

    schedule: str | None
    share: float | None
    texts: Path | None


def read_texts(path: Path, encoder: TextEncoder) -> list[Encoded]:
    """Reads and tokenizes the texts of a file, long ones cut.

    Args:
        path: one text a line; JSON lines where it ends in `.jsonl`.
        encoder: of the bundle.

    Returns:
        At most `MOST_TEXTS`, evenly spread over the file.

    Raises:
        ExportError: there are too few.
        InvalidRequest: the file cannot be read, or a line is no input.
    """
    items = list(lines_of(str(path), jsonl=False))
    if len(items) < FEWEST_TEXTS:
        raise ExportError(
            f"{path} has {len(items)} texts, must have at least {FEWEST_TEXTS}: with fewer, even if no answer changed, "
            f"nothing could be said about an agreement of {AGREEMENT:g} with {CONFIDENCE:.0%} confidence"
        )
    if len(items) > MOST_TEXTS:
        items = [items[len(items) * index // MOST_TEXTS] for index in range(MOST_TEXTS)]
    return [Input.of(item.content, item.where).encode(encoder, truncate=True) for item in items]


class Trial:
    """The traced model on the texts, at any schedule and setting.

    The exact answers are those in fp32, whatever the bundle's precision; an int8 bundle's settings run in int8, those
    of half precision in fp32.

    Args:
        classifier: is traced, with selection wherever a layer can select.
        manifest: what the bundle will say; its knobs have their defaults, but for the one that is chosen.
        texts: at least one.
        folder: for the graph; nothing else may be in it.
    """

    def __init__(
        self, classifier: PackedClassifier, manifest: Manifest, texts: Sequence[Encoded], folder: Path
    ) -> None:
        self.manifest = manifest
        self.texts = texts
        self.layers, self.pooling = classifier.num_layers, classifier.pooling
        self.file = folder / bundle.MODEL
        self.knobs = KnobTable(manifest.name, manifest.knobs)
        classifier.choose(EVERYWHERE)
        graph = trace(classifier)
        write_model(graph, folder)
        self.session: Any = None
        self.cost: CostModel
        self.open(EVERYWHERE)
        self.exact = np.concatenate(list(self.logits(self.knobs.exact())))
        self.exact_cost = self.work(self.knobs.exact())
        if manifest.precision == "int8":
            self.session = None
            int8.quantise(graph)
            write_model(graph, folder)
            self.open(EVERYWHERE)

    def open(self, schedule: str, threads: int | None = None) -> None:
        """Goes on with another schedule, on as many threads; the weights' file stays as it is."""
        model = onnx.load(str(self.file), load_external_data=False)
        nodes = [node for node in model.graph.node if node.op_type == LENGTHS.name]
        for node, exponent in zip(nodes, exponents(schedule, self.layers, self.pooling), strict=False):
            [attribute] = [item for item in node.attribute if item.name == "exponent"]
            attribute.f = exponent
        onnx.save(model, str(self.file))
        self.session = None  # frees the other one's weights first
        self.session = create(self.file, threads=threads)
        self.cost = cost_model(read_graph(self.file))

    def logits(self, knobs: Mapping[str, float]) -> Iterator[Logits]:
        """Logits `[B, labels]` of the texts, some at a time, in order."""
        rows: list[Row] = []
        tokens = 0
        for index, text in enumerate(self.texts):
            rows.append(Row(text.token_ids, text.type_ids, knobs, seed=index))
            tokens += len(text.token_ids)
            if tokens >= TOKENS_PER_BATCH or index == len(self.texts) - 1:
                yield self.session.run(["logits"], pack(rows, self.manifest))[0]
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
        ordered = sorted(self.texts, key=lambda text: len(text.token_ids))
        count = max(1, min(len(ordered), TIMED_TOKENS * len(ordered) // sum(len(text.token_ids) for text in ordered)))
        timed = [ordered[len(ordered) * (2 * place + 1) // (2 * count)] for place in range(count)]

        def answering(share: float) -> Callable[[], None]:
            knobs = self.knobs_at(share)
            feeds = [pack([Row(text.token_ids, text.type_ids, knobs)], self.manifest) for text in timed]

            def answer() -> None:
                for each in feeds:
                    self.session.run(["logits"], each)

            return answer

        runs = [answering(KNOB.exact), answering(setting.share)]
        for _ in range(ATTEMPTS):
            _, timing = in_turns(runs, TIMED_S, threads=1)
            if timing.credible():
                break
        self.open(setting.schedule)
        return timing

    def agreement(self, share: float, least: float) -> float:
        """Share of the texts whose answers agree with the exact ones, given up where it must be below `least`."""
        logits, done, same = self.exact.copy(), 0, 1.0
        for batch in self.logits(self.knobs_at(share)):
            logits[done : done + len(batch)] = batch
            done += len(batch)
            # Texts that have not run count as unchanged.
            task, thresholds = self.manifest.task, self.manifest.thresholds
            same = float(agrees(logits, self.exact, task=task, thresholds=thresholds).mean())
            if same < least:
                break
        return same


def choose_setting(
    trial: Trial, options: SelectionOptions, progress: Progress, note: Callable[[str], None]
) -> ChosenSelection:
    """The cheapest setting that agrees on enough of the texts, if it wins by the clock.

    Args:
        trial: the model on the texts.
        options: where the caller names the schedule, the share alone is chosen; where the caller names the share, the
            schedule alone, the cheapest that agrees on enough texts, or else the one that agrees on most.
        progress: called with one phrase for each setting that is tried.
        note: called with the sentence that says why every token goes on.

    Returns:
        The setting, with what was measured; the exact value where no cheaper setting agrees on enough texts and wins.
    """
    best = agreeing(trial, options, progress)
    timing = None
    if best is None:
        note(f"no cheaper {KNOB.name} keeps {AGREEMENT:.0%} of the answers: its default stays {KNOB.exact:g}")
    elif best.share != KNOB.exact:
        progress(f"time {KNOB.name} {best.share:g}, schedule {best.schedule}")
        timing = trial.gain(best)
        if options.share is None and not timing.wins:
            note(not_won(best, timing))
            best = timing = None
    if best is None:  # rounding and other knobs may change answers, too
        schedule = options.schedule or DEFAULT
        trial.open(schedule)
        best = Setting(schedule, KNOB.exact, trial.cost_at(KNOB.exact), trial.agreement(KNOB.exact, 0.0))
    low, high = wilson(best.agreement * len(trial.texts), len(trial.texts), CONFIDENCE)
    return ChosenSelection(
        schedule=best.schedule,
        texts=len(trial.texts),
        share=best.share,
        agreement=best.agreement,
        agreement_low=low,
        agreement_high=high,
        cost=best.cost,
        gain=None if timing is None else timing.gain,
        gain_low=None if timing is None else timing.low,
        gain_high=None if timing is None else timing.high,
    )


def not_won(setting: Setting, timing: Timing) -> str:
    """Why a setting is not the default although its answers agree."""
    kept = f"{KNOB.name} {setting.share:g}, schedule {setting.schedule}, keeps {setting.agreement:.1%} of the answers"
    won = f"{timing.gain:.2f} times as fast as every token [{timing.low:.2f}, {timing.high:.2f}]"
    stays = f"the default of {KNOB.name} stays {KNOB.exact:g}"
    if timing.credible():
        return f"{kept}, but is only {won}: {stays}"
    return f"{kept}, but the machine was too busy to time it ({won}): {stays}; export again when nothing else runs"


def agreeing(trial: Trial, options: SelectionOptions, progress: Progress) -> Setting | None:
    """The setting of least predicted work that agrees on enough of the texts; None where none does.

    Arguments as `choose_setting` takes them; a share that the caller names is in it whatever it agrees on.
    """
    schedule, share = options.schedule, options.share
    least = AGREEMENT if share is None else 0.0
    best: Setting | None = None
    tried = []
    for name in distinct(trial.layers, trial.pooling) if schedule is None else [schedule]:
        trial.open(name)
        for value in SHARES if share is None else [share]:
            cost = trial.cost_at(value)
            if share is None and cost >= (best.cost if best else 1.0):
                break
            progress(f"try {KNOB.name} {value:g}, schedule {name}, on {len(trial.texts)} texts")
            setting = Setting(name, value, cost, trial.agreement(value, least))
            tried.append(setting)
            if share is None and setting.agreement >= AGREEMENT:
                best = setting
                break
    if share is not None:
        enough = [setting for setting in tried if setting.agreement >= AGREEMENT]
        best = min(enough, key=lambda one: one.cost) if enough else max(tried, key=lambda one: one.agreement)
    return best


def distinct(layers: int, pooling: str) -> list[str]:
    """Names of schedules, without those that are another one's double in a model of few layers."""
    rows = {exponents(name, layers, pooling): name for name in reversed(SCHEDULES)}
    return list(reversed(rows.values()))


def choose_selection(
    classifier: PackedClassifier,
    fields: dict[str, Any],
    options: SelectionOptions,
    folder: Path,
    progress: Progress,
    note: Callable[[str], None],
) -> ChosenSelection | None:
    """Settles how tokens are selected: as the caller asks, by texts, or else by the defaults.

    Args:
        classifier: gets the schedule.
        fields: of the manifest, as far as they are known; the knob among them gets its default.
        options: what the caller says.
        folder: where the bundle is written; holds the tokenizer. A trial graph is written into it, and removed.
        progress: called with one phrase at the start of each step.
        note: called with what the user should read afterwards.

    Returns:
        What was chosen; None where the graph selects nothing.

    Raises:
        ExportError: there are texts and nothing to choose by them, or they cannot be used.
    """
    if not classifier.selection.layers:
        if options.texts is not None:
            raise ExportError("texts is set, but this bundle selects no tokens, so there is nothing to choose by them")
        return None
    merged = classifier.merge if classifier.selection.merges else None
    if options.texts is None:
        share = next(knob.default for knob in fields["knobs"] if knob.name == KNOB.name)
        return ChosenSelection(schedule=options.schedule or DEFAULT, texts=0, share=share, merge=merged)
    manifest = Manifest.model_construct(**fields)
    with tempfile.TemporaryDirectory(dir=folder) as name:  # not beside it, where another export takes it for left
        progress("read the texts")
        encoder = TextEncoder.of_bundle(folder / bundle.TOKENIZER, manifest)
        texts = read_texts(options.texts, encoder)
        progress(f"run {len(texts)} texts at the exact values")
        chosen = choose_setting(Trial(classifier, manifest, texts, Path(name)), options, progress, note)
    classifier.choose(chosen.schedule)
    chosen = chosen.model_copy(update={"merge": merged})
    default = {"default": chosen.share}
    fields["knobs"] = [row.model_copy(update=default if row.name == KNOB.name else {}) for row in manifest.knobs]
    return chosen
