"""The benchmark programs run, check what they time, and write what tables and plots read. No time is asserted."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
HEAD = {"machine", "isa", "baselines", "versions", "commit", "modified", "command", "load_average", "format_version"}
STATISTICS = {"median", "low", "high", "min", "max"}


def python(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Python in the benchmarks' folder: their modules have short names that others of this run have too."""
    command = [sys.executable, *arguments]
    return subprocess.run(command, cwd=BENCHMARKS, capture_output=True, text=True, timeout=300, check=False)


def bench(program: str, output: Path, *arguments: str) -> dict[str, Any]:
    done = python(program, "--seconds", "0", "--output", str(output), *arguments)
    assert done.returncode == 0, done.stderr
    written: dict[str, Any] = json.loads(output.read_text(encoding="utf-8"))
    assert set(written) >= HEAD
    return written


def assert_timed(contenders: dict[str, Any]) -> None:
    for contender in contenders.values():
        assert set(contender["cpu_us"]) == set(contender["wall_us"]) == STATISTICS
        assert contender["rounds"] >= 3
        assert 0 < contender["cpu_us"]["min"] <= contender["cpu_us"]["median"] <= contender["cpu_us"]["max"]


def test_operators_are_timed_beside_their_baselines(tmp_path: Path) -> None:
    sizes = ["--lengths", "64", "--num-hashes", "4", "8"]
    result = bench("operators.py", tmp_path / "o.json", "--isa", "avx2", "--sections", "attention", "memory", *sizes)
    assert (result["benchmark"], result["isa"]) == ("operators", "avx2")
    rows = {(row["n"], row["threads"]): row for row in result["attention"]}
    assert set(rows) == {(16, 1), (32, 1), (64, 1)}
    row = rows[64, 1]
    assert set(row["contenders"]) >= {"yoso m=4", "yoso m=8", "softmax", "mha", "attention23", "torch fp32"}
    assert_timed(row["contenders"])
    assert set(row["errors"]) == set(row["contenders"])
    assert row["best_exact"] in ("mha", "attention23")
    assert set(row["speed_up"]) == {"yoso m=4", "yoso m=8", "softmax"}
    assert set(rows[16, 1]["speed_up"]) == {"softmax"}
    assert result.get("memory", []) == []  # nothing that short


def test_models_are_timed_beside_fused_attention(tmp_path: Path) -> None:
    result = bench("models.py", tmp_path / "m.json", "--shapes", "lra", "--lengths", "96", "--num-hashes", "8")
    [row] = result["models"]
    assert set(row["contenders"]) == {"yoso m=8", "softmax", "mha", "attention23", "free attention"}
    assert_timed(row["contenders"])
    assert set(row["over_softmax"]) == {"yoso m=8", "free attention"}
    assert row["best_fused"] in ("mha", "attention23")
    assert set(row["errors"]) == {"yoso m=0", "mha", "attention23"}
    assert result["shapes"]["lra"]["hidden"] == 64


def test_a_wrong_result_stops_the_program() -> None:
    program = """
import numpy as np, cases, inputs, nodes
packed = inputs.gaussian([40], 12, 64)
right = nodes.yoso(packed.query, packed.key, packed.value, packed.cu_seqlens, 8, 12, 8).result()["output"]
cases.checked("yoso", inputs.error_of_yoso(packed, right, 8, 8))
for wrong in (right[::-1], right * 1.01, right * np.nan):
    try:
        cases.checked("yoso", inputs.error_of_yoso(packed, wrong, 8, 8))
    except SystemExit as stopped:
        print(stopped)
"""
    done = python("-c", program)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("yoso differs from the reference") == 3


def test_peak_memory_is_that_of_the_call() -> None:
    # Attention of opset 23 keeps the scores: 12 heads, 1024 * 1024 floats, 48 MiB.
    done = python("peak_memory.py", "attention23", "--length", "1024")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["first_call_mib"] == pytest.approx(48, rel=0.25)


def test_plots_are_drawn_from_the_committed_results(tmp_path: Path) -> None:
    done = python("plots.py", "--output", str(tmp_path))
    assert done.returncode == 0, done.stderr
    drawn = {path.name for path in tmp_path.iterdir()}
    assert drawn == {path.name for path in (BENCHMARKS / "results").glob("*.svg")}
    assert "speed_up.svg" in drawn
