"""`probe.npz`: a few inputs with the logits that the model gave when it was exported, compared at load."""

import zipfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from attenuator.bundle import PROBE
from attenuator.errors import BundleError
from attenuator.runtime.tokens import Encoded

# Largest difference allowed, as a share of max(1, |logit|).
TOLERANCE = {"fp32": 1e-3, "fp16": 2e-2, "bf16": 2e-2, "int8": 2e-2}
MAX_PROBE_BYTES = 16 * 2**20


def write_probe(folder: Path, inputs: Sequence[Encoded], logits: npt.NDArray[np.float32]) -> None:
    """Writes the probe.

    Args:
        folder: the bundle.
        inputs: N token sequences, at least one.
        logits: float32 `[N, num_labels]` at the exact value of every knob, seed 0.
    """
    lengths = [len(encoded.token_ids) for encoded in inputs]
    np.savez_compressed(
        folder / PROBE,
        input_ids=np.concatenate([encoded.token_ids for encoded in inputs]).astype(np.int64),
        token_type_ids=np.concatenate([encoded.type_ids for encoded in inputs]).astype(np.int64),
        cu_seqlens=np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32),
        logits=np.asarray(logits, dtype=np.float32),
    )


def read_probe(folder: Path) -> tuple[list[Encoded], npt.NDArray[np.float32]]:
    """Reads the probe without unpickling anything.

    Args:
        folder: the bundle.

    Returns:
        N token sequences and float32 logits `[N, num_labels]`.

    Raises:
        BundleError: the file is not what `write_probe` writes.
    """
    path = folder / PROBE
    try:
        with zipfile.ZipFile(path) as archive:
            size = sum(entry.file_size for entry in archive.infolist())
        if size > MAX_PROBE_BYTES:
            raise ValueError(f"it unpacks to {size} bytes, must be at most {MAX_PROBE_BYTES}")
        with np.load(path, allow_pickle=False) as arrays:
            ids, types, ends, logits = (
                arrays[name] for name in ("input_ids", "token_type_ids", "cu_seqlens", "logits")
            )
    except Exception as error:  # numpy and zipfile raise half a dozen kinds on damaged files
        raise BundleError(f"bundle {folder}: {PROBE} cannot be read: {error}") from None
    sane = (
        (ids.ndim, types.ndim, ends.ndim, logits.ndim) == (1, 1, 1, 2)
        and (ids.dtype, types.dtype, ends.dtype, logits.dtype) == (np.int64, np.int64, np.int32, np.float32)
        and ids.shape == types.shape
        and len(ends) == len(logits) + 1 >= 2
        and ends[0] == 0
        and ends[-1] == len(ids)
        and bool((np.diff(ends) > 0).all())
    )
    if not sane:
        raise BundleError(f"bundle {folder}: {PROBE} does not hold token sequences with logits")
    pairs = zip(ends[:-1], ends[1:], strict=True)
    return [Encoded(ids[start:end], types[start:end]) for start, end in pairs], logits
