"""Teaching within a tuning: where little is won, the checkpoint learns to keep its answers at a small `keep`.

It learns from texts that do not judge, its own exact answers being the lesson, as `attenuator adapt --keep` does.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from attenuator.calibration.goals import default_setting
from attenuator.calibration.schema import Calibration
from attenuator.export import taught
from attenuator.export.choose import KNOB
from attenuator.export.place import place_of
from attenuator.export.sentences import writing
from attenuator.export.source import Source
from attenuator.texts import Item
from attenuator.tune.texts import RUNS, Parts
from attenuator.tuning.adapt.settings import BATCH_TEXTS

if TYPE_CHECKING:
    from attenuator.tuning.adapt.keep import TaughtKeep

# Of --minutes: what learning may take, and with it exporting and judging what was learnt.
LEARNING_SHARE, RESERVED_SHARE = 0.3, 0.45
# Below so few texts, or so few steps, nothing was gained (benchmarks/models/training.md). A text of a step
# costs about so many runs at the exact value, both of its shares and their gradients.
FEWEST_TEXTS, FEWEST_STEPS = 1000, 200
RUNS_A_STEP = BATCH_TEXTS * 3.5
# Of the time for learning, what its steps get, about; in the rest schedules are tried, and held-out texts measured.
STEPS_SHARE = 0.4
# There is something to gain where the default takes more than that part of the exact time.
MUCH = 1 / 3
NEEDS = "accelerate"  # of the extra `train`, which `attenuator[export]` does not install


@dataclass(frozen=True, slots=True)
class Lesson:
    """Whether a tuning may teach, and for how long.

    Attributes:
        minutes: that learning may take; 0 where it may not.
        why: a sentence on why it may not; empty where it may, or where there is nothing to be taught.
    """

    minutes: float
    why: str = ""


def lesson(source: Source, checkpoint: str, spare: int, each_s: float, minutes: float) -> Lesson:
    """Looks at what teaching takes.

    Args:
        source: the checkpoint, as it is.
        checkpoint: as the user named it.
        spare: texts that would not judge.
        each_s: what tuning takes for a text, in seconds.
        minutes: of the whole tuning.
    """
    if source.taught is not None or place_of(checkpoint).function:
        return Lesson(0)
    if spare < FEWEST_TEXTS:
        return Lesson(0, f"{spare:,} texts are left to learn from, fewer than {FEWEST_TEXTS:,}")
    takes = FEWEST_STEPS * RUNS_A_STEP * each_s / RUNS / 60 / STEPS_SHARE
    if takes > LEARNING_SHARE * minutes:
        return Lesson(0, f"it takes --minutes {np.ceil(takes / LEARNING_SHARE):.0f}")
    if find_spec(NEEDS) is None:
        return Lesson(0, f"it needs the Python package {NEEDS}, which pip install 'attenuator[train]' installs")
    return Lesson(LEARNING_SHARE * minutes)


def time_of_default(calibration: Calibration, parts: Parts) -> float:
    """Predicted time of the judging texts at the default, as a share of that at the exact value."""
    lengths = parts.judging.tokens.tolist()
    times = [default_setting(calibration, length).time for length in lengths]
    spent = [time[calibration.bucket(length)] if time else 1.0 for time, length in zip(times, lengths, strict=True)]
    return float(np.mean(spent))


def teach(
    checkpoint: str, items: Sequence[Item], work: Path, minutes: float, threads: int | None, say: Callable[[str], None]
) -> TaughtKeep:
    """Teaches the checkpoint, or goes on with that; an earlier end is taken as it is.

    Args:
        checkpoint: as the user named it.
        items: texts to learn from, which are in a file meanwhile.
        work: folder for what is learnt.
        minutes: that it may take.
        threads: as many as there are cores by default.
        say: says a sentence to the user.

    Raises:
        AttenuatorError: the checkpoint cannot be taught, or the folder not be written.
        KeyboardInterrupt: Ctrl-C.
    """
    from attenuator.tuning.adapt.keep_command import adapt_keep  # the extra `train`, and seconds of imports

    source = place_of(checkpoint).path.resolve()  # whatever folder the command is given in when it goes on
    texts = work / "texts.jsonl"
    try:
        with writing(f"'{work}'"):
            work.mkdir(exist_ok=True)
            texts.write_text("".join(json.dumps(item.content) + "\n" for item in items), encoding="utf-8")
            return adapt_keep(source, texts, work / "taught", minutes=minutes, threads=threads, progress=say)
    finally:
        texts.unlink(missing_ok=True)


def learnt(work: Path) -> taught.TaughtWeights | None:
    """The weights that `teach` wrote; None where they came no nearer."""
    return taught.read(work / "taught")


def share_borne(result: TaughtKeep, agreement: float) -> float | None:
    """The smallest `keep` that the texts held out bear now; None where the taught weights came nearer at none.

    They are few: whether that wins is for the texts that judge.

    Args:
        result: of teaching.
        agreement: share of the answers.
    """
    return (result.cheapest(agreement) or KNOB.exact) if result.below > KNOB.low else None


def sentence(result: TaughtKeep, texts: int, agreement: float) -> str:
    """What teaching gained, for the report."""
    before, after = result.cheapest(agreement, untaught=True) or KNOB.exact, share_borne(result, agreement)
    how = f"from the {texts:,} texts that do not judge ({result.outcome.ended})"
    if after is None:
        return f"Teaching the checkpoint to bear a small {KNOB.name}, {how}, gained nothing."
    borne = f"bore {KNOB.name} {before:g} before and {after:g} afterwards, at {100 * agreement:g} % agreement"
    return f"Teaching the checkpoint to bear a small {KNOB.name}, {how}: those of them that were held out {borne}."
