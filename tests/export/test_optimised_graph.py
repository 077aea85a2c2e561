"""What ONNX Runtime makes of exported graphs when it loads them: nothing around the operators wastes what they win."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from exported import CASES, IDS
from onnx import numpy_helper

from attenuator.export import positions
from attenuator.export.encoder import Encoder
from attenuator.runtime import create
from attenuator.runtime.device import CPU
from attenuator.runtime.session import make_options, open_session

Get = Callable[..., Path]
ACTIVATIONS = {"Gelu", "FastGelu", "QuickGelu", "BiasGelu"}
# Families whose feed-forward part is a linear layer, its bias and an exact GELU.
GELU_CASES = [
    ("bert", "mca"),
    ("roberta", "mca"),
    ("xlm-roberta", "mca"),
    ("distilbert", "mca"),
    ("electra", "mca"),
    ("yoso", "yoso"),
    ("encoder-yoso", "yoso"),
]
ENCODERS = ["encoder-yoso", "encoder-yoso-first"]


@pytest.fixture
def optimised(exported: Get, tmp_path: Path) -> Callable[[str, str, str], onnx.GraphProto]:
    """The graph that serving runs, as ONNX Runtime writes it."""

    def get(name: str, attention: str, precision: str = "fp32") -> onnx.GraphProto:
        options = make_options()
        options.optimized_model_filepath = str(tmp_path / "optimised.onnx")
        open_session(str(exported(name, attention, precision) / "model.onnx"), options, CPU)
        return onnx.load(tmp_path / "optimised.onnx").graph

    return get


def made_by(graph: onnx.GraphProto) -> dict[str, onnx.NodeProto]:
    return {value: node for node in graph.node for value in node.output}


@pytest.mark.parametrize(("name", "attention"), GELU_CASES)
def test_bias_of_an_activation_takes_no_node_of_its_own(
    name: str, attention: str, optimised: Callable[..., onnx.GraphProto]
) -> None:
    """In fp32 the product adds it, a little faster than BiasGelu; in int8 what scales the sums adds and activates."""
    plain = optimised(name, attention)
    producers = made_by(plain)
    activations = [node for node in plain.node if node.op_type in ACTIVATIONS]
    layers = 2
    assert len(activations) >= layers
    for node in activations:
        assert producers[node.input[0]].op_type == ("MatMul" if node.op_type == "BiasGelu" else "Gemm")
    small = optimised(name, attention, "int8")
    inside = [node for node in small.node if any(item.s.startswith(b"gelu") for item in node.attribute)]
    assert len(inside) >= layers
    assert {len(node.input) for node in inside} == {4}, "sums, two scales and the bias"
    assert len([node for node in small.node if node.op_type in ACTIVATIONS]) == len(activations) - len(inside)


@pytest.mark.parametrize(("name", "attention"), CASES, ids=IDS)
def test_norms_stay_apart_from_the_additions_before_them(
    name: str, attention: str, optimised: Callable[..., onnx.GraphProto]
) -> None:
    kinds = {node.op_type for node in optimised(name, attention).node}
    assert "LayerNormalization" in kinds
    assert not {kind for kind in kinds if "SkipLayer" in kind or kind == "EmbedLayerNormalization"}


@pytest.mark.parametrize("name", ENCODERS)
def test_positions_are_a_table_when_loaded_and_a_formula_in_the_file(
    name: str, exported: Get, checkpoint: Callable[[str], Path], optimised: Callable[..., onnx.GraphProto]
) -> None:
    graph = optimised(name, "yoso")
    assert not {"Sin", "Cos", "Range", "Cast"} & {node.op_type for node in graph.node}
    encoder = Encoder.from_pretrained(checkpoint(name))
    longest, width = encoder.config.max_tokens, encoder.config.hidden_size
    [gather] = [node for node in graph.node if node.op_type == "Gather" and node.input[1] == "position_ids"]
    [table] = [numpy_helper.to_array(item) for item in graph.initializer if item.name == gather.input[0]]
    assert table.shape == (longest, width)
    positions.add_table(encoder)
    np.testing.assert_allclose(table, getattr(encoder, positions.BUFFER).numpy(), rtol=0, atol=1e-5)
    stored = onnx.load(exported(name, "yoso") / "model.onnx").graph
    assert all(tuple(item.dims) != (longest, width) for item in stored.initializer)


def test_the_last_position_is_served_and_none_behind_it(exported: Get, checkpoint: Callable[[str], Path]) -> None:
    longest = Encoder.from_pretrained(checkpoint("encoder-yoso")).config.max_tokens
    session = create(exported("encoder-yoso", "yoso") / "model.onnx")

    def run(position: int) -> np.ndarray:
        feeds = {
            "input_ids": np.array([5]),
            "position_ids": np.array([position]),
            "cu_seqlens": np.array([0, 1], np.int32),
            "num_hashes": np.zeros(1, np.int32),
            "seed": np.zeros(1, np.int64),
        }
        logits: np.ndarray = session.run(["logits"], feeds)[0]
        return logits

    assert np.isfinite(run(longest - 1)).all()
    with pytest.raises(Exception, match="out of data bounds"):
        run(longest)
