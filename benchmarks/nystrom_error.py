"""The error of NystromAttention against float64, over landmarks and iterations: a table of ops/nystrom/README.md.

    python -m benchmarks.nystrom_error

The error of a head is the largest difference of an element from the float64 reference, as a share of the reference's
largest element.
"""

import numpy as np

from attenuator.ops.nystrom.reference import nystrom_attention
from benchmarks.contenders.nodes import Runner, own
from benchmarks.contenders.steps.nystrom import inputs_of
from benchmarks.report.tables import table

# Standard deviations of queries and keys at head_dim 64; scores have their product over 8.
SPREADS = (0.5, 1.0, 2.0, 4.0)


def error(landmarks: int, iterations: int, spread: float) -> float:
    """Of four heads of 512 tokens and 64 channels."""
    inputs = inputs_of(512, 4, 64, landmarks, 0, spread)
    attributes = {"num_heads": 4, "iterations": iterations}
    node_of = own("nystrom", list(inputs), ["output"], **attributes)
    output = Runner([node_of], inputs, {"output": ((512, 256), np.float32)}).result()["output"]
    expected = nystrom_attention(
        inputs["query"],
        inputs["key"],
        inputs["value"],
        inputs["cu_seqlens"],
        inputs["num_landmarks"],
        num_heads=4,
        iterations=iterations,
    )
    return float(np.abs(output - expected).max() / np.abs(expected).max())


def main() -> None:
    """Prints the table."""
    lines = []
    for landmarks in (16, 64, 256):
        for iterations in (6, 16):
            errors = (f"{error(landmarks, iterations, spread):.0e}" for spread in SPREADS)
            lines.append([str(landmarks), str(iterations), *errors])
    print(table(["landmarks", "iterations", *(f"σ = {spread:g}" for spread in SPREADS)], lines))


if __name__ == "__main__":
    main()
