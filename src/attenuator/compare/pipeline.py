"""From a checkpoint and a file of texts to `comparison.json` and its plot."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.progress import TaskProgressColumn, TimeRemainingColumn

from attenuator import __version__
from attenuator.bundle import MANIFEST, MODEL
from attenuator.clients.progress import progress_bar
from attenuator.commandline import listed_numbers
from attenuator.commands.calibrate.pipeline import write_whole
from attenuator.commands.calibrate.texts import Texts, correct
from attenuator.commands.cost import TimeModel
from attenuator.compare import candidates as choices
from attenuator.compare.candidates import Absent, Method
from attenuator.compare.data import Range, drawn, encode, ranges_of, read_items
from attenuator.compare.grid import Setting, settings_of, shown, without
from attenuator.compare.judging import Candidate, judge
from attenuator.compare.measuring import (
    FAR_SLOWER,
    SECONDS_PER_RUN,
    Deadline,
    Times,
    TimeUp,
    answers,
    seconds_per_text,
    times,
)
from attenuator.compare.output import BUNDLES, PLOT, RESULT, identity, output_folder
from attenuator.compare.partial import Logits, Progressed
from attenuator.compare.plot import comparison_svg
from attenuator.compare.record import Comparison
from attenuator.compare.settings import COMMAND, CompareSettings
from attenuator.errors import BundleError, EngineError, ExportError, InvalidRequest
from attenuator.export.packed import OPERATOR_BY_KEY
from attenuator.export.pipeline import ATTENTIONS, export
from attenuator.export.place import place_of
from attenuator.export.source import load_of_sequences
from attenuator.ops import BASELINE
from attenuator.rows import Columns
from attenuator.runtime import Model, load
from attenuator.runtime.device import chosen_for, hardware
from attenuator.runtime.graph import read_graph
from attenuator.runtime.scores import agrees
from attenuator.runtime.session import cpu_count
from attenuator.runtime.work import count_work

FEWEST_TEXTS = 30  # that are run, however little time there is
FEWEST_SHARE = 1 / 3  # of the time left that answers get, however long exports take
ANSWERS_SHARE = 0.8  # of the time that exports and clocks leave: predictions err

Note = Callable[[str], None]


@dataclass(frozen=True, slots=True, eq=False)
class Measured:
    """What was measured of one method.

    Attributes:
        method: which.
        settings: that were run; none where all are far slower than the exact answers.
        exact: its exact setting.
        logits: `[texts, labels]` of each setting.
        times: of each setting at the length of each range.
        work: predicted multiply-adds, `[settings][ranges]`, of one text of each range's median length.
    """

    method: Method
    settings: list[Setting]
    exact: Setting
    logits: list[Logits]
    times: Times
    work: list[list[float]]


def read_lengths(words: str | None, longest: int) -> list[int] | None:
    """Where ranges of lengths end, ascending; None where nothing is given.

    Args:
        words: of the flag.
        longest: tokens that the model takes.

    Raises:
        SystemExit: 2, where they are no such lengths.
    """
    if words is None:
        return None
    allowed = f"whole numbers from 1 to {longest}, the longest text that the model takes"
    return listed_numbers(COMMAND, "--lengths", words, int, lambda length: 0 < length <= longest, allowed)


class Run:
    """A comparison under way.

    Args:
        source: the checkpoint, as the user named it.
        settings: of the command.
        note: says a sentence to the user.

    Raises:
        AttenuatorError: the checkpoint or the texts cannot be read, or an option does not fit them.
    """

    def __init__(self, source: str, settings: CompareSettings, note: Note) -> None:
        self.checkpoint, self.settings, self.note = source, settings, note
        self.deadline = Deadline(60 * settings.max_minutes)
        columns = Columns(settings.column, settings.pair_column)
        items = read_items(settings.data, columns, settings.label_column, settings.max_texts)
        self.device = chosen_for(settings.device, settings.device_id, note)
        precisions = choices.chosen(
            settings.precision, f"--precision on {self.device}", choices.RUN_BY[self.device.kind]
        )
        asked = choices.chosen(settings.attention, "--attention", ATTENTIONS)
        loaded = load_of_sequences(source)
        own, *others = choices.attentions_of(loaded)
        elsewhere = [] if self.device.kind == "cpu" else [key for key in others if OPERATOR_BY_KEY[key].cpu_only]
        others = [key for key in others if key in asked and key not in elsewhere]
        self.methods = choices.methods_of([own, *others], precisions, loaded)
        absent = choices.absent(loaded, source, settings.data)
        absent += [choices.Absent(key, "it runs on the CPU alone", "") for key in elsewhere]
        self.absent = [row for row in absent if row.name in asked]
        self.texts = encode(settings.data, items, loaded, truncate=settings.truncate)
        self.ends = read_lengths(settings.lengths, loaded.max_tokens)
        self.source = place_of(source)
        self.folder = output_folder(settings, self.source)
        self.export_seconds = 0.0

    def compare(self) -> Comparison:
        """Measures everything and writes the result.

        Raises:
            AttenuatorError: the checkpoint cannot be exported, the texts cannot be run, or a file cannot be written.
        """
        settings = self.settings
        about = identity(settings, self.checkpoint, self.source.path)
        with Progressed(self.folder, about, restart=settings.restart) as results:
            if results.resumed:
                self.note("goes on with an interrupted comparison")
            reference = self.exported(self.methods[0], results)
            texts = drawn(self.texts, self.texts_to_run(reference, results))
            ranges = self.ranges(texts, reference)
            measured = [
                each for method in self.methods if (each := self.measured(method, reference, texts, ranges, results))
            ]
            if not measured or measured[0].method != self.methods[0]:
                raise InvalidRequest(
                    f"--max-minutes {settings.max_minutes:g} is too short for the exact answers alone: give more, or "
                    "fewer --max-texts; the same command goes on where it ended"
                )
            candidates = self.candidates(measured, reference, texts)
            goal = settings.min_agreement
            verdicts = judge(
                candidates,
                ranges,
                min_agreement=goal,
                confidence=settings.confidence,
                attention_share=self.attention_share,
            )
            facts = {
                "attenuator": __version__,
                "checkpoint": self.checkpoint,
                "data": texts.name,
                "data_sha256": texts.sha256,
                "texts": len(texts.encoded),
                "confidence": settings.confidence,
                "machine": hardware(self.device),
                "threads": settings.threads or cpu_count(),
            }
            comparison = Comparison(facts, candidates, verdicts, self.absent, goal)
            self.write(comparison)
            results.remove()
        return comparison

    def place(self, method: Method) -> Path:
        """Where a method's bundle is put."""
        return self.folder / BUNDLES / method.name.replace(" ", "-")

    def attention_share(self, tokens: int) -> float | None:
        """Of the exact model's modelled time; None where its attention does not come to softmax attention."""
        if OPERATOR_BY_KEY[self.methods[0].attention].attention != BASELINE.attention:
            return None
        return self.time_model(self.methods[0]).attention_share(tokens)

    def time_model(self, method: Method) -> TimeModel:
        """The time model of a method's bundle."""
        return TimeModel(
            count_work(read_graph(self.place(method) / MODEL)), method.precision != choices.EXACT_PRECISION
        )

    def exported(self, method: Method, results: Progressed) -> Model:
        """The bundle of a method, exported unless an interrupted run has left it.

        Raises:
            AttenuatorError: it cannot be exported, or does not run here.
        """
        folder = self.place(method)
        if not (results.resumed and (folder / MANIFEST).is_file()):
            self.note(f"exports {method.name} ({self.methods.index(method) + 1} of {len(self.methods)})")
            begun = time.monotonic()
            options: dict[str, Any] = dict(method.options)
            export(self.checkpoint, attention=method.attention, precision=method.precision, output=folder, **options)
            self.export_seconds = time.monotonic() - begun
        return load(folder, device=self.device, threads=self.settings.threads, check=False)  # export has checked it

    def texts_to_run(self, reference: Model, results: Progressed) -> int:
        """How many texts fit into the time, were every setting as slow as the exact one."""
        if results.texts is not None:
            return results.texts
        texts = self.texts.encoded
        each = seconds_per_text(reference, texts)
        settings = len(self.methods) * 2 * (self.settings.values + 1)
        clocks = settings * max(SECONDS_PER_RUN, 4 * each)
        left = self.deadline.left - self.export_seconds * (len(self.methods) - 1) - clocks
        left = max(left, FEWEST_SHARE * self.deadline.left)  # rather fewer methods than too few texts to judge by
        fitting = max(FEWEST_TEXTS, int(ANSWERS_SHARE * left / (settings * each)))
        count = min(fitting, len(texts))
        if count < len(texts):
            self.note(
                f"runs {count} of {len(texts)} texts, so as to end within {self.settings.max_minutes:g} "
                "minutes (--max-minutes)"
            )
        results.settle(count)
        return count

    def ranges(self, texts: Texts, reference: Model) -> list[Range]:
        """The ranges of lengths that have texts."""
        goal, confidence = self.settings.min_agreement, self.settings.confidence
        longest = reference.manifest.max_tokens
        return ranges_of(texts, self.ends, longest, min_agreement=goal, confidence=confidence)

    def measured(
        self, method: Method, reference: Model, texts: Texts, ranges: Sequence[Range], results: Progressed
    ) -> Measured | None:
        """Answers and times of one method; None, and a line about it, where there are none.

        Raises:
            AttenuatorError: the reference cannot be run.
        """
        is_reference = method == self.methods[0]
        try:
            if method.name not in results.done:
                self.deadline.check()
                model = reference if is_reference else self.exported(method, results)
                known = results.timed.get(method.name) or self.timed(method, model, reference, texts, ranges, results)
                self.answers(method, model, texts, known["settings"], results)
                results.finish(method.name)
        except TimeUp:
            self.absent.append(Absent(method.name, f"--max-minutes {self.settings.max_minutes:g} ended before it"))
            return None
        except (ExportError, BundleError, EngineError) as error:
            if is_reference:
                raise
            what = "cannot be run" if isinstance(error, EngineError) else "cannot be exported"
            self.absent.append(Absent(method.name, f"{what}: {error}"))
            return None
        finally:
            if not is_reference and not self.settings.keep_bundles and method.name in results.done:
                shutil.rmtree(self.place(method), ignore_errors=True)
        known = results.timed[method.name]
        why = f"more than {FAR_SLOWER:g} times as slow as exact at every length, so that no text was run"
        self.absent += [Absent(f"{method.name} at {shown(each, known['exact'])}", why) for each in known["far_slower"]]
        logits = self.answers(method, None, texts, known["settings"], results)
        return Measured(method, known["settings"], known["exact"], logits, Times(**known["times"]), known["work"])

    def timed(
        self,
        method: Method,
        model: Model,
        reference: Model,
        texts: Texts,
        ranges: Sequence[Range],
        results: Progressed,
    ) -> dict[str, Any]:
        """Times the settings of one method, and keeps those that are worth running the texts at.

        Raises:
            EngineError: ONNX Runtime failed.
        """
        settings = settings_of(model.manifest.knobs, self.settings.values)
        exact = settings[0]
        if method.options:  # at the exact values an option changes nothing
            settings = settings[1:] or settings
        if method.attention != self.methods[0].attention:  # the plain bundle does the rest
            settings = without(settings, exact, [knob.name for knob in reference.manifest.knobs]) or settings[:1]
        lengths = [each.median for each in ranges]
        modelled = self.time_model(method)
        clock = times(model, settings, reference, texts.encoded, lengths, modelled, threads=self.settings.threads)
        slow = clock.far_slower()
        if method == self.methods[0]:
            slow[0] = False  # the exact answers, which all others are compared with
        kept = [place for place, is_slow in enumerate(slow) if not is_slow]
        checked = [model.knobs.check(settings[place]) for place in kept]
        known = {
            "settings": [settings[place] for place in kept],
            "exact": exact,
            "times": asdict(clock.of(kept)),
            "work": [[model.predict_cost(tokens, knobs) for tokens in lengths] for knobs in checked],
            "far_slower": [setting for setting, is_slow in zip(settings, slow, strict=True) if is_slow],
        }
        results.time(method.name, known)
        return known

    def answers(
        self, method: Method, model: Model | None, texts: Texts, settings: Sequence[Setting], results: Progressed
    ) -> list[Logits]:
        """Logits `[texts, labels]` of each setting, with a bar; without a model those that were measured before."""
        with progress_bar(TaskProgressColumn(), TimeRemainingColumn(), shown=model is not None) as progress:
            what = f"{method.name}: {len(texts.encoded)} texts at {len(settings)} settings"
            task = progress.add_task(what, total=len(texts.encoded) * len(settings))
            return answers(
                method.name,
                model,
                texts.encoded,
                settings,
                results,
                self.deadline,
                lambda rows: progress.update(task, advance=rows),
            )

    def candidates(self, measured: Sequence[Measured], reference: Model, texts: Texts) -> list[Candidate]:
        """Every method at every setting, the reference first."""
        manifest, exact = reference.manifest, measured[0].logits[0]
        base = np.array(measured[0].times.exact)
        rows = []
        for each in measured:
            shares = np.array(each.times.seconds).reshape(-1, len(base)) / np.array(each.times.exact)
            slowest = np.array(each.times.slowest).reshape(-1, len(base)) / np.array(each.times.exact)
            if each is measured[0]:  # its own exact setting was timed twice
                slowest, shares = slowest / shares[0], shares / shares[0]
                slowest[0] = 1.0
            same = each.method.precision == measured[0].method.precision
            of_settings = zip(each.settings, each.logits, shares, slowest, each.times.credible, each.work, strict=True)
            for setting, logits, share, slow, credible, work in of_settings:
                rows.append(
                    Candidate(
                        method=each.method,
                        setting=setting,
                        exact=each.exact,
                        agree=agrees(logits, exact, task=manifest.task, thresholds=manifest.thresholds),
                        correct=None if texts.truth is None else correct(logits, texts.truth, manifest),
                        ms=(1e3 * base * share).tolist(),
                        share=share.tolist(),
                        slowest=slow.tolist(),
                        credible=credible,
                        same_work=[same and spent == of for spent, of in zip(work, measured[0].work[0], strict=True)],
                    )
                )
        return rows

    def write(self, comparison: Comparison) -> None:
        """Writes JSON and plot, and removes what is not to be kept.

        Raises:
            InvalidRequest: a file cannot be written.
        """
        title = f"{Path(self.checkpoint).name} on {comparison.about['data']}"
        write_whole(self.folder / PLOT, comparison_svg(comparison.verdicts, comparison.candidates, title))
        write_whole(self.folder / RESULT, json.dumps(comparison.as_json(), indent=1) + "\n")
        if not self.settings.keep_bundles:
            for method in self.methods:
                shutil.rmtree(self.place(method), ignore_errors=True)
            with suppress(OSError):  # others may have put bundles of theirs there
                (self.folder / BUNDLES).rmdir()
