"""Times BigBirdAttention beside the same steps as nodes of ONNX Runtime, and beside full attention.

    python -m benchmarks.bigbird

One sequence of Gaussian rows, H = 12, D = 64, blocks of 64, three random blocks. The nodes gather the blocks that each
query block sees, by a table that is a weight of the graph; rows of the second and the last but one block, which see one
block less, are left out there. The other rows are compared before they are timed.
"""

import argparse

import numpy as np

from attenuator.ops.bigbird.reference import drawn_blocks, fixed_blocks
from benchmarks.contenders.nodes import Array, Runner, node, own
from benchmarks.measure.timing import interleave

HEADS, HEAD_DIM, SIZE, COUNT, SEED = 12, 64, 64, 3, 5
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


def contenders(length: int, threads: int) -> dict[str, Runner]:
    """By name, checked."""
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
        "bigbird": Runner([sparse], packed | knobs, outputs, threads=threads),
        "nodes": as_nodes(rows, length, threads),
        "softmax": Runner([full], packed, outputs, threads=threads),
    }
    output = runners["bigbird"].result()["output"]
    common = np.concatenate([output[:SIZE], output[2 * SIZE : length - 2 * SIZE], output[length - SIZE :]])
    error = float(np.abs(common - runners["nodes"].result()["output"]).max())
    if error > TOLERANCE:
        raise SystemExit(f"the two differ by {error:g}, more than {TOLERANCE:g}")
    return runners


def main() -> None:
    """Prints a row for each length and number of threads."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lengths", type=int, nargs="+", default=[1024, 4096], help="multiples of 64, at least 768")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--seconds", type=float, default=5.0)
    arguments = parser.parse_args()
    print("| N | threads | bigbird, ms | nodes | softmax |\n|---|---|---|---|---|")
    for length in arguments.lengths:
        for threads in arguments.threads:
            timing = interleave(contenders(length, threads), threads=threads, seconds=arguments.seconds)
            least = {name: min(taken.wall_us) / 1000 for name, taken in timing.items()}
            print(f"| {length} | {threads} | " + " | ".join(f"{ms:.2f}" for ms in least.values()) + " |", flush=True)


if __name__ == "__main__":
    main()
