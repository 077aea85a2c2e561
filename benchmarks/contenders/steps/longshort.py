"""LongShortAttention beside nodes: mixtures of all keys and values, layer norms, and a band of blocks beside them."""

import numpy as np

from benchmarks.contenders.nodes import Runner
from benchmarks.contenders.steps.graph import Array, Case, Graph, compared, rows_of
from benchmarks.measure.cases import CHANNELS, HEAD_DIM, HEADS

CASES = tuple({"tokens": tokens, "window": 64, "global_rows": 32} for tokens in (128, 512, 2048, 4096))
TOLERANCE = 1e-4


def standard_nodes(tokens: int, window: int, projection: Array) -> Graph:
    """`query`, `key` and `value` `[n, H * D]` to `output`; norms without factors and terms, n whole windows.

    Args:
        tokens: n.
        window: w.
        projection: `[H, r, D]`.
    """
    graph, count, mixtures = Graph(), tokens // window, projection.shape[1]
    query, key, value = (graph.heads(name, tokens) for name in ("query", "key", "value"))
    weights = graph.constant(projection.transpose(0, 2, 1), np.float32)
    one, zero = (graph.constant(fill(HEAD_DIM), np.float32) for fill in (np.ones, np.zeros))
    mixing = graph.turned(graph.op("Softmax", graph.op("MatMul", key, weights), axis=1))

    def norm(rows: str) -> str:
        return graph.op("LayerNormalization", rows, one, zero, axis=-1)

    keys, values = (norm(graph.op("MatMul", mixing, rows)) for rows in (key, value))
    near_keys, near_values = (graph.around(norm(rows), tokens, window) for rows in (key, value))
    scaled = graph.op("Mul", query, graph.number(HEAD_DIM**-0.5))
    blocks = graph.shaped(scaled, HEADS, count, window, HEAD_DIM)
    near = graph.in_band(graph.op("MatMul", blocks, graph.turned(near_keys, 4)), tokens, window)
    far = graph.shaped(graph.op("MatMul", scaled, graph.turned(keys)), HEADS, count, window, mixtures)
    shares = graph.op("Softmax", graph.op("Concat", far, near, axis=3), axis=-1)
    of_far = graph.shaped(graph.cut(shares, 0, mixtures, 3), HEADS, tokens, mixtures)
    of_near = graph.op("MatMul", graph.cut(shares, mixtures, mixtures + 3 * window, 3), near_values)
    mixed = graph.op("Add", graph.op("MatMul", of_far, values), graph.shaped(of_near, HEADS, tokens, HEAD_DIM))
    graph.output(mixed, tokens)
    return graph


def contenders(case: Case, threads: int) -> dict[str, Runner]:
    """The operator, the nodes and exact softmax attention over all keys."""
    tokens, window, mixtures = case["tokens"], case["window"], case["global_rows"]
    projection = 0.3 * np.random.default_rng(1).standard_normal((HEADS, mixtures, HEAD_DIM)).astype(np.float32)
    plain = np.stack([np.ones(CHANNELS), np.zeros(CHANNELS)]).astype(np.float32)
    norms = ("local_key_norm", "local_value_norm", "global_key_norm", "global_value_norm")
    weights = {"dynamic_projection": projection.reshape(HEADS * mixtures, HEAD_DIM), **dict.fromkeys(norms, plain)}
    knob, graph = {"window": np.zeros(1, np.int32)}, standard_nodes(tokens, window, projection)
    return compared(
        "longshort", rows_of(tokens), knob, graph, threads,
        weights=weights, tolerance=TOLERANCE, trained_window=window,
    )  # fmt: skip
