"""ONNX Runtime sessions: the options every session of the product shares.

Batch invariance rests on them: weights stay prepacked (a GEMM whose weight is not prepacked gives a row other bits
when its neighbours change), and the graph holds no other GEMM.
"""

import os
from pathlib import Path

import numpy as np
import onnxruntime as ort

from attenuator import ops

SILENT = 4  # ORT's severity FATAL: what goes wrong is raised, and one sentence is enough


class Cancellation:
    """Stops a run that is under way, between two nodes of the graph; safe to call from another thread."""

    def __init__(self) -> None:
        self.options = ort.RunOptions()
        self.options.log_severity_level = SILENT

    def cancel(self) -> None:
        """Makes the run that was given this object raise soon."""
        self.options.terminate = True


def cpu_count() -> int:
    """CPU cores that this process may use."""
    return len(os.sched_getaffinity(0))


def create(
    model_path: Path | str, *, library: bool = True, threads: int | None = None, arena: bool = True
) -> ort.InferenceSession:
    """Creates a session on the CPU.

    Args:
        model_path: `model.onnx`; external data is looked for beside it.
        library: registers the operators' shared library. Without it ORT runs the exact ONNX functions that export
            attached, which ignore knobs.
        threads: threads inside one run; every core this process may use by default.
        arena: keeps freed activation memory for the next run.

    Returns:
        An `onnxruntime.InferenceSession`, safe to run from several threads at once.

    Raises:
        OperatorLibraryMissing: the library is asked for and not built.
        Exception: whatever ONNX Runtime raises on a model that it refuses.
    """
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
    if library:
        ops.register(options)
    return ort.InferenceSession(str(model_path), options, providers=["CPUExecutionProvider"])


def run(
    session: ort.InferenceSession,
    feeds: dict[str, np.ndarray],
    outputs: list[str],
    cancellation: Cancellation | None = None,
) -> list[np.ndarray]:
    """One run; see `InferenceSession.run`.

    Args:
        session: what `create` gave.
        feeds: array by graph input.
        outputs: names of the wanted graph outputs.
        cancellation: stops the run from another thread.

    Returns:
        One array an output.
    """
    options = (cancellation or Cancellation()).options
    return list(session.run(outputs, feeds, options))
