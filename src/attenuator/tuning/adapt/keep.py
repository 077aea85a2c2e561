"""A run of `attenuator adapt --keep`: a checkpoint learns to bear that most of its tokens are left out."""

from __future__ import annotations

import json
import math
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt
from torch import Tensor

from attenuator.calibration.proportions import wilson
from attenuator.export import taught
from attenuator.export.choose import AGREEMENT
from attenuator.export.taught import TaughtWeights
from attenuator.runtime.scores import agrees
from attenuator.tuning.adapt.distillation import MULTI_LABEL_THRESHOLD
from attenuator.tuning.adapt.measuring import BATCH_TOKENS, Figures, accuracy, table
from attenuator.tuning.adapt.pipeline import Texts, left, watched
from attenuator.tuning.adapt.selecting import KEEP, Student, candidates, load_keep_student, work
from attenuator.tuning.adapt.teaching import CLOSENESS, Teaching, metrics_of
from attenuator.tuning.batches import Rows, predict
from attenuator.tuning.checkpoints import Trainable
from attenuator.tuning.figures import CONFIDENCE
from attenuator.tuning.output import RECORD, OutputFolder
from attenuator.tuning.plan import Plan
from attenuator.tuning.run import Estimate, Outcome, run

__all__ = ["SHARES", "TaughtKeep", "finished", "teach_keep"]

# At which a taught model is measured.
SHARES = (KEEP.low, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.7, 0.9)
# Of the time, what the schedules are tried in.
TRIED = 0.25
Logits = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class TaughtKeep:
    """What came out.

    Attributes:
        outcome: how the run ended.
        schedule: that was taught.
        below: below this `keep` the taught weights are nearer to the original's answers than its own.
        before: figures of the original weights, at each of `SHARES`.
        after: the same of the taught ones; none after an interruption.
        teacher_accuracy: of the original at `keep` 1; None without labels.
    """

    outcome: Outcome
    schedule: str
    below: float = KEEP.low
    before: tuple[Figures, ...] = ()
    after: tuple[Figures, ...] = ()
    teacher_accuracy: float | None = None

    def cheapest(self, agreement: float, *, untaught: bool = False) -> float | None:
        """The smallest `keep` measured at which and above which that share of the answers stays; None without one.

        Args:
            agreement: that share.
            untaught: of the original weights alone.
        """
        below = KEEP.low if untaught else self.below
        best = None
        for old, new in sorted(zip(self.before, self.after, strict=True), key=lambda pair: -pair[0].value):
            if (new if new.value < below else old).agreement < agreement:
                break
            best = new.value
        return best


def finished(path: Path) -> TaughtKeep | None:
    """What a finished run found; None where the folder has none.

    Args:
        path: folder that it wrote.
    """
    try:
        record = json.loads((path / RECORD).read_bytes())
    except (OSError, ValueError):
        return None
    if not record["finished"]:
        return None
    before, after = (tuple(Figures(**row) for row in record[name]) for name in ("before", "after"))
    outcome = Outcome(record["ended"], record["steps_done"], record["steps"], record["seconds"])
    return TaughtKeep(outcome, record["schedule"], record["below"], before, after, record["accuracy_of_teacher"])


class HeldOut:
    """The texts held out, with the original's exact answers.

    Args:
        texts: of the run.
        teacher: the checkpoint as it is.

    Attributes:
        learnt: its exact answers to the texts to learn from that a run has met, for the runs after it.
    """

    def __init__(self, texts: Texts, teacher: Trainable) -> None:
        self.texts, self.teacher = texts, teacher
        self.rows = Rows(texts.held_out)
        self.learnt: dict[bytes, Tensor] = {}
        self.logits = predict(teacher.model, self.rows, teacher.collator, BATCH_TOKENS)

    def figures(self, logits: Logits, share: float) -> Figures:
        """Agreement and accuracy of a student's logits."""
        task, thresholds = self.teacher.task, [MULTI_LABEL_THRESHOLD] * logits.shape[1]
        same = int(agrees(logits, self.logits, task=task, thresholds=thresholds).sum())
        low, high = wilson(same, len(logits), CONFIDENCE)
        return Figures(share, same / len(logits), low, high, accuracy(logits, self.texts.targets, task))

    def measure(self, student: Student) -> tuple[list[Figures], list[float]]:
        """Figures at each of `SHARES`, and mean squared distances of logits."""
        answers = [student.predict(self.rows, share, BATCH_TOKENS) for share in SHARES]
        away = [float(np.square(each - self.logits).mean()) for each in answers]
        return [self.figures(each, share) for each, share in zip(answers, SHARES, strict=True)], away


def taught_in(
    schedule: str,
    teacher: Trainable,
    texts: Texts,
    held_out: HeldOut,
    plan: Plan,
    announce: Callable[[Estimate], None] = lambda _: None,
    *,
    shown: bool,
) -> tuple[Student, Outcome]:
    """A student that learns with one schedule."""
    student = load_keep_student(teacher.source, schedule)
    outcome = run(
        student.trainable.model,
        student.trainable.collator,
        Rows(texts.learnt),
        watched(texts.held_out, held_out.logits),
        replace(plan, better=CLOSENESS),
        metrics=metrics_of(teacher.task),
        trainer_class=Teaching,
        announce=announce,
        shown=shown,
        options={"student": student, "teacher": teacher, "known": held_out.learnt, "shown": shown},
    )
    return student, outcome


def choose_schedule(
    names: Sequence[str], teacher: Trainable, texts: Texts, held_out: HeldOut, plan: Plan, say: Callable[[str], None]
) -> str | None:
    """Of some schedules the one that takes the least work to stay as near to the exact answers, each taught briefly.

    Returns:
        Its name; None after an interruption.
    """
    if len(names) == 1:
        return names[0]
    watched_rows = watched(texts.held_out, held_out.logits)
    exact = np.asarray(watched_rows.targets)
    lengths = [int(length) for length in watched_rows.lengths]
    curves: dict[str, tuple[Sequence[float], Sequence[float]]] = {}
    for name in names:
        say(f"tries schedule {name}")
        place = plan.steps_folder.with_name(f"{plan.steps_folder.name}-{name}")
        trial = replace(
            plan,
            steps_folder=place,
            max_minutes=None if plan.max_minutes is None else plan.max_minutes * TRIED / len(names),
        )
        student, outcome = taught_in(name, teacher, texts, held_out, trial, shown=False)
        if outcome.reason == "interrupted":
            return None
        shutil.rmtree(place, ignore_errors=True)
        answers = [student.predict(watched_rows, share, BATCH_TOKENS) for share in SHARES]
        away = [float(np.square(each - exact).mean()) for each in answers]
        works = [work(student, name, share, lengths) for share in SHARES]
        curves[name] = (works, [math.log(max(value, 1e-12)) for value in away])
    cheapest = cheapest_of(curves)
    say(f"selects by schedule {cheapest}, which takes the least work to stay as near to the exact answers")
    return cheapest


def cheapest_of(curves: dict[str, tuple[Sequence[float], Sequence[float]]]) -> str:
    """The curve of least work in the mean over the distances that all reach.

    A schedule that cannot be cheap may be nearest at every work that it has; what counts is what a distance costs.

    Args:
        curves: by name, ascending works and the logarithm of a distance at each.
    """
    nearest = {name: np.minimum.accumulate(distances) for name, (_, distances) in curves.items()}
    ends = min(each[0] for each in nearest.values()), max(each[-1] for each in nearest.values())
    grid = np.linspace(*ends, 20)

    def cost(name: str) -> float:
        works = np.log(curves[name][0])[::-1]  # np.interp wants ascending distances
        return float(np.interp(grid, nearest[name][::-1], works).mean())

    return min(curves, key=cost)


def teach_keep(
    teacher: Trainable,
    original: Student,
    texts: Texts,
    folder: OutputFolder,
    plan: Plan,
    *,
    schedule: str | None = None,
    say: Callable[[str], None] = lambda _: None,
    begun: float | None = None,
) -> TaughtKeep:
    """Teaches a checkpoint, and writes it: as it was, with the taught weights beside it.

    Args:
        teacher: a softmax checkpoint as it is.
        original: a student of the same checkpoint, untaught; its schedule is set here.
        texts: to learn from, and held out; without labels.
        folder: the output.
        plan: of the run.
        schedule: how the selection spreads over the layers; None tries several and keeps the best.
        say: called with a sentence at each stage.
        begun: when the time of `plan.max_minutes` began, on the monotonic clock in seconds; now by default.

    Raises:
        AttenuatorError: training diverged.
        KeyboardInterrupt: Ctrl-C before the first step, or twice.
    """
    begun = time.monotonic() if begun is None else begun
    held_out = HeldOut(texts, teacher)
    if "schedule" not in folder.record:
        chosen = schedule or choose_schedule(candidates(original), teacher, texts, held_out, plan, say)
        if chosen is None:
            return TaughtKeep(Outcome("interrupted", 0, 0, time.monotonic() - begun), "")
        folder.write(schedule=chosen)
    chosen = str(folder.record["schedule"])
    if chosen not in candidates(original) and chosen != schedule:
        raise folder.unreadable()
    original.classifier.choose(chosen)
    measuring = time.monotonic()
    before, distances = held_out.measure(original)
    say("agreement before, " + shown(before))
    now = time.monotonic()
    spent = (now - begun) + (now - measuring)
    student, outcome = taught_in(
        chosen, teacher, texts, held_out, replace(plan, max_minutes=left(plan.max_minutes, spent)),
        partial(announce, folder, say), shown=True,
    )  # fmt: skip
    if outcome.reason == "interrupted":
        return TaughtKeep(outcome, chosen)
    after, taught_distances = held_out.measure(student)
    nearer = [share for share, old, new in zip(SHARES, distances, taught_distances, strict=True) if new < old]
    below = next((share for share in SHARES if share not in nearer), KEEP.exact)
    teacher.save(folder.path)
    if below > KEEP.low:
        taught.write(folder.path, TaughtWeights(student.changed(teacher), chosen, student.merge, below))
    right = accuracy(held_out.logits, texts.targets, teacher.task)
    result = TaughtKeep(outcome, chosen, below, tuple(before), tuple(after), right)
    folder.finish(
        steps_done=outcome.steps,
        seconds=round(outcome.seconds, 1),
        ended=outcome.reason,
        losses=[row["loss"] for row in outcome.log if "loss" in row],
        accuracy_of_teacher=right,
        before=[asdict(each) for each in before],
        after=[asdict(each) for each in after],
        below=below,
        merge=student.merge,
    )
    return result


def announce(folder: OutputFolder, say: Callable[[str], None], estimate: Estimate) -> None:
    """Keeps the number of steps, and says how long they will take."""
    folder.write(steps=estimate.steps)
    say(f"{estimate.steps - estimate.steps_done} steps, about {estimate.seconds / 60:.1f} minutes")


def shown(figures: Sequence[Figures]) -> str:
    """Agreement at each share, for a sentence."""
    return "; ".join(f"{each.agreement:.3f} at {KEEP.name} {each.value:g}" for each in figures)


def lines(result: TaughtKeep) -> list[str]:
    """The table of figures before and after."""
    return table(KEEP, result.teacher_accuracy, list(result.before), list(result.after))


def summary(result: TaughtKeep, agreement: float = AGREEMENT) -> str:
    """What teaching gained, in one sentence."""
    if result.below <= KEEP.low:
        return f"nothing was gained at any {KEEP.name}: the checkpoint is written as it was; {result.outcome.ended}"
    after = result.cheapest(agreement)
    untaught = result.cheapest(agreement, untaught=True)
    kept = f"{agreement:.1%} of the exact answers"
    if after is None:
        return f"no {KEEP.name} that was measured keeps {kept}, taught or not; {result.outcome.ended}"
    was = "none did before" if untaught is None else f"{untaught:g} did before"
    return f"{KEEP.name} {after:g} keeps {kept}, {was}; {result.outcome.ended}"
