"""The command `attenuator export`: once in a process of its own, and what it prints, in this one."""

import io
import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest

from attenuator.__main__ import main
from attenuator.bundle import read_manifest


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    """The command in this process."""
    with redirect_stdout(io.StringIO()) as output, redirect_stderr(io.StringIO()) as errors:
        try:
            code = main(["export", *arguments])
        except SystemExit as ended:
            code = int(ended.code or 0)
    return subprocess.CompletedProcess(arguments, code, output.getvalue(), errors.getvalue())


def test_help_teaches() -> None:
    done = run("--help")
    assert done.returncode == 0
    for word in (
        "SOURCE",
        "--attention",
        "--output",
        "--max-tokens",
        "--estimator",
        "--precision",
        "which --precision?",
        "padding",
        "examples:",
        "exit codes",
    ):
        assert word in done.stdout


def test_writes_a_bundle(checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    output = tmp_path / "reviews"
    command = [
        sys.executable, "-m", "attenuator", "export", str(checkpoint("encoder-yoso")), "--attention", "yoso",
        "--output", str(output), "--max-tokens", "300", "--table-precision", "int16",
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert read_manifest(output).max_tokens == 300
    assert read_manifest(output).attention.attributes["table_precision"] == "int16"
    assert "model 'reviews'" in done.stdout
    assert "num_hashes 0 to 512" in done.stdout
    assert "trace the graph" in done.stderr


def test_tells_what_int8_costs_and_wins(checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    output = tmp_path / "small"
    done = run(str(checkpoint("bert")), "--attention", "mca", "--output", str(output), "--precision", "int8")
    assert done.returncode == 0, done.stderr
    assert read_manifest(output).precision == "int8"
    for word in ("of the compared inputs keep their labels", "MB instead of", "times as fast as fp32"):
        assert word in done.stdout


@pytest.mark.parametrize(
    ("arguments", "code", "sentence"),
    [
        (["--attention", "mca"], 2, "SOURCE"),
        (["x", "--attention", "mca"], 2, "--output is missing"),
        (["x", "--output", "y", "--attentoin", "mca"], 2, "the flag --attentoin is unknown, did you mean --attention?"),
        (["x", "--attention", "nearest", "--output", "y"], 2, "must be one of: softmax, mca, yoso, linear"),
        (
            ["x", "--attention", "mca", "--output", "y", "--precision", "int4"],
            2,
            "one of: fp32, int8, fp16, bf16",
        ),
        (["nowhere", "--attention", "mca", "--output", "y"], 1, "'nowhere' is not a folder"),
    ],
)
def test_usage_errors(arguments: list[str], code: int, sentence: str) -> None:
    done = run(*arguments)
    assert done.returncode == code
    assert sentence in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


def test_texts_that_are_not_there_are_refused_before_torch_is_loaded(
    checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    program = "import sys; from attenuator.__main__ import main; code = main(); print(code, 'torch' in sys.modules)"
    arguments = ["export", str(checkpoint("bert")), "--texts", "nofile.txt", "--output", str(tmp_path / "x")]
    done = subprocess.run([sys.executable, "-c", program, *arguments], capture_output=True, text=True, check=False)
    assert done.stdout == "1 False\n"
    assert "nofile.txt cannot be read: No such file or directory" in done.stderr


def test_a_source_that_cannot_be_had_is_refused_before_torch_is_loaded(tmp_path: Path) -> None:
    program = "import sys; from attenuator.__main__ import main; code = main(); print(code, 'torch' in sys.modules)"
    for source in ("bert-base-uncased", "google-bert/bert-base-uncased"):
        arguments = ["export", source, "--output", str(tmp_path / "x")]
        offline = os.environ | {"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path)}
        done = subprocess.run(
            [sys.executable, "-c", program, *arguments], capture_output=True, text=True, check=False, env=offline
        )
        assert done.stdout == "1 False\n"
        assert f"'{source}' is not a folder" in done.stderr
