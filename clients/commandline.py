"""From words to settings: one pydantic-settings class per command gives flags, environment variables and help.

Positional words go through argparse itself: pydantic-settings would split a text at its commas and read `[` as JSON.
"""

import argparse
import inspect
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NoReturn, TypeVar

from pydantic import Field, ValidationError, create_model
from pydantic_settings import BaseSettings, CliApp, CliSettingsSource, SettingsConfigDict, SettingsError

from attenuator.ops import KNOBS

ENV_PREFIX = "ATTENUATOR_"
KNOB_TYPES = {"int32": int, "float": float}


class CommandSettings(BaseSettings):
    """Base of a command's settings: every field is a flag and an `ATTENUATOR_*` variable, its docstring the help."""

    model_config = SettingsConfigDict(
        env_prefix=ENV_PREFIX,
        cli_kebab_case=True,
        cli_implicit_flags="toggle",
        cli_hide_none_type=True,
        cli_avoid_json=True,
        use_attribute_docstrings=True,
    )


S = TypeVar("S", bound=CommandSettings)


class HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """Keeps the layout of the examples, names values by their flag and leaves out defaults that say nothing."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        text = super()._get_help_string(action)
        return text and re.sub(r" \(default: (None|False)\)$", "", text)

    def _metavar_formatter(self, action: argparse.Action, default_metavar: str) -> Callable[[int], tuple[str, ...]]:
        return (
            super()._metavar_formatter(action, default_metavar)
            if not action.option_strings
            else (lambda size: (action.dest.split(".")[-1].upper(),) * size)
        )


class Parser(argparse.ArgumentParser):
    """Tells what is wrong in one sentence, without repeating the usage."""

    def error(self, message: str) -> NoReturn:
        """Ends the program with exit code 2."""
        print(f"{self.prog}: {message}; `{self.prog} --help` explains", file=sys.stderr)
        raise SystemExit(2)


@dataclass(frozen=True, slots=True)
class Words:
    """The positional words of a command.

    Attributes:
        metavar: how the help calls one.
        nargs: how many, as argparse counts.
        help: what they are.
    """

    metavar: str
    nargs: str
    help: str


def with_knobs(settings: type[S]) -> type[S]:
    """The settings with one flag per knob of the operators."""
    fields = {
        name: (
            KNOB_TYPES[knob.dtype] | None,
            Field(None, description=f"{knob.low:g} to {knob.high:g}, exact value {knob.exact:g}. {knob.doc}"),
        )
        for name, knob in KNOBS.items()
    }
    made: type[S] = create_model(settings.__name__, __base__=settings, __doc__=settings.__doc__, **fields)  # type: ignore[call-overload]
    return made


def fail(command: str, sentence: str) -> NoReturn:
    """Ends a command whose words were wrong: one sentence on stderr, exit code 2.

    Raises:
        SystemExit: always.
    """
    print(f"attenuator {command}: {sentence}", file=sys.stderr)
    raise SystemExit(2)


def parse(
    settings: type[S], command: str, arguments: Sequence[str], words: Words, *, usage: str, examples: str
) -> tuple[S, list[str]]:
    """Reads a command's words and environment.

    Args:
        settings: what the command can be told; its docstring opens the help.
        command: its name after `attenuator`.
        arguments: what follows the name.
        words: its positional words.
        usage: the command line in short.
        examples: closes the help.

    Returns:
        The settings and the positional words.

    Raises:
        SystemExit: 0 after `--help`, 2 where a word or a variable is wrong, told in one sentence.
    """
    parser = Parser(
        prog=f"attenuator {command}",
        usage=f"attenuator {command} {usage}",
        description=inspect.cleandoc(settings.__doc__ or ""),
        epilog=f"examples:\n{examples}",
        formatter_class=HelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("words", nargs=words.nargs, metavar=words.metavar, help=words.help)
    source: CliSettingsSource[argparse.ArgumentParser] = CliSettingsSource(settings, root_parser=parser)
    # A flag between two texts would otherwise end the list of texts.
    given = parser.parse_intermixed_args(list(arguments))
    positional = [given.words] if isinstance(given.words, str) else list(given.words)
    del given.words
    try:
        return CliApp.run(settings, cli_args=given, cli_settings_source=source), positional
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        name = str(first["loc"][0])
        flag = f"--{name.replace('_', '-')} (or {ENV_PREFIX}{name.upper()})"
        fail(command, f"{flag} is {first['input']!r}: {first['msg'][0].lower()}{first['msg'][1:]}")
    except SettingsError as error:
        fail(command, str(error))
