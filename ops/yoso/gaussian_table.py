"""The inverse-CDF table that turns uniform 16-bit words into the int8 planes of YOSO's hash.

A plane's coordinate is p + 1/2 with p an int8: the mid-points of 256 steps of 1/32 standard deviation, which are
symmetric and never zero, so that every hash bit of a nonzero row has probability 1/2. `GREATER[k]` words of the upper
half of the 65,536 give p >= k; the lower half mirrors it. Integers only: C++ includes them as `gaussian_table.inc`,
written by this file; no mathematics library runs at hash time.

usage: python -m attenuator.ops.yoso.gaussian_table OUTPUT
"""

import sys
from pathlib import Path
from statistics import NormalDist

STEPS_PER_DEVIATION = 32
HALF = 2**15  # words with the top bit set: p >= 0


def thresholds() -> list[int]:
    """The first 15-bit magnitude of p = 1, 2, ..., 127.

    Magnitude w (the word without its top bit) of the upper half gives p = number of thresholds <= w; a word of the
    lower half gives -1 - p of the mirrored magnitude 32,767 - w.

    Returns:
        127 integers in (0, 32,768), non-decreasing.
    """
    normal = NormalDist()
    return [round((2 * normal.cdf(k / STEPS_PER_DEVIATION) - 1) * HALF) for k in range(1, 128)]


def text() -> str:
    """The numbers as the body of a C++ array, sixteen a line."""
    numbers = [str(value) for value in thresholds()]
    rows = [", ".join(numbers[start : start + 16]) for start in range(0, len(numbers), 16)]
    return "// Written by gaussian_table.py; do not edit.\n" + ",\n".join(rows) + "\n"


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(text())
