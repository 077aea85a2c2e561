"""From a checkpoint and a file of texts to one bundle with a calibration, a default goal and a report."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from attenuator import __version__
from attenuator.bundle import MANIFEST, PARTIAL, REPORT, Manifest
from attenuator.calibration.payoff import cannot_pay
from attenuator.commands.calibrate.pipeline import calibrate, write_whole
from attenuator.commands.calibrate.settings import CalibrateSettings
from attenuator.commands.calibrate.texts import Texts
from attenuator.compare.candidates import attentions_of
from attenuator.errors import AttenuatorError, ExportError, InvalidRequest
from attenuator.export.choose import KNOB, SHARES
from attenuator.export.output import refuse_output, replace, staging_for
from attenuator.export.packed import OPERATOR_BY_KEY
from attenuator.export.pipeline import check_name, default_name, describe, export
from attenuator.export.selection import DROPPED, can_select, places
from attenuator.export.source import Source, load_of_sequences
from attenuator.export.steps import Steps
from attenuator.journal import Journal
from attenuator.runtime import CPU, Model
from attenuator.runtime import load as load_bundle
from attenuator.runtime.device import hardware
from attenuator.texts import Item
from attenuator.tune import result, texts
from attenuator.tune.changes import alike, changed_texts
from attenuator.tune.judging import Exported, candidate, timings
from attenuator.tune.page import report_page
from attenuator.tune.result import CHOOSING_SHARE, CONFIDENCE, Tuned, texts_to_give
from attenuator.tune.settings import TuneSettings
from attenuator.tune.teaching import (
    MUCH,
    RESERVED_SHARE,
    Lesson,
    learnt,
    lesson,
    sentence,
    share_borne,
    teach,
    time_of_default,
)
from attenuator.tune.texts import FEWEST, Parts

JOURNAL = "tuning.jsonl"
TEACHING, TAUGHT = "teaching", "taught"  # folders beside the journal; bundles have their precision's name
EXACT_PRECISION = "fp32"
ROUNDED_PRECISION = "int8"
# What changes the result: an interrupted run goes on with these alone.
IDENTITY = {"min_agreement", "precision", "minutes", "column", "pair_column", "label_column", "name", "max_tokens"}

Say = Callable[[str], None]


class Run:
    """A tuning under way.

    Args:
        checkpoint: as the user named it.
        settings: of the command.
        note: says a sentence to the user.
        steps: shows which step runs.

    Raises:
        AttenuatorError: the checkpoint cannot be read, or the output not be written.
    """

    def __init__(self, checkpoint: str, settings: TuneSettings, note: Say, steps: Steps) -> None:
        self.settings, self.note, self.steps = settings, note, steps
        self.checkpoint, self.lesson, self.taught = checkpoint, Lesson(0), ""
        self.output = settings.output or Path("bundles") / default_name(Path(checkpoint.rpartition(":")[2]))
        try:
            place = self.output.resolve()
            refuse_output(place)
        except (OSError, RuntimeError) as error:  # a name that is too long, a circle of links
            raise InvalidRequest(f"--output {str(self.output)[:80]} cannot be written: {error}") from None
        self.work = place.with_name(f".{place.name}.tuning")
        self.name = settings.name or default_name(place)
        check_name(self.name)
        with staging_for(place):
            pass  # so that it can be written is known before the work
        steps("load the checkpoint")
        self.source: Source = load_of_sequences(checkpoint)
        describe(self.source, self.name, settings.max_tokens)  # refuses max_tokens before anything is begun
        takes = sum(each.numel() * each.element_size() for each in self.source.model.parameters())
        begun = (self.work / EXACT_PRECISION).exists()  # an interrupted run has written what takes most
        if not begun and (free := shutil.disk_usage(place.parent).free) < takes:
            sizes = f"{free / 2**20:.0f} MiB are free there, tuning needs at least {takes / 2**20:.0f}"
            raise InvalidRequest(f"--output {self.output} cannot be written: {sizes}")

    def tune(self) -> Tuned | None:
        """Does all of it.

        Returns:
            What came out; None where there were too few texts to choose by, and the bundle is exact.

        Raises:
            AttenuatorError: the checkpoint cannot be exported, the texts cannot be read, or a file cannot be written.
        """
        settings = self.settings
        path = settings.texts
        if path is None:
            self.exact_only("no texts")
            return None
        every, items = texts.read(path, settings, self.source, self.note)
        if len(items) < FEWEST:
            self.exact_only(f"{len(items)} different texts, fewer than {FEWEST},")
            return None
        fixed_s, each_s = texts.seconds_of(self.source, every, settings.threads)
        with self.journal(every) as journal:
            if journal.resumed:
                self.note("goes on with an interrupted tuning")
            plan = next((record for _, record in journal.records()), None)
            if plan is None:  # what fits depends on the machine; an interrupted run has settled it
                plan = self.planned(len(items), fixed_s, each_s)
                journal.append(plan)
            self.lesson = Lesson(**plan["lesson"])
            self.say_how_long(plan["count"], len(items), fixed_s, each_s)
            parts = texts.divided(every, items, plan["count"])
            bundles = self.bundles(path, parts)
            tuned = self.judged(bundles, parts)
            self.publish(bundles[tuned.chosen].folder, tuned)
            journal.remove()
        self.remove_bundles()
        with suppress(OSError):
            self.work.rmdir()
        return tuned

    def exact_only(self, has: str) -> None:
        """Writes a bundle that computes every token, and says what texts it would take to do better."""
        rounded = self.settings.precision == ROUNDED_PRECISION
        precision, is_so = (ROUNDED_PRECISION, "only rounds") if rounded else (EXACT_PRECISION, "is exact")
        self.steps(f"export in {precision}")
        self.export(self.output, precision)
        goals = ", ".join(f"{texts_to_give(goal):,} texts promise {goal:g}" for goal in (0.95, 0.99, 0.995))
        self.note(
            f"'{self.output}' {is_so}: with {has} there is nothing to measure agreement by. Give --texts a file of "
            f"texts like those that callers will send, without labels; if no answer changes, {goals}"
        )

    def planned(self, every: int, fixed_s: float, each_s: float) -> dict[str, Any]:
        """How many texts are run, and whether the model may be taught, for which some of the time is set aside."""
        minutes = self.settings.minutes
        count = texts.fitting(fixed_s, each_s, every, (1 - RESERVED_SHARE) * minutes)
        spare = every - round((1 - CHOOSING_SHARE) * count)
        may = lesson(self.source, self.checkpoint, spare, each_s, minutes) if self.selects() else Lesson(0)
        if not may.minutes:
            count = texts.fitting(fixed_s, each_s, every, minutes)
        return {"count": count, "lesson": asdict(may)}

    def say_how_long(self, count: int, every: int, fixed_s: float, each_s: float) -> None:
        """Says beforehand about how long it takes, and what does not fit."""
        least_s = fixed_s + count * each_s
        takes = f"{count} texts take about {minutes(least_s)}, {minutes(2 * least_s)} if few settings keep the answers"
        if count < every:
            takes += (
                f" (--minutes {self.settings.minutes:g}); all {every} would take {minutes(fixed_s + every * each_s)}"
            )
        if self.lesson.minutes:
            takes += f", and teaching up to {minutes(60 * self.settings.minutes * RESERVED_SHARE)} if it can pay"
        if fixed_s > 60 * self.settings.minutes:
            takes += f"; --minutes {self.settings.minutes:g} is less than the exports alone take"
        self.note(takes)

    def journal(self, every: Texts) -> Journal:
        """What an interrupted run was about, in the folder where its bundles lie.

        Raises:
            InvalidRequest: they are of other texts, another checkpoint or other options, or cannot be written.
        """
        about = {
            "attenuator": __version__,
            "weights": self.source.weights_sha256,
            "texts": every.sha256,
            **self.settings.model_dump(mode="json", include=IDENTITY),
        }
        try:
            self.work.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InvalidRequest(f"--output {self.output} cannot be written: {error.strerror}") from None
        journal = Journal(
            self.work / JOURNAL,
            about,
            other="is of an interrupted tuning of another checkpoint, other texts or other options",
            advice="give --restart to forget it, or the options of that run to go on",
            restart=self.settings.restart,
        )
        if not journal.resumed:
            self.remove_bundles()
        return journal

    def remove_bundles(self) -> None:
        """Removes the bundles that a run leaves for the next; what else is in their folder stays."""
        for folder in (EXACT_PRECISION, TAUGHT, ROUNDED_PRECISION, TEACHING):
            shutil.rmtree(self.work / folder, ignore_errors=True)

    def export(self, folder: Path, precision: str, **options: Any) -> Manifest:
        """Exports the checkpoint with the attention that it was trained with."""
        return export(
            self.source,
            output=folder,
            attention=attentions_of(self.source)[0],
            name=self.name,
            max_tokens=self.settings.max_tokens,
            precision=precision,
            progress=self.steps.detail,
            note=self.note,
            **options,
        )

    def bundles(self, path: Path, parts: Parts) -> list[Exported]:
        """The fp32 bundle, whose selection the choosing texts choose; maybe a taught one; the faster one in int8."""
        goal = self.settings.min_agreement
        folder = self.work / EXACT_PRECISION
        if not (folder / MANIFEST).is_file():
            by = parts.choosing.encoded if self.selects() else None
            self.steps(f"choose by {len(parts.choosing.encoded)} texts which tokens to leave out, and export in fp32")
            self.export(folder, EXACT_PRECISION, texts=by, min_agreement=goal)
        exact = load_bundle(folder, threads=self.settings.threads, check=False)
        if not exact.manifest.knobs:
            self.remove_bundles()  # nothing can go on from them
            raise InvalidRequest(
                f"'{self.source.name}' has no knob to tune: its layers leave out no tokens. Export it, in int8 if you "
                "like: attenuator export"
            )
        rows = [self.calibrated(path, folder, exact, parts, None)]
        if time_of_default(rows[0].outcome.calibration, parts) > MUCH:
            rows += self.after_teaching(path, parts)
        if self.settings.precision != EXACT_PRECISION:
            folder = self.work / ROUNDED_PRECISION
            best = min(rows, key=lambda row: time_of_default(row.outcome.calibration, parts)).manifest
            if best.taught is None:
                self.source.taught = None  # what was learnt does not pay
            try:
                if not (folder / MANIFEST).is_file():
                    self.steps("export in int8")
                    self.export(folder, ROUNDED_PRECISION, **same_selection(best))
                rounded = load_bundle(folder, threads=self.settings.threads, check=False)
                rows.append(self.calibrated(path, folder, rounded, parts, exact))
            except ExportError as error:
                if self.settings.precision == ROUNDED_PRECISION:
                    raise
                self.note(f"int8 is left out: {error}")
        return rows

    def after_teaching(self, path: Path, parts: Parts) -> list[Exported]:
        """Teaches the checkpoint; its bundle, or none where that brought no answers nearer."""
        share = self.share_after_teaching(parts.others)
        if self.taught:
            self.note(self.taught)
        if share is None:
            return []
        self.source.taught = learnt(self.work / TEACHING)
        folder = self.work / TAUGHT
        if not (folder / MANIFEST).is_file():
            self.steps("export the taught checkpoint in fp32")
            self.export(folder, EXACT_PRECISION, knob_default={KNOB.name: share})
        model = load_bundle(folder, threads=self.settings.threads, check=False)
        return [self.calibrated(path, folder, model, parts, None)]

    def share_after_teaching(self, spare: Sequence[Item]) -> float | None:
        """Teaches the checkpoint, where it may; the smallest `keep` that it bears then, None where none was gained."""
        settings, work = self.settings, self.work / TEACHING
        if not self.lesson.minutes:
            self.taught = self.lesson.why and f"Teaching the checkpoint was not tried: {self.lesson.why}."
            return None
        self.steps(f"teach the checkpoint to bear a small {KNOB.name}, from {len(spare):,} texts that do not judge")
        try:
            with self.steps.paused():
                result = teach(self.checkpoint, spare, work, self.lesson.minutes, settings.threads, self.note)
        except AttenuatorError as error:  # the bundle without it is as good as it was
            why = str(error).partition("; --resume")[0]  # a flag of `attenuator adapt`
            self.taught = f"Teaching the checkpoint failed: {why}."
            shutil.rmtree(work, ignore_errors=True)  # which may have filled the disk
            return None
        self.taught = sentence(result, len(spare), settings.min_agreement)
        return share_borne(result, settings.min_agreement)

    def selects(self) -> bool:
        """Whether the choosing texts can choose anything: the attention says what each token matters, in two layers."""
        operator = OPERATOR_BY_KEY[attentions_of(self.source)[0]]
        config, architecture = self.source.model.config, self.source.architecture
        layers = places(len(architecture.blocks(self.source.model)), architecture.pooling(config))
        return can_select(operator) and layers > 0 and not architecture.convolves(config)

    def calibrated(self, path: Path, folder: Path, model: Model, parts: Parts, reference: Model | None) -> Exported:
        """Runs the judging texts at every setting of a bundle."""
        self.steps(f"run {len(parts.items)} other texts at every setting in {model.manifest.precision}, and time them")
        options = CalibrateSettings(
            data=path,
            min_agreement=self.settings.min_agreement,
            confidence=CONFIDENCE,
            truncate=True,
            threads=self.settings.threads,
        )
        with self.steps.paused():
            outcome = calibrate(model, folder, options, parts.judging, reference=reference, keep_partial=True)
        return Exported(folder, model.manifest, outcome)

    def judged(self, bundles: Sequence[Exported], parts: Parts) -> Tuned:
        """Speeds, the choice, and what it changes."""
        self.steps("time the settings in turns on one core")
        timed, count = timings(bundles, parts)
        candidates = [candidate(each, own, parts) for each, own in zip(bundles, timed, strict=True)]
        alone = self.settings.precision == ROUNDED_PRECISION and len(candidates) > 1
        taken = len(candidates) - 1 if alone else result.fastest_that_keeps(candidates, self.settings.min_agreement)
        changed, changed_of = changed_texts(bundles[taken].outcome, bundles[taken].manifest, parts)
        return Tuned(
            name=self.name,
            min_agreement=self.settings.min_agreement,
            exact_a_second=count / timed[0][0].seconds,
            candidates=candidates,
            chosen=taken,
            selection=selected(bundles[taken].manifest),
            texts=len(parts.items),
            alike=alike(bundles[0].outcome, bundles[0].manifest, parts),
            tokens=float(parts.judging.tokens.mean()),
            changed=changed,
            changed_of=changed_of,
            tried=self.tried(bundles[0]),
            machine=hardware(CPU),
        )

    def tried(self, exact: Exported) -> list[str]:
        """What was looked at, and what to do where that cannot pay, a sentence each."""
        selection = exact.manifest.provenance.selection
        rows = []
        if selection is not None and selection.texts:
            rows.append(
                f"Dropping tokens and merging them, at every schedule and {KNOB.name} from {KNOB.low:g} to "
                f"{SHARES[-1]:g}: the {selection.texts} choosing texts took {KNOB.name} {selection.share:g}, "
                f"{selected(exact.manifest)}, which changes {1 - (selection.agreement or 0):.1%} of their answers."
            )
        if advice := cannot_pay(exact.outcome.calibration, KNOB.name):
            rows.append(advice)
        rows += [self.taught] if self.taught else []
        own, *others = attentions_of(self.source)
        if others:
            rows.append(
                f"Of the attentions that the checkpoint can have {own} was tried; attenuator compare tries all."
            )
        return rows

    def publish(self, folder: Path, tuned: Tuned) -> None:
        """Writes the report, and moves the chosen bundle to its place.

        Raises:
            InvalidRequest: that cannot be done.
        """
        write_whole(folder / REPORT, report_page(tuned, str(self.output)))
        (folder / PARTIAL).unlink(missing_ok=True)
        place = self.output.resolve()
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
            replace(folder, place)
        except OSError as error:
            raise InvalidRequest(f"--output {self.output} cannot be written: {error.strerror}") from None


def same_selection(manifest: Manifest) -> dict[str, Any]:
    """The options of export that make the selection of another bundle."""
    selection = manifest.provenance.selection
    defaults = {knob.name: knob.default for knob in manifest.knobs}
    if selection is None:
        return {"knob_default": defaults}
    return {"schedule": selection.schedule, "merge": selection.merge or DROPPED, "knob_default": defaults}


def selected(manifest: Manifest) -> str:
    """How tokens are left out, in words; empty where none are."""
    selection, taught = manifest.provenance.selection, manifest.taught
    if selection is None:
        return ""
    kind = "dropped" if selection.merge is None else f"merged to their {selection.merge}"
    by = "" if taught is None else f", by taught weights below {taught.knob} {taught.below:g}"
    return f"tokens left out are {kind}, schedule {selection.schedule}{by}"


def minutes(seconds: float) -> str:
    """A time in words."""
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} minutes"
