"""One flag per knob of the operators, for commands that take knobs."""

import os
from argparse import ArgumentError, ArgumentParser
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from pydantic import Field, create_model

from attenuator.bundle import MANIFEST, BundleKnob, read_manifest
from attenuator.commandline import CommandSettings, fail, listed_numbers
from attenuator.errors import AttenuatorError
from attenuator.ops import KNOBS, attention_with
from attenuator.ops.spec import Knob

KNOBS_SHOWN = 3  # in examples

S = TypeVar("S", bound=CommandSettings)


def flag(knob: str) -> str:
    """The flag of a knob: its name with hyphens."""
    return f"--{knob.replace('_', '-')}"


def describe_flag(knob: Knob) -> str:
    """What a knob's flag is, for the help."""
    attention = " or ".join(attention_with(knob.name))
    return f"For {attention} bundles: {knob.low:g} to {knob.high:g}, exact value {knob.exact:g}. {knob.doc}"


def examples(line: str) -> str:
    """Lines of a command's examples, one for each of the first knobs.

    Args:
        line: in which `{flag}` is the knob's flag and `{low}`, `{default}`, `{exact}` are values of it; where its
            default is exact, half of that stands for `{default}`.
    """
    lines = []
    for knob in list(KNOBS.values())[:KNOBS_SHOWN]:
        default = knob.default if knob.default != knob.exact else knob.default / 2
        low = default // 2 if knob.dtype == "int32" else default / 2
        values = {"low": low, "default": default, "exact": knob.exact}
        lines.append(line.format(flag=flag(knob.name), **{name: f"{value:g}" for name, value in values.items()}))
    return "\n".join(lines)


def with_knobs(settings: type[S], type_of: Callable[[Knob], Any], help_of: Callable[[Knob], str]) -> type[S]:
    """The settings with one flag per knob of the operators, None where it is not given.

    Args:
        settings: without the flags.
        type_of: the flag's type, by knob.
        help_of: the flag's help, by knob.
    """
    fields = {name: (type_of(knob) | None, Field(None, description=help_of(knob))) for name, knob in KNOBS.items()}
    extended: type[S] = create_model(  # type: ignore[call-overload]
        settings.__name__, __base__=settings, __doc__=settings.__doc__, **fields
    )
    return extended


def is_bundle(word: str) -> bool:
    """Whether a word is the folder of a bundle."""
    return os.path.isfile(os.path.join(word, MANIFEST))  # False too where the system takes no such name


def knobs_of_others(arguments: Sequence[str]) -> set[str]:
    """The knobs that the bundle among the arguments has not, to leave them out of the help; none without a bundle."""
    parser = ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    parser.add_argument("--bundle", type=Path)
    try:
        known, others = parser.parse_known_args(list(arguments))
        folder = known.bundle or next((Path(word) for word in others if is_bundle(word)), None)
        return set() if folder is None else KNOBS.keys() - {knob.name for knob in read_manifest(folder).knobs}
    except (ArgumentError, AttenuatorError):  # which the command itself reports
        return set()


def listed_values(command: str, knob: BundleKnob, text: str) -> list[float]:
    """The values of a knob's flag that takes several, in order; ends the command with a usage error where one is wrong.

    Args:
        command: whose flag it is.
        knob: of the bundle.
        text: values separated by commas.
    """

    def number(word: str) -> float:
        return float(int(word) if knob.dtype == "int32" else float(word))

    allowed = f"values of {knob.name} from {knob.low:g} to {knob.high:g}"
    return listed_numbers(command, flag(knob.name), text, number, lambda value: knob.low <= value <= knob.high, allowed)


def listed_settings(
    command: str, settings: CommandSettings, knobs: Iterable[BundleKnob], owner: str
) -> dict[str, list[float]]:
    """The values of every knob whose flag is set, by name; ends the command with a usage error where one is wrong.

    Args:
        command: whose flags they are.
        settings: as `with_knobs` extends them.
        knobs: those that there are.
        owner: what has these knobs, for the error.
    """
    texts = {name: getattr(settings, name) for name in KNOBS if getattr(settings, name) is not None}
    by_name = {knob.name: knob for knob in knobs}
    for name, text in texts.items():
        if name not in by_name:
            has = ", ".join(by_name) or "none"
            fail(command, f"{flag(name)} is '{text}', but {owner} has no knob {name}; its knobs: {has}")
    return {name: listed_values(command, by_name[name], text) for name, text in texts.items()}
