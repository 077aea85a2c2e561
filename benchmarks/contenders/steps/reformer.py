"""ReformerAttention beside nodes with constant rotations, those of the operator's reference.

Lengths are whole chunks; as in Hugging Face's code the nodes count a key in every round in which it is met. Each is
compared with a reference of its own.
"""

from typing import Any

import numpy as np

from attenuator.ops.reformer import reference
from benchmarks.contenders import nodes
from benchmarks.contenders.steps.graph import SEED, Case, Graph
from benchmarks.measure.cases import CHANNELS, HEAD_DIM, HEADS, checked

CASES = tuple({"tokens": tokens, "num_rounds": rounds} for tokens in (1024, 4096) for rounds in (1, 4)) + (
    {"tokens": 4096, "num_rounds": 16},
)
CHUNK, NUM_BUCKETS = 64, 128
CHECKED = 1024  # tokens; the reference takes memory quadratic in the length
Array = np.ndarray[Any, Any]


def standard_nodes(length: int, rounds: int) -> Graph:
    """`query` and `value` `[n, H * D]` to `output`, by nodes that ONNX Runtime has."""
    graph, chunks = Graph(), length // CHUNK
    half = reference.buckets_of(length, CHUNK, NUM_BUCKETS) // 2
    drawn = [
        [reference.rotations(SEED, 0, head, number, half, HEAD_DIM) for number in range(rounds)]
        for head in range(HEADS)
    ]
    split = [
        graph.op("Transpose", graph.shaped(name, length, HEADS, HEAD_DIM), perm=[1, 0, 2])
        for name in ("query", "value")
    ]
    rows, values = split
    norms = graph.op("ReduceL2", rows, graph.constant([-1]), keepdims=1)
    keys = graph.op("Div", rows, graph.op("Max", norms, graph.constant(reference.NORM_FLOOR, np.float32)))
    order = sorted_rows(graph, rows, graph.constant(np.swapaxes(drawn, 2, 3), np.float32), length, rounds)
    index = graph.shaped(order, HEADS, rounds * length, 1)
    gathered = [
        graph.shaped(graph.op("GatherND", part, index, batch_dims=1), HEADS, rounds, chunks, CHUNK, HEAD_DIM)
        for part in (rows, keys, values)
    ]
    seen = [graph.op("Concat", before(graph, part), part, axis=3) for part in gathered[1:]]
    factor = graph.constant(HEAD_DIM**-0.5, np.float32)
    scores = graph.op(
        "MatMul", graph.op("Mul", gathered[0], factor), graph.op("Transpose", seen[0], perm=[0, 1, 2, 4, 3])
    )
    own = np.concatenate([np.zeros((CHUNK, CHUNK)), np.eye(CHUNK)], axis=1) * -1e5
    scores = graph.op("Add", scores, graph.constant(own, np.float32))
    log_sum = graph.op("ReduceLogSumExp", scores, graph.constant([-1]), keepdims=1)
    mixed = graph.op("MatMul", graph.op("Softmax", scores, axis=-1), seen[1])
    places = graph.constant(np.broadcast_to(np.arange(length), (HEADS, rounds, length)))
    back = graph.shaped(graph.op("ScatterElements", places, order, places, axis=2), HEADS, rounds, length, 1)
    unsorted = [
        graph.op("GatherND", graph.shaped(part, HEADS, rounds, length, width), back, batch_dims=2)
        for part, width in ((mixed, HEAD_DIM), (log_sum, 1))
    ]
    weighted = graph.op("Mul", unsorted[0], graph.op("Softmax", unsorted[1], axis=1))
    joined = graph.op("ReduceSum", weighted, graph.constant([1]), keepdims=0)
    flat = graph.shaped(graph.op("Transpose", joined, perm=[1, 0, 2]), length, CHANNELS)
    graph.nodes.append(nodes.node("Identity", [flat], ["output"]))
    return graph


def sorted_rows(graph: Graph, rows: str, matrices: str, length: int, rounds: int) -> str:
    """Rows `[H, rounds, n]` by (bucket, position)."""
    projected = graph.op("MatMul", graph.op("Unsqueeze", rows, graph.constant([1])), matrices)
    both = graph.op("Concat", projected, graph.op("Neg", projected), axis=-1)
    buckets = graph.op("ArgMax", both, axis=-1, keepdims=0)
    places = graph.op("Mul", buckets, graph.constant(length))
    keyed = graph.op("Add", places, graph.constant(np.arange(length)))
    ascending = graph.op("TopK", keyed, graph.constant([length]), outputs=2, axis=-1, largest=0, sorted=1)
    return graph.op("Mod", ascending, graph.constant(length))


def before(graph: Graph, part: str) -> str:
    """Chunks `[H, rounds, chunks, c, D]` in the places of those that follow them."""
    ends = [graph.constant([number]) for number in (-1, 0, 2**31)]
    axis = graph.constant([2])
    last = graph.op("Slice", part, ends[0], ends[2], axis)
    others = graph.op("Slice", part, ends[1], ends[0], axis)
    return graph.op("Concat", last, others, axis=2)


def counted_every_time(query: Array, value: Array, rounds: int) -> Array:
    """What the nodes compute, by the reference's parts: a key weighs exp(score) for every round that meets it."""
    length, output = len(query), np.zeros_like(value, dtype=np.float64)
    half = reference.buckets_of(length, CHUNK, NUM_BUCKETS) // 2
    for head in range(HEADS):
        columns = slice(head * HEAD_DIM, (head + 1) * HEAD_DIM)
        rows = query[:, columns]
        drawn = [reference.rotations(SEED, 0, head, number, half, HEAD_DIM) for number in range(rounds)]
        orders = [np.argsort(reference.buckets(rows, matrix), kind="stable") for matrix in drawn]
        met = np.sum([reference.sees(reference.chunks_of(order, CHUNK)) for order in orders], axis=0)
        logits = HEAD_DIM**-0.5 * rows.astype(np.float64) @ reference.unit_keys(rows).T
        with np.errstate(divide="ignore"):
            output[:, columns], _ = reference.attend(logits + np.log(met), value[:, columns])
    return output


def contenders(case: Case, threads: int) -> dict[str, nodes.Runner]:
    """The operator, the nodes and exact softmax attention, checked up to CHECKED tokens."""
    length, rounds = case["tokens"], case["num_rounds"]
    rng = np.random.default_rng(length)
    key, value = (rng.standard_normal((length, CHANNELS)).astype(np.float32) for _ in range(2))
    # Whole steps of each row's largest coordinate, so that nothing is rounded before it is hashed, as in the nodes.
    steps = np.clip(np.rint(50 * rng.standard_normal((length, CHANNELS))), -127, 127)
    steps[:, ::HEAD_DIM] = 127
    query = (steps / 64).astype(np.float32)
    graph = standard_nodes(length, rounds)
    shape: dict[str, Any] = {"output": ((length, CHANNELS), np.float32)}
    offsets, knob, seed = np.array([0, length], np.int32), np.array([rounds], np.int32), np.array([SEED])
    feeds = {"query": query, "value": value, "cu_seqlens": offsets, "num_rounds": knob, "seed": seed}
    ours = nodes.own("reformer", list(feeds), ["output"], num_heads=HEADS)
    runs = {
        "nodes": nodes.Runner(
            graph.nodes, {"query": query, "value": value}, shape, constants=graph.constants, threads=threads
        ),
        "own": nodes.Runner([ours], feeds, shape, threads=threads),
        "softmax": nodes.softmax(query, key, value, offsets, HEADS, threads=threads),
    }
    if length <= CHECKED:
        exact = reference.reformer_attention(query, value, offsets, knob, seed, num_heads=HEADS)
        for name, expected in (("own", exact), ("nodes", counted_every_time(query, value, rounds))):
            checked(name, float(np.abs(runs[name].result()["output"] - expected).max()))
    return runs
