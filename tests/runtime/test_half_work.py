"""Predicted work of MCA in half types, which projects values exactly at any alpha."""

from pathlib import Path

import pytest
from onnx import TensorProto, helper

from attenuator.ops import DOMAIN
from attenuator.runtime.cost import CostModel
from attenuator.runtime.graph import read_graph
from attenuator.runtime.work import count_work

C, TOKENS = 128, 200
HALVES = [TensorProto.FLOAT16, TensorProto.BFLOAT16]


def cost(folder: Path, stored: int, computed: int, estimator: str = "sampled") -> CostModel:
    """Of one layer whose projection's weight is stored in one type, transposed, and computed in another."""
    shapes = {"table": (50, C), "w_query": (C, C), "w_key": (C, C), "w_value": (C, C)}
    weights = [TensorProto(name=name, data_type=stored, dims=dims) for name, dims in shapes.items()]
    nodes = [
        helper.make_node("Gather", ["table", "input_ids"], ["hidden"]),
        helper.make_node("MatMul", ["hidden", "w_query"], ["query"]),
        helper.make_node("MatMul", ["hidden", "w_key"], ["key"]),
        helper.make_node("Transpose", ["w_value"], ["turned"]),
        helper.make_node("Cast", ["turned"], ["value_weight"], to=computed),
        helper.make_node(
            "McaAttention",
            ["query", "key", "hidden", "value_weight", "", "alpha", "cu_seqlens", "seed"],
            ["mixed"],
            domain=DOMAIN,
            num_heads=2,
            estimator=estimator,
        ),
    ]
    path = folder / "model.onnx"
    graph = helper.make_graph(nodes, "g", [], [], weights)
    path.write_bytes(helper.make_model(graph).SerializeToString())
    return CostModel(count_work(read_graph(path)))


@pytest.mark.parametrize("half", HALVES)
def test_alpha_spares_nothing_in_half_types(tmp_path: Path, half: int) -> None:
    exact, approximate = {"alpha": 0.0}, {"alpha": 1.0}
    model = cost(tmp_path, half, half)
    assert model.predict(TOKENS, exact) == model.predict(TOKENS, approximate)
    floats = cost(tmp_path, half, TensorProto.FLOAT)
    assert floats.predict(TOKENS, exact) == model.predict(TOKENS, exact)
    assert floats.predict(TOKENS, approximate) < floats.predict(TOKENS, exact), "the weight that the node is given"
    paper = cost(tmp_path, half, half, "paper")
    assert paper.predict(TOKENS, approximate) < paper.predict(TOKENS, exact), "which approximates in every type"
