"""What a layer sees while a model runs on a packed batch: attention and pooling as operators of the domain.

Everything is `[T, channels]`: sequences end to end, no padding, no mask. `layers` says what the layers of each
model family compute with it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from attenuator.ops import OPERATORS
from attenuator.ops.spec import Operator
from attenuator.ops.torch_op import overload

__all__ = ["OPERATOR_BY_KEY", "PackedBatch"]

OPERATOR_BY_KEY: dict[str, Operator] = {operator.key: operator for operator in OPERATORS}
POOL = overload(OPERATOR_BY_KEY["pool"])
NO_TABLES: Mapping[str, Tensor] = {}


@dataclass
class PackedBatch:
    """One forward pass over a packed batch.

    Attributes:
        operator: which operator computes attention.
        attributes: those of its attributes that do not depend on the layer: `estimator`, `hash_bits`, `hash`.
        num_layers: layers of the model, repeated calls of a shared layer counted.
        only_first: whether the classifier uses the first token alone, so that the last layer computes those rows.
        inputs: graph inputs by name.
        layer: index of the layer that runs now.
        value_flops: second outputs of the attention nodes so far that can sample, `[B]` each.
        has_value_flops: whether any node, sampling or not, has such an output.
    """

    operator: Operator
    attributes: dict[str, Any]
    num_layers: int
    only_first: bool
    inputs: dict[str, Tensor]
    layer: int = 0
    value_flops: list[Tensor] = field(default_factory=list)
    has_value_flops: bool = False

    @property
    def cu_seqlens(self) -> Tensor:
        """int32 `[B+1]`."""
        return self.inputs["cu_seqlens"]

    @property
    def narrows(self) -> bool:
        """Whether the current layer computes the first token of each sequence alone."""
        return self.only_first and self.layer == self.num_layers - 1

    def pool(self, hidden: Tensor, mode: str) -> Tensor:
        """`[T, C]` to `[B, C]`."""
        pooled: Tensor = POOL(hidden, self.cu_seqlens, mode=mode)
        return pooled

    def mean_value_flops(self) -> Tensor | None:
        """The model's share of the value projection `[B]`: the mean over the nodes that can sample, 1 without any.

        A node that computes the first row alone spends less than the whole projection without sampling anything. In
        the mean it would show a saving where every answer is exact.

        Returns:
            None where the operator has no such output.
        """
        if not self.has_value_flops:
            return None
        if not self.value_flops:
            return torch.ones(self.cu_seqlens.shape[0] - 1)
        return torch.stack(self.value_flops).mean(dim=0)

    def rows(self, hidden: Tensor) -> Tensor:
        """The rows that the current layer computes: `[T, C]` as it is, or the first of each sequence `[B, C]`."""
        return self.pool(hidden, "first") if self.narrows else hidden

    def attend(
        self,
        query: Tensor,
        key: Tensor,
        hidden: Tensor,
        value: nn.Linear,
        *,
        num_heads: int,
        scale: float = 0.0,
        window: int = 0,
        conv_weight: Tensor | None = None,
        tables: Mapping[str, Tensor] = NO_TABLES,
    ) -> Tensor:
        """Mixes the values of each sequence, then moves on to the next layer.

        Args:
            query: `[rows, num_heads * head_dim]`.
            key: `[T, num_heads * head_dim]`.
            hidden: `[T, C]`, what the value projection reads.
            value: the value projection.
            num_heads: attention heads.
            scale: factor on the scores, for operators that have one; 0 means 1/sqrt(head_dim).
            window: keys with |i - j| <= window, for operators that have one; 0 = all.
            conv_weight: kernel `[num_heads, c]` of a convolution of the values, for operators that have one.
            tables: further inputs by name, what distances add to scores, for operators that have them.

        Returns:
            `[rows, num_heads * head_dim]`.
        """
        attributes = {**self.attributes, "num_heads": num_heads, "queries": "first" if self.narrows else "all"}
        known = {item.name for item in self.operator.attributes}
        attributes |= {
            name: value
            for name, value in {"scale": scale, "window": window, "layer": self.layer, "global_tokens": 0}.items()
            if name in known
        }
        tensors: dict[str, Tensor | None] = {
            "query": query,
            "key": key,
            "conv_weight": conv_weight,
            **self.inputs,
            **tables,
        }
        names = [item.name for item in self.operator.inputs]
        if "hidden" in names:
            weight = value.weight.t()
            bias = value.bias if value.bias is not None else torch.zeros(weight.shape[1], dtype=weight.dtype)
            tensors |= {"hidden": hidden, "value_weight": weight, "value_bias": bias}
        else:
            tensors["value"] = value(hidden)
        result = overload(self.operator)(*(tensors.get(name) for name in names), **attributes)
        results = (result,) if isinstance(result, Tensor) else result
        outputs = dict(zip((item.name for item in self.operator.outputs), results, strict=True))
        if "value_flops" in outputs:
            self.has_value_flops = True
            if not self.narrows:
                self.value_flops.append(outputs["value_flops"])
        self.layer += 1
        mixed: Tensor = results[0]
        return mixed
