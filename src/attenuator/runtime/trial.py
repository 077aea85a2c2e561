"""Runs one operator on a CUDA device; the program of the child process that `device.trial` starts.

    python -m attenuator.runtime.trial DEVICE_ID

The last line of standard output is `{"ok": true}` or `{"error": sentence}`; what ONNX Runtime logs goes to standard
error, where alone it says which library it could not load.
"""

import contextlib
import ctypes
import json
import sys

import numpy as np

from attenuator import ops
from attenuator.errors import AttenuatorError
from attenuator.ops.spec import DOMAIN
from attenuator.runtime.device import BROUGHT_BY, PROVIDERS, Device, check_assignment
from attenuator.runtime.wire import (
    GRAPH_INPUT,
    GRAPH_NAME,
    GRAPH_NODE,
    GRAPH_OUTPUT,
    MODEL_GRAPH,
    MODEL_IR,
    MODEL_OPSET,
    NODE_DOMAIN,
    NODE_INPUT,
    NODE_OP_TYPE,
    NODE_OUTPUT,
    content_field,
    number_field,
)

FLOAT, INT32 = 1, 6


def pool_model() -> bytes:
    """An ONNX model: SequencePool of hidden float `[2, 1]` and cu_seqlens int32 `[2]`; output float `[1, 1]`."""

    def message(*fields: tuple[int, bytes | int]) -> bytes:
        return b"".join(
            number_field(key, value) if isinstance(value, int) else content_field(key, value) for key, value in fields
        )

    def tensor(name: bytes, element: int, *dims: int) -> bytes:
        shape = message(*((1, message((1, size))) for size in dims))
        return message((1, name), (2, message((1, message((1, element), (2, shape))))))

    domain = DOMAIN.encode()
    ends = [(NODE_INPUT, b"hidden"), (NODE_INPUT, b"cu_seqlens"), (NODE_OUTPUT, b"output")]
    graph = message(
        (GRAPH_NODE, message(*ends, (NODE_OP_TYPE, b"SequencePool"), (NODE_DOMAIN, domain))),
        (GRAPH_NAME, b"trial"),
        (GRAPH_INPUT, tensor(b"hidden", FLOAT, 2, 1)),
        (GRAPH_INPUT, tensor(b"cu_seqlens", INT32, 2)),
        (GRAPH_OUTPUT, tensor(b"output", FLOAT, 1, 1)),
    )
    opsets = [(MODEL_OPSET, message((1, name), (2, version))) for name, version in ((b"", 17), (domain, 1))]
    return message((MODEL_IR, 8), (MODEL_GRAPH, graph), *opsets)


def attempt(device: Device) -> str | None:
    """Creates a session on the device and runs it.

    Args:
        device: where.

    Returns:
        None where it gave the right result there; the reason where it did not; empty where ONNX Runtime's log has it.
    """
    import onnxruntime as ort

    from attenuator.runtime import session as sessions

    if device.kind == "cuda":
        if "CUDAExecutionProvider" not in ort.get_available_providers():
            return f"the installed ONNX Runtime has no CUDA: pip uninstall onnxruntime, then {BROUGHT_BY}"
        try:
            ctypes.CDLL("libcuda.so.1")
        except OSError as error:
            return str(error)
    with contextlib.redirect_stdout(sys.stderr):
        session = sessions.open_session(pool_model(), sessions.make_options(device, threads=1), device)
    if session.get_providers()[0] != PROVIDERS[device.kind]:
        return ""
    if device.kind == "cuda":
        check_assignment(sessions.placed(session), device, str(ops.library_path()))
    hidden = np.array([[3.0], [5.0]], dtype=np.float32)
    ends = np.array([0, 2], dtype=np.int32)
    [found] = sessions.run(session, {"hidden": hidden, "cu_seqlens": ends}, ["output"], device=device)
    return None if found.tolist() == [[3.0]] else f"an operator gave {found.tolist()} in place of [[3.0]]"


def main() -> int:
    """Tries the device named on the command line."""
    try:
        error = attempt(Device("cuda", int(sys.argv[1])))
    except AttenuatorError as raised:
        error = str(raised)
    except Exception as raised:  # whatever ONNX Runtime raises
        error = (str(raised).strip() or type(raised).__name__).splitlines()[0][:300]
    print(json.dumps({"ok": True} if error is None else {"error": error}))
    return 0 if error is None else 1


if __name__ == "__main__":
    sys.exit(main())
