"""LinformerAttention beside nodes whose projection is as long as the sequence; one for keys and values."""

import numpy as np

from benchmarks.contenders.nodes import Runner
from benchmarks.contenders.steps.graph import Array, Case, Graph, compared, rows_of
from benchmarks.measure.cases import HEAD_DIM, HEADS

CASES = tuple({"tokens": tokens, "projected_tokens": 256} for tokens in (128, 512, 2048, 4096))
TOLERANCE = 1e-4


def standard_nodes(tokens: int, projection: Array) -> Graph:
    """`query`, `key` and `value` `[n, H * D]` to `output`, with a projection `[H, k, n]`."""
    graph = Graph()
    query, key, value = (graph.heads(name, tokens) for name in ("query", "key", "value"))
    weights = graph.constant(projection, np.float32)
    keys, values = (graph.op("MatMul", weights, rows) for rows in (key, value))
    scores = graph.op("MatMul", graph.op("Mul", query, graph.number(HEAD_DIM**-0.5)), graph.turned(keys))
    graph.output(graph.op("MatMul", graph.op("Softmax", scores, axis=-1), values), tokens)
    return graph


def contenders(case: Case, threads: int) -> dict[str, Runner]:
    """The operator, the nodes and exact softmax attention."""
    tokens, projected = case["tokens"], case["projected_tokens"]
    drawn = np.random.default_rng(1).standard_normal((HEADS, projected, tokens))
    projection = (drawn / tokens**0.5).astype(np.float32)
    weights = {"key_projection": projection.reshape(HEADS * projected, tokens)}
    graph = standard_nodes(tokens, projection)
    return compared("linformer", rows_of(tokens), {}, graph, threads, weights=weights, tolerance=TOLERANCE)
