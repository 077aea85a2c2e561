"""`probe.npz`: graph inputs by name and the logits that the trained model gave for them, compared at load."""

import zipfile
from pathlib import Path

import numpy as np
import numpy.typing as npt

from attenuator.bundle import PROBE
from attenuator.errors import BundleError
from attenuator.runtime.tokens import Encoded

MAX_PROBE_BYTES = 16 * 2**20


def read_probe(path: Path, folder: Path, *, of_tokens: bool = False) -> tuple[list[Encoded], npt.NDArray[np.float32]]:
    """Reads the probe without unpickling anything.

    The arrays read are `input_ids` and, where there, `token_type_ids` int64 `[T]`, `cu_seqlens` int32 `[N + 1]` and
    `logits` float32 `[N, num_labels]`, or `[T, num_labels]`, made at the exact value of every knob.

    Args:
        path: the file.
        folder: what error sentences call the bundle.
        of_tokens: whether there are logits for each token.

    Returns:
        N token sequences and their logits.

    Raises:
        BundleError: the file does not hold that.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            size = sum(entry.file_size for entry in archive.infolist())
        if size > MAX_PROBE_BYTES:
            raise ValueError(f"it unpacks to {size} bytes, must be at most {MAX_PROBE_BYTES}")
        with np.load(path, allow_pickle=False) as arrays:
            ids, ends, logits = (arrays[name] for name in ("input_ids", "cu_seqlens", "logits"))
            types = arrays["token_type_ids"] if "token_type_ids" in arrays else np.zeros_like(ids)
    except Exception as error:  # numpy and zipfile raise half a dozen kinds on damaged files
        raise BundleError(f"bundle {folder}: {PROBE} cannot be read: {error}") from None
    sane = (
        (ids.ndim, types.ndim, ends.ndim, logits.ndim) == (1, 1, 1, 2)
        and (ids.dtype, types.dtype, ends.dtype, logits.dtype) == (np.int64, np.int64, np.int32, np.float32)
        and ids.shape == types.shape
        and len(ends) >= 2
        and len(logits) == (len(ids) if of_tokens else len(ends) - 1)
        and ends[0] == 0
        and ends[-1] == len(ids)
        and bool((np.diff(ends) > 0).all())
    )
    if not sane:
        raise BundleError(
            f"bundle {folder}: {PROBE} has arrays of other types or shapes, must hold token sequences and their logits"
        )
    return [Encoded(ids[start:end], types[start:end]) for start, end in zip(ends[:-1], ends[1:], strict=True)], logits
