"""Where sessions run: the choice, what is said where CUDA is missing, and bound runs."""

import sys
from pathlib import Path

import numpy as np
import pytest
import tiny

from attenuator import ops
from attenuator.bundle import MODEL
from attenuator.errors import BundleError, DeviceUnavailable, OperatorLibraryMissing
from attenuator.runtime import CPU, Device, Model, Row, choose, load, session
from attenuator.runtime import device as devices
from attenuator.runtime.batch import pack
from attenuator.runtime.check import check_bundle
from attenuator.runtime.trial import attempt

GPU = Device("cuda", 0)
LOG = "2026-01-01 00:00:00.0 [E:onnxruntime:Default, provider_bridge_ort.cc:2458 operator()] "
LOAD = "FAIL : Failed to load library /x/libonnxruntime_providers_cuda.so with error: "
GONE = ": cannot open shared object file: No such file or directory"
# what the trial says, what ONNX Runtime logs, words of the reason
REASONS = {
    "no driver": (f"libcuda.so.1{GONE}", "", "libcuda.so.1 of the NVIDIA driver is missing"),
    "no cuBLAS": ("", f"{LOG}{LOAD}libcublasLt.so.13{GONE}\n", f"libcublasLt.so.13 is missing: {devices.INSTALLED_BY}"),
    "no cuDNN": ("", f"{LOG}{LOAD}libcudnn.so.9{GONE}\n", f"libcudnn.so.9 is missing: {devices.INSTALLED_BY}"),
    "driver too old": (
        "[ONNXRuntimeError] : 1 : FAIL : CUDA failure 35: CUDA driver version is insufficient for CUDA runtime "
        "version ; GPU=0 ; hostname=h",
        "",
        "CUDA says 'CUDA driver version is insufficient for CUDA runtime version'",
    ),
    "no such device": ("", f"{LOG}CUDA failure 101: invalid device ordinal ; GPU=7 ;\n", "'invalid device ordinal'"),
    "other log": ("", f"{LOG}first\n{LOG}something else broke\n", "something else broke"),
    "other error": ("the operator library has no kernel of SequencePool", f"{LOG}noise\n", "no kernel of SequencePool"),
    "nothing said": ("", "", "gave no reason"),
}


@pytest.mark.parametrize("case", REASONS.values(), ids=REASONS)
def test_what_is_missing_is_named(case: tuple[str, str, str]) -> None:
    error, stderr, phrase = case
    reason = devices.explained(error, stderr)
    assert phrase in reason
    assert "\n" not in reason
    assert len(reason) < 320


def test_trial_imports_nothing_from_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "numpy.py").write_text("raise SystemExit(3)\n")
    monkeypatch.chdir(tmp_path)
    assert devices.trial(Device("cuda", 255)) != "the process that tried an operator on it ended with code 3"


@pytest.mark.parametrize("setting", ["cpu", "cuda", "auto"])
@pytest.mark.parametrize("reason", [None, "libcublasLt.so.13 is missing"])
def test_choice(monkeypatch: pytest.MonkeyPatch, setting: devices.DeviceSetting, reason: str | None) -> None:
    tried: list[Device] = []
    monkeypatch.setattr(devices, "trial", lambda device: (tried.append(device), reason)[1])
    if setting == "cuda" and reason:
        with pytest.raises(DeviceUnavailable, match=r"^CUDA device 3 cannot be used: libcublasLt\.so\.13 is missing$"):
            choose(setting, 3)
        return
    choice = choose(setting, 3)
    assert choice.device == (CPU if setting == "cpu" or reason else Device("cuda", 3))
    assert tried == ([] if setting == "cpu" else [Device("cuda", 3)])
    assert setting != "auto" or (reason or "CUDA works") in choice.reason


@pytest.mark.parametrize("device", [CPU, Device("cuda", 0), Device("cuda", 11)])
def test_device_is_read_as_it_is_written(device: Device) -> None:
    assert devices.parse_device(str(device)) == device


def test_onnx_runtime_without_cuda_is_replaced_in_words_that_can_be_pasted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("onnxruntime.get_available_providers", lambda: ["CPUExecutionProvider"])
    reason = attempt(Device("cuda", 0)) or ""
    assert reason.endswith(f": in Attenuator's source folder run `pip uninstall onnxruntime`, then `{devices.INSTALL}`")


def test_cuda_that_is_hidden_cannot_be_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a machine with a GPU too: the driver then shows none."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    reason = devices.trial(Device("cuda", 0))
    assert reason is not None
    assert "Traceback" not in reason
    assert "\n" not in reason


def test_trial_that_dies_is_survived(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    program = tmp_path / "python"
    program.write_text("#!/bin/sh\nkill -SEGV $$\n")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    assert devices.trial(Device("cuda", 0)) == "the process that tried an operator on it ended with SIGSEGV"


def test_trials_model_runs_an_operator() -> None:
    assert attempt(CPU) is None


def test_session_that_fell_back_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "trial", lambda device: "libcudnn.so.9 is missing")
    devices.check_providers(["CUDAExecutionProvider", "CPUExecutionProvider"], Device("cuda", 0))
    with pytest.raises(DeviceUnavailable, match=r"cuda:0 on CPUExecutionProvider: libcudnn\.so\.9 is missing"):
        devices.check_providers(["CPUExecutionProvider"], Device("cuda", 0))


def test_operators_that_stay_behind_are_refused(bundles: dict[str, Path]) -> None:
    options = session.make_options()
    options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    placed = session.placed(session.open_session(str(bundles["yoso"] / MODEL), options, CPU))
    assert placed == {"YosoAttention": "CPUExecutionProvider", "SequencePool": "CPUExecutionProvider"}
    devices.check_assignment(placed, CPU, "lib.so")
    with pytest.raises(OperatorLibraryMissing, match=r"lib\.so has no kernel of \w+ for cuda: `pip install -C cmake"):
        devices.check_assignment(placed, Device("cuda", 0), "lib.so")
    with pytest.raises(BundleError, match="has QuantizeRows, which runs on the CPU alone; the device here is cuda:0"):
        devices.check_assignment({"QuantizeRows": "CPUExecutionProvider"}, Device("cuda", 0), "lib.so")


@pytest.mark.parametrize("kind", ["yoso", "mca", "softmax"])
def test_bound_run_gives_the_same_bits(models: dict[str, Model], bundles: dict[str, Path], kind: str) -> None:
    model = models[kind]
    draw = np.random.default_rng(2)
    ids = [draw.integers(0, len(tiny.VOCAB), length) for length in (5, 1, 60)]
    feeds = pack([Row(row, np.zeros_like(row), model.knobs.defaults(), 9) for row in ids], model.manifest)
    ort_session = session.create(bundles[kind] / MODEL)
    outputs = model.manifest.outputs
    plain = ort_session.run(outputs, feeds)
    bound = session.run_bound(ort_session, feeds, outputs, None, device=CPU)
    for one, other in zip(plain, bound, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
def test_half_precision_wants_cuda(bundles: dict[str, Path], tmp_path: Path, precision: str) -> None:
    folder = tiny.write(tmp_path / "half", "yoso")
    tiny.sign(folder, precision=precision)
    for run in (check_bundle, load, lambda folder: load(folder, check=False)):
        with pytest.raises(BundleError, match=f"precision {precision}, which runs on a CUDA device only"):
            run(folder)


def test_failing_run_writes_nothing_to_standard_error(
    models: dict[str, Model], bundles: dict[str, Path], capfd: pytest.CaptureFixture[str]
) -> None:
    ort_session = session.create(bundles["yoso"] / MODEL)
    ids = np.array([10**6])
    feeds = pack([Row(ids, ids * 0, {"num_hashes": 4})], models["yoso"].manifest)
    with pytest.raises(Exception, match="out of data bounds"):
        ort_session.run(["logits"], feeds)
    assert capfd.readouterr().err == ""


def test_operators_are_known_to_the_trial() -> None:
    assert {operator.name for operator in ops.OPERATORS} >= {"SequencePool"}
