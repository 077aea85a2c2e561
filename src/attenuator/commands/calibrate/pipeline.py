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
from attenuator.calibration.lists import ListCalibration
from attenuator.calibration.plot import frontier_svg
from attenuator.calibration.schema import FORMAT_VERSION, Bucket, Calibration, Certainty, Latency, shown
from attenuator.calibration.schema import Setting as CalibratedSetting
from attenuator.clients.progress import progress_bar
from attenuator.commands.calibrate.ordering import Steps, at_confidence, calibrated_lists, together
from attenuator.commands.calibrate.partial import PartialResults
from attenuator.commands.calibrate.runs import Logits, Run, run_all
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


def run_with_bar(runs: Sequence[Run], results: PartialResults) -> list[Logits]:
    """Logits `[texts, labels]` of each run, with a bar.

    Predicted times let the bar move evenly: the exact setting may take as long as all others together.
    """
    with progress_bar(TaskProgressColumn(), TimeRemainingColumn()) as progress:
        task = progress.add_task("", total=sum(run.work(range(len(run.texts))) for run in runs))

        def step(run: Run, places: Sequence[int]) -> None:
            what = f"{len(run.texts)} texts at {shown(run.knobs) or run.model.manifest.name}"
            progress.update(task, description=what, advance=run.work(places))

        return run_all(runs, results, step)


@dataclass(frozen=True, slots=True, eq=False)
class Measured:
    """Logits `[texts, labels]` of every model that ran.

    Attributes:
        settings: of the bundle, at each setting of the grid.
        exact: of the reference, which agreement is with.
        second: of the model that scores the best documents of lists again.
        order: of the one whose order of lists counts.
    """

    settings: list[Logits]
    exact: Logits
    second: Logits
    order: Logits


def measure(runs: Sequence[Run], texts: Texts, reference: Model | None, results: PartialResults) -> Measured:
    """Runs the bundle at every setting, and the other models at their exact ones; the first of `runs` is exact."""
    larger = texts.lists and texts.lists.larger
    others = []
    if larger:
        knobs, predicted = larger.model.knobs.exact(), predicted_time(larger.folder)
        others.append(Run(larger.model, knobs, larger.encoded, texts.seeds, predicted))
    if reference:
        others.append(Run(reference, reference.knobs.exact(), texts.encoded, texts.seeds, runs[0].predicted))
    every = run_with_bar([*others, *runs], results)
    own = every[len(others) :]
    exact = every[len(others) - 1] if reference else own[0]
    second = every[0] if larger else own[0]
    return Measured(own, exact, second, second if larger else exact)


def lists_of(
    model: Model, texts: Texts, knobs: Sequence[Knobs], answers: Measured, predicted: PredictedTime, confidence: float
) -> ListCalibration | None:
    """What the settings are worth as first steps; None where the texts are no lists."""
    if texts.lists is None:
        return None
    median = int(np.median(texts.tokens))
    steps = Steps(
        [logits[:, 0].tolist() for logits in answers.settings],
        answers.second[:, 0].tolist(),
        answers.order[:, 0].tolist(),
    )
    return calibrated_lists(
        texts.name,
        texts.sha256,
        texts.lists,
        steps,
        knobs,
        [predicted(median, each) for each in knobs],
        confidence=together(confidence, len(grid(model.manifest.knobs))),
        defaults=model.knobs.defaults(),
    )


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


def lists_again(
    model: Model, folder: Path, settings: CalibrateSettings, texts: Texts, calibration: Calibration
) -> Calibration:
    """Puts what lists say in the place of what the calibration says of lists, or adds it; all else stays.

    So a bundle that is not fp32 is measured before a larger model: its agreement is with its own checkpoint. It runs at
    the settings that the calibration has.

    Raises:
        InvalidRequest: a file cannot be written, or is of another run.
        EngineError: ONNX Runtime failed.
    """
    predicted = predicted_time(folder)
    knobs = [model.knobs.check(each.knobs) for each in calibration.settings]
    about = about_of(model, settings, texts, knobs, None)
    with PartialResults(folder, about, len(model.manifest.labels), restart=settings.restart) as results:
        measured = measure(
            [Run(model, each, texts.encoded, texts.seeds, predicted) for each in knobs], texts, None, results
        )
        lists = lists_of(model, texts, knobs, measured, predicted, calibration.confidence)
        calibration = calibration.model_copy(update={"lists": lists})
        write(folder, calibration, model.manifest.name)
        results.remove()
    return calibration


def about_of(
    model: Model, settings: CalibrateSettings, texts: Texts, knobs: Sequence[Knobs], reference: Model | None
) -> dict[str, Any]:
    """What is measured on what: an interrupted run's results are of use only where it is the same."""
    other = texts.lists.larger.model if texts.lists and texts.lists.larger else reference
    return {
        "attenuator": __version__,
        "revision": model.manifest.revision,
        "data_sha256": texts.sha256,
        "truncate": settings.truncate,
        "device": str(model.device),
        "settings": knobs,
        "reference": other and other.manifest.revision,
    }


def calibrate(
    model: Model,
    folder: Path,
    settings: CalibrateSettings,
    texts: Texts,
    before: Calibration | None = None,
    reference: Model | None = None,
    *,
    lists: ListCalibration | None = None,
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
        lists: of an earlier calibration, which stay unless the texts are lists.
        keep_partial: leaves what a later run would go on from.

    Raises:
        InvalidRequest: a file cannot be written, or is of another run.
        EngineError: ONNX Runtime failed.
    """
    manifest, predicted = model.manifest, predicted_time(folder)
    knobs = [model.knobs.check(each) for each in grid(manifest.knobs)]
    about = about_of(model, settings, texts, knobs, reference)
    with PartialResults(folder, about, len(manifest.labels), restart=settings.restart) as results:
        runs = [Run(model, each, texts.encoded, texts.seeds, predicted) for each in knobs]
        measured = measure(runs, texts, reference, results)
        lists = lists and at_confidence(lists, settings.confidence, len(knobs))
        lists = lists_of(model, texts, knobs, measured, predicted, settings.confidence) or lists
        calibration = calibrated(model, settings, texts, knobs, measured, predicted, reference, lists)
        calibration = with_times(calibration, model, folder, settings, texts, before)
        write(folder, calibration, manifest.name)
        if not keep_partial:
            results.remove()
    return Outcome(calibration, knobs, measured.settings, measured.exact)


def calibrated(
    model: Model,
    settings: CalibrateSettings,
    texts: Texts,
    knobs: Sequence[Knobs],
    measured: Measured,
    predicted: PredictedTime,
    reference: Model | None,
    lists: ListCalibration | None,
) -> Calibration:
    """The calibration but for its times, with the default agreement of the settings; arguments as `calibrate` has."""
    manifest = model.manifest
    answers = answers_of(model, texts, knobs, measured.settings, measured.exact)
    of_lists = [row.knobs for row in lists.settings] if lists else []
    buckets, kept = summarise(
        answers,
        predicted,
        defaults=model.knobs.defaults(),
        min_agreement=settings.min_agreement,
        confidence=settings.confidence,
        max_tokens=manifest.max_tokens,
        others=[place for place, each in enumerate(knobs) if each in of_lists],
    )
    return Calibration(
        format_version=FORMAT_VERSION,
        revision=manifest.revision,
        reference=reference.manifest.revision if reference else None,
        confidence=settings.confidence,
        data=texts.name,
        data_sha256=texts.sha256,
        texts=len(texts.encoded),
        buckets=buckets,
        settings=kept,
        certainty=certainty_of(manifest, answers, measured.settings, measured.exact, buckets),
        default_agreement=settings.min_agreement,
        lists=lists,
    )


def with_times(
    calibration: Calibration,
    model: Model,
    folder: Path,
    settings: CalibrateSettings,
    texts: Texts,
    before: Calibration | None,
) -> Calibration:
    """The same with times: those of `before`, whose default agreement stays too unless the settings have one."""
    if before is None:
        here = timed(model, folder, texts, calibration.settings, settings.threads or cpu_count())
        return calibration.model_copy(update={"latency": [here]})
    stays = {} if "min_agreement" in settings.model_fields_set else {"default_agreement": before.default_agreement}
    return calibration.model_copy(update={"latency": before.latency, **stays})
