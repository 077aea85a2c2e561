"""`attenuator completion`: its scripts in the shells that they are for."""

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from running import Run

from attenuator.__main__ import COMMANDS
from attenuator.commands.completion import SHELLS

Completed = Callable[[str], set[str]]

ASK_BASH = """source "$1"
COMP_WORDS=($2); [[ $2 == *" " ]] && COMP_WORDS+=("")
COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
_shtab_attenuator
printf '%s\\n' "${COMPREPLY[@]}"
"""
ASK = {
    "bash": ["-c", ASK_BASH, "bash"],
    "fish": ["--no-config", "-c", "source $argv[1]; complete -C $argv[2]"],
}
# Bundles are told from other folders by the glob's own function; the rest of zsh's completion needs a terminal.
ASK_ZSH = """autoload -Uz compinit; compinit -D -u; source $1 2>/dev/null
for folder in *(-/+_attenuator_leads_to_bundle); do print -r -- $folder; done
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("models/reviews", "models/topics"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "bundle.json").touch()
    (tmp_path / "empty").mkdir()
    (tmp_path / "texts.csv").touch()
    return tmp_path


@pytest.fixture(params=ASK)
def completed(
    request: pytest.FixtureRequest, run: Run, folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> Completed:
    """What a shell completes a line to, in a folder with bundles."""
    shell = str(request.param)
    if shutil.which(shell) is None:
        pytest.skip(f"there is no {shell} on this machine")
    code, script, errors = run("completion", shell)
    assert (code, errors) == (0, "")
    file = tmp_path_factory.mktemp("script") / "attenuator"
    file.write_text(script)

    def ask(line: str) -> set[str]:
        command = [shell, *ASK[shell], str(file), line]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
        return {answer.partition("\t")[0].rstrip("/") for answer in done.stdout.splitlines()} - {""}

    return ask


def test_commands_flags_and_values(completed: Completed) -> None:
    assert completed("attenuator ") >= set(COMMANDS)
    assert completed("attenuator cl") == {"classify"}
    assert completed("attenuator classify --out") == {"--output", "--output-format"}
    assert completed("attenuator classify --device ") == {"cpu", "cuda", "auto"}
    assert completed("attenuator completion ") == set(SHELLS)
    assert "--num-hashes" in completed("attenuator bench --num")


def test_files_and_bundles(completed: Completed) -> None:
    assert completed("attenuator classify --input tex") == {"texts.csv"}
    assert completed("attenuator classify --bundle models/r") == {"models/reviews"}
    for line in ("attenuator inspect ", "attenuator serve models/topics "):
        assert completed(line) == {"models"}, "a folder that is no bundle and leads to none is left out"


def test_zsh_tells_bundles_from_other_folders(run: Run, folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    if shutil.which("zsh") is None:
        pytest.skip("there is no zsh on this machine")
    code, script, _ = run("completion", "zsh")
    assert code == 0
    file = tmp_path_factory.mktemp("script") / "_attenuator"
    file.write_text(script)
    done = subprocess.run(
        ["zsh", "-fc", ASK_ZSH, "zsh", str(file)], cwd=folder, capture_output=True, text=True, check=True
    )
    assert (done.stdout.splitlines(), done.stderr) == (["models"], "")


def test_other_shells_are_refused(run: Run) -> None:
    code, output, errors = run("completion", "tcsh")
    sentence = "there is no completion for 'tcsh', the shell must be one of: bash, zsh, fish"
    assert (code, output, errors) == (2, "", f"attenuator completion: {sentence}\n")
