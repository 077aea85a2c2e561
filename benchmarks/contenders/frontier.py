"""Error beside time: what each value of a knob costs and what it is off by."""

from collections.abc import Sequence

import numpy as np

from benchmarks.contenders import nodes
from benchmarks.contenders.inputs import clustered
from benchmarks.measure.cases import HASH_BITS, HEAD_DIM, HEADS, Row, Runs, records
from benchmarks.measure.timing import interleave

LENGTHS = (1024, 4096)
NUM_HASHES = (4, 8, 16, 32, 64, 128, 256)
SEEDS = 3


def run(length: int, num_hashes: Sequence[int], seconds: float) -> Row:
    """YOSO's error against its own expectation, beside exact attention's time.

    Args:
        length: tokens of one sequence whose queries and keys lie around shared centres.
        num_hashes: to try.
        seconds: see `timing.interleave`.

    Returns:
        A row of a result file; `error` is the Frobenius norm of the difference to the exact value over that of the
        exact value, averaged over seeds.
    """
    packed = clustered(length, HEADS, HEAD_DIM)
    rows = (packed.query, packed.key, packed.value, packed.cu_seqlens)
    exact = nodes.yoso(*rows, 0, HEADS, HASH_BITS)
    truth = exact.result()["output"].astype(np.float64)
    runs: Runs = {
        "mha": nodes.multi_head_attention(packed.query[None], packed.key[None], packed.value[None], HEADS),
        "softmax": nodes.softmax(*rows, HEADS),
        "yoso m=0": exact,
    }
    settings: list[Row] = []
    for m in num_hashes:
        outputs = [nodes.yoso(*rows, m, HEADS, HASH_BITS, seed=seed).result()["output"] for seed in range(SEEDS)]
        errors = [float(np.linalg.norm(output - truth) / np.linalg.norm(truth)) for output in outputs]
        settings.append({"num_hashes": m, "error": float(np.mean(errors))})
        runs[f"yoso m={m}"] = nodes.yoso(*rows, m, HEADS, HASH_BITS)
    return {"n": length, "threads": 1, "contenders": records(interleave(runs, seconds=seconds)), "settings": settings}
