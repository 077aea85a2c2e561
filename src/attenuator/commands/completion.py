"""The command `attenuator completion`: a script by which a shell completes commands, flags, files and bundles."""

import argparse
import inspect
import typing
from collections.abc import Sequence
from pathlib import Path
from types import UnionType
from typing import Any, Literal

from attenuator.commandline import CommandSettings, HelpFormatter, Positionals, add_arguments, all_settings, fail, parse

COMMAND = "completion"
SHELLS = ("bash", "zsh", "fish")
POSITIONALS = Positionals("SHELL", 1, f"{', '.join(SHELLS[:-1])} or {SHELLS[-1]}")
USAGE = "SHELL"
EXAMPLES = """  for this session of bash:
    source <(attenuator completion bash)
  for every one from now on:
    mkdir -p ~/.local/share/bash-completion/completions
    attenuator completion bash > ~/.local/share/bash-completion/completions/attenuator
  zsh, in a folder of its $fpath:
    mkdir -p ~/.zfunc
    attenuator completion zsh > ~/.zfunc/_attenuator
    echo 'fpath+=~/.zfunc; autoload -Uz compinit; compinit' >> ~/.zshrc
  fish:
    mkdir -p ~/.config/fish/completions
    attenuator completion fish > ~/.config/fish/completions/attenuator.fish

exit codes: 0 success, 2 usage error"""

BUNDLE = "bundle"
TEXT_FILES = ("file", "input", "output")  # `-` may stand for them, so that their type is a text
# Folders that are bundles, or lead to some; by shell, what is called and what defines it.
BUNDLES = {
    "bash": "_attenuator_bundles",
    "zsh": "_attenuator_bundles",
    "fish": "(_attenuator_bundles)",
    "preamble": {
        "bash": """_attenuator_bundles() {
  local folder
  while IFS= read -r folder; do
    if [ -f "$folder/bundle.json" ] || [ -n "$(compgen -d -- "$folder/")" ]; then echo "$folder"; fi
  done < <(compgen -d -- "$1")
}
""",
        "zsh": """_attenuator_leads_to_bundle() {
  local folders=($REPLY/*(N-/))
  [[ -f $REPLY/bundle.json ]] || (( $#folders ))
}
_attenuator_bundles() { _path_files -g '*(-/+_attenuator_leads_to_bundle)' }
""",
        "fish": """function _attenuator_bundles
  for folder in (__fish_complete_directories (commandline -ct))
    set -l path (string split -m 1 \\t -- $folder)[1]
    set -l inner $path/*/
    if test -f "$path/bundle.json"; or test (count $inner) -gt 0
      echo $path
    end
  end
end
""",
    },
}


class CompletionSettings(CommandSettings):
    """Print the script by which a shell completes `attenuator`: commands, flags, their values, files and bundles.

    The script is complete in itself: nothing runs when Tab is pressed. Print it again after an upgrade.
    """


SETTINGS = CompletionSettings


def _types_of(annotation: Any) -> list[Any]:
    """The types of a field, without None and with what stands in lists."""
    origin = typing.get_origin(annotation)
    if origin in (typing.Union, UnionType, list, tuple, set, frozenset):
        return [each for part in typing.get_args(annotation) for each in _types_of(part)]
    return [annotation]


def _complete(action: argparse.Action, settings: type[CommandSettings], file: Any) -> None:
    """Says how the values of a flag are completed."""
    name = action.dest.replace("-", "_")
    field = settings.model_fields.get(name)
    if field is None or action.nargs == 0:
        return
    types = _types_of(field.annotation)
    choices = [str(choice) for each in types if typing.get_origin(each) is Literal for choice in typing.get_args(each)]
    if choices:
        action.choices = choices
    elif name == BUNDLE:
        action.complete = BUNDLES  # type: ignore[attr-defined]
    elif Path in types or name in TEXT_FILES:
        action.complete = file  # type: ignore[attr-defined]


def _positional(action: argparse.Action, positionals: Positionals, file: Any) -> None:
    """Says how positional arguments are completed."""
    if positionals.metavar.lower().startswith(BUNDLE):
        action.complete = BUNDLES  # type: ignore[attr-defined]
    elif positionals.metavar == POSITIONALS.metavar:
        action.choices = SHELLS
    elif positionals.metavar == "SOURCE":
        action.complete = file  # type: ignore[attr-defined]


def parser_of_all(file: Any) -> argparse.ArgumentParser:
    """A parser of every command, with how its arguments are completed.

    Args:
        file: what says that an argument is a file.
    """
    root = argparse.ArgumentParser("attenuator", allow_abbrev=False)
    root.add_argument("-V", "--version", action="version", help="print the version")
    commands = root.add_subparsers()
    for module, settings in all_settings():
        lead = inspect.cleandoc(settings.__doc__ or "").partition("\n\n")[0].replace("\n", " ")
        parser = commands.add_parser(module.COMMAND, help=lead, description=lead, formatter_class=HelpFormatter)
        positionals: Positionals | None = getattr(module, "POSITIONALS", None)
        add_arguments(parser, settings, positionals)
        for action in parser._actions:
            if action.option_strings:
                _complete(action, settings, file)
            elif positionals is not None:
                _positional(action, positionals, file)
    return root


def main(arguments: Sequence[str]) -> int:
    """Prints the script.

    Args:
        arguments: what follows `attenuator completion`.

    Returns:
        0.

    Raises:
        SystemExit: 2 after a usage error.
    """
    _, [shell] = parse(SETTINGS, COMMAND, arguments, POSITIONALS, usage=USAGE, examples=EXAMPLES)
    if shell not in SHELLS:
        fail(COMMAND, f"there is no completion for '{shell}', the shell must be one of: {', '.join(SHELLS)}")
    import shtab  # nothing else needs it

    print(shtab.complete(parser_of_all(shtab.FILE), shell))
    return 0
