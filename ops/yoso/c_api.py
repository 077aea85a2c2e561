"""What YosoAttention adds to the operators' C ABI (`ops/yoso/c_api.h`): its gradients, for training.

Standard library only.
"""

import ctypes
from collections.abc import Sequence
from typing import Any

from attenuator.ops import c_api
from attenuator.ops.c_api import HeadRows, Memory
from attenuator.ops.yoso.spec import SPEC

__all__ = ["gradient", "has_gradient"]

FUNCTION = "attenuator_yoso_gradient"


def has_gradient(library_path: str) -> bool:
    """Whether this library has what `gradient` calls, which one built of older sources has not."""
    return c_api.has_function(library_path, FUNCTION)


def gradient(
    library_path: str,
    rows: Sequence[HeadRows],
    num_rows: int,
    hashing: Sequence[Memory],
    attributes: dict[str, Any],
    collided: bool,
    softening: float,
    num_threads: int,
) -> None:
    """Writes gradients of YosoAttention without normalisation, with the hashes of the forward pass.

    Args:
        library_path: the operators' shared library.
        rows: query, key, value and the gradient by the output, then the gradients by query, key and value, which are
            written; on the host.
        num_rows: of each, those of all sequences.
        hashing: cu_seqlens, num_hashes of 1 and more, seed; as the operator's inputs.
        attributes: of the node; num_heads, hash_bits, layer, hash and norm_lift count.
        collided: *YOSO, the true derivative of each pair that collides in at least one hash; otherwise eq. 4.
        softening: epsilon in the root of the true derivative, 0 to 1.
        num_threads: threads of this call; they do not change a bit of the result.

    Raises:
        EngineError: what the operator refuses, in its words.
    """
    c_api.call_function(
        library_path,
        FUNCTION,
        c_api.rows_of_heads(rows),
        ctypes.c_int64(num_rows),
        c_api.tensors(hashing),
        c_api.attributes(SPEC, attributes),
        len(SPEC.attributes),
        collided,
        ctypes.c_float(softening),
        num_threads,
    )
