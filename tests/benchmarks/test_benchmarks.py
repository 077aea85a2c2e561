"""The benchmark programs run, check what they time, and write what tables and plots read. No time is asserted."""

import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from benchmarks.contenders import inputs, nodes, projection
from benchmarks.contenders.graphs import SHAPES
from benchmarks.measure import cases, program, record
from benchmarks.models import __main__ as models
from benchmarks.report import drawing, plots, results_files
from matplotlib import pyplot

ROOT = Path(__file__).resolve().parents[2]
HEAD = {"machine", "isa", "baselines", "versions", "commit", "modified", "command", "load_average", "format_version"}
RESULT = HEAD | {"benchmark", "seconds"}
STATISTICS = {"median", "low", "high", "min", "max"}


def python(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)


def bench(name: str, output: Path, *arguments: str) -> dict[str, Any]:
    done = python("-m", f"benchmarks.{name}", "--seconds", "0", "--output", str(output), *arguments)
    assert done.returncode == 0, done.stderr
    return written_in(output)


def written_in(output: Path) -> dict[str, Any]:
    written: dict[str, Any] = json.loads(output.read_text(encoding="utf-8"))
    assert set(written) >= RESULT
    assert not list(output.parent.glob("*.partial"))
    return written


def supported() -> list[str]:
    """Instruction sets this processor can be restricted to."""
    return list(results_files.ISAS[results_files.ISAS.index(record.isa()) :])


def assert_timed(contenders: dict[str, Any]) -> None:
    for contender in contenders.values():
        assert set(contender["cpu_us"]) == set(contender["wall_us"]) == STATISTICS
        assert contender["rounds"] >= 3
        assert 0 < contender["cpu_us"]["min"] <= contender["cpu_us"]["median"] <= contender["cpu_us"]["max"]


@pytest.mark.parametrize("isa", ["avx2", "avx512"])
def test_operators_are_timed_beside_their_baselines(isa: str, tmp_path: Path) -> None:
    if isa not in supported():
        pytest.skip(f"this processor has no {isa}")
    sizes = ["--lengths", "64", "--num-hashes", "8", "32"]
    result = bench("operators", tmp_path / "o.json", "--isa", isa, "--sections", "attention", "memory", *sizes)
    assert (result["benchmark"], result["isa"]) == ("operators", isa)
    rows = {(row["n"], row["threads"]): row for row in result["attention"]}
    assert set(rows) == {(16, 1), (32, 1), (64, 1), (64, 2)}
    row = rows[64, 1]
    ours = {"yoso m=8", "yoso m=32", "yoso-c m=32", "softmax"}
    assert set(row["contenders"]) == ours | {"mha", "attention23", "torch fp32", "torch bf16"}
    assert_timed(row["contenders"])
    assert set(row["errors"]) == set(row["contenders"])
    assert row["best_exact"] in ("mha", "attention23")
    assert set(row["speed_up"]) == set(row["speed_up_wall"]) == ours
    assert set(rows[16, 1]["speed_up"]) == {"softmax"}
    assert set(rows[64, 2]["speed_up"]) == ours
    assert result.get("memory", []) == []  # nothing that short


def test_the_value_projection_is_timed_beside_a_dense_one() -> None:
    row = projection.run(64, 0, 0.5, seconds=0.0)
    exact, *others = row["settings"]
    assert (exact["alpha"], exact["value_flops"]) == (0, 1)
    assert min(setting["value_flops"] for setting in others) < 0.6
    assert all({"projection", "whole", "whole_by_ort"} <= set(setting) for setting in row["settings"])


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Every section of `python -m benchmarks.models` in this process: the shapes' widths, few layers, short texts."""
    shapes = {name: replace(shape, layers=2 if name == "lra" else 1) for name, shape in SHAPES.items()}
    output = tmp_path_factory.mktemp("models") / "m.json"
    sizes = ["--shapes", "lra", "bert", "paper", "--lengths", "64", "--num-hashes", "8", "32", "--threads", "1"]
    with pytest.MonkeyPatch.context() as patch:
        for name, shape in shapes.items():
            patch.setitem(models.SHAPES, name, shape)
            patch.setitem(models.INT8_LENGTHS, name, (64,) if name == "lra" else ())
            patch.setitem(models.RAGGED, name, ("batch",) if name == "lra" else ())
        patch.setattr(models.attention, "ragged_lengths", lambda: {"batch": [3, 50, 17]})
        assert models.main(["--seconds", "0", "--output", str(output), *sizes]) == 0
    return written_in(output)


def test_models_are_timed_beside_fused_attention(measured: dict[str, Any]) -> None:
    row = measured["models"][0]
    own = {"yoso m=8", "yoso m=32", "yoso-c m=32", "free attention"}
    assert set(row["contenders"]) == own | {"softmax", "mha", "attention23"}
    assert_timed(row["contenders"])
    assert set(row["over_softmax"]) == set(row["over_softmax_wall"]) == own
    assert set(row["over_fused"]) == own | {"softmax"}
    assert row["best_fused"] in ("mha", "attention23")
    assert set(row["errors"]) == {"yoso m=0", "yoso-c m=0", "mha", "attention23"}
    assert measured["shapes"]["lra"]["hidden"] == 64


def test_mca_and_the_papers_bits_are_timed_in_whole_models(measured: dict[str, Any]) -> None:
    _, bert, paper = measured["models"]
    assert {name for name in bert["over_softmax"] if name.startswith("mca")} == {
        "mca alpha=0.2", "mca alpha=0.4", "mca alpha=1",
    }  # fmt: skip
    assert bert["errors"]["mca alpha=0"] < 1e-4
    assert "yoso m=32, log2(n) bits" in paper["over_softmax"]
    assert paper["errors"]["yoso, 6 bits m=0"] < 1e-4


def test_a_ragged_batch_runs_packed_and_padded_alike(measured: dict[str, Any]) -> None:
    [row] = measured["ragged"]
    assert row["errors"]["padded"] < 1e-4
    assert set(row["over_fused"]) == {"yoso m=8", "yoso m=32", "yoso-c m=32", "free attention", "softmax"}
    assert row["best_fused"] == "padded"
    assert row["lengths"] == [3, 50, 17]


def test_int8_models_are_timed_beside_fp32(measured: dict[str, Any]) -> None:
    [row] = measured["int8"]
    assert set(row["over_fp32"]) == {"softmax", "yoso m=16"}
    assert 0 < row["errors"]["int8 softmax"] < 0.25
    assert row["bytes"]["int8 yoso"] < row["bytes"]["yoso"]


def test_what_was_measured_before_an_interruption_is_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupted() -> Any:
        raise KeyboardInterrupt

    steps = [program.Step("rows", "first", lambda: {"n": 1}, 1.0), program.Step("rows", "second", interrupted, 1.0)]
    (tmp_path / "x.json").write_text("{}")
    assert program.measure({"benchmark": "x"}, tmp_path / "x.json", lambda: steps) == 130
    assert "stopped" in capsys.readouterr().err
    assert json.loads((tmp_path / "x.json.partial").read_text())["rows"] == [{"n": 1}]
    assert (tmp_path / "x.json").read_text() == "{}"  # a finished result stays
    again = [program.Step("rows", "first", interrupted, 1.0), program.Step("rows", "second", lambda: {"n": 2}, 1.0)]
    assert program.measure({"benchmark": "x"}, tmp_path / "x.json", lambda: again) == 0
    assert json.loads((tmp_path / "x.json").read_text())["rows"] == [{"n": 1}, {"n": 2}]


@pytest.mark.parametrize("other", [{"benchmark": "y"}, {"benchmark": "x", "commit": "later"}], ids=["name", "tree"])
def test_rows_of_another_command_or_tree_are_measured_again(tmp_path: Path, other: dict[str, Any]) -> None:
    first = {"benchmark": "x", "rows": [{"n": 1}], "seconds": 3.0}
    (tmp_path / "x.json.partial").write_text(json.dumps(first))
    assert program.earlier(tmp_path / "x.json.partial", {"benchmark": "x"}) == {"rows": [{"n": 1}]}
    assert program.earlier(tmp_path / "x.json.partial", other) == {}


@pytest.mark.parametrize(
    ("ratios", "expected"),
    [
        ([0.5, 0.5, 2.0, 4.0], 181.0),
        ([1.5, 2.0, 3.0, 4.0], 64.0),
        ([0.5, 2.0, 0.5, 2.0], 362.0),
        ([0.5, 0.5, 0.9, 0.99], None),
    ],
)
def test_crossover_is_the_length_from_which_it_stays_faster(ratios: list[float], expected: float | None) -> None:
    crossover = results_files.crossover([64, 128, 256, 512], ratios)
    assert crossover is None if expected is None else crossover == pytest.approx(expected, rel=0.01)


def test_a_wrong_result_stops_the_program() -> None:
    packed = inputs.gaussian([40], 12, 64)
    rows = (packed.query, packed.key, packed.value, packed.cu_seqlens)
    right = nodes.yoso(*rows, 8, 12, 8).result()["output"]
    cases.checked("yoso", inputs.error_of_yoso(packed, right, 8, 8))
    for wrong in (right[::-1], right * 1.01, right * np.nan):
        with pytest.raises(SystemExit, match="yoso differs from the reference"):
            cases.checked("yoso", inputs.error_of_yoso(packed, wrong, 8, 8))


def test_a_result_does_not_say_where_files_lie_on_the_machine(tmp_path: Path) -> None:
    arguments = [str(tmp_path / "checkpoint"), "--texts", "texts/test.jsonl", "--threads", "1"]
    command = record.origin(arguments, ())["command"]
    assert command.endswith(" checkpoint --texts texts/test.jsonl --threads 1")


def test_peak_memory_is_that_of_the_call() -> None:
    # Attention of opset 23 keeps the scores: 12 heads, 1024 * 1024 floats, 48 MiB.
    done = python("-m", "benchmarks.operators.peak_memory", "attention23", "--length", "1024")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["first_call_mib"] == pytest.approx(48, rel=0.25)


def test_plots_are_drawn_from_the_committed_results(tmp_path: Path) -> None:
    assert plots.main(["--output", str(tmp_path)]) == 0
    drawn = {path.name for path in tmp_path.iterdir()}
    assert drawn >= {"speed_up.svg", "projection.svg"}
    assert drawn == {path.name for path in (ROOT / "benchmarks" / "results").glob("*.svg")}
    for path in tmp_path.iterdir():
        ElementTree.parse(path)  # what is left of the drawing is still a picture


def test_a_plot_is_read_on_a_dark_page_too(tmp_path: Path) -> None:
    figure, axes = pyplot.subplots()
    axes.plot([0, 1], color=drawing.COLOURS[0], label="a line")
    axes.legend()
    drawing.save(figure, tmp_path / "plot.svg")
    sheet = ElementTree.parse(tmp_path / "plot.svg").find(".//{http://www.w3.org/2000/svg}style")
    assert sheet is not None
    light, _, dark = str(sheet.text).partition("@media (prefers-color-scheme: dark)")
    stated = re.findall(r"\.(s\d+)\{[^}]*?#(?:000000|ffffff|1f77b4)", light)
    assert len(stated) > 3
    assert set(stated) <= set(re.findall(r"\.(s\d+)\{", dark))
    assert not re.search("#000000|#ffffff|#1f77b4", dark)
    assert "text{fill: " in dark
