"""ONNX Runtime sessions: the options every session of the product shares.

Batch invariance on the CPU rests on them: weights stay prepacked (a GEMM whose weight is not prepacked gives a row
other bits when its neighbours change), and the graph holds no other GEMM.
"""

import contextlib
import functools
import io
import os
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort

from attenuator import ops
from attenuator.bundle import MODEL
from attenuator.errors import AttenuatorError, BundleError, EngineError, printable
from attenuator.ops.spec import DOMAIN
from attenuator.runtime.device import CPU, PROVIDERS, Device, check_assignment, check_providers

SILENT = 4  # ORT's severity FATAL: what goes wrong is raised, and one sentence is enough
HOST_OPERATORS = {operator.name for operator in ops.OPERATORS if operator.host}
# Rows of the batch; all other inputs are read by the host, and the operators take them from its memory.
DEVICE_INPUTS = ("input_ids", "position_ids", "token_type_ids")
MAX_QUOTED = 300  # characters quoted from another program's message


def cpu_count() -> int:
    """CPU cores that this process may use."""
    return len(os.sched_getaffinity(0))


def open_model(
    files: Path, folder: Path, name: str = MODEL, *, device: Device = CPU, threads: int | None = None
) -> ort.InferenceSession:
    """Creates the session of one graph of a bundle.

    Args:
        files: holds the graph and its data.
        folder: what error sentences call the bundle.
        name: of the graph's file.
        device: where it runs.
        threads: as `create` takes them.

    Raises:
        BundleError: ONNX Runtime refuses the model.
        OperatorLibraryMissing: as `create` raises it.
        DeviceUnavailable: likewise.
    """
    try:
        return create(files / name, device=device, threads=threads)
    except AttenuatorError:
        raise
    except Exception as error:  # ONNX Runtime raises its own kinds and, when memory is short, RuntimeError
        reason = first_line(error).replace(str(files), str(folder))
        raise BundleError(f"bundle {folder}: {name} cannot be loaded: {reason}") from None


def create(
    model_path: Path | str,
    *,
    device: Device = CPU,
    library: bool = True,
    threads: int | None = None,
    arena: bool = True,
) -> ort.InferenceSession:
    """Creates a session.

    Args:
        model_path: `model.onnx`; external data is looked for beside it.
        device: where it runs, operators included.
        library: registers the operators' shared library. Without it ORT runs the exact ONNX functions that export
            attached, which ignore knobs.
        threads: threads inside one run; every core this process may use by default.
        arena: keeps freed activation memory of the host for the next run.

    Returns:
        An `onnxruntime.InferenceSession`, safe to run from several threads at once.

    Raises:
        OperatorLibraryMissing: `library` is set, but it is not built or has no kernels for the device.
        DeviceUnavailable: ONNX Runtime put the session elsewhere; says why.
        Exception: whatever ONNX Runtime raises on a model that it refuses.
    """
    if device.kind == "cuda":
        ort.set_default_logger_severity(SILENT)  # a session's own severity does not cover what its creation logs
    session = open_session(str(model_path), make_options(device, library=library, threads=threads, arena=arena), device)
    check_providers(session.get_providers(), device)
    if library and device.kind == "cuda":
        check_assignment(placed(session), device, str(ops.library_path()))
    return session


def make_options(
    device: Device = CPU, *, library: bool = True, threads: int | None = None, arena: bool = True
) -> ort.SessionOptions:
    """The options of `create`, operators registered."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads or cpu_count()
    options.inter_op_num_threads = 1
    options.execution_mode = ort.ExecutionMode.ORT_SEQUENTIAL
    options.log_severity_level = SILENT
    options.enable_cpu_mem_arena = arena
    options.enable_mem_pattern = False  # patterns are kept per input shape, and T differs in every batch
    options.add_session_config_entry("session.disable_prepacking", "0")
    # A thread that spins while it waits takes the core from the other lane, the tokenizer and the event loop.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    if device.kind == "cpu":  # where the fused node takes 2 to 3 times as long as Add and LayerNormalization
        options.add_session_config_entry("optimization.disable_specified_optimizers", "SkipLayerNormFusion")
    if device.kind == "cuda":
        options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    if library:
        ops.register(options)
    return options


def open_session(model: str | bytes, options: ort.SessionOptions, device: Device) -> ort.InferenceSession:
    """Opens a session, which ONNX Runtime may have put on the CPU whatever the device.

    Args:
        model: path or content of an ONNX file.
        options: of the session.
        device: where it should run.

    Returns:
        The session; it never changes its provider later.
    """
    providers: list[Any] = [PROVIDERS["cpu"]]
    if device.kind == "cuda":
        load_cuda_libraries()
        settings = {
            "device_id": device.index,
            # TF32 rounds the inputs of a product to 10 bits: fp32 bundles would miss their probe.
            "use_tf32": 0,
            # Every batch has another length: doubling would take the GPU's whole memory in time. Chunks of all
            # sizes do not pile up either: the warm-up runs the largest batch that serving forms, and the parts of
            # any other one fit into what that left free (argued, not measured on a GPU).
            "arena_extend_strategy": "kSameAsRequested",
        }
        providers.insert(0, (PROVIDERS["cuda"], settings))
    session = ort.InferenceSession(model, options, providers=providers, enable_fallback=0)
    session.disable_fallback()
    return session


@functools.cache
def load_cuda_libraries() -> None:
    """Loads CUDA and cuDNN from their wheels, where the loader would not look."""
    if hasattr(ort, "preload_dlls"):
        with contextlib.redirect_stdout(io.StringIO()):  # it prints what is missing; `device.trial` explains it better
            ort.preload_dlls(cuda=True, cudnn=True)


def placed(session: ort.InferenceSession) -> dict[str, str]:
    """Provider by operator name, of this product's operators in a session that recorded it.

    Host operators are left out: the CPU's provider is theirs in every session.
    Where an operator's nodes are on several providers, the one named is not the session's own.
    """
    providers: dict[str, str] = {}
    first = session.get_providers()[0]
    for group in session.get_provider_graph_assignment_info():
        for node in group.get_nodes():
            if (
                node.domain == DOMAIN
                and node.op_type not in HOST_OPERATORS
                and providers.get(node.op_type, first) == first
            ):
                providers[node.op_type] = group.ep_name
    return providers


def run_bound(
    session: ort.InferenceSession,
    feeds: dict[str, np.ndarray],
    outputs: list[str],
    options: ort.RunOptions | None = None,
    *,
    device: Device,
) -> list[np.ndarray]:
    """One run on a CUDA device with inputs and outputs bound to the memory that the graph wants them in.

    Token inputs are copied to the device once, however many nodes read them; knobs, seeds and cu_seqlens stay in host
    memory, where the operators read them without waiting for the device; outputs come to host memory.
    """
    binding = session.io_binding()
    for name, array in feeds.items():
        if name in DEVICE_INPUTS:
            binding.bind_ortvalue_input(name, ort.OrtValue.ortvalue_from_numpy(array, device.kind, device.index))
        else:
            binding.bind_cpu_input(name, array)
    for name in outputs:
        binding.bind_output(name, "cpu")
    session.run_with_iobinding(binding, options)
    return list(binding.copy_outputs_to_cpu())


def first_line(error: BaseException) -> str:
    """The first line of what an error says, cut to fit a sentence."""
    detail = error.detail if isinstance(error, EngineError) else None
    text = detail or str(error).strip() or type(error).__name__
    return printable(text.splitlines()[0], MAX_QUOTED)
