"""WindowAttention beside nodes that attend from blocks of rows to themselves and to their neighbours, masked."""

import numpy as np

from benchmarks.contenders.nodes import Runner
from benchmarks.contenders.steps.graph import Case, Graph, compared, rows_of
from benchmarks.measure.cases import HEAD_DIM, HEADS

CASES = tuple({"tokens": tokens, "window": window} for tokens in (1024, 4096) for window in (64, 256))
TOLERANCE = 1e-4


def standard_nodes(tokens: int, window: int) -> Graph:
    """`query`, `key` and `value` `[n, H * D]` to `output`; n is a multiple of the window."""
    graph = Graph()
    query, key, value = (graph.heads(name, tokens) for name in ("query", "key", "value"))
    scaled = graph.op("Mul", query, graph.number(HEAD_DIM**-0.5))
    queries = graph.shaped(scaled, HEADS, tokens // window, window, HEAD_DIM)
    keys, values = (graph.around(rows, tokens, window) for rows in (key, value))
    scores = graph.in_band(graph.op("MatMul", queries, graph.turned(keys, 4)), tokens, window)
    mixed = graph.op("MatMul", graph.op("Softmax", scores, axis=-1), values)
    graph.output(graph.shaped(mixed, HEADS, tokens, HEAD_DIM), tokens)
    return graph


def contenders(case: Case, threads: int) -> dict[str, Runner]:
    """The operator, the nodes and exact softmax attention over all keys."""
    tokens, window = case["tokens"], case["window"]
    knob, graph = {"window": np.zeros(1, np.int32)}, standard_nodes(tokens, window)
    rows = rows_of(tokens)
    return compared("window", rows, knob, graph, threads, tolerance=TOLERANCE, trained_window=window)
