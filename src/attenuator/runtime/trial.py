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
from attenuator.runtime import wire
from attenuator.runtime.device import INSTALL, PROVIDERS, Device, check_assignment
from attenuator.runtime.wire import content_field, number_field

FLOAT, INT32 = 1, 6


def pool_model() -> bytes:
    """An ONNX model: SequencePool of hidden float `[2, 1]` and cu_seqlens int32 `[2]`; output float `[1, 1]`."""

    def message(*fields: tuple[int, bytes | int]) -> bytes:
        return b"".join(
            number_field(key, value) if isinstance(value, int) else content_field(key, value) for key, value in fields
        )

    def tensor(name: bytes, element: int, *dims: int) -> bytes:
        shape = message(*((wire.SHAPE_DIM, message((wire.DIM_VALUE, size))) for size in dims))
        kind = message((wire.TENSOR_TYPE_ELEMENT, element), (wire.TENSOR_TYPE_SHAPE, shape))
        return message((wire.VALUE_NAME, name), (wire.VALUE_TYPE, message((wire.TYPE_TENSOR, kind))))

    domain = DOMAIN.encode()
    ends = [(wire.NODE_INPUT, b"hidden"), (wire.NODE_INPUT, b"cu_seqlens"), (wire.NODE_OUTPUT, b"output")]
    graph = message(
        (wire.GRAPH_NODE, message(*ends, (wire.NODE_OP_TYPE, b"SequencePool"), (wire.NODE_DOMAIN, domain))),
        (wire.GRAPH_NAME, b"trial"),
        (wire.GRAPH_INPUT, tensor(b"hidden", FLOAT, 2, 1)),
        (wire.GRAPH_INPUT, tensor(b"cu_seqlens", INT32, 2)),
        (wire.GRAPH_OUTPUT, tensor(b"output", FLOAT, 1, 1)),
    )
    opsets = [
        (wire.MODEL_OPSET, message((wire.OPSET_DOMAIN, name), (wire.OPSET_VERSION, version)))
        for name, version in ((b"", 17), (domain, 1))
    ]
    return message((wire.MODEL_IR, 8), (wire.MODEL_GRAPH, graph), *opsets)


def attempt(device: Device) -> str | None:
    """Creates a session on the device and runs it.

    Args:
        device: where.

    Returns:
        None where it gave the right result on the device, else the reason; an empty text where only ONNX Runtime's log
        has the reason.
    """
    import onnxruntime as ort

    from attenuator.runtime import session as sessions

    if device.kind == "cuda":
        if "CUDAExecutionProvider" not in ort.get_available_providers():
            return (
                "the installed ONNX Runtime has no CUDA: in Attenuator's source folder run "
                f"`pip uninstall onnxruntime`, then `{INSTALL}`"
            )
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
    [pooled] = sessions.run_bound(session, {"hidden": hidden, "cu_seqlens": ends}, ["output"], device=device)
    return None if pooled.tolist() == [[3.0]] else f"SequencePool gave {pooled.tolist()}, must be [[3.0]]"


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
