"""From a command's words to its settings: one pydantic-settings class gives flags, environment variables and help.

Positional words go through argparse itself: pydantic-settings would split a text at its commas and read `[` as JSON.
"""

import argparse
import inspect
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NoReturn, TypeVar

from pydantic import SecretStr, ValidationError
from pydantic_settings import BaseSettings, CliApp, CliSettingsSource, SettingsConfigDict, SettingsError

ENV_PREFIX = "ATTENUATOR_"


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


@dataclass(frozen=True, slots=True)
class Words:
    """The positional words of a command.

    Attributes:
        metavar: how the help calls one.
        nargs: how many, as argparse counts.
        help: what they are.
    """

    metavar: str
    nargs: str | int
    help: str


class HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """Keeps the layout of the examples, names values by their flag and leaves out defaults that say nothing."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        text = super()._get_help_string(action)
        return text and re.sub(r" \((default: (None|False|)|required)\)$", "", text)

    def _metavar_formatter(self, action: argparse.Action, default_metavar: str) -> Callable[[int], tuple[str, ...]]:
        if action.option_strings and "{" not in str(action.metavar):
            return lambda size: (action.dest.upper(),) * size
        return super()._metavar_formatter(action, default_metavar)


class Parser(argparse.ArgumentParser):
    """Tells what is wrong in one sentence, without repeating the usage."""

    def error(self, message: str) -> NoReturn:
        """Ends the program with exit code 2."""
        print(f"{self.prog}: {message}; `{self.prog} --help` explains", file=sys.stderr)
        raise SystemExit(2)


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
    # A flag between two words would otherwise end the list of words.
    given = parser.parse_intermixed_args(list(arguments))
    positional = list(given.words)
    del given.words
    try:
        return CliApp.run(settings, cli_args=given, cli_settings_source=source), positional
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        name = str(first["loc"][0])
        flag = f"--{name.replace('_', '-')}"
        if first["type"] == "missing":
            fail(command, f"{flag} is missing")
        reason = first["msg"].removeprefix("Value error, ")
        reason = f"{reason[0].lower()}{reason[1:]}"
        field = settings.model_fields.get(name)
        secret = field is not None and SecretStr.__name__ in str(field.annotation)
        found = "refused" if secret else f"{first['input']!r}"  # what is printed ends up in logs
        fail(command, f"{flag} (or {ENV_PREFIX}{name.upper()}) is {found}: {reason}")
    except SettingsError as error:
        fail(command, str(error))
