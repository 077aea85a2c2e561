"""PerformerAttention beside nodes with constant directions, those of the operator's seed."""

import numpy as np

from attenuator.ops.reference_features import orthogonal_directions
from benchmarks.contenders.nodes import Runner
from benchmarks.contenders.steps.graph import SEED, Case, Graph, compared, rows_of
from benchmarks.measure.cases import HEAD_DIM, HEADS

CASES = tuple({"tokens": tokens, "num_features": 256} for tokens in (128, 512, 1024, 4096))
TOLERANCE = 1e-3  # keys' exponents are taken relative to the largest of a head, as published, not of each feature


def standard_nodes(tokens: int, count: int) -> Graph:
    """`query`, `key` and `value` `[n, H * D]` to `output`: features, their sums over keys, and a quotient."""
    graph, root = Graph(), HEAD_DIM**-0.25
    drawn = [orthogonal_directions(SEED, 0, head, count, HEAD_DIM).T * root for head in range(HEADS)]
    directions, half = graph.constant(drawn, np.float32), graph.number(0.5 * root**2)
    query, key, value = (graph.heads(name, tokens) for name in ("query", "key", "value"))
    last = graph.constant([-1])
    lengths = graph.op("Mul", graph.op("ReduceSumSquare", key, last, keepdims=1), half)
    of_keys = graph.op("Sub", graph.op("MatMul", key, directions), lengths)
    largest = graph.op("ReduceMax", of_keys, graph.constant([1, 2]), keepdims=1)
    of_keys = graph.op("Exp", graph.op("Sub", of_keys, largest))
    of_queries = graph.op("MatMul", query, directions)
    largest = graph.op("ReduceMax", of_queries, last, keepdims=1)
    of_queries = graph.op("Exp", graph.op("Sub", of_queries, largest))
    graph.output(quotient(graph, of_queries, of_keys, value), tokens)
    return graph


def quotient(graph: Graph, of_queries: str, of_keys: str, value: str, least: float = 0.0) -> str:
    """Features `[H, n, m]` and values to mixed rows `[H, n, D]`; `least` bounds the size of denominators from below."""
    numerators = graph.op("MatMul", of_queries, graph.op("MatMul", graph.turned(of_keys), value))
    sums = graph.op("ReduceSum", of_keys, graph.constant([1]), keepdims=1)
    denominators = graph.op("MatMul", of_queries, graph.turned(sums))
    if least:
        denominators = graph.op("Max", graph.op("Abs", denominators), graph.number(least))
    return graph.op("Div", numerators, denominators)


def contenders(case: Case, threads: int) -> dict[str, Runner]:
    """The operator, the nodes and exact softmax attention."""
    tokens, count = case["tokens"], case["num_features"]
    knobs = {"num_features": np.array([count], np.int32), "seed": np.array([SEED])}
    graph = standard_nodes(tokens, count)
    return compared("performer", rows_of(tokens), knobs, graph, threads, tolerance=TOLERANCE)
