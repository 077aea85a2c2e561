"""The benchmark programs for CUDA as far as they go without a device: contenders and checks run on the CPU in fp32."""

import json
import tempfile
from pathlib import Path
from typing import Any

import matplotlib
import pytest
from benchmarks.contenders import graphs
from benchmarks.cuda import attention, encoders, projection
from benchmarks.cuda import models as cuda_models
from benchmarks.cuda import operators as cuda_operators
from benchmarks.cuda.device import Place
from benchmarks.measure.timing import Timing, cpu_sampler
from benchmarks.report import cuda_plots, cuda_tables
from onnx import TensorProto

from attenuator.errors import AttenuatorError
from attenuator.runtime import load
from attenuator.runtime.device import choose

PROGRAMS = {"cuda_operators": cuda_operators.main, "cuda_models": cuda_models.main}


def has_cuda() -> bool:
    try:
        choose("cuda")
    except AttenuatorError:
        return False
    return True


@pytest.mark.parametrize("program", PROGRAMS)
def test_help_needs_no_device(program: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as done:
        PROGRAMS[program](["--help"])
    assert done.value.code == 0
    assert "--device-id" in capsys.readouterr().out


@pytest.mark.parametrize("program", PROGRAMS)
def test_without_a_device_one_sentence_says_why(program: str, tmp_path: Path) -> None:
    if has_cuda():
        pytest.skip("a CUDA device is here")
    with pytest.raises(SystemExit) as stopped:
        PROGRAMS[program](["--output", str(tmp_path / "r.json")])
    assert str(stopped.value).startswith("benchmarks: CUDA device 0 cannot be used: ")
    assert len(str(stopped.value).splitlines()) == 1
    assert not list(tmp_path.iterdir())


def test_settings_cover_lengths_hashes_and_batches() -> None:
    settings = list(attention.settings(("bf16", "fp16"), attention.LENGTHS, attention.BATCHES))
    lengths = list(attention.LENGTHS)
    assert (min(lengths), max(lengths)) == (512, 65536)
    assert (min(attention.NUM_HASHES), max(attention.NUM_HASHES)) == (8, 64)
    assert len(settings) == len(set(settings))
    for precision in ("bf16", "fp16"):
        assert [n for kind, n, batch in settings if (kind, batch) == (precision, 1)] == lengths
        large = {n: batch for kind, n, batch in settings if kind == precision and batch > 1}
        assert {n * batch for n, batch in large.items()} == {65536}
        assert set(large) == set(lengths) - {65536}


@pytest.fixture(scope="module")
def result() -> dict[str, Any]:
    """A result file's content, measured on the CPU with clocks of no meaning."""
    limits = {"copy_gb_s": 10.0, "bf16_tflop_s": 1.0, "fp16_tflop_s": 1.0, "fp32_tflop_s": 1.0, "int8_top_s": 1.0}
    limits["shared_gb_s"] = 100.0
    sampler = cpu_sampler(1)
    settings = [attention.Setting("fp32", n, batch) for n, batch in ((48, 1), (64, 1), (48, 2))]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(projection, "LENGTH", 48)
        rows = {
            "attention": [attention.run(Place(), setting, [8, 32], 0.0, sampler, limits) for setting in settings],
            "projection": [projection.run(Place(), "fp32", 2, 0.0, sampler, (0.0, 0.4))],
        }
    card = {"name": "TEST CARD", "compute_capability": "0.0", "driver": "0", "cuda": "0"}
    head = {"card": card, "versions": {"torch": "0", "onnxruntime": "0"}, "commit": "0" * 40, "modified": False}
    written: dict[str, Any] = json.loads(json.dumps(head | {"limits": [limits]} | rows))
    return written


def test_contenders_are_checked_timed_and_tabulated(result: dict[str, Any]) -> None:
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
    text = "\n\n".join(cuda_tables.parts({"TEST CARD": result}, {}))
    assert "m=8, fp32, one sequence" in text
    assert "65,536 tokens" in text
    assert "TEST CARD" in text


def test_rates_are_those_of_the_work() -> None:
    second = Timing((1e6,), (1e6,), 1, "device")
    setting = attention.Setting("bf16", 1024, 2)
    exact, yoso = (attention.rates(setting, name, second) for name in ("torch flash", "yoso m=32"))
    tokens, channels = 2048, 768
    assert exact["tflop_s"] == pytest.approx(4 * tokens * 1024 * channels / 1e12)
    assert exact["memory_gb_s"] == yoso["memory_gb_s"] == pytest.approx(4 * tokens * channels * 2 / 1e9)
    assert yoso["hash_top_s"] == pytest.approx(4 * tokens * 32 * 8 * channels / 1e12)
    assert yoso["table_gb_s"] == pytest.approx(12 * tokens * 32 * channels / 1e9)


def test_bundles_run_with_mixed_knobs() -> None:
    model = load(cuda_models.BUNDLES / "reviews", check=False)
    row = cuda_models.measured(model, model, 64, 5, 0.0)
    assert set(row["contenders"]) == {"exact", "mixed", "mixed, CPU", *(f"num_hashes={m}" for m in (8, 16, 32, 64))}
    assert set(row["over_exact"]) == set(row["contenders"]) - {"exact", "mixed, CPU"}
    assert row["errors"] == {"exact, CPU": 0.0, "exact, alone": 0.0}
    assert len(row["lengths"]) == 5
    assert max(row["lengths"]) == 64


def test_encoders_run_with_every_attention() -> None:
    models = encoders.DeviceModels(Place(), graphs.Shape("tiny", "", 1, 64, 2, 128), "fp32")
    row = encoders.run(models, 48, 0.0, cpu_sampler(1))
    own = {"yoso m=16", "yoso m=32", "free attention"}
    assert set(row["contenders"]) == own | {"softmax", "mha", "attention23"}
    assert set(row["over_exact"]) == own
    assert set(row["errors"]) == {"yoso m=0", "softmax", "mha", "attention23"}
    assert max(row["errors"].values()) < 1e-4


def test_half_precision_graphs_are_traced() -> None:
    model = graphs.Shape("tiny", "", 1, 64, 2, 128).model().half()
    with tempfile.TemporaryDirectory() as folder:
        graph = graphs.traced(model, Path(folder) / "m.onnx")
    large = {tensor.data_type for tensor in graph.graph.initializer if len(tensor.dims) == 2}
    assert large == {TensorProto.FLOAT16}


def test_a_card_is_drawn(result: dict[str, Any], tmp_path: Path) -> None:
    matplotlib.use("svg")
    cuda_plots.speed_up(result, tmp_path / "card.svg")
    assert (tmp_path / "card.svg").stat().st_size > 1000
