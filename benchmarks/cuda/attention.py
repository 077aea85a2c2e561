"""YOSO and exact attention on CUDA, one sequence and large batches, fp16 and bf16."""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch

from benchmarks.contenders.inputs import Packed, error_of_softmax, error_of_yoso, gaussian
from benchmarks.cuda import nodes as cuda_nodes
from benchmarks.cuda.device import Place
from benchmarks.cuda.nodes import DTYPES, SDPA, TorchAttention, attempt
from benchmarks.measure.cases import HASH_BITS, HEAD_DIM, HEADS, Row, Runs, checked, fastest, records
from benchmarks.measure.timing import Sampler, Timing, interleave

LENGTHS = (512, 1024, 2048, 4096, 8192, 16384, 32768, 65536)
NUM_HASHES = (8, 16, 32, 64)
# A large batch has this many tokens.
LARGE_TOKENS = 65536
# Beyond this length the reference is slow, so that only the fewest hashes are checked.
ALL_CHECKED = 4096
# Both sides get rounded inputs, so that only the rounding of weights and outputs differs.
TOLERANCES = {"fp32": 1e-4, "fp16": 5e-3, "bf16": 3e-2}
BATCHES = ("one", "large")


class Setting(NamedTuple):
    """One row of the result file: a precision, a length, and how many sequences of it."""

    precision: str
    length: int
    batch: int

    def __str__(self) -> str:
        """What the bar says."""
        return f"{self.precision}, {self.batch} x {self.length}"


def settings(precisions: Sequence[str], lengths: Sequence[int], batches: Sequence[str]) -> Iterator[Setting]:
    """All that is to be measured; a large batch of one sequence is not measured twice."""
    for precision in precisions:
        for name in batches:
            for length in lengths:
                batch = 1 if name == "one" else LARGE_TOKENS // length
                if name == "one" or batch > 1:
                    yield Setting(precision, length, batch)


def rounded(packed: Packed, precision: str) -> Packed:
    """The rows as the precision has them, in float32 for the reference."""
    query, key, value = (
        torch.from_numpy(rows).to(DTYPES[precision]).float().numpy()
        for rows in (packed.query, packed.key, packed.value)
    )
    return Packed(query, key, value, packed.lengths, packed.num_heads)


def prepared(
    place: Place, setting: Setting, num_hashes: Sequence[int]
) -> tuple[Runs, dict[str, float], dict[str, str]]:
    """Contenders that computed the right thing, their errors, and the baselines that refuse.

    Raises:
        SystemExit: a contender computes something else.
    """
    packed = rounded(gaussian([setting.length] * setting.batch, HEADS, HEAD_DIM), setting.precision)
    rows = {
        name: torch.from_numpy(getattr(packed, name)).to(place.torch_device, DTYPES[setting.precision])
        for name in ("query", "key", "value")
    }
    tolerance = TOLERANCES[setting.precision]
    runs: Runs = {}
    errors: dict[str, float] = {}
    refused: dict[str, str] = {}
    for m in num_hashes:
        name = f"yoso m={m}"
        runs[name] = runner = cuda_nodes.yoso(place, rows, packed.cu_seqlens, m, HEADS, HASH_BITS)
        if setting.length <= ALL_CHECKED or m == min(num_hashes):
            error = error_of_yoso(packed, runner.result()["output"], m, HASH_BITS)
            errors[name] = checked(name, error, tolerance)
    makers: dict[str, Any] = {
        "softmax": lambda: cuda_nodes.softmax(place, rows, packed.cu_seqlens, HEADS),
        **{
            f"ort {kind}": lambda kind=kind: cuda_nodes.ort_attention(place, rows, setting.batch, HEADS, kind)
            for kind in ("mha", "attention23")
        },
        **{
            f"torch {name}": lambda backend=backend: TorchAttention(place, rows, setting.batch, HEADS, backend)
            for name, backend in SDPA.items()
        },
    }
    for name, make in makers.items():
        runner, result, reason = attempt(make)
        if result is None:
            refused[name] = reason
            continue
        output = result["output"].reshape(packed.query.shape)
        errors[name] = checked(name, error_of_softmax(packed, output), tolerance)
        runs[name] = runner
    return runs, errors, refused


def rates(setting: Setting, name: str, timing: Timing) -> Row:
    """What a contender reached, from the work that cannot be avoided.

    Returns:
        For exact attention `tflop_s`; for YOSO `hash_top_s` (int8 products of the hashes), `table_gb_s` (adding a value
        to an int32 table and reading one, for each token and hash), and for both `memory_gb_s` (inputs read and output
        written once).
    """
    seconds = timing.median / 1e6
    tokens = setting.length * setting.batch
    channels = HEADS * HEAD_DIM
    size = DTYPES[setting.precision].itemsize
    values = {"memory_gb_s": 4 * tokens * channels * size / seconds / 1e9}
    if not name.startswith("yoso"):
        return values | {"tflop_s": 4 * tokens * setting.length * channels / seconds / 1e12}
    m = int(name.removeprefix("yoso m="))
    values["hash_top_s"] = 2 * 2 * tokens * m * HASH_BITS * channels / seconds / 1e12
    values["table_gb_s"] = 3 * 4 * tokens * m * channels / seconds / 1e9
    return values


def shares(rate: Row, precision: str, limits: Row) -> Row:
    """The rates over what the device reaches at best; empty without limits."""
    best = {
        "memory_gb_s": "copy_gb_s",
        "tflop_s": f"{precision}_tflop_s",
        "hash_top_s": "int8_top_s",
        "table_gb_s": "shared_gb_s",
    }
    return {name: value / limits[best[name]] for name, value in rate.items() if best[name] in limits}


def run(
    place: Place, setting: Setting, num_hashes: Sequence[int], seconds: float, sampler: Sampler, limits: Row
) -> Row:
    """Checks and times one setting.

    Args:
        place: where.
        setting: what.
        num_hashes: of the YOSO contenders.
        seconds: see `timing.interleave`.
        sampler: the device's clock.
        limits: from `cuda_device.limits`.

    Returns:
        A row of a result file: times, errors, baselines that refused and why, speed-ups over the fastest exact
        attention in device time and in elapsed time, and achieved rates with their share of the device's limits.
    """
    with place.active():
        runs, errors, refused = prepared(place, setting, num_hashes)
        timings = interleave(runs, seconds=seconds, sampler=sampler, clock="device")
    ours = tuple(name for name in runs if name.startswith("yoso") or name == "softmax")
    exact = tuple(name for name in runs if name not in ours)
    if not exact:
        raise SystemExit(f"benchmarks: no baseline runs on {setting}: {refused}")
    best = fastest(timings, exact)
    rates_by_contender = {name: rates(setting, name, timing) for name, timing in timings.items()}
    return {
        "precision": setting.precision,
        "n": setting.length,
        "batch": setting.batch,
        "contenders": records(timings),
        "errors": errors,
        "refused": refused,
        "best_exact": best,
        "speed_up": {name: timings[name].times_faster_than(timings[best]) for name in ours},
        "speed_up_wall": {name: timings[name].times_faster_than(timings[best], wall=True) for name in ours},
        "rates": rates_by_contender,
        "share_of_limits": {name: shares(rate, setting.precision, limits) for name, rate in rates_by_contender.items()},
    }
