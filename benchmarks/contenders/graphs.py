"""Whole models as graphs: one traced with YOSO attention, and the same with something else in attention's place."""

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import torch
from onnx import helper

from attenuator.export.architectures import architecture_of
from attenuator.export.encoder import Encoder, EncoderConfig
from attenuator.export.families import OWN_ENCODER
from attenuator.export.selection import NONE
from attenuator.export.trace import PackedClassifier, trace
from attenuator.ops import DOMAIN
from benchmarks.contenders.nodes import is_yoso, set_attribute

Array = np.ndarray[Any, Any]
# What an int8 graph has beside those of its fp32 form.
INT8_OPERATORS = ("dequantize_product", "quantize_rows", "requantize_product")


@dataclass(frozen=True)
class Shape:
    """Size of an encoder.

    Attributes:
        name: in result files.
        source: where the size comes from.
        layers: encoder layers.
        hidden: embedding channels.
        heads: attention heads.
        feed_forward: channels between the two layers of the feed-forward part.
        norm: `pre` or `post`.
    """

    name: str
    source: str
    layers: int
    hidden: int
    heads: int
    feed_forward: int
    norm: str = "pre"

    def model(self, attention: str = "yoso", conv_size: int = 0) -> Encoder:
        """An untrained encoder with mean pooling, its weights large enough that attention is not flat.

        Args:
            attention: `yoso` or `softmax`; the weights are the same.
            conv_size: of YOSO-C's convolution; 0 is YOSO.
        """
        torch.manual_seed(0)
        config = EncoderConfig(
            vocab_size=4096,
            hidden_size=self.hidden,
            num_hidden_layers=self.layers,
            num_attention_heads=self.heads,
            intermediate_size=self.feed_forward,
            attention=attention,  # type: ignore[arg-type]
            conv_size=conv_size,
            norm=self.norm,  # type: ignore[arg-type]
            pooling="mean",
            max_tokens=8192,
        )
        model = Encoder(config)
        for module in model.modules():
            if isinstance(module, torch.nn.Linear):
                torch.nn.init.normal_(module.weight, std=module.in_features**-0.5)
        return model.eval()


PAPER = "Zeng et al., ICML 2021, appendix"
SHAPES = {
    "paper": Shape("paper", f"{PAPER}, efficiency tables", 6, 256, 4, 1024),
    "lra": Shape("lra", f"{PAPER}, hyperparameters of Long Range Arena", 2, 64, 2, 128),
    "bert": Shape("bert", "Devlin et al., NAACL 2019, one layer of BERT-base", 1, 768, 12, 3072, "post"),
}


def traced(model: Encoder, path: Path, attention: str = "yoso") -> onnx.ModelProto:
    """The packed graph as `attenuator export` makes it, without the fallback functions.

    Args:
        model: from `Shape.model`.
        path: a file to write in between.
        attention: key of the operator that computes attention.
    """
    # Attention is what is compared: every row goes through every layer.
    classifier = PackedClassifier(architecture_of(OWN_ENCODER), model, attention, {}, schedule=NONE)
    ir.save(trace(classifier), path)
    return onnx.load(path)


Swap = Callable[[Any, int], list[Any]]


def swapped(model: onnx.ModelProto, swap: Swap) -> onnx.ModelProto:
    """The model with other nodes in the place of each YosoAttention node.

    Args:
        model: from `traced`.
        swap: from a node and its index to the nodes that take its place.

    Returns:
        A copy, without the inputs that nothing takes any more.
    """
    changed = copy.deepcopy(model)
    old = list(changed.graph.node)
    del changed.graph.node[:]
    for index, node in enumerate(old):
        changed.graph.node.extend(swap(node, index) if is_yoso(node) else [node])
    used = {name for node in changed.graph.node for name in node.input}
    kept = [value for value in changed.graph.input if value.name in used]
    del changed.graph.input[:]
    changed.graph.input.extend(kept)
    opsets = {opset.domain: opset.version for opset in changed.opset_import} | {"": 23, "com.microsoft": 1}
    del changed.opset_import[:]
    changed.opset_import.extend(helper.make_opsetid(domain, version) for domain, version in opsets.items())
    changed.ir_version = 11
    return changed


def with_attribute(model: onnx.ModelProto, name: str, value: int | str) -> onnx.ModelProto:
    """A copy of a YOSO graph whose nodes have another value of an attribute, such as `hash_bits`."""
    changed = copy.deepcopy(model)
    for node in changed.graph.node:
        if is_yoso(node):
            set_attribute(node, name, value)
    return changed


def int8(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy whose linear layers compute in int8, as `attenuator export --precision int8` makes it."""
    from attenuator.export.int8 import quantise

    changed = ir.serde.deserialize_model(model)
    quantise(changed)
    return ir.serde.serialize_model(changed)


def num_heads(node: Any) -> int:
    """Attention heads of a YosoAttention node."""
    return int(next(item.i for item in node.attribute if item.name == "num_heads"))


def packed_softmax(node: Any, _: int) -> list[Any]:
    """SoftmaxAttention of this project."""
    return [helper.make_node("SoftmaxAttention", node.input[:4], node.output, domain=DOMAIN, num_heads=num_heads(node))]


def fused(op_type: str, domain: str, head_attributes: Sequence[str]) -> Swap:
    """A fused attention node of ONNX Runtime over the whole input as one sequence `[1, T, hidden]`."""

    def swap(node: Any, index: int) -> list[Any]:
        batched = [f"batched_{index}_{name}" for name in ("query", "key", "value", "output")]
        axes = f"axes_{index}"
        attributes: dict[str, Any] = dict.fromkeys(head_attributes, num_heads(node))
        return [
            helper.make_node("Constant", [], [axes], value_ints=[0]),
            *(helper.make_node("Unsqueeze", [node.input[i], axes], [batched[i]]) for i in range(3)),
            helper.make_node(op_type, batched[:3], batched[3:], domain=domain, **attributes),
            helper.make_node("Squeeze", [batched[3], axes], node.output),
        ]

    return swap


def free(node: Any, _: int) -> list[Any]:
    """Attention that costs nothing: the values as they are, plus what keeps the other projections from being pruned."""
    total = f"{node.output[0]}_sum"
    return [
        helper.make_node("Add", node.input[:2], [total]),
        helper.make_node("Add", [total, node.input[2]], node.output),
    ]


def padded(node: Any, index: int) -> list[Any]:
    """ONNX Runtime's MultiHeadAttention over a padded batch with its mask; see `padded_graph`."""
    batched = [f"batched_{index}_{name}" for name in ("query", "key", "value", "output")]
    names = [*batched[:3], "", "lengths"]
    return [
        *(helper.make_node("Reshape", [node.input[i], "grid"], [batched[i]]) for i in range(3)),
        helper.make_node("MultiHeadAttention", names, batched[3:], domain="com.microsoft", num_heads=num_heads(node)),
        helper.make_node("Reshape", [batched[3], "rows"], node.output),
    ]


def padded_graph(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model over a padded batch, as servers without packed batches run it.

    Further inputs: `lengths` int32 `[B]` for the mask, `grid` int64 `[3]` with B, longest and hidden. Its rows are
    B * longest; its `cu_seqlens` goes from each sequence to its padding and on to the next sequence, so that pooling
    leaves padding out, and every other row of its logits is padding's.
    """
    changed = swapped(model, padded)
    rows = helper.make_node("Constant", [], ["rows"], value_ints=[-1, hidden_size(model)])
    changed.graph.node.insert(0, rows)
    changed.graph.input.extend(
        [
            helper.make_tensor_value_info("lengths", onnx.TensorProto.INT32, ["batch"]),
            helper.make_tensor_value_info("grid", onnx.TensorProto.INT64, [3]),
        ]
    )
    return changed


def hidden_size(model: onnx.ModelProto) -> int:
    """Channels of the classifier's input."""
    weight = next(tensor for tensor in model.graph.initializer if "classifier.weight" in tensor.name)
    return int(max(weight.dims))


SWAPS: dict[str, Swap] = {
    "softmax": packed_softmax,
    "mha": fused("MultiHeadAttention", "com.microsoft", ("num_heads",)),
    "attention23": fused("Attention", "", ("q_num_heads", "kv_num_heads")),
    "free attention": free,
}
