"""From a bundle and texts to `calibration.json` and its plot."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.progress import TaskProgressColumn, TimeRemainingColumn

from attenuator import __version__
from attenuator.bundle import CALIBRATION, MODEL, PLOT, Manifest
from attenuator.calibration import certainty
from attenuator.calibration.frontier import Answers, PredictedTime, summarise
from attenuator.calibration.grid import grid
from attenuator.calibration.plot import frontier_svg
from attenuator.calibration.schema import FORMAT_VERSION, Bucket, Calibration, Certainty, Latency, shown
from attenuator.calibration.schema import Setting as CalibratedSetting
from attenuator.clients.progress import progress_bar
from attenuator.commands.calibrate.partial import PartialResults
from attenuator.commands.calibrate.runs import Logits, batches_of, run_all
from attenuator.commands.calibrate.settings import COMMAND, CalibrateSettings
from attenuator.commands.calibrate.texts import Texts, correct
from attenuator.commands.calibrate.timing import lengths_to_time, time_settings
from attenuator.commands.cost import Setting, TimeModel
from attenuator.errors import InvalidRequest
from attenuator.json_lines import in_lines
from attenuator.ops.knobs import Knobs
from attenuator.runtime import Model
from attenuator.runtime.graph import read_graph
from attenuator.runtime.scores import agrees, margins, tolerance
from attenuator.runtime.session import cpu_count
from attenuator.runtime.work import count_work


@dataclass(frozen=True, slots=True, eq=False)
class Outcome:
    """A calibration, and the answers that it was made from.

    Attributes:
        calibration: as it is written.
        settings: checked values by knob name, the exact ones first.
        logits: float32 `[texts, labels]` of each setting.
        exact: float32 `[texts, labels]` of the reference.
    """

    calibration: Calibration
    settings: Sequence[Knobs]
    logits: Sequence[Logits]
    exact: Logits

    def at(self, knobs: Mapping[str, float]) -> Logits:
        """Those of one setting."""
        return self.logits[[dict(each) for each in self.settings].index(dict(knobs))]


def write_whole(path: Path, content: str) -> None:
    """Writes a file so that nobody ever sees a part of it.

    Raises:
        InvalidRequest: it cannot be written.
    """
    part = path.with_name(f".{path.name}.part")
    try:
        part.write_text(content, encoding="utf-8")
        part.replace(path)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise InvalidRequest(f"{path} cannot be written: {error.strerror}") from None


def predicted_time(folder: Path) -> PredictedTime:
    """Predicted time of a text on one core, in ns, by its length and setting."""
    model = TimeModel(count_work(read_graph(folder / MODEL)))
    return lambda tokens, knobs: model.ns(tokens, Setting(knobs))


def measured(
    settings: Sequence[tuple[Model, Knobs]], texts: Texts, results: PartialResults, predicted: PredictedTime
) -> list[Logits]:
    """Logits `[texts, labels]` of each setting, with a bar.

    Predicted times let the bar move evenly: the exact setting may take as long as all others together.
    """
    groups = [[len(texts.encoded[place].token_ids) for place in places] for places in batches_of(texts.encoded)]

    def work(knobs: Mapping[str, float], lengths: Sequence[int]) -> float:
        return sum(predicted(tokens, knobs) for tokens in lengths)

    with progress_bar(TaskProgressColumn(), TimeRemainingColumn()) as progress:
        task = progress.add_task("", total=sum(work(knobs, lengths) for _, knobs in settings for lengths in groups))

        def step(knobs: Mapping[str, float], batch: int) -> None:
            what = f"{len(texts.encoded)} texts at {shown(knobs)}"
            progress.update(task, description=what, advance=work(knobs, groups[batch]))

        return run_all(settings, texts.encoded, results, step)


def answers_of(
    model: Model, texts: Texts, settings: Sequence[Knobs], logits: Sequence[Logits], exact: Logits
) -> Answers:
    """Which answers agree with the reference's `exact` ones, and which are the labels given."""
    manifest = model.manifest
    agree = [agrees(each, exact, task=manifest.task, thresholds=manifest.thresholds) for each in logits]
    right = None if texts.truth is None else np.stack([correct(each, texts.truth, manifest) for each in logits])
    return Answers(settings, texts.tokens, np.stack(agree), right)


def certainty_of(
    manifest: Manifest, answers: Answers, logits: Sequence[Logits], exact: Logits, buckets: Sequence[Bucket]
) -> Certainty:
    """How sure single answers are, from all texts at all settings.

    Args:
        manifest: of the bundle.
        answers: of all texts.
        logits: `[texts, labels]` of each setting, the exact one first.
        exact: `[texts, labels]` of the reference.
        buckets: of the calibration.
    """
    task = manifest.task
    deviations = [
        certainty.Deviations(knobs, *margins(each, exact, task=task, thresholds=manifest.thresholds), agree)
        for knobs, each, agree in zip(answers.settings, logits, answers.agree, strict=True)
    ]
    within = tolerance(exact) if task == "regression" else None
    return certainty.fit(deviations if manifest.rounded else deviations[1:], answers.tokens, buckets, within)


def timed(model: Model, folder: Path, texts: Texts, settings: Sequence[CalibratedSetting], threads: int) -> Latency:
    """The latency table, with a bar; says on stderr where the machine was too busy to be timed."""
    with progress_bar(TaskProgressColumn(), TimeRemainingColumn()) as progress:
        task = progress.add_task("", total=len(lengths_to_time(model.manifest.max_tokens)))
        latency, priced = time_settings(
            model,
            texts.encoded,
            [model.knobs.check(each.knobs) for each in settings],
            threads=threads,
            modelled=TimeModel(count_work(read_graph(folder / MODEL)), model.manifest.rounded),
            progress=lambda tokens: progress.update(task, description=f"timing {tokens} tokens", advance=1),
        )
    if priced:
        every = len(latency.tokens) * (len(settings) + 1)
        print(
            f"attenuator {COMMAND}: the machine was busy: {priced} of {every} times varied too much and are estimated "
            "from the others; take them again when nothing else runs: "
            f"attenuator {COMMAND} BUNDLE --data FILE --truncate --only-times",
            file=sys.stderr,
        )
    return latency


def write(folder: Path, calibration: Calibration, name: str) -> None:
    """Writes `calibration.json` and the plot.

    Raises:
        InvalidRequest: one of them cannot be written.
    """
    write_whole(folder / PLOT, frontier_svg(calibration, f"{name} on {calibration.data}"))
    write_whole(folder / CALIBRATION, in_lines(calibration.model_dump(mode="json")))


def time_again(
    model: Model, folder: Path, settings: CalibrateSettings, texts: Texts, calibration: Calibration
) -> Calibration:
    """Puts the times of this device in the place of those that the calibration has of it, or adds them.

    Raises:
        InvalidRequest: a file cannot be written.
        EngineError: ONNX Runtime failed.
    """
    here = timed(model, folder, texts, calibration.settings, settings.threads or cpu_count())
    others = [row for row in calibration.latency if (row.device, row.threads) != (here.device, here.threads)]
    calibration = calibration.model_copy(update={"latency": [*others, here]})
    write(folder, calibration, model.manifest.name)
    return calibration


def about_of(
    model: Model, settings: CalibrateSettings, texts: Texts, knobs: Sequence[Knobs], reference: Model | None
) -> dict[str, Any]:
    """What is measured on what: an interrupted run's results are of use only where it is the same."""
    return {
        "attenuator": __version__,
        "revision": model.manifest.revision,
        "data_sha256": texts.sha256,
        "truncate": settings.truncate,
        "device": str(model.device),
        "settings": knobs,
        "reference": reference and reference.manifest.revision,
    }


def calibrate(
    model: Model,
    folder: Path,
    settings: CalibrateSettings,
    texts: Texts,
    before: Calibration | None = None,
    reference: Model | None = None,
    *,
    keep_partial: bool = False,
) -> Outcome:
    """Measures everything, and writes the calibration and its plot.

    Args:
        model: the bundle.
        folder: where it lies.
        settings: of the command.
        texts: to run.
        before: whose times stay, and whose default agreement unless the settings have one; None takes times.
        reference: the bundle of the same checkpoint in fp32; None where the bundle itself is fp32.
        keep_partial: leaves what a later run would go on from.

    Raises:
        InvalidRequest: a file cannot be written, or is of another run.
        EngineError: ONNX Runtime failed.
    """
    manifest, predicted = model.manifest, predicted_time(folder)
    knobs = [model.knobs.check(each) for each in grid(manifest.knobs)]
    about = about_of(model, settings, texts, knobs, reference)
    with PartialResults(folder, about, len(manifest.labels), restart=settings.restart) as results:
        runs = [(model, each) for each in knobs]
        first = [(reference, reference.knobs.exact())] if reference else []
        logits = measured([*first, *runs], texts, results, predicted)
        exact, logits = logits[0], logits[len(first) :]
        answers = answers_of(model, texts, knobs, logits, exact)
        buckets, kept = summarise(
            answers,
            predicted,
            defaults=model.knobs.defaults(),
            min_agreement=settings.min_agreement,
            confidence=settings.confidence,
            max_tokens=manifest.max_tokens,
        )
        calibration = Calibration(
            format_version=FORMAT_VERSION,
            revision=manifest.revision,
            reference=reference.manifest.revision if reference else None,
            confidence=settings.confidence,
            data=texts.name,
            data_sha256=texts.sha256,
            texts=len(texts.encoded),
            buckets=buckets,
            settings=kept,
            certainty=certainty_of(manifest, answers, logits, exact, buckets),
            latency=[timed(model, folder, texts, kept, settings.threads or cpu_count())]
            if before is None
            else before.latency,
            default_agreement=settings.min_agreement
            if before is None or "min_agreement" in settings.model_fields_set
            else before.default_agreement,
        )
        write(folder, calibration, manifest.name)
        if not keep_partial:
            results.remove()
    return Outcome(calibration, knobs, logits, exact)
