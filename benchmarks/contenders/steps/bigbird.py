"""BigBirdAttention beside nodes that gather the blocks which each query block sees, by a constant table.

One sequence of Gaussian rows, blocks of 64, three random blocks. Rows of the second and the last but one block, which
see one block less, are left out of the nodes.
"""

import numpy as np

from attenuator.ops.bigbird.reference import drawn_blocks, fixed_blocks
from benchmarks.contenders.nodes import Array, Runner, node, own
from benchmarks.contenders.steps.graph import Case
from benchmarks.measure.cases import HEAD_DIM, HEADS, checked

CASES = ({"tokens": 1024, "num_random_blocks": 3}, {"tokens": 4096, "num_random_blocks": 3})
SIZE, COUNT, SEED = 64, 3, 5
TOLERANCE = 1e-5


def weights(length: int) -> dict[str, Array]:
    """The table of blocks, and the shapes and bounds of the nodes."""
    blocks, inner = length // SIZE, length // SIZE - 4
    table = [
        [
            fixed_blocks(block, blocks) + drawn_blocks(SEED, 0, head, block, blocks, COUNT)
            for block in range(2, blocks - 2)
        ]
        for head in range(HEADS)
    ]
    shapes = {
        "by_head": [length, HEADS, HEAD_DIM],
        "by_block": [HEADS * blocks, SIZE, HEAD_DIM],
        "seen": [HEADS * inner, (5 + COUNT) * SIZE, HEAD_DIM],
        "queries": [HEADS * inner, SIZE, HEAD_DIM],
        "together": [HEADS, inner * SIZE, HEAD_DIM],
        "flat": [length - 2 * SIZE, HEADS * HEAD_DIM],
        "at_0": [0],
        "at_1": [SIZE],
        "at_2": [2 * SIZE],
        "at_end_2": [length - 2 * SIZE],
        "at_end_1": [length - SIZE],
        "at_end": [length],
        "axis": [1],
    }
    offsets = blocks * np.arange(HEADS)[:, None, None]
    numbers = {name: np.array(values, np.int64) for name, values in shapes.items()}
    return numbers | {"table": np.array(table, np.int64) + offsets, "scale": np.array(HEAD_DIM**-0.5, np.float32)}


def as_nodes(feeds: dict[str, Array], length: int, threads: int) -> Runner:
    """The same steps as nodes; rows of the first block, of the inner ones and of the last."""
    steps = [
        ("Mul", "query scale", "scaled", {}),
        *(step for name in ("scaled", "key", "value") for step in (
            ("Reshape", f"{name} by_head", f"{name}_rows", {}),
            ("Transpose", f"{name}_rows", f"{name}_heads", {"perm": [1, 0, 2]}),
        )),
        *(step for name in ("key", "value") for step in (
            ("Reshape", f"{name}_heads by_block", f"{name}_blocks", {}),
            ("Gather", f"{name}_blocks table", f"{name}_gathered", {}),
            ("Reshape", f"{name}_gathered seen", f"{name}_seen", {}),
        )),
        ("Slice", "scaled_heads at_2 at_end_2 axis", "inner_rows", {}),
        ("Reshape", "inner_rows queries", "inner_queries", {}),
        ("Transpose", "key_seen", "key_turned", {"perm": [0, 2, 1]}),
        ("MatMul", "inner_queries key_turned", "inner_scores", {}),
        ("Softmax", "inner_scores", "inner_weights", {"axis": -1}),
        ("MatMul", "inner_weights value_seen", "inner_mixed", {}),
        ("Reshape", "inner_mixed together", "inner", {}),
        ("Slice", "scaled_heads at_0 at_1 axis", "first_rows", {}),
        ("Slice", "scaled_heads at_end_1 at_end axis", "last_rows", {}),
        ("Concat", "first_rows last_rows", "global_queries", {"axis": 1}),
        ("Transpose", "key_heads", "every_key", {"perm": [0, 2, 1]}),
        ("MatMul", "global_queries every_key", "global_scores", {}),
        ("Softmax", "global_scores", "global_weights", {"axis": -1}),
        ("MatMul", "global_weights value_heads", "global", {}),
        ("Slice", "global at_0 at_1 axis", "first", {}),
        ("Slice", "global at_1 at_2 axis", "last", {}),
        ("Concat", "first inner last", "heads", {"axis": 1}),
        ("Transpose", "heads", "rows", {"perm": [1, 0, 2]}),
        ("Reshape", "rows flat", "output", {}),
    ]  # fmt: skip
    graph = [node(kind, names.split(), [result], **attributes) for kind, names, result, attributes in steps]
    outputs = {"output": ((length - 2 * SIZE, HEADS * HEAD_DIM), np.float32)}
    return Runner(graph, feeds, outputs, constants=weights(length), threads=threads)


def contenders(case: Case, threads: int) -> dict[str, Runner]:
    """The operator, the nodes and full attention."""
    length = case["tokens"]
    random = np.random.default_rng(0)
    rows = {
        name: random.standard_normal((length, HEADS * HEAD_DIM)).astype(np.float32)
        for name in ("query", "key", "value")
    }
    packed = {**rows, "cu_seqlens": np.array([0, length], np.int32)}
    knobs = {"num_random_blocks": np.array([COUNT], np.int32), "seed": np.array([SEED], np.int64)}
    outputs = {"output": (rows["value"].shape, np.float32)}
    sparse = own("bigbird", [*packed, *knobs], ["output"], num_heads=HEADS, block_size=SIZE)
    full = own("softmax", list(packed), ["output"], num_heads=HEADS)
    runners = {
        "own": Runner([sparse], packed | knobs, outputs, threads=threads),
        "nodes": as_nodes(rows, length, threads),
        "softmax": Runner([full], packed, outputs, threads=threads),
    }
    output = runners["own"].result()["output"]
    common = np.concatenate([output[:SIZE], output[2 * SIZE : length - 2 * SIZE], output[length - SIZE :]])
    checked("bigbird", float(np.abs(common - runners["nodes"].result()["output"]).max()), TOLERANCE)
    return runners
