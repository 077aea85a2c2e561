"""What rounding rows to int8 moves in YOSO's Gaussian hashes: the table in ops/yoso/README.md.

    python -m benchmarks.int8_rounding

Pairs of a query and a key with standard normal coordinates, one of which is an outlier, the same in all rows: a normal
number times a factor, or the factor itself, as in models with outlier channels. Angles of the rounded rows are compared
with those of the rows themselves, in float64: no plane is drawn, so that nothing is sampled but the pairs.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from attenuator.ops.yoso.reference import quantise, unit

HASH_BITS = 8
PAIRS = 20_000
FACTORS = (1, 10, 100, 1000)
HEAD_DIMS = (8, 64, 256)
SMALLEST_E = 0.01  # pairs below it never collide in practice, and their relative error says nothing


@dataclass(frozen=True, slots=True)
class Rounding:
    """What rounding moves.

    Attributes:
        angle: rms over all pairs, rad.
        pair: relative change of E, rms over the pairs with E > SMALLEST_E.
        average: relative change of the mean of E over all pairs.
        error: standard error of `average`.
    """

    angle: float
    pair: float
    average: float
    error: float


def angles(query: NDArray[np.float64], key: NDArray[np.float64]) -> NDArray[np.float64]:
    """Angle of each pair of unit rows `[pairs, head_dim]`, also where arccos would lose it: `[pairs]`."""
    apart, together = np.linalg.norm(query - key, axis=1), np.linalg.norm(query + key, axis=1)
    return np.asarray(2 * np.arctan2(apart, together))


def measure(factor: float, head_dim: int, constant: bool, pairs: int = PAIRS) -> Rounding:
    """Rounding of rows whose first coordinate is `factor` times a normal number, or `factor` itself."""
    generator = np.random.default_rng(head_dim)
    query, key = generator.standard_normal((2, pairs, head_dim)).astype(np.float32)
    for rows in (query, key):
        rows[:, 0] = factor if constant else rows[:, 0] * np.float32(factor)
    exact = angles(unit(query), unit(key))
    rounded = angles(unit(quantise(query)), unit(quantise(key)))
    before, after = ((1 - angle / np.pi) ** HASH_BITS for angle in (exact, rounded))
    collides = before > SMALLEST_E
    relative = after[collides] / before[collides] - 1
    return Rounding(
        angle=float(np.sqrt(((rounded - exact) ** 2).mean())),
        pair=float(np.sqrt((relative**2).mean())) if collides.any() else float("nan"),
        average=float(after.mean() / before.mean() - 1),
        error=float((after - before).std() / np.sqrt(pairs) / before.mean()),
    )


def main() -> None:
    """Prints the table."""
    print(f"tau = {HASH_BITS}, {PAIRS} pairs")
    print("outlier   factor  head_dim  angle (rms rad)  E of a pair (rms)  E on average")
    cases = [(factor, constant) for constant in (False, True) for factor in FACTORS if factor > 1 or not constant]
    for factor, constant in cases:
        for head_dim in HEAD_DIMS:
            row = measure(factor, head_dim, constant)
            share = f"{row.average:+.2%} +- {row.error:.2%}"
            kind = "constant" if constant else "normal"
            print(f"{kind:8}  {factor:6}  {head_dim:8}  {row.angle:15.1e}  {row.pair:17.2%}  {share}")


if __name__ == "__main__":
    main()
