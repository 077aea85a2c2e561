"""One flag per knob of the operators, for commands that take knobs."""

from collections.abc import Callable
from typing import Any, TypeVar

from pydantic import Field, create_model

from attenuator.commandline import CommandSettings
from attenuator.ops import KNOBS, OPERATORS
from attenuator.ops.spec import Knob

KNOBS_SHOWN = 2  # in examples

S = TypeVar("S", bound=CommandSettings)


def flag(knob: str) -> str:
    """The flag of a knob: its name with hyphens."""
    return f"--{knob.replace('_', '-')}"


def describe_flag(knob: Knob) -> str:
    """What a knob's flag is, for the help."""
    owners = " or ".join(each.key for each in OPERATORS if knob.name in {own.name for own in each.knobs})
    return f"For {owners} bundles: {knob.low:g} to {knob.high:g}, exact value {knob.exact:g}. {knob.doc}"


def examples(line: str) -> str:
    """Lines of a command's examples, one for each of the first knobs.

    Args:
        line: in which `{flag}` is the knob's flag and `{low}`, `{default}`, `{exact}` are values of it.
    """
    return "\n".join(
        line.format(
            flag=flag(knob.name), low=f"{knob.default / 2:g}", default=f"{knob.default:g}", exact=f"{knob.exact:g}"
        )
        for knob in list(KNOBS.values())[:KNOBS_SHOWN]
    )


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
