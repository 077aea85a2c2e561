"""Packed batches: rows of any length and knob, laid end to end as the arrays that the graph takes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from attenuator.bundle import Manifest
from attenuator.errors import BundleError
from attenuator.ops.knobs import KnobValue

TOKEN_INPUTS = ("input_ids", "position_ids", "token_type_ids")
KNOB_DTYPES = {"int32": np.int32, "float": np.float32}

Ids = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Row:
    """One sequence with its settings.

    Attributes:
        token_ids: int64 `[tokens]`, special tokens included.
        type_ids: int64 `[tokens]`; unused where the graph has no `token_type_ids`.
        knobs: a checked value for every knob of the bundle, as `KnobTable.check` returns.
        seed: 0 to 2^53 - 1.
    """

    token_ids: Ids
    type_ids: Ids
    knobs: Mapping[str, KnobValue]
    seed: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class RowResult:
    """What the model says about one row.

    Attributes:
        logits: float32 `[num_labels]`.
        outputs: the graph's further outputs for the row, by name in `attenuator.ops.SEQUENCE_OUTPUTS`.
    """

    logits: npt.NDArray[np.float32]
    outputs: dict[str, float] = field(default_factory=dict)

    @property
    def value_flops(self) -> float | None:
        """The output of this name, None where the model has none."""
        return self.outputs.get("value_flops")


def by_output(results: Sequence[RowResult]) -> dict[str, list[float]]:
    """The graph's further outputs by name, beside the logits: one value per row, as an answer has them."""
    values: dict[str, list[float]] = {}
    for result in results:
        for name, value in result.outputs.items():
            values.setdefault(name, []).append(value)
    return values


def pack(rows: Sequence[Row], manifest: Manifest) -> dict[str, npt.NDArray[Any]]:
    """Lays rows end to end.

    Args:
        rows: B rows.
        manifest: names the graph's inputs, the position offset and the knobs' dtypes.

    Returns:
        Array by graph input: `input_ids`, `position_ids` and, where the graph has it, `token_type_ids` int64 `[T]`,
        `cu_seqlens` int32 `[B + 1]`, each knob `[B]`, `seed` int64 `[B]`.

    Raises:
        BundleError: the manifest names a graph input that this version cannot fill.
    """
    lengths = np.array([len(row.token_ids) for row in rows], dtype=np.int64)
    cu_seqlens = np.zeros(len(rows) + 1, dtype=np.int32)
    np.cumsum(lengths, out=cu_seqlens[1:], dtype=np.int32)
    dtypes: dict[str, type] = {}
    for knob in manifest.knobs:
        dtypes[knob.name] = KNOB_DTYPES[knob.dtype]
    feeds: dict[str, npt.NDArray[Any]] = {}
    for name in manifest.inputs:
        if name == "input_ids":
            feeds[name] = np.concatenate([row.token_ids for row in rows])
        elif name == "position_ids":
            starts = np.repeat(cu_seqlens[:-1].astype(np.int64), lengths)
            feeds[name] = np.arange(len(starts), dtype=np.int64) - starts + manifest.position_offset
        elif name == "token_type_ids":
            feeds[name] = np.concatenate([row.type_ids for row in rows])
        elif name == "cu_seqlens":
            feeds[name] = cu_seqlens
        elif name == "seed":
            feeds[name] = np.array([row.seed for row in rows], dtype=np.int64)
        elif name in dtypes:
            feeds[name] = np.array([row.knobs[name] for row in rows], dtype=dtypes[name])
        else:
            raise BundleError(f"bundle {manifest.name}: bundle.json: inputs has {name!r}, which is not a known input")
    return feeds
