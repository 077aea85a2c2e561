"""PyTorch's exporter without what it does again for each of the many tiny models that one process exports."""

import functools

import torch._export.utils
from torch.onnx._internal.exporter._registration import ONNXRegistry

__all__ = ["remember"]


def remember() -> None:
    """Lets PyTorch read its table of ONNX functions and its list of operators once, in place of once an export.

    Both are the same for each export of a process, and cost a third of the export of a tiny model. What
    `attenuator export` does in a process of its own (tests/export/test_command.py) is PyTorch's alone.
    """
    registry_of = functools.cache(ONNXRegistry.from_torchlib)

    def copied(**options: int) -> ONNXRegistry:
        registry, whole = ONNXRegistry(), registry_of(**options)
        registry._opset_version = whole._opset_version
        # An export adds functions of its own to these lists.
        registry.functions = {target: list(functions) for target, functions in whole.functions.items()}
        return registry

    ONNXRegistry.from_torchlib = staticmethod(copied)
    torch._export.utils._materialize_cpp_cia_ops = functools.cache(torch._export.utils._materialize_cpp_cia_ops)
