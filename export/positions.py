"""Positions in the graph: RoBERTa's, which skip padding tokens, and sinusoidal ones.

Sinusoidal positions are a table: one Gather a token at run time, one formula in the file.
Computed for every token, sine and cosine took a tenth of a small model's time. As a stored table they would make the
file of a small model for long texts several times as large. So the graph computes the table from constants alone:
ONNX Runtime folds that into a tensor when it loads the model, in a few milliseconds, and gathers rows of it afterwards.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import torch
from torch import Tensor

__all__ = ["BUFFER", "add_table", "padding_skipped", "write_as_formula"]

BUFFER = "position_table"


def padding_skipped(input_ids: Tensor, position_ids: Tensor, padding_id: int) -> Tensor:
    """Counts positions as RoBERTa does: a padding token gets the position `padding_id` and is not counted.

    A text may spell the padding token out ("<pad>"). Its tokenizer then yields `padding_id` amid the text, and every
    later token moves one position forward.

    Args:
        input_ids: int64 `[T]`, packed.
        position_ids: int64 `[T]`, every token counted, from `padding_id + 1` in each sequence.
        padding_id: the token id that stands for padding.

    Returns:
        int64 `[T]`; `position_ids` itself for sequences without that token.
    """
    is_padding = input_ids == padding_id
    total = is_padding.long().cumsum(0)
    before = total - is_padding.long()  # padding tokens in front of each token, other sequences included
    start = torch.arange(input_ids.shape[0]) - (position_ids - (padding_id + 1))
    start = start.clamp(min=0)  # positions may begin later: loading a bundle tries the last one alone
    return torch.where(is_padding, padding_id, position_ids - (before - before[start]))


def add_table(model: Any) -> None:
    """Gives the project's own encoder a buffer `[max_tokens, hidden]` of its scaled positions, for tracing.

    What the formula needs is kept beside it in fp32, out of the reach of a later cast to half precision.
    """
    with torch.no_grad():
        table = model.positions(torch.arange(model.config.max_tokens))
    model.register_buffer(BUFFER, table, persistent=False)
    positions = model.positions
    model.position_formula = {
        "frequencies": positions.frequencies.detach().cpu().numpy().copy(),
        "scale": positions.scale.detach().cpu().numpy().copy(),
    }


def write_as_formula(graph: ir.Graph, encoder: Any) -> None:
    """Puts the formula in the place of the traced table.

    Args:
        graph: of an encoder that went through `add_table`; any other is left as it is.
        encoder: that encoder.
    """
    table = next((value for name, value in graph.initializers.items() if name.endswith(f".{BUFFER}")), None)
    if table is None or table.name is None:
        return
    constants = {
        "first": np.float32(0),
        "end": np.float32(encoder.config.max_tokens),
        "step": np.float32(1),
        "axis": np.array([1], np.int64),
        **encoder.position_formula,
    }
    values = {}
    for name, content in constants.items():
        tensor = ir.tensor(np.asarray(content), name=f"positions_{name}")
        value = ir.Value(name=tensor.name, type=ir.TensorType(tensor.dtype), shape=tensor.shape, const_value=tensor)
        graph.register_initializer(value)
        values[name] = value
    nodes: list[ir.Node] = []

    def op(op_type: str, *inputs: ir.Value, **attributes: Any) -> ir.Value:
        node = ir.node(op_type, inputs, attributes=attributes, name=f"node_positions_{len(nodes)}")
        node.outputs[0].name = f"positions_{len(nodes)}"
        nodes.append(node)
        return node.outputs[0]

    every = op("Unsqueeze", op("Range", values["first"], values["end"], values["step"]), values["axis"])
    angles = op("Mul", every, values["frequencies"])
    waves = op("Concat", op("Sin", angles), op("Cos", angles), axis=-1)
    scaled = op("Mul", waves, values["scale"])
    if table.dtype != ir.DataType.FLOAT:
        scaled = op("Cast", scaled, to=table.dtype)
    graph.insert_before(graph[0], nodes)
    ir.convenience.replace_all_uses_with(table, scaled)
    del graph.initializers[table.name]
