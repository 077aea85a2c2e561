"""Token ids and types that a caller gives in place of a text."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from attenuator.errors import InvalidRequest
from attenuator.ops.knobs import shown, whole_number

Ids = npt.NDArray[np.int64]


def whole_numbers(values: Sequence[int], size: int, param: str) -> Ids:
    """Numbers from 0 to size - 1 as int64.

    Raises:
        InvalidRequest: names the first value that is not one.
    """
    # One pass in C for what is nearly always right; the slow one only to name the culprit.
    if set(map(type, values)) != {int} or min(values) < 0 or max(values) >= size:
        allowed = f"whole numbers from 0 to {size - 1}" if size > 1 else "0: this model has no token types"
        for index, value in enumerate(values):
            number = whole_number(value)
            if number is None or not 0 <= number < size:
                raise InvalidRequest(
                    f"{param}[{index}] is {shown(value)}, must be {allowed}",
                    param=f"{param}[{index}]",
                    allowed=allowed,
                )
    return np.array(values, dtype=np.int64)
