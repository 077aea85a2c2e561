"""Environment variables: those that nothing reads are refused, those that any part of the product reads are known."""

import importlib
import os
import re
import signal
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Literal

import pytest

from attenuator.__main__ import COMMANDS, main
from attenuator.bundle import read_manifest
from attenuator.commandline import (
    COMMAND_SETTINGS,
    OTHER_VARIABLES,
    CommandSettings,
    command_variables,
    interrupt_afterwards,
    parse,
    unknown_variable,
)
from attenuator.commands.classify_settings import ClassifySettings
from attenuator.commands.inspect import InspectSettings
from attenuator.commands.rerank_settings import RerankSettings
from attenuator.ops import KNOBS
from attenuator.serve.settings import ServeSettings
from attenuator.tuning import choices
from attenuator.tuning.settings import ABORTED

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "attenuator"
READ = re.compile(r'(?:environ(?:\.get\(|\[)|getenv\()"(ATTENUATOR_\w+)"|REQUIRED = "(ATTENUATOR_\w+)"')


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("ATTENUATOR_APIKEY", "did you mean ATTENUATOR_API_KEY"),
        ("ATTENUATOR_API_KEYY", "did you mean ATTENUATOR_API_KEY"),
        ("attenuator_api_kay", "did you mean ATTENUATOR_API_KEY"),
        ("ATTENUATOR_QQQQQQQQQ", "no setting has that name"),
        ("ATTENUATOR_", "no setting has that name"),
    ],
)
def test_variable_that_nothing_reads_is_an_error(name: str, hint: str) -> None:
    sentence = unknown_variable(ServeSettings, {"HOME": "/", "ATTENUATOR_PORT": "1", name: "a-secret-value"})
    assert sentence is not None
    assert sentence.startswith(f"the environment variable {name} is unknown: {hint}")
    assert "secret" not in sentence


def test_variable_of_a_flag_that_is_gone_is_told_what_to_do_instead() -> None:
    sentence = unknown_variable(ServeSettings, {"ATTENUATOR_WATCH": "/models"})
    assert sentence is not None
    assert sentence.startswith("the environment variable ATTENUATOR_WATCH is gone: name the bundles at the start; PUT")


@pytest.mark.parametrize("said", [None, "ACTIVE"])
def test_threads_of_pytorch_sleep_while_they_wait(monkeypatch: pytest.MonkeyPatch, said: str | None) -> None:
    """Spinning, they make training 20 times as slow on a machine that does something else; who sets it is heard."""
    monkeypatch.setitem(os.environ, "OMP_WAIT_POLICY", said or "")
    if said is None:
        del os.environ["OMP_WAIT_POLICY"]
    with pytest.raises(SystemExit):
        main(["inspect", "--help"])
    assert os.environ["OMP_WAIT_POLICY"] == (said or "PASSIVE")


def test_variables_of_other_commands_and_of_the_library_are_known() -> None:
    environment = dict.fromkeys(command_variables() | OTHER_VARIABLES, "1")
    for name in ("ATTENUATOR_API_KEY", "ATTENUATOR_NUM_HASHES", "ATTENUATOR_URL", "ATTENUATOR_OUTPUT"):
        assert name in environment
    assert unknown_variable(ServeSettings, environment) is None
    assert unknown_variable(InspectSettings, environment) is None


def test_every_command_has_settings_and_every_setting_is_read() -> None:
    packages = {module.rpartition(".")[0] for module, _ in COMMANDS.values()}
    assert len(COMMAND_SETTINGS) == len(COMMANDS)
    unread = []
    for path in COMMAND_SETTINGS:
        module, _, name = path.partition(":")
        assert module.rpartition(".")[0] in packages
        folder = (PACKAGE / module.split(".")[1]).resolve()
        source = "\n".join(file.read_text(encoding="utf-8") for file in sorted(folder.rglob("*.py")))
        if "**dict(settings)" in source:  # a function takes all of them by name, and fails on another one
            continue
        derived = KNOBS.keys() | {item.name for _, item in choices.items()}  # read by a loop over what there is
        fields = getattr(importlib.import_module(module), name).model_fields.keys() - derived
        unread += [f"{path}: {field}" for field in fields if not re.search(rf"settings\.{field}\b", source)]
    assert unread == []


class FlagsAlone(CommandSettings):
    """Measures."""

    rounds: int = 3
    """How often."""
    seed: int | Literal["random"] = 0
    """Of the draws."""
    pace: Literal["fast", "slow"] = "fast"
    """How fast."""


def flags_alone(*arguments: str) -> tuple[FlagsAlone, list[str]]:
    return parse(FlagsAlone, "measure", arguments, None, usage="[options]", examples="  none")


def test_a_command_may_take_flags_alone(capsys: pytest.CaptureFixture[str]) -> None:
    assert flags_alone() == (FlagsAlone(rounds=3), [])
    assert flags_alone("--rounds", "5") == (FlagsAlone(rounds=5), [])
    with pytest.raises(SystemExit, match="0"):
        flags_alone("--help")
    shown = capsys.readouterr().out
    assert "positional" not in shown
    assert "--seed SEED" in shown, "a type is no value to choose"
    assert "--pace {fast,slow}" in shown
    with pytest.raises(SystemExit, match="2"):
        flags_alone("bundle")
    assert capsys.readouterr().err.startswith("attenuator measure: unrecognized arguments: bundle")


def test_variables_that_kubernetes_sets_for_a_service_of_this_name_are_known() -> None:
    names = ("SERVICE_HOST", "SERVICE_PORT", "SERVICE_PORT_HTTP", "PORT_8000_TCP", "PORT_8000_TCP_ADDR")
    assert unknown_variable(ServeSettings, {f"ATTENUATOR_{name}": "10.0.0.1" for name in names}) is None


def test_every_variable_that_the_tree_reads_is_known() -> None:
    listed = subprocess.run(["git", "ls-files", "*.py", "*.cc", "*.h"], cwd=ROOT, capture_output=True, text=True)
    files = [ROOT / name for name in listed.stdout.split()] or [*ROOT.rglob("ops/**/*.cc"), *ROOT.rglob("ops/**/*.py")]
    names = {
        match[1] or match[2]
        for file in files
        if file.is_file()
        for match in READ.finditer(file.read_text(encoding="utf-8"))
    }
    assert {"ATTENUATOR_ISA", "ATTENUATOR_OPS_LIBRARY", "ATTENUATOR_TEST_CUDA"} <= names
    assert names - {"ATTENUATOR_PORT"} <= OTHER_VARIABLES


@pytest.mark.parametrize("package", ["torch", "onnxruntime", "tqdm", "pydantic_settings"])
def test_a_missing_package_is_said_with_what_brings_it(
    package: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def gone(name: str) -> None:
        raise ModuleNotFoundError(f"No module named {package!r}", name=f"{package}.inner")

    monkeypatch.setattr(importlib, "import_module", gone)
    assert main(["serve"]) == 1
    [wanted] = re.findall(
        rf"the Python package '{package}' is missing: .* pip install '(.*)'\n$", capsys.readouterr().err
    )
    extra = wanted.removeprefix(".").strip("[]")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    brought = project["optional-dependencies"][extra] if extra else project["dependencies"]
    assert any(each.replace("-", "_").startswith(package) for each in brought)


def test_ctrl_c_waits_for_imports() -> None:
    before, steps = signal.getsignal(signal.SIGINT), []

    def interrupted() -> None:
        with interrupt_afterwards():
            os.kill(os.getpid(), signal.SIGINT)
            steps.append("the import goes on")

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert steps
    assert signal.getsignal(signal.SIGINT) is before
    with interrupt_afterwards():
        steps.append("nothing came")
    with pytest.raises(ModuleNotFoundError), interrupt_afterwards():
        raise ModuleNotFoundError
    assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.parametrize("during", ["attenuator.errors", "attenuator.commands.inspect", "pydantic_core"])
def test_ctrl_c_while_a_command_begins_ends_it_without_a_word(during: str) -> None:
    """Some imports, such as pydantic's, make another error of it."""
    code = f"""
import os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job inherits that it is ignored
class Interrupts:
    def find_spec(self, name, path, target=None):
        if name == {during!r}:
            try:
                os.kill(os.getpid(), signal.SIGINT)
            except KeyboardInterrupt:
                if name != "attenuator.errors":
                    raise ImportError("half a module")
                raise
sys.meta_path.insert(0, Interrupts())
from attenuator.__main__ import main
sys.exit(main())
"""
    command = [sys.executable, "-c", code, "inspect", str(ROOT / "examples/bundles/reviews")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


@pytest.mark.parametrize("command", ["train", "adapt"])
def test_training_commands_import_undisturbed(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An import of Ctrl-C's time ended in a traceback of half a module."""
    module = importlib.import_module(COMMANDS[command][0])

    def interrupted_import(name: str) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        capsys.readouterr()  # a bytecode boundary, where the signal is handled
        print("went on")

    monkeypatch.setattr(module, "import_module", interrupted_import)
    assert module.main(["nowhere", "--data", "texts.jsonl", "--output", "out"]) == 130
    captured = capsys.readouterr()
    assert captured.out == "went on\n"
    assert captured.err == f"attenuator {command}: {ABORTED}\n"


def test_help_has_groups_and_leaves_out_what_is_hidden(capsys: pytest.CaptureFixture[str]) -> None:
    class Grouped(FlagsAlone):
        GROUPS = {"seed": "chance"}

    with pytest.raises(SystemExit, match="0"):
        parse(Grouped, "measure", ["--help"], None, usage="[options]", examples="  none", hidden={"pace"})
    first, title, rest = capsys.readouterr().out.partition("\nchance:\n")
    assert title
    assert "--rounds" in first
    assert "--seed" in rest
    assert "--pace" not in first + rest
    assert flags_alone("--pace", "slow")[0].pace == "slow"


@pytest.mark.parametrize("settings", [ServeSettings, ClassifySettings, RerankSettings])
def test_groups_of_help_begin_at_flags_that_there_are(settings: type[CommandSettings]) -> None:
    assert settings.GROUPS
    assert settings.GROUPS.keys() <= settings.model_fields.keys() | KNOBS.keys()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["exprot"], "unknown command 'exprot', did you mean export?"),
        (["zzz"], "unknown command 'zzz', must be one of: train, tune"),
        (["inspect", "x", "--rates"], "the flag --rates is unknown, did you mean --rate?"),
        (["inspect", "x", "--rates=3"], "the flag --rates is unknown, did you mean --rate?"),
        (["classify", "--num-hash", "3", "x"], "the flag --num-hash is unknown, did you mean --num-hashes?"),
        (["serve", "--zzzzz"], "the flag --zzzzz is unknown;"),
        (["classify", "--bundle", "x", "--file", "y"], "the flag --file is gone: give --input FILE;"),
        (["classify", "--bundle", "x", "--jsonl"], "the flag --jsonl is gone: give --format jsonl;"),
        (["calibrate", "x", "--plot", "y.svg"], "the flag --plot is gone: the plot is calibration.svg in the bundle;"),
        (["serve", "--watch", "models"], "the flag --watch is gone: name the bundles at the start; PUT and DELETE"),
        (["classify", "--frobnicate", "x"], "the flag --frobnicate is unknown;"),  # and not: did you mean --truncate?
    ],
)
def test_a_typing_error_is_told_what_may_be_meant(
    arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        code = main(arguments)
    except SystemExit as ended:
        code = int(ended.code or 0)
    assert code == 2
    assert sentence in capsys.readouterr().err


@pytest.mark.parametrize("flag", [["--bundle", "{}"], ["--bundle={}"], ["{}"]])
def test_help_of_classify_shows_the_knobs_of_the_bundle_at_hand(
    flag: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    folder = ROOT / "examples" / "bundles" / "reviews"
    own = {knob.name for knob in read_manifest(folder).knobs}
    shown = {}
    for arguments in ([], [word.format(folder) for word in flag], ["nowhere"]):
        with pytest.raises(SystemExit, match="0"):
            main(["classify", *arguments, "--help"])
        text = capsys.readouterr().out.partition("\nknobs:\n")[2].partition("\nexamples:\n")[0]
        shown[len(shown)] = {name for name in KNOBS if f"--{name.replace('_', '-')} " in text}
    assert shown == {0: set(KNOBS), 1: own, 2: set(KNOBS)}
