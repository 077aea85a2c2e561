"""Counting a graph's work, the cost model on top, and the same graph with exact attention."""

from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx import TensorProto, helper

from attenuator.commands.baseline import write_baseline
from attenuator.commands.cost import TimeModel
from attenuator.errors import BundleError
from attenuator.ops import DOMAIN, OPERATORS
from attenuator.ops.cost import NodeShape, OperatorCost, costs_of
from attenuator.runtime.cost import CostModel
from attenuator.runtime.graph import Graph, Node, read_graph
from attenuator.runtime.work import COSTS, Stage, Work, count_work

D, HEADS, FFN, LABELS, VOCABULARY = 768, 12, 3072, 3, 50
BY_KEY = {operator.key: operator for operator in OPERATORS}
SHARED = {"mca": {}, "softmax": {}, "yoso": {"hash_bits": 8}}
KNOB_INPUTS = {"mca": ["alpha", "seed"], "yoso": ["num_hashes", "seed"], "softmax": []}


class Builder:
    """Writes a BERT-shaped packed graph, weights outside the file, as export does for large models."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []

    def weight(self, *shape: int) -> str:
        name = f"w{len(self.weights)}"
        tensor = TensorProto(name=name, data_type=TensorProto.FLOAT, dims=shape, data_location=TensorProto.EXTERNAL)
        self.weights.append(tensor)
        return name

    def node(self, op_type: str, *inputs: str, domain: str = "", **attributes: Any) -> str:
        name = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(op_type, inputs, [name], domain=domain, **attributes))
        return name

    def linear(self, x: str, inner: int, outer: int) -> str:
        return self.node("Gemm", x, self.weight(outer, inner), self.weight(outer), transB=1)

    def attention(self, key: str, query: str, hidden: str, layer: int, *, first: bool) -> str:
        names_of = {"query": query, "key": self.linear(hidden, D, D), "hidden": hidden, "cu_seqlens": "cu_seqlens"}
        if key == "mca":
            names_of |= {"value_weight": self.node("Transpose", self.weight(D, D), perm=[1, 0])}
            names_of |= {"value_bias": self.weight(D), "alpha": "alpha", "seed": "seed"}
        else:
            names_of |= {"value": self.linear(hidden, D, D), "num_hashes": "num_hashes", "seed": "seed"}
        operator = BY_KEY[key]
        names = [names_of[tensor.name] for tensor in operator.inputs if not tensor.optional]
        queries = "first" if first else "all"
        return self.node(
            operator.name, *names, domain=DOMAIN, num_heads=HEADS, queries=queries, layer=layer, **SHARED[key]
        )

    def layer(self, key: str, hidden: str, layer: int, *, first: bool) -> str:
        rows = self.node("SequencePool", hidden, "cu_seqlens", domain=DOMAIN, mode="first") if first else hidden
        mixed = self.attention(key, self.linear(rows, D, D), hidden, layer, first=first)
        rows = self.node("Add", rows, self.linear(mixed, D, D))
        return self.node("Add", rows, self.linear(self.node("Gelu", self.linear(rows, D, FFN)), FFN, D))

    def model(self, key: str, layers: int) -> onnx.ModelProto:
        hidden = self.node("Gather", self.weight(VOCABULARY, D), "input_ids")
        for layer in range(layers):
            hidden = self.layer(key, hidden, layer, first=layer == layers - 1)
        self.nodes.append(helper.make_node("Gemm", [hidden, self.weight(LABELS, D)], ["logits"], transB=1))
        info = helper.make_tensor_value_info
        inputs = [info("input_ids", TensorProto.INT64, ["T"]), info("cu_seqlens", TensorProto.INT32, ["starts"])]
        types = {"alpha": TensorProto.FLOAT, "num_hashes": TensorProto.INT32, "seed": TensorProto.INT64}
        inputs += [info(name, types[name], ["B"]) for name in KNOB_INPUTS[key]]
        outputs = [info("logits", TensorProto.FLOAT, ["B", LABELS])]
        graph = helper.make_graph(self.nodes, "g", inputs, outputs, self.weights)
        opsets = [helper.make_opsetid("", 20), helper.make_opsetid(DOMAIN, 1)]
        return helper.make_model(graph, opset_imports=opsets)


def written(tmp_path: Path, key: str, layers: int = 3) -> Path:
    path = tmp_path / "model.onnx"
    path.write_bytes(Builder().model(key, layers).SerializeToString())
    return path


def work_of(tmp_path: Path, key: str, layers: int = 3) -> Work:
    return count_work(read_graph(written(tmp_path, key, layers)))


@pytest.mark.parametrize("key", ["softmax", "yoso"])
def test_work_of_a_bert_is_what_paper_and_pencil_say(tmp_path: Path, key: str) -> None:
    work = work_of(tmp_path, key)
    full_layer = 4 * D * D + 2 * D * FFN
    # The last layer computes keys and values for every token, the rest for one token per sequence.
    assert work.token_macs == 2 * full_layer + 2 * D * D
    assert work.sequence_macs == full_layer - 2 * D * D + D * LABELS
    assert work.layer_macs == full_layer
    assert [node.first_only for node in work.attention] == [False, False, True]
    assert {(node.num_heads, node.head_dim, node.value_dim) for node in work.attention} == {
        (HEADS, D // HEADS, D // HEADS)
    }
    assert work.attention_macs(100) == 2 * (2 * 100 * 100 * D) + 2 * 100 * D
    assert work.projection_macs(100) == 0


def test_mca_nodes_hold_their_value_projection(tmp_path: Path) -> None:
    work, softmax = work_of(tmp_path, "mca"), work_of(tmp_path, "softmax")
    assert softmax.token_macs - work.token_macs == 3 * D * D
    # (A X) W_v of the last layer: one row per sequence, and nothing that could be spared.
    assert work.projection_macs(100) == 2 * 100 * D * D + 100 * HEADS * D + D * D
    assert sum(COSTS["mca"].spared_macs(node, 100) for node in work.attention) == 2 * 100 * D * D


@pytest.mark.parametrize(("tokens", "share"), [(128, 0.081), (512, 0.075)])
def test_value_projection_is_a_twelfth_of_a_bert_layer_at_most(tmp_path: Path, tokens: int, share: float) -> None:
    model = TimeModel(work_of(tmp_path, "mca"))
    layer_share = model.layer_share("mca", tokens)
    assert layer_share == pytest.approx(D * D / (12 * D * D + 2 * tokens * D))
    assert layer_share == pytest.approx(share, abs=5e-4)
    assert 1 / (1 - layer_share) <= 1.09
    assert 1 < model.free_part("mca", tokens) <= 1.09


def test_cost_model_has_the_shape_that_the_operators_have(tmp_path: Path) -> None:
    model = TimeModel(work_of(tmp_path, "yoso", 6))
    shares = [model.attention_share(tokens) for tokens in (128, 512, 1024, 4096)]
    assert shares == sorted(shares)
    assert shares[0] < 0.06
    assert 0.4 < shares[-1] < 0.7
    for tokens in (128, 1024, 16384):
        speedups = [model.speedup(tokens, {"num_hashes": num_hashes}) for num_hashes in (8, 16, 32, 64)]
        assert speedups == sorted(speedups, reverse=True)
        assert speedups[0] < model.free_attention(tokens)
    starts = [model.crossover({"num_hashes": num_hashes}) for num_hashes in (8, 16, 32, 64, 512)]
    assert all(start is not None for start in starts)
    assert starts == sorted(starts)  # type: ignore[type-var]
    for num_hashes, start in zip((8, 16, 32, 64, 512), starts, strict=True):
        assert start is not None
        assert (
            model.speedup(start, {"num_hashes": num_hashes}) > 1 >= model.speedup(start - 1, {"num_hashes": num_hashes})
        )


def test_baseline_has_softmax_where_the_model_has_yoso(tmp_path: Path) -> None:
    source = written(tmp_path, "yoso")
    write_baseline(source, tmp_path / "softmax.onnx")
    model = onnx.load(tmp_path / "softmax.onnx", load_external_data=False)
    original = onnx.load(source, load_external_data=False)
    assert len(model.graph.node) == len(original.graph.node)
    replaced = [node for node in model.graph.node if node.op_type == "SoftmaxAttention"]
    assert len(replaced) == 3
    assert not [node for node in model.graph.node if node.op_type == "YosoAttention"]
    for node, old in zip(model.graph.node, original.graph.node, strict=True):
        if old.op_type == "YosoAttention":
            assert list(node.input) == list(old.input)[:4]
            assert list(node.output) == list(old.output)
            assert {item.name for item in node.attribute} == {"num_heads", "queries"}
        else:
            assert node == old
    assert list(model.graph.initializer) == list(original.graph.initializer)
    assert model.opset_import == original.opset_import


@pytest.mark.parametrize("key", [operator.key for operator in OPERATORS])
def test_every_operator_has_a_cost_that_grows_with_the_length(key: str) -> None:
    cost, operator = COSTS[key], BY_KEY[key]
    attributes = {item.name: item.default for item in operator.attributes if item.default is not None}
    node = NodeShape(key, 4, 16, 16, 64, attributes | {"hash_bits": 8}) if operator.attention else None
    node = node or NodeShape(key, 0, 0, 0, 0, attributes)
    for knobs in ({}, {knob.name: knob.default for knob in operator.knobs}):
        works = [cost.work(node, tokens, knobs) for tokens in (1, 64, 512, 4096)]
        times = [cost.ns(node, tokens, knobs) for tokens in (1, 64, 512, 4096)]
        assert works == sorted(works)
        assert times == sorted(times)
        assert bool(operator.attention) == (works[0] > 0)
        assert times[0] > 0 or not operator.attention


def test_an_operator_without_a_cost_fails_loudly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("attenuator.ops.cost.has_part", lambda key, name: False)
    with pytest.raises(ImportError, match=r"SequencePool has no cost: cost\.py in its folder must set COST"):
        costs_of([BY_KEY["pool"]])


def test_a_cost_needs_its_work_alone() -> None:
    """What an operator's folder may leave out, and what it may not."""

    class Windowed(OperatorCost):
        def work(self, node: NodeShape, tokens: int, knobs: Any) -> float:
            return node.attention_macs(tokens) * knobs.get("keep", 1.0)

    node = NodeShape("softmax", 2, 8, 8, 0, {})
    assert Windowed().ns(node, 100, {"keep": 0.5}) == node.exact_ns(100) / 2
    assert Windowed().spared_ns(node, 100) == node.exact_ns(100)
    with pytest.raises(TypeError, match="abstract"):
        OperatorCost()  # type: ignore[abstract]


def test_exact_nodes_beside_sampled_ones_cost_what_they_cost_alone() -> None:
    """ModernBERT with MCA: its local layers have no value projection inside, and are exact at any alpha."""
    attributes: dict[str, int | float | str] = {"window": 64, "queries": "all"}
    local = NodeShape("softmax", 2, 8, 8, 0, attributes)
    sampled = NodeShape("mca", 2, 8, 8, 128, {"window": 0, "queries": "all", "estimator": "sampled"})
    both, alone = CostModel(Work([Stage(operators=[local, sampled])])), CostModel(Work([Stage(operators=[sampled])]))
    assert both.predict(500, {"alpha": 0.5}) == alone.predict(500, {"alpha": 0.5}) + local.attention_macs(500)


def test_an_attribute_of_a_wrong_type_is_refused() -> None:
    node = Node(DOMAIN, "SoftmaxAttention", ["q", "k", "v", "cu_seqlens"], ["y"], {"num_heads": 1, "window": "wide"})
    graph = Graph(nodes=[Node("", "Gather", ["w", "input_ids"], ["q"], {}), node])
    with pytest.raises(BundleError, match="SoftmaxAttention whose window is 'wide', must be of type int"):
        count_work(graph)


def test_a_node_without_a_required_attribute_is_refused() -> None:
    node = Node(DOMAIN, "YosoAttention", ["q", "k", "v", "cu_seqlens"], ["y"], {"num_heads": 1})
    graph = Graph(nodes=[Node("", "Gather", ["w", "input_ids"], ["q"], {}), node])
    with pytest.raises(BundleError, match="YosoAttention without hash_bits, which it must have"):
        count_work(graph)
