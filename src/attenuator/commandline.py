"""From a command's arguments to its settings: one pydantic-settings class gives flags, environment variables and help.

Positional arguments go through argparse itself: pydantic-settings would split a text at its commas and read `[` as
JSON.
"""

import argparse
import contextlib
import importlib
import inspect
import os
import re
import signal
import sys
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Annotated, Any, ClassVar, NoReturn, TypeVar

from pydantic import Field, SecretStr, ValidationError
from pydantic_settings import BaseSettings, CliApp, CliSettingsSource, SettingsConfigDict, SettingsError

from attenuator.errors import closest

ENV_PREFIX = "ATTENUATOR_"
INTERRUPTED = 130  # exit code of a command that Ctrl-C ended
# Settings of every command, imported by name and only where a variable has to be judged.
COMMAND_SETTINGS = (
    "attenuator.tuning.train.settings:SETTINGS",
    "attenuator.export.settings:ExportSettings",
    "attenuator.tuning.adapt.settings:SETTINGS",
    "attenuator.tune.settings:SETTINGS",
    "attenuator.compare.settings:SETTINGS",
    "attenuator.commands.calibrate.settings:SETTINGS",
    "attenuator.serve.settings:ServeSettings",
    "attenuator.commands.classify_settings:SETTINGS",
    "attenuator.commands.rerank_settings:SETTINGS",
    "attenuator.commands.bench.settings:SETTINGS",
    "attenuator.commands.inspect:SETTINGS",
    "attenuator.commands.completion:SETTINGS",
)
# Variables that are no command's setting: read by the operators' library, the build or the tests.
OTHER_VARIABLES = frozenset(
    ENV_PREFIX + name
    for name in (
        "AMX_BROKEN",
        "AMX_LIBRARY",
        "CUDA_LIBRARY",
        "EXTRA_OPERATORS",
        "ISA",
        "ON_HOST_LAUNCHES",
        "ON_HOST_ORDER",
        "ON_HOST_SHARED",
        "OPS_LIBRARY",
        "TEST_CUDA",
        "TEST_RAY",
    )
)
# What Kubernetes sets in every pod beside a service called "attenuator".
KUBERNETES_LINKS = re.compile(rf"{ENV_PREFIX}(SERVICE_(HOST|PORT(_\w+)?)|PORT_\d+_(TCP|UDP)(_(ADDR|PORT|PROTO))?)")

# Of JSON schemas, in words.
KINDS = {"integer": "a whole number", "number": "a number", "boolean": "true or false"}
LIMITS = {"minimum": " from", "exclusiveMinimum": " above", "maximum": ", at most", "exclusiveMaximum": ", below"}
TYPE_NAME = re.compile(r"\b(int|float|str)\b")

Threads = Annotated[int | None, Field(ge=1, le=1024)]  # None: as many as there are cores


class CommandSettings(BaseSettings):
    """Base of a command's settings: every field is a flag and an `ATTENUATOR_*` variable, its docstring the help.

    Attributes:
        GROUPS: titles in the help, by the first field under each; none makes one list.
    """

    GROUPS: ClassVar[Mapping[str, str]] = {}
    model_config = SettingsConfigDict(
        env_prefix=ENV_PREFIX,
        cli_kebab_case=True,
        cli_implicit_flags="toggle",
        cli_hide_none_type=True,
        cli_avoid_json=True,
        use_attribute_docstrings=True,
    )


S = TypeVar("S", bound=CommandSettings)
N = TypeVar("N", int, float)


@dataclass(frozen=True, slots=True)
class Positionals:
    """The positional arguments of a command.

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
        return text and re.sub(r" \((default: (None|False|)|default factory: list|required)\)$", "", text)

    def _metavar_formatter(self, action: argparse.Action, default_metavar: str) -> Callable[[int], tuple[str, ...]]:
        choices = str(action.metavar)
        if action.option_strings and ("{" not in choices or TYPE_NAME.search(choices)):  # a type is no value
            return lambda size: (action.dest.upper(),) * size
        return super()._metavar_formatter(action, default_metavar)


# Flags that are gone, by command, and what to do in their place.
REMOVED = {
    ("calibrate", "--plot"): "the plot is calibration.svg in the bundle",
    ("classify", "--file"): "give --input FILE",
    ("classify", "--jsonl"): "give --format jsonl",
    ("serve", "--watch"): "name the bundles at the start; PUT and DELETE /v1/models/NAME load, replace and unload "
    "models while it runs (--admin-key, --bundle-root)",
}


class Parser(argparse.ArgumentParser):
    """Says what is wrong in one sentence, without repeating the usage."""

    def error(self, message: str) -> NoReturn:
        """Ends the program with exit code 2."""
        unknown = re.fullmatch(r"unrecognized arguments: (--[^\s=]+).*", message, re.DOTALL)
        if unknown is not None:
            gone = REMOVED.get((self.prog.rpartition(" ")[2], unknown[1]))
            close = closest(unknown[1], self._option_string_actions, "--")
            hint = f", did you mean {close[0]}?" if close else ""
            message = f"the flag {unknown[1]} is " + (f"gone: {gone}" if gone else f"unknown{hint}")
        print(f"{self.prog}: {message}; `{self.prog} --help` explains", file=sys.stderr)
        raise SystemExit(2)


def fail(command: str, sentence: str) -> NoReturn:
    """Ends a command after a usage error: one sentence on stderr, exit code 2.

    Raises:
        SystemExit: always.
    """
    print(f"attenuator {command}: {sentence}", file=sys.stderr)
    raise SystemExit(2)


def note(command: str, sentence: str) -> None:
    """Says on stderr what a command does meanwhile."""
    print(f"attenuator {command}: {sentence}", file=sys.stderr, flush=True)


@contextlib.contextmanager
def interrupt_afterwards() -> Iterator[None]:
    """Within it Ctrl-C waits for the end: an import that it breaks off fails with errors of half a module.

    Raises:
        KeyboardInterrupt: at the end, where it came.
    """
    if threading.current_thread() is not threading.main_thread():  # which alone gets signals
        yield
        return
    came = threading.Event()
    before = signal.signal(signal.SIGINT, lambda number, frame: came.set())
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if came.is_set():
        raise KeyboardInterrupt


def listed_numbers(
    command: str, flag: str, text: str, number: Callable[[str], N], is_allowed: Callable[[N], bool], allowed: str
) -> list[N]:
    """The numbers of a flag that takes several, in order; ends the command with a usage error where one is wrong.

    Args:
        command: whose flag it is.
        flag: its name.
        text: numbers separated by commas.
        number: reads one of them.
        is_allowed: whether one may be given.
        allowed: what may be given, for the error.
    """
    try:
        numbers = sorted({number(word) for word in text.split(",")})
    except (ValueError, OverflowError):
        numbers = []
    if not numbers or not all(map(is_allowed, numbers)):
        fail(command, f"{flag} is '{text}', must be {allowed}, separated by commas")
    return numbers


def command_variables() -> set[str]:
    """The environment variable of every setting of every command."""
    names: set[str] = set()
    for _, settings in all_settings():
        names |= {ENV_PREFIX + field.upper() for field in settings.model_fields}
    return names


def unknown_variable(settings: type[CommandSettings], environment: Mapping[str, str]) -> str | None:
    """A sentence about the first `ATTENUATOR_*` variable that nothing reads, so that a typing error is noticed.

    Args:
        settings: of the command that runs.
        environment: variables by name.

    Returns:
        The sentence, with close matches; None where every variable is known.
    """
    own = {ENV_PREFIX + field.upper() for field in settings.model_fields}

    def unread(known: Iterable[str]) -> list[str]:
        # pydantic-settings reads variables whatever their case.
        names = {name for name in environment if name.upper().startswith(ENV_PREFIX)}
        return sorted(name for name in names if name.upper() not in known and not KUBERNETES_LINKS.fullmatch(name))

    if not unread(own | OTHER_VARIABLES):
        return None
    everything = own | OTHER_VARIABLES | command_variables()
    names = unread(everything)
    if not names:
        return None
    name = names[0].upper()
    for (_, flag), gone in REMOVED.items():
        if name == ENV_PREFIX + flag.removeprefix("--").replace("-", "_").upper():
            return f"the environment variable {names[0]} is gone: {gone}"
    close = closest(name, sorted(own), ENV_PREFIX) or closest(name, sorted(everything), ENV_PREFIX)
    hint = f"did you mean {' or '.join(close)}?" if close else "no setting has that name"
    return f"the environment variable {names[0][:80]} is unknown: {hint}"


def add_arguments(
    parser: argparse.ArgumentParser, settings: type[CommandSettings], positionals: Positionals | None
) -> CliSettingsSource[argparse.ArgumentParser]:
    """Gives a parser a command's flags and positional arguments; returns what reads the flags."""
    if positionals is not None:
        parser.add_argument("positionals", nargs=positionals.nargs, metavar=positionals.metavar, help=positionals.help)
    return CliSettingsSource(settings, root_parser=parser)


def arrange_help(parser: argparse.ArgumentParser, settings: type[CommandSettings], hidden: Collection[str]) -> None:
    """Puts the flags under the titles of `settings.GROUPS`, and leaves those of hidden fields out of the help."""
    group = parser._optionals
    for action in list(group._group_actions):
        if action.dest in hidden:
            action.help = argparse.SUPPRESS
        if action.dest in settings.GROUPS:
            group = parser.add_argument_group(settings.GROUPS[action.dest])
        if group is not parser._optionals:
            parser._optionals._group_actions.remove(action)
            group._group_actions.append(action)


def all_settings() -> Iterator[tuple[ModuleType, type[CommandSettings]]]:
    """The settings of every command whose extra is installed, with their module: its `COMMAND` is the name."""
    for path in COMMAND_SETTINGS:
        module, _, name = path.partition(":")
        with contextlib.suppress(ModuleNotFoundError):
            imported = importlib.import_module(module)
            yield imported, getattr(imported, name)


def parse(
    settings: type[S],
    command: str,
    arguments: Sequence[str],
    positionals: Positionals | None,
    *,
    usage: str,
    examples: str,
    hidden: Collection[str] = (),
) -> tuple[S, list[str]]:
    """Reads a command's arguments and environment.

    Args:
        settings: the command's settings; their docstring opens the help.
        command: its name after `attenuator`.
        arguments: what follows the name.
        positionals: its positional arguments; None where it takes flags alone.
        usage: the command line in short.
        examples: closes the help.
        hidden: fields whose flags the help leaves out.

    Returns:
        The settings and the positional arguments, none where the command takes none.

    Raises:
        SystemExit: 0 after `--help`; 2 after one sentence on stderr where an argument or a variable is wrong.
    """
    parser = Parser(
        prog=f"attenuator {command}",
        usage=f"attenuator {command} {usage}",
        description=inspect.cleandoc(settings.__doc__ or ""),
        epilog=f"examples:\n{examples}",
        formatter_class=HelpFormatter,
        allow_abbrev=False,
    )
    source = add_arguments(parser, settings, positionals)
    arrange_help(parser, settings, hidden)
    # A flag between two positional arguments would otherwise end their list.
    parsed = parser.parse_intermixed_args(list(arguments))
    values = list(vars(parsed).pop("positionals", []))  # the rest are settings
    unknown = unknown_variable(settings, os.environ)
    if unknown:
        fail(command, unknown)
    try:
        return CliApp.run(settings, cli_args=parsed, cli_settings_source=source), values
    except ValidationError as error:
        fail(command, _refusal(settings, error))
    except SettingsError as error:
        fail(command, str(error))


def _refusal(settings: type[CommandSettings], error: ValidationError) -> str:
    """One sentence about the first setting that is wrong."""
    first = error.errors(include_url=False)[0]
    name = str(first["loc"][0])
    flag = f"--{name.replace('_', '-')}"
    if first["type"] == "missing":
        return f"{flag} is missing"
    own_reason = first["msg"].removeprefix("Value error, ")
    reason = f": {own_reason[0].lower()}{own_reason[1:]}"
    if first["type"] != "value_error" and (allowed := _allowed(settings.model_json_schema()["properties"][name])):
        reason = f", must be {allowed}"
    field = settings.model_fields.get(name)
    secret = field is not None and SecretStr.__name__ in str(field.annotation)
    value = "refused" if secret else f"{first['input']!r}"  # what is printed ends up in logs
    return f"{flag} (or {ENV_PREFIX}{name.upper()}) is {value}{reason}"


def _allowed(schema: Mapping[str, Any]) -> str:
    """The values that a JSON schema of a setting allows, in words; empty where there are none for them."""
    if "anyOf" in schema:
        return " or ".join(filter(None, map(_allowed, schema["anyOf"])))
    if "enum" in schema:
        return f"one of: {', '.join(map(str, schema['enum']))}"
    if "const" in schema:
        return f"'{schema['const']}'"
    kind = KINDS.get(schema.get("type", ""), "")
    return kind and kind + "".join(f"{words} {schema[key]:.16g}" for key, words in LIMITS.items() if key in schema)
