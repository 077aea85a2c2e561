"""The benchmark programs for CUDA as far as they go without a device: contenders and checks run on the CPU in fp32."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
PROGRAMS = ("cuda_operators.py", "cuda_models.py")


def python(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Python in the benchmarks' folder."""
    command = [sys.executable, *arguments]
    return subprocess.run(command, cwd=BENCHMARKS, capture_output=True, text=True, timeout=300, check=False)


def has_cuda() -> bool:
    done = python("-c", "from attenuator.runtime.device import choose; choose('cuda')")
    return done.returncode == 0


@pytest.mark.parametrize("program", PROGRAMS)
def test_help_needs_no_device(program: str) -> None:
    done = python(program, "--help")
    assert done.returncode == 0, done.stderr
    assert "--device-id" in done.stdout


@pytest.mark.parametrize("program", PROGRAMS)
def test_without_a_device_one_sentence_says_why(program: str, tmp_path: Path) -> None:
    if has_cuda():
        pytest.skip("a CUDA device is here")
    done = python(program, "--output", str(tmp_path / "r.json"))
    assert done.returncode == 1
    assert done.stderr.startswith("benchmarks: CUDA device 0 cannot be used: ")
    assert len(done.stderr.strip().splitlines()) == 1
    assert not list(tmp_path.iterdir())


def test_settings_cover_lengths_hashes_and_batches() -> None:
    program = """
import json, cuda_attention as a
print(json.dumps([list(s) for s in a.settings(("bf16", "fp16"), a.LENGTHS, a.BATCHES)]))
print(json.dumps([a.LENGTHS, a.NUM_HASHES]))
"""
    done = python("-c", program)
    assert done.returncode == 0, done.stderr
    found, (lengths, hashes) = (json.loads(line) for line in done.stdout.splitlines())
    assert (min(lengths), max(lengths)) == (512, 65536)
    assert (min(hashes), max(hashes)) == (8, 64)
    assert len(found) == len({tuple(setting) for setting in found})
    for precision in ("bf16", "fp16"):
        assert [n for kind, n, batch in found if (kind, batch) == (precision, 1)] == lengths
        large = {n: batch for kind, n, batch in found if kind == precision and batch > 1}
        assert {n * batch for n, batch in large.items()} == {65536}
        assert set(large) == set(lengths) - {65536}


ROWS = """
import json, cuda_attention as a, cuda_projection as p
from cuda_device import Place
from timing import cpu_sampler
p.LENGTH = 48
limits = {"copy_gb_s": 10.0, "bf16_tflop_s": 1.0, "fp16_tflop_s": 1.0, "fp32_tflop_s": 1.0, "int8_top_s": 1.0,
          "shared_gb_s": 100.0}
sampler = cpu_sampler(1)
settings = [a.Setting("fp32", n, batch) for n, batch in ((48, 1), (64, 1), (48, 2))]
attention = [a.run(Place(), setting, [8, 32], 0.0, sampler, limits) for setting in settings]
projection = [p.run(Place(), "fp32", 2, 0.0, sampler, (0.0, 0.4))]
card = {"name": "TEST CARD", "compute_capability": "0.0", "driver": "0", "cuda": "0"}
head = {"card": card, "versions": {"torch": "0", "onnxruntime": "0"}, "commit": "0" * 40, "modified": False}
result = head | {"limits": [limits], "attention": attention, "projection": projection}
"""


def test_contenders_are_checked_timed_and_tabulated() -> None:
    program = (
        ROWS
        + """
import cuda_tables
print(json.dumps(result))
print("----")
print("\\n\\n".join(cuda_tables.parts({"TEST CARD": result}, {})))
"""
    )
    done = python("-c", program)
    assert done.returncode == 0, done.stderr
    text, _, told = done.stdout.partition("----\n")
    result = json.loads(text)
    row = result["attention"][0]
    assert {"yoso m=8", "yoso m=32", "softmax", "ort mha", "ort attention23"} <= set(row["contenders"])
    assert set(row["contenders"]) | set(row["refused"]) >= {"torch flash", "torch cudnn", "torch efficient"}
    assert all(reason for reason in row["refused"].values())
    assert set(row["errors"]) == set(row["contenders"])
    assert max(row["errors"].values()) < 1e-4
    assert set(row["speed_up"]) == {"yoso m=8", "yoso m=32", "softmax"}
    assert row["best_exact"] not in row["speed_up"]
    for contender in row["contenders"].values():
        assert set(contender) == {"device_us", "wall_us", "rounds", "repeats"}
    assert set(row["share_of_limits"]["yoso m=8"]) == {"memory_gb_s", "hash_top_s", "table_gb_s"}
    assert set(row["share_of_limits"]["ort mha"]) == {"memory_gb_s", "tflop_s"}
    exact, sampled = result["projection"][0]["settings"]
    assert exact["value_flops"] == 1 > sampled["value_flops"]
    assert "m=8, fp32, one sequence" in told
    assert "65,536 tokens" in told
    assert "TEST CARD" in told


def test_rates_are_those_of_the_work() -> None:
    program = """
import json, cuda_attention as a
from timing import Timing
second = Timing((1e6,), (1e6,), 1, "device")
setting = a.Setting("bf16", 1024, 2)
print(json.dumps([a.rates(setting, "torch flash", second), a.rates(setting, "yoso m=32", second)]))
"""
    done = python("-c", program)
    assert done.returncode == 0, done.stderr
    exact, yoso = json.loads(done.stdout)
    tokens, channels = 2048, 768
    assert exact["tflop_s"] == pytest.approx(4 * tokens * 1024 * channels / 1e12)
    assert exact["memory_gb_s"] == yoso["memory_gb_s"] == pytest.approx(4 * tokens * channels * 2 / 1e9)
    assert yoso["hash_top_s"] == pytest.approx(4 * tokens * 32 * 8 * channels / 1e12)
    assert yoso["table_gb_s"] == pytest.approx(12 * tokens * 32 * channels / 1e9)


def test_bundles_run_with_mixed_knobs() -> None:
    program = """
import json, cuda_models as m
from attenuator.runtime import load
model = load(m.BUNDLES / "reviews")
print(json.dumps(m.measured(model, model, 64, 5, 0.0)))
"""
    done = python("-c", program)
    assert done.returncode == 0, done.stderr
    row = json.loads(done.stdout)
    assert set(row["contenders"]) == {"exact", "mixed", "mixed, CPU", *(f"num_hashes={m}" for m in (8, 16, 32, 64))}
    assert set(row["over_exact"]) == set(row["contenders"]) - {"exact", "mixed, CPU"}
    assert row["errors"] == {"exact, CPU": 0.0, "exact, alone": 0.0}
    assert len(row["lengths"]) == 5
    assert max(row["lengths"]) == 64


def test_encoders_run_with_every_attention() -> None:
    program = """
import json, cuda_encoders as e
from cuda_device import Place
from graphs import Shape
from timing import cpu_sampler
models = e.DeviceModels(Place(), Shape("tiny", "", 1, 64, 2, 128), "fp32")
print(json.dumps(e.run(models, 48, 0.0, cpu_sampler(1))))
"""
    done = python("-c", program)
    assert done.returncode == 0, done.stderr
    row = json.loads(done.stdout)
    own = {"yoso m=16", "yoso m=32", "free attention"}
    assert set(row["contenders"]) == own | {"softmax", "mha", "attention23"}
    assert set(row["over_exact"]) == own
    assert set(row["errors"]) == {"yoso m=0", "softmax", "mha", "attention23"}
    assert max(row["errors"].values()) < 1e-4


def test_half_precision_graphs_are_traced() -> None:
    program = """
import pathlib, tempfile, graphs, torch
from onnx import TensorProto
model = graphs.Shape("tiny", "", 1, 64, 2, 128).model().half()
graph = graphs.traced(model, pathlib.Path(tempfile.mkdtemp()) / "m.onnx")
large = {tensor.data_type for tensor in graph.graph.initializer if len(tensor.dims) == 2}
print(large == {TensorProto.FLOAT16})
"""
    done = python("-c", program)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "True"


def test_a_card_is_drawn(tmp_path: Path) -> None:
    program = (
        ROWS
        + f"""
import cuda_plots, matplotlib, pathlib
matplotlib.use("svg")
cuda_plots.speed_up(result, pathlib.Path({str(tmp_path / "card.svg")!r}))
"""
    )
    done = python("-c", program)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "card.svg").stat().st_size > 1000
