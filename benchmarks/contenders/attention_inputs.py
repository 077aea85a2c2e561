"""What attention gets: drawn at random, or as a trained model gives it to its own attention.

Every operator of attention can be run on it by the names of its inputs. Values come with the rows and the weights that
they are projected from, for operators that project them.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from onnx import helper, numpy_helper

from attenuator.bundle import MODEL
from attenuator.ops import DOMAIN, OPERATORS
from attenuator.ops.spec import Operator
from attenuator.ops.torch_op import overload
from attenuator.runtime import Row, create, load
from attenuator.runtime.batch import pack
from benchmarks.contenders.inputs import Array, clustered, correlated

BY_NAME = {operator.name: operator for operator in OPERATORS}
# Attributes where no trained model says what they are: those without a default, and a window that leaves nothing out,
# so that the knob narrows softmax attention.
ASSUMED: dict[str, Any] = {"hash_bits": 8, "trained_window": 2**30}
# Channels of drawn rows before the projection of values: BERT-base's, of which two heads are drawn.
HIDDEN = 768


@dataclass(frozen=True)
class Inputs:
    """One sequence's inputs of attention.

    Attributes:
        tensors: float32 by input name: `query`, `key`, `value` `[n, num_heads * head_dim]`, and `hidden`,
            `value_weight`, `value_bias` that the values are made of.
        num_heads: attention heads.
        attributes: that a model was trained with, by name.
        trained: key of the attention that it was trained with; empty where nothing was.
    """

    tensors: Mapping[str, Array]
    num_heads: int
    attributes: Mapping[str, Any] = field(default_factory=dict)
    trained: str = ""

    @property
    def length(self) -> int:
        """Tokens."""
        return len(self.tensors["query"])

    def lacks(self, operator: Operator) -> list[str]:
        """Inputs that the operator needs and that are not here: weights of its own."""
        knobs = {knob.name for knob in operator.knobs}
        given = {*self.tensors, *knobs, "cu_seqlens", "seed"}
        return [item.name for item in operator.inputs if not item.optional and item.name not in given]

    def run(
        self, operator: Operator, knobs: Mapping[str, float], seed: int, settings: Mapping[str, Any] | None = None
    ) -> Array:
        """The operator's output, float64 `[n, num_heads * head_dim]`.

        Args:
            operator: any that `lacks` nothing.
            knobs: value by name.
            seed: of its random stream, where it has one.
            settings: attributes that are to be others than those of `attributes`.
        """
        dtypes = {"int32": torch.int32, "float": torch.float32}
        feeds: dict[str, torch.Tensor] = {name: torch.from_numpy(array) for name, array in self.tensors.items()}
        feeds |= {knob.name: torch.tensor([knobs[knob.name]], dtype=dtypes[knob.dtype]) for knob in operator.knobs}
        feeds["cu_seqlens"] = torch.tensor([0, self.length], dtype=torch.int32)
        feeds["seed"] = torch.tensor([seed], dtype=torch.int64)
        names = {item.name for item in operator.attributes}
        attributes = {name: value for name, value in ASSUMED.items() if name in names}
        attributes |= {name: value for name, value in {**self.attributes, **(settings or {})}.items() if name in names}
        attributes["num_heads"] = self.num_heads
        result = overload(operator)(*(feeds.get(item.name) for item in operator.inputs), **attributes)
        output: Array = (result[0] if isinstance(result, tuple) else result).numpy().astype(np.float64)
        return output


def drawn(length: int, num_heads: int, head_dim: int) -> Inputs:
    """Queries and keys around shared centres; values projected from rows with a mean and clusters, as text has."""
    packed = clustered(length, num_heads, head_dim)
    channels = num_heads * head_dim
    hidden = correlated(length, HIDDEN)
    random = np.random.default_rng(3)
    weight = random.standard_normal((HIDDEN, channels), dtype=np.float32) / np.float32(np.sqrt(HIDDEN))
    bias = 0.1 * random.standard_normal(channels, dtype=np.float32)
    tensors = {"query": packed.query, "key": packed.key, "value": hidden @ weight + bias}
    return Inputs(tensors | {"hidden": hidden, "value_weight": weight, "value_bias": bias}, num_heads)


def recorded(bundle: Path, text: str, length: int) -> Inputs:
    """What the first layer's attention of a bundle gets for the first tokens of a text.

    Args:
        bundle: of a trained model.
        text: long enough.
        length: tokens.

    Raises:
        ValueError: the text is too short.
    """
    model = load(bundle, check=False)
    encoded = model.encode(text, truncate=True)
    if len(encoded.token_ids) < length:
        raise ValueError(f"the text has {len(encoded.token_ids)} tokens for this bundle, must have {length}")
    graph = onnx.load(str(bundle / MODEL))
    node = next(node for node in graph.graph.node if node.domain == DOMAIN and BY_NAME[node.op_type].attention)
    operator = BY_NAME[node.op_type]
    weights = {item.name: numpy_helper.to_array(item) for item in graph.graph.initializer}
    wanted = {item.name: name for item, name in zip(operator.inputs, node.input, strict=False) if name and item.data}
    named = [name for name in wanted.values() if name not in weights]
    graph.graph.output.extend(helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None) for name in named)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / MODEL
        onnx.save(graph, str(path))
        session = create(path)
    row = Row(encoded.token_ids[:length], encoded.type_ids[:length], model.knobs.exact())
    arrays = dict(zip(named, session.run(named, pack([row], model.manifest)), strict=True))
    tensors = {key: np.array(weights.get(name, arrays.get(name)), np.float32) for key, name in wanted.items()}
    attributes = {item.name: helper.get_attribute_value(item) for item in node.attribute}
    attributes = {name: value.decode() if isinstance(value, bytes) else value for name, value in attributes.items()}
    if "value" not in tensors:
        tensors["value"] = tensors["hidden"] @ tensors["value_weight"] + tensors["value_bias"]
    return Inputs(tensors, int(attributes["num_heads"]), attributes, operator.attention)
