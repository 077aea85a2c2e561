"""Exports of the many tiny models of one process, without what they would do again for each."""

import functools
import hashlib
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import onnx
import onnx_ir as ir
import pytest
import torch._export.utils
import torch.onnx
from checked import checked_here
from torch.onnx._internal.exporter._registration import ONNXRegistry

from attenuator.export import pipeline
from attenuator.export.trace import PackedClassifier

__all__ = ["remember", "trace_again"]

# Larger models are traced again: they are few, and their graphs would fill the memory of the process.
MOST_BYTES = 2**23


def remember() -> None:
    """Lets an export begin with what an earlier one of this process did, and end without a process of its own.

    * PyTorch reads its table of ONNX functions and its list of operators once: they cost a third of a tiny model's
      export.
    * The same model is traced once: with equal weights, configuration and choices its graph is the same.
    * The finished bundle is loaded as the server will load it, but in this process.

    What `attenuator export` does in a process of its own (tests/export/test_command.py) has none of this, and
    tests/runtime/test_damaged_bundles.py tests the process that checks.
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
    torch.onnx.export = traced_once(torch.onnx.export)
    pipeline.check_in_child = checked_here(pipeline.check_in_child)


def traced_once(export: Callable[..., Any]) -> Callable[..., Any]:
    """PyTorch's exporter, which traces each `PackedClassifier` once."""
    graphs: dict[str, bytes] = {}

    @functools.wraps(export)
    def traced(model: Any, *arguments: Any, **options: Any) -> Any:
        if not isinstance(model, PackedClassifier) or bytes_of(model) > MOST_BYTES:
            return export(model, *arguments, **options)
        key = identity(model)
        if key in graphs:
            return SimpleNamespace(model=ir.serde.deserialize_model(onnx.ModelProto.FromString(graphs[key])))
        program = export(model, *arguments, **options)
        graphs[key] = ir.serde.serialize_model(program.model).SerializeToString()
        return program

    return traced


def trace_again(patch: pytest.MonkeyPatch) -> None:
    """Has models traced that were traced before, until the patch is undone."""
    patch.setattr(torch.onnx, "export", torch.onnx.export.__wrapped__)  # type: ignore[attr-defined]


def bytes_of(classifier: PackedClassifier) -> int:
    """Of its weights."""
    return sum(tensor.nbytes for tensor in classifier.parameters())


def identity(classifier: PackedClassifier) -> str:
    """A digest of all that the classifier's graph follows from."""
    model = classifier.model
    config = model.config
    digest = hashlib.sha256()
    for each in classifier.modules():
        digest.update(f"{type(each).__module__} {type(each).__qualname__} {each.training}\n".encode())
    choices = (classifier.architecture, classifier.operator.key, classifier.attributes, classifier.selection)
    names = (classifier.inputs, classifier.outputs, classifier.merge, classifier.pooling, classifier.form)
    fields = config.to_dict() if hasattr(config, "to_dict") else vars(config)
    digest.update(repr((choices, names, sorted(fields.items(), key=lambda item: item[0]))).encode())
    # Buffers too that a checkpoint does not save.
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.detach().reshape(-1).contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
