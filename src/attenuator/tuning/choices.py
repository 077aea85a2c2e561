"""Attentions that models can be trained with, and the flags of their settings; imports nothing heavy, for help."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from importlib import import_module
from importlib.util import find_spec
from typing import Annotated, Any, Literal, TypeVar

from pydantic import Field, create_model

from attenuator import training
from attenuator.commandline import CommandSettings
from attenuator.ops import BASELINE, OPERATORS
from attenuator.ops.spec import Attribute, Knob

__all__ = ["CHOICES", "REPLACEMENTS", "changes_of", "items", "settings_class", "starting", "with_attention_settings"]

# Keys of attention that can be trained with, beside that of most checkpoints.
REPLACEMENTS = tuple(
    operator.key for operator in OPERATORS if operator.attention and find_spec(f"{training.__name__}.{operator.key}")
)
CHOICES = (BASELINE.key, *REPLACEMENTS)

S = TypeVar("S", bound=CommandSettings)


def settings_class(attention: str) -> Any:
    """The dataclass of an attention's settings.

    Args:
        attention: one of `REPLACEMENTS`.
    """
    return _module(attention).Settings


def starting(attention: str) -> Any:
    """Settings from which `adapt` searches for those that come nearest to another attention.

    Args:
        attention: one of `REPLACEMENTS`.
    """
    return _module(attention).starting()


def _module(attention: str) -> Any:
    return import_module(f"{training.__name__}.{attention}.settings")


def items() -> Iterator[tuple[str, Attribute | Knob]]:
    """What may be set of the attentions that models can be trained with, each with the operator's key."""
    for operator in OPERATORS:
        if operator.key in REPLACEMENTS:
            names = {item.name for item in fields(settings_class(operator.key))}
            settable: list[Attribute | Knob] = [*operator.knobs, *operator.attributes]
            yield from ((operator.key, item) for item in settable if item.name in names)


def _default(key: str, name: str, *, is_searched: bool) -> str:
    """What holds where a setting is not given."""
    if not is_searched:
        return f"by default what the checkpoint was trained with, else {getattr(settings_class(key)(), name)}"
    if name in _module(key).SEARCHED:
        return "by default what comes nearest to the teacher's attention"
    return f"{getattr(starting(key), name)} by default"


def _flag(key: str, item: Attribute | Knob, default: str) -> tuple[Any, Any]:
    """Type and field of what may be set."""
    if isinstance(item, Knob):
        number = int if item.dtype == "int32" else float
        kind: Any = Annotated[number, Field(ge=item.low, le=item.high)]
        text = f"{item.doc} What is trained for, and the default of the bundle"
    elif item.choices:
        kind, text = Literal[item.choices], item.doc
    else:
        kind, text = Annotated[{"int": int, "float": float}[item.kind], Field(ge=item.low, le=item.high)], item.doc
    return kind | None, Field(None, description=f"For {key}: {text}; {default}.")


def with_attention_settings(settings: type[S], *, is_searched: bool) -> type[S]:
    """A command's settings with one flag for each that attentions have, None where it is not set.

    Args:
        settings: of the command.
        is_searched: whether it searches for those that are not given.
    """
    extended: type[S] = create_model(  # type: ignore[call-overload]
        settings.__name__,
        __base__=settings,
        __doc__=settings.__doc__,
        **{item.name: _flag(key, item, _default(key, item.name, is_searched=is_searched)) for key, item in items()},
    )
    return extended


def changes_of(settings: CommandSettings) -> dict[str, Any]:
    """What is set of the attentions, by field."""
    values = {item.name: getattr(settings, item.name) for _, item in items()}
    return {name: value for name, value in values.items() if value is not None}
