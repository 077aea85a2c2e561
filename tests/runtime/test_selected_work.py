"""Predicted work where tokens are selected: behind a selection only the kept rows count, also nested, also rejoined."""

import math
from itertools import pairwise
from typing import Any

import onnx
import pytest
from onnx import TensorProto, helper

from attenuator.ops import DOMAIN
from attenuator.ops.kept_lengths.rule import kept_length
from attenuator.runtime.cost import CostModel
from attenuator.runtime.graph import Graph, Node, read_graph
from attenuator.runtime.work import Work, count_work

C, HEADS, LABELS = 64, 2, 3


class Builder:
    """Writes a packed encoder, one linear layer before and one after each attention, with selections between them."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []

    def node(self, op_type: str, *inputs: str, outputs: int = 1, domain: str = "", **attributes: Any) -> Any:
        names = [f"v{len(self.nodes)}_{index}" for index in range(outputs)]
        self.nodes.append(helper.make_node(op_type, inputs, names, domain=domain, **attributes))
        return names[0] if outputs == 1 else names

    def own(self, op_type: str, *inputs: str, **attributes: Any) -> Any:
        return self.node(op_type, *inputs, domain=DOMAIN, **attributes)

    def linear(self, rows: str, inner: int = C, outer: int = C) -> str:
        name = f"w{len(self.weights)}"
        self.weights.append(TensorProto(name=name, data_type=TensorProto.FLOAT, dims=(inner, outer)))
        return self.node("MatMul", rows, name)

    def attention(self, rows: str, boundaries: str, queries: str = "all") -> str:
        query = self.own("SequencePool", rows, boundaries, mode="first") if queries == "first" else rows
        query, key, value = (self.linear(each) for each in (query, rows, rows))
        return self.own("SoftmaxAttention", query, key, value, boundaries, num_heads=HEADS, queries=queries)

    def select(self, rows: str, boundaries: str, exponent: float) -> tuple[str, str, str]:
        """Kept rows, their places, and their boundaries."""
        kept_boundaries = self.own("KeptLengths", boundaries, "keep", exponent=exponent)
        kept, places = self.own("TokenSelect", rows, "importance", boundaries, kept_boundaries, outputs=2)
        return kept, places, kept_boundaries

    def embedding(self) -> str:
        self.weights.append(TensorProto(name="table", data_type=TensorProto.FLOAT, dims=(50, C)))
        return self.node("Gather", "table", "input_ids")

    def work(self, pooled: str, tmp_path: Any) -> Work:
        weight = TensorProto(name="classifier", data_type=TensorProto.FLOAT, dims=(C, LABELS))
        self.nodes.append(helper.make_node("MatMul", [pooled, "classifier"], ["logits"]))
        graph = helper.make_graph(self.nodes, "g", [], [], [*self.weights, weight])
        path = tmp_path / "model.onnx"
        path.write_bytes(helper.make_model(graph).SerializeToString())
        return count_work(read_graph(path))


@pytest.fixture(scope="module")
def first_token(tmp_path_factory: pytest.TempPathFactory) -> Work:
    """Rows that are not kept are dropped: two selections, then a last layer that computes the first rows alone."""
    build = Builder()
    hidden, boundaries = build.embedding(), "cu_seqlens"
    for exponent in (0.25, 0.75):
        mixed, places, kept = build.select(build.attention(hidden, boundaries), boundaries, exponent)
        hidden = build.node("Add", build.linear(mixed), build.node("Gather", hidden, places))
        boundaries = kept
    first = build.linear(build.attention(hidden, boundaries, "first"))
    return build.work(first, tmp_path_factory.mktemp("graph"))


@pytest.fixture(scope="module")
def mean(tmp_path_factory: pytest.TempPathFactory) -> Work:
    """The other rows are stored and rejoin before the pool: the linear layer after the attention is of all of them."""
    build = Builder()
    hidden = build.embedding()
    stored = build.node("Add", hidden, build.linear(build.attention(hidden, "cu_seqlens")))
    kept, places, boundaries = build.select(stored, "cu_seqlens", 1.0)
    kept = build.node("Add", build.linear(kept), build.linear(build.attention(kept, boundaries)))
    axes = TensorProto(name="axes", data_type=TensorProto.INT64, dims=(1,))
    build.weights.append(axes)
    joined = build.node("ScatterND", stored, build.node("Unsqueeze", places, "axes"), kept)
    joined = build.linear(build.node("Gelu", joined))  # is of every token again
    pooled = build.own("SequencePool", joined, "cu_seqlens", mode="mean")
    return build.work(pooled, tmp_path_factory.mktemp("graph"))


def attention_macs(queries: int, keys: int) -> int:
    return 2 * queries * keys * C


@pytest.mark.parametrize("keep", [0.05, 0.3, 0.5, 1.0])
@pytest.mark.parametrize("tokens", [1, 7, 100, 2000])
def test_dropped_rows_cost_nothing_from_the_selection_on(first_token: Work, tokens: int, keep: float) -> None:
    knobs = {"keep": keep}
    once = kept_length(tokens, keep, 0.25)
    twice = kept_length(once, keep, 0.75)
    assert first_token.rows(tokens, knobs) == [tokens, once, twice]
    linear = C * C
    # Three projections of what attention takes, one linear layer of what goes on; the last queries are first rows.
    dense = (3 * tokens + once + 3 * once + twice + 2 * twice + 2) * linear + C * LABELS
    assert first_token.dense_macs(tokens, knobs) == dense
    mixed = attention_macs(tokens, tokens) + attention_macs(once, once) + attention_macs(1, twice)
    assert CostModel(first_token).predict(tokens, knobs) == dense + mixed


@pytest.mark.parametrize("keep", [0.05, 0.3, 1.0])
@pytest.mark.parametrize("tokens", [1, 100, 2000])
def test_stored_rows_rejoin(mean: Work, tokens: int, keep: float) -> None:
    knobs, kept = {"keep": keep}, kept_length(tokens, keep)
    linear = C * C
    dense = (3 * tokens + tokens + 3 * kept + 2 * kept + tokens) * linear + C * LABELS
    assert mean.dense_macs(tokens, knobs) == dense
    mixed = attention_macs(tokens, tokens) + attention_macs(kept, kept)
    assert CostModel(mean).predict(tokens, knobs) == dense + mixed
    every, selected = mean.stages
    # Embedding, residual, ScatterND and Gelu write rows of every token, the other residual those that are kept.
    assert (every.token_values, selected.token_values) == (4 * C, C)


def test_without_the_knob_every_token_goes_on(first_token: Work, mean: Work) -> None:
    for work in (first_token, mean):
        model = CostModel(work)
        assert model.predict(300, {}) == model.predict(300, {"keep": 1.0}) > model.predict(300, {"keep": 0.99})
        assert work.dense_macs(300) == 300 * work.token_macs + work.sequence_macs


def test_cost_rises_with_the_share(first_token: Work) -> None:
    costs = [CostModel(first_token).predict(50, {"keep": step / 100}) for step in range(5, 101)]
    assert costs == sorted(costs)
    assert len(set(costs)) > 40


def test_a_hostile_chain_of_selections_is_counted_in_linear_time_and_memory() -> None:
    names = [f"b{index}" for index in range(20_001)]
    nodes = [Node(DOMAIN, "KeptLengths", [one, "keep"], [other], {}) for one, other in pairwise(names)]
    work = count_work(Graph(nodes=nodes))
    assert work.rows(100, {"keep": 0.05})[-1] == 1
    assert work.rows(100)[-1] == 100


@pytest.mark.parametrize("tokens", range(1, 60))
def test_a_share_that_float32_rounds_up_adds_no_row(tokens: int) -> None:
    for percent in range(5, 100):
        assert kept_length(tokens, percent / 100) == max(1, math.ceil(tokens * percent / 100 - 1e-9))
