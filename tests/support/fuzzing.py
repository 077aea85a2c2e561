"""Damage to an operator's inputs, and what its contract says of them."""

import numpy as np
from cases import Case, axis_of
from harness import Array

from attenuator.ops.spec import SEED_HIGH

HOSTILE = np.array([np.nan, np.inf, -np.inf, 3.4e38, -3.4e38, 1e-45, -1e-40, 0.0, -0.0, 1.0, 1e20, -1e20], np.float32)


def contract_broken(case: Case, inputs: dict[str, Array], on_device: bool = False) -> bool:
    """Whether these inputs must be refused: the contract said once more, independently of the operators.

    Args:
        case: operator and attributes.
        inputs: by the names of the spec.
        on_device: values of positions and buckets lie on a device, where they are not checked.
    """
    cu_seqlens = inputs["cu_seqlens"].astype(np.int64)
    if len(cu_seqlens) == 0 or cu_seqlens[0] != 0 or (np.diff(cu_seqlens) < 0).any():
        return True
    sequences, tokens = len(cu_seqlens) - 1, int(cu_seqlens[-1])
    sizes: dict[str, set[int]] = {"T": {tokens}, "B": {sequences}, "B + 1": {sequences + 1}}
    for item in case.inputs:
        if item.name == "cu_seqlens":
            continue
        shape = inputs[item.name].shape
        sizes.setdefault(axis_of(case, item) or item.axes[0], set()).add(shape[0])
        for name, size in zip(item.axes[1:], shape[1:], strict=True):
            sizes.setdefault(name, set()).add(size)
    if any(len(counts) > 1 for counts in sizes.values()):
        return True
    if "kept_cu_seqlens" in inputs:
        kept, lengths = inputs["kept_cu_seqlens"].astype(np.int64), np.diff(cu_seqlens)
        least = np.minimum(lengths, 2 if "unmerged_cu_seqlens" in inputs else 1)
        if kept[0] != 0 or not ((np.diff(kept) >= least) & (np.diff(kept) <= lengths)).all():
            return True
    if "unmerged_cu_seqlens" in inputs:
        unmerged, lengths = inputs["unmerged_cu_seqlens"].astype(np.int64), np.diff(cu_seqlens)
        before = np.diff(unmerged)
        if unmerged[0] != 0 or (before < lengths).any() or before[lengths == 0].any():
            return True
    heads = int(case.attributes.get("num_heads", 1))
    for name in ("num_heads * head_dim", "num_heads * value_dim"):
        for columns in sizes.get(name, set()):
            if columns % heads or not 8 <= columns // heads <= 256:
                return True
    if sizes.get("num_heads", {heads}) != {heads} or any(size % 2 == 0 for size in sizes.get("c", {1})):
        return True
    longest = int(np.diff(cu_seqlens).max(initial=0))
    for name, rows in sizes.items():
        if name in ("num_heads * k", "num_heads * r") and any(size == 0 or size % heads for size in rows):
            return True
        if name == "max_tokens" and min(rows) < longest:
            return True
        if name == "head_dim" and rows != {columns // heads for columns in sizes["num_heads * head_dim"]}:
            return True
        if name == "2" and rows != {2}:
            return True
        if name == "2 * reach + 1" and any(size % 2 == 0 for size in rows):
            return True
    buckets = inputs.get("buckets", np.zeros(0, np.int64))
    rows = min(sizes.get("R", {1}))
    if rows == 0 or not (on_device or np.all((buckets >= 0) & (buckets < rows))):
        return True
    for knob in case.operator.knobs:
        values = inputs.get(knob.name, knob.exact)
        if not np.all((values >= knob.low) & (values <= knob.high)):
            return True
    if "positions" in inputs and not on_device:
        rises = np.diff(inputs["positions"].astype(object)) > 0
        inside = np.ones(len(rises), bool)
        inside[cu_seqlens[1:-1][(cu_seqlens[1:-1] > 0) & (cu_seqlens[1:-1] < tokens)] - 1] = False
        if not np.all(rises | ~inside):
            return True
    return case.seeded and not ((inputs["seed"] >= 0) & (inputs["seed"] <= SEED_HIGH)).all()


def damage(case: Case, inputs: dict[str, Array], rng: np.random.Generator) -> None:
    """Changes one input so that it may break the contract."""
    item = case.inputs[rng.integers(len(case.inputs))]
    value = inputs[item.name]
    kind = rng.integers(4)
    if kind == 0 and len(value):  # a row too few
        inputs[item.name] = value[:-1]
    elif kind == 1:  # a row too many
        inputs[item.name] = np.concatenate([value, np.ones((1, *value.shape[1:]), value.dtype)])
    elif kind == 2 and value.ndim == 2 and value.shape[1] > 1:  # other columns
        inputs[item.name] = np.ascontiguousarray(value[:, : rng.integers(1, value.shape[1])])
    elif value.dtype != np.float32 and value.size:  # values from everywhere
        limits = np.iinfo(value.dtype)
        extremes = [limits.min, limits.max, -1, 0, 1, SEED_HIGH + 1, 2**31 - 1]
        allowed = np.array([extreme for extreme in extremes if limits.min <= extreme <= limits.max], value.dtype)
        inputs[item.name] = value.copy()
        inputs[item.name][rng.integers(value.size)] = rng.choice(allowed)
    elif item.name in {knob.name for knob in case.operator.knobs} and value.size:
        inputs[item.name] = value.copy()
        inputs[item.name][rng.integers(value.size)] = rng.choice(HOSTILE)


def poison(case: Case, inputs: dict[str, Array], rng: np.random.Generator) -> set[int]:
    """Puts hostile numbers into rows of some sequences; returns which."""
    cu_seqlens = inputs["cu_seqlens"]
    victims = {b for b in range(len(cu_seqlens) - 1) if rng.integers(3) == 0}
    for item in case.inputs:
        axis = axis_of(case, item)
        if item.dtype != "float" or axis is None or (len(item.axes) < 2 and axis != "T"):
            continue
        for b in victims:
            rows = inputs[item.name][b : b + 1] if axis == "B" else inputs[item.name][cu_seqlens[b] : cu_seqlens[b + 1]]
            kind = rng.integers(4)
            if kind == 0 and rows.size:  # one number
                rows.flat[rng.integers(rows.size)] = rng.choice(HOSTILE)
            elif kind == 1:  # many
                rows[...] = np.where(rng.random(rows.shape) < 0.3, rng.choice(HOSTILE, rows.shape), rows)
            elif kind == 2:  # everything the same: zero vectors, huge ones, denormal ones
                rows[...] = rng.choice(HOSTILE)
            else:
                rows *= rng.choice(np.array([1e-42, 1e-20, 1e18], np.float32))
    return victims
