"""The program behind the table of ops/yoso/README.md that says what rounding rows to int8 moves."""

import pytest
from benchmarks.int8_rounding import measure


@pytest.mark.parametrize(
    ("factor", "head_dim", "constant", "angle", "average"),
    [
        (1, 64, False, 1.0e-3, 0.0),
        (10, 64, False, 2.0e-3, -0.0006),
        (100, 256, False, 4.8e-3, -0.013),
        (1000, 64, True, 11e-3, 0.029),
        (1000, 256, True, 22e-3, 0.059),
    ],
)
def test_the_table_in_the_readme(factor: float, head_dim: int, constant: bool, angle: float, average: float) -> None:
    """The table's cells, within their last digit and five standard errors of fewer pairs."""
    row = measure(factor, head_dim, constant, pairs=4000)
    assert row.angle == pytest.approx(angle, rel=0.07)
    assert row.average == pytest.approx(average, rel=0.05, abs=1e-4 + 5 * row.error)
