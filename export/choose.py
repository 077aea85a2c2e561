"""A choice by a user's texts: schedule and merge of a selection of tokens, and the default of its knob.

The model is traced once for each way to merge, with selection wherever it can be; a schedule is then a row of
exponents, 0 where a layer selects nothing. Of the settings whose answers agree with those of the exact values on
`min_agreement` of the texts, the one of least predicted work is tried by the clock, and chosen if it wins there; else
every token goes on. Shares are tried from the smallest, and a setting is given up as soon as too many answers have
changed.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attenuator import bundle
from attenuator.bundle import ChosenSelection, Manifest
from attenuator.calibration.payoff import warning
from attenuator.calibration.proportions import fewest_texts, wilson
from attenuator.calibration.turns import Timing
from attenuator.errors import ExportError
from attenuator.export.lower import Progress
from attenuator.export.selection import DEFAULT, DROPPED, EVERYWHERE, MERGES, SCHEDULES, exponents
from attenuator.export.selection_checks import check_selection
from attenuator.export.taught import TaughtWeights
from attenuator.export.trace import PackedClassifier
from attenuator.export.trial import KNOB, Setting, Trial
from attenuator.runtime import Input
from attenuator.runtime.tokens import Encoded, TextEncoder
from attenuator.texts import lines_of

__all__ = ["AGREEMENT", "FEWEST_TEXTS", "KNOB", "MOST_TEXTS", "SelectionOptions", "choose_selection"]

# What a default must keep of the exact answers.
AGREEMENT = 0.99
CONFIDENCE = 0.95
# With fewer texts, even if no answer changed, an agreement below `AGREEMENT` would not be unlikely enough.
FEWEST_TEXTS = fewest_texts(AGREEMENT, CONFIDENCE)
# Of more texts, that many evenly spread: the interval is narrow enough.
MOST_TEXTS = 2000
SHARES = (KNOB.low, *(step / 20 for step in range(2, 20)))


@dataclass(frozen=True, slots=True)
class SelectionOptions:
    """What the caller says about the selection.

    Attributes:
        schedule: its name, None to choose it.
        merge: a key of `MERGES`, None to choose it.
        share: the default of the knob, None to choose it.
        texts: what to choose by, a file or texts that are tokenized; None takes the defaults.
        min_agreement: share of the texts whose answers a chosen setting must not change.
    """

    schedule: str | None
    merge: str | None
    share: float | None
    texts: Path | Sequence[Encoded] | None
    min_agreement: float = AGREEMENT


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


def choose_setting(
    trials: Sequence[Trial], options: SelectionOptions, progress: Progress, note: Callable[[str], None]
) -> ChosenSelection:
    """The cheapest setting that agrees on enough of the texts, if it wins by the clock.

    Args:
        trials: the model on the texts, with each way to merge that is to be tried.
        options: where the caller names the schedule, the share alone is chosen; where the caller names the share, the
            schedule alone, the cheapest that agrees on enough texts, or else the one that agrees on most.
        progress: called with one phrase for each setting that is tried.
        note: called with the sentence that says why every token goes on.

    Returns:
        The setting, with what was measured; the exact value where no cheaper setting agrees on enough texts and wins.
    """
    kept: dict[float, float] = {}
    best, timing = agreeing(trials, options, progress, kept), None
    texts = len(trials[0].texts)
    if best is None:
        note(
            f"no cheaper {KNOB.name} keeps {options.min_agreement:.3g} of the answers: its default stays {KNOB.exact:g}"
        )
    elif best.share != KNOB.exact:
        progress(f"time {best.named}")
        timing = next(trial for trial in trials if trial.merge == best.merge).gain(best)
        if options.share is None and not timing.wins:
            note(not_won(best, timing))
            best = timing = None
    trial = trials[0]
    if best is None:  # rounding and other knobs may change answers, too
        schedule = options.schedule or DEFAULT
        trial.open(schedule)
        exact = trial.cost_at(KNOB.exact), trial.agreement(KNOB.exact, 0.0)
        best = Setting(trial.merge, schedule, KNOB.exact, *exact)
    rounded = trial.manifest.precision == "int8"
    advice = warning(KNOB.name, texts, kept, options.min_agreement, rounded=rounded)
    if advice and best.agreement >= options.min_agreement:  # else rounding alone changes too many answers
        note(advice)
    low, high = wilson(best.agreement * texts, texts, CONFIDENCE)
    return ChosenSelection(
        schedule=best.schedule,
        texts=texts,
        share=best.share,
        agreement=best.agreement,
        agreement_low=low,
        agreement_high=high,
        cost=best.cost,
        gain=None if timing is None else timing.gain,
        gain_low=None if timing is None else timing.low,
        gain_high=None if timing is None else timing.high,
        merge=None if best.merge == DROPPED else best.merge,
    )


def not_won(setting: Setting, timing: Timing) -> str:
    """Why a setting is not the default although its answers agree."""
    kept = f"{setting.named}, keeps {setting.agreement:.1%} of the answers"
    won = f"{timing.gain:.2f} times as fast as every token [{timing.low:.2f}, {timing.high:.2f}]"
    stays = f"the default of {KNOB.name} stays {KNOB.exact:g}"
    if timing.credible():
        return f"{kept}, but is only {won}: {stays}"
    return f"{kept}, but the machine was too busy to time it ({won}): {stays}; export again when nothing else runs"


def agreeing(
    trials: Sequence[Trial], options: SelectionOptions, progress: Progress, kept: dict[float, float]
) -> Setting | None:
    """The setting of least predicted work that agrees on enough of the texts; None where none does.

    Arguments as `choose_setting` takes them; a share that the caller names is in it whatever it agrees on. `kept`
    gets the best agreement of each share that is tried, where the caller names none.
    """
    tried: list[Setting] = []
    for trial in trials:
        for name in distinct(trial.layers, trial.pooling) if options.schedule is None else [options.schedule]:
            trial.open(name)
            if options.share is None:
                best = cheapest_share(trial, name, options.min_agreement, min_cost(tried), progress, kept)
                tried += [best] if best else []
            else:
                share, cost = options.share, trial.cost_at(options.share)
                progress(f"try {KNOB.name} {share:g}, schedule {name}, on {len(trial.texts)} texts")
                tried.append(Setting(trial.merge, name, share, cost, trial.agreement(share, 0.0)))
        trial.close()
    enough = [setting for setting in tried if setting.agreement >= options.min_agreement]
    if options.share is None or enough:
        return min(enough, key=lambda one: one.cost, default=None)
    return max(tried, key=lambda one: one.agreement)


def min_cost(settings: Sequence[Setting]) -> float:
    """Least predicted work of some settings, as a share of the exact model's; 1 where there are none."""
    return min((setting.cost for setting in settings), default=1.0)


def cheapest_share(
    trial: Trial, schedule: str, min_agreement: float, below: float, progress: Progress, kept: dict[float, float]
) -> Setting | None:
    """The smallest share that agrees on enough of the texts, if its predicted work is less than a limit.

    Args:
        trial: open at the schedule.
        schedule: its name.
        min_agreement: share of the texts that must agree.
        below: the limit, as a share of the exact model's work.
        progress: called with one phrase for each share that is tried.
        kept: gets the agreement of each, where it is the best of that share so far.

    Returns:
        That setting, or None.
    """
    for share in SHARES:
        cost = trial.cost_at(share)
        if cost >= below:
            break
        merged = "" if trial.merge == DROPPED else f", merge {trial.merge}"
        progress(f"try {KNOB.name} {share:g}, schedule {schedule}{merged}, on {len(trial.texts)} texts")
        agreement = trial.agreement(share, min_agreement)
        kept[share] = max(kept.get(share, 0.0), agreement)
        if agreement >= min_agreement:
            return Setting(trial.merge, schedule, share, cost, agreement)
    return None


def distinct(layers: int, pooling: str) -> list[str]:
    """Names of schedules, without those that are another one's double in a model of few layers."""
    rows = {exponents(name, layers, pooling): name for name in reversed(SCHEDULES)}
    return list(reversed(rows.values()))


def merges_to_try(classifier: PackedClassifier, merge: str | None) -> list[str]:
    """The ways to merge that a choice is between: the caller's, else all that this model can have, dropping first."""
    if merge is not None:
        return [merge]
    possible = []
    for name in MERGES:
        classifier.merge = name
        classifier.choose(EVERYWHERE)
        try:
            check_selection(classifier, None)
        except ExportError:  # this model cannot
            continue
        possible.append(name)
    return possible


def choose_selection(
    classifier: PackedClassifier,
    fields: dict[str, Any],
    options: SelectionOptions,
    folder: Path,
    progress: Progress,
    note: Callable[[str], None],
    taught: TaughtWeights | None = None,
) -> ChosenSelection | None:
    """Settles how tokens are selected: as the caller asks, by texts, or else by the defaults.

    Args:
        classifier: gets the schedule and the way to merge.
        fields: of the manifest, as far as they are known; the knob among them gets its default.
        options: what the caller says.
        folder: where the bundle is written; holds the tokenizer. A trial graph is written into it, and removed.
        progress: called with one phrase at the start of each step.
        note: called with what the user should read afterwards.
        taught: weights that answer below a share, where the checkpoint has some.

    Returns:
        What was chosen; None where the graph selects nothing.

    Raises:
        ExportError: there are texts and nothing to choose by them, or they cannot be used.
    """
    if not classifier.selection.layers:
        if options.texts is not None:
            raise ExportError("texts is set, but this bundle selects no tokens, so there is nothing to choose by them")
        return None
    if options.texts is None:
        share = next(knob.default for knob in fields["knobs"] if knob.name == KNOB.name)
        merged = classifier.merge if classifier.selection.merges else None
        return ChosenSelection(schedule=options.schedule or DEFAULT, texts=0, share=share, merge=merged)
    manifest = Manifest.model_construct(**fields)
    merges = merges_to_try(classifier, options.merge)
    with tempfile.TemporaryDirectory(dir=folder) as name:  # not beside it, where another export takes it for left
        progress("read the texts")
        encoder = TextEncoder.of_bundle(folder / bundle.TOKENIZER, manifest)
        texts = read_texts(options.texts, encoder) if isinstance(options.texts, Path) else options.texts
        progress(f"run {len(texts)} texts at the exact values")
        trials: list[Trial] = []
        for merge in merges:
            classifier.merge = merge
            own = Path(name) / merge
            own.mkdir()
            trials.append(Trial(classifier, manifest, texts, own, trials[0].exact if trials else None, taught))
        chosen = choose_setting(trials, options, progress, note)
    classifier.merge = chosen.merge or DROPPED
    classifier.choose(chosen.schedule)
    default = {"default": chosen.share}
    fields["knobs"] = [row.model_copy(update=default if row.name == KNOB.name else {}) for row in manifest.knobs]
    return chosen
