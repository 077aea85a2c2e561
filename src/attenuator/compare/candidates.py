"""The attentions that a checkpoint can be exported with, and those that it cannot have without training."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from attenuator.commandline import fail
from attenuator.compare.settings import COMMAND
from attenuator.errors import AttenuatorError
from attenuator.export.attributes import DEFAULT_ESTIMATORS, ESTIMATORS, TABLE_PRECISIONS
from attenuator.export.computing import lacking, trained_with
from attenuator.export.packed import OPERATOR_BY_KEY
from attenuator.export.pipeline import ATTENTIONS
from attenuator.export.place import place_of
from attenuator.export.selection import DROPPED, MERGES, can_merge, can_select
from attenuator.export.source import Source
from attenuator.ops import BASELINE
from attenuator.precision import PRECISIONS, PrecisionName
from attenuator.tuning.choices import REPLACEMENTS

EXACT_PRECISION: PrecisionName = "fp32"
# What each kind of device runs.
RUN_BY = {
    "cpu": tuple(name for name, row in PRECISIONS.items() if row.cpu),
    "cuda": tuple(name for name, row in PRECISIONS.items() if row.cuda),
}
# Options of export that trade accuracy for time, by name: their choices by attention.
OPTIONS = {"estimator": ESTIMATORS, "table_precision": TABLE_PRECISIONS}
AS_PUBLISHED = ("paper",)  # a choice that is there to be compared with a paper: slower, and no more accurate


@dataclass(frozen=True, slots=True)
class Method:
    """One way to export the checkpoint.

    Attributes:
        attention: key, as a user of export gives it.
        precision: likewise.
        options: attributes of the operator by name that differ from export's own choice.
    """

    attention: str
    precision: PrecisionName
    options: tuple[tuple[str, str], ...] = ()

    @property
    def name(self) -> str:
        """Such as `softmax`, `softmax int8`, or the attention, its options and the precision."""
        precision = [] if self.precision == EXACT_PRECISION else [self.precision]
        return " ".join([self.attention, *(value for _, value in self.options), *precision])

    def command(self, checkpoint: str, knobs: str) -> str:
        """The command that exports it.

        Args:
            checkpoint: as the user named it.
            knobs: defaults, such as `keep=0.5`; empty where the bundle has no knob.
        """
        words = ["attenuator", "export", checkpoint, "--attention", self.attention]
        for option, value in self.options:
            words += [f"--{option.replace('_', '-')}", value]
        words += [] if self.precision == EXACT_PRECISION else ["--precision", self.precision]
        words += ["--knob-default", knobs] if knobs else []
        return shlex.join([*words, "--output", "BUNDLE"])


@dataclass(frozen=True, slots=True)
class Absent:
    """What was not compared.

    Attributes:
        name: of the attention or the method.
        why: one sentence.
        command: what teaches the checkpoint this attention; empty where nothing does.
    """

    name: str
    why: str
    command: str = ""


def attentions_of(source: Source) -> list[str]:
    """The attentions that a checkpoint can be exported with, its own first, whose exact answers are the reference."""
    operators = [OPERATOR_BY_KEY[key] for key in source.architecture.operators(source.model.config)]
    own = next((each for each in operators if each.key == each.attention), operators[0])
    return list(dict.fromkeys(each.asked_as or each.key for each in (own, *operators)))


def variants_of(source: Source, attention: str) -> list[tuple[tuple[str, str], ...]]:
    """What export may be asked for of an attention beside its own choice, one option at a time."""
    operator = OPERATOR_BY_KEY[attention]
    defaults: dict[str, object] = {item.name: item.default for item in operator.attributes}
    if attention in ESTIMATORS:
        defaults["estimator"] = DEFAULT_ESTIMATORS[source.architecture.pooling(source.model.config)]
    rows = [(name, choice) for name, choices in OPTIONS.items() for choice in choices.get(attention, ())]
    variants: list[tuple[tuple[str, str], ...]] = [
        ((name, choice),) for name, choice in rows if choice not in (defaults[name], *AS_PUBLISHED)
    ]
    own = attention == attentions_of(source)[0]  # others leave out tokens in the same way
    if own and can_select(operator) and can_merge(operator):
        variants += [(("merge", choice),) for choice in MERGES if choice != DROPPED]
    return variants


def methods_of(attentions: Sequence[str], precisions: Sequence[str], source: Source) -> list[Method]:
    """Every attention in every precision, the reference first, then the others of its precision; last the variants."""
    ordered = dict.fromkeys((EXACT_PRECISION, *precisions))
    asked = [cast(PrecisionName, precision) for precision in ordered]
    every = [Method(attention, precision) for precision in asked for attention in attentions]
    every += [
        Method(attention, precision, options)
        for precision in asked
        for attention in attentions
        for options in variants_of(source, attention)
    ]
    return [every[0], *(method for method in every[1:] if method.precision in precisions)]


def chosen(words: str | None, flag: str, allowed: Sequence[str]) -> list[str]:
    """What a flag lists, separated by commas; everything where it is not given.

    Ends the command with a usage error where it lists something else.
    """
    if words is None:
        return list(allowed)
    listed = [word.strip() for word in words.split(",")]
    wrong = next((word for word in listed if word not in allowed), None)
    if wrong is not None:
        fail(COMMAND, f"{flag} has '{wrong}', must be one or more of: {', '.join(allowed)}")
    return list(dict.fromkeys(listed))


def absent(source: Source, checkpoint: str, data: Path) -> list[Absent]:
    """The attentions that the checkpoint cannot be exported with, each with the reason.

    Args:
        source: the loaded checkpoint.
        checkpoint: as the user named it.
        data: the user's texts.
    """
    can = attentions_of(source)
    trained = trained_with(source.architecture.operators(source.model.config))
    rows = []
    for key in ATTENTIONS:
        if key in can:
            continue
        why = f"another attention than {trained}, with which the model was trained"
        why += f": {reason}" if (reason := lacking(key)) else ""
        command = ""
        if trained == BASELINE.attention and key in REPLACEMENTS:
            refusal = _refused_to_adapt(checkpoint, key)
            why += f"; it cannot be taught: {refusal}" if refusal else ""
            if not refusal:
                words = ["attenuator", "adapt", checkpoint, "--attention", key, "--data", str(data)]
                command = shlex.join([*words, "--output", f"{Path(checkpoint).name}-{key}"])
        rows.append(Absent(key, why, command))
    return rows


def _refused_to_adapt(checkpoint: str, attention: str) -> str:
    """Why a checkpoint cannot be adapted; empty where it can, or where that cannot be found out here."""
    if place_of(checkpoint).function:
        return "adapt takes a checkpoint folder or a Hugging Face id (org/name)"
    try:
        from attenuator.tuning.adapt.pipeline import load_teacher, refuse_other_attention  # the extra `train`

        source = Path(checkpoint)
        refuse_other_attention(source, load_teacher(source), attention, {})
    except AttenuatorError as error:
        return str(error)
    except ModuleNotFoundError:  # adapt itself says what is missing
        return ""
    return ""
