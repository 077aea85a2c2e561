"""YOSO and exact attention, over one sequence and over ragged batches."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from benchmarks.contenders import nodes, torch_baseline
from benchmarks.contenders.inputs import Packed, conv_kernel, error_of_softmax, error_of_yoso, gaussian
from benchmarks.measure.cases import CHANNELS, HASH_BITS, HEAD_DIM, HEADS, Case, Runs, checked

LENGTHS = (64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
SHORTEST = (16, 32)  # for exact attention alone
NUM_HASHES = (8, 16, 32, 64)
# Lengths that several threads run.
THREADED = (64, 256, 1024, 4096, 16384)
# YOSO-C: hashes, and the paper's size of its convolution (appendix, efficiency).
CONV_HASHES, CONV_SIZE = 32, 33
# ONNX's Attention stores all scores, 12 GiB of them at 16384 tokens: it runs up to a sequence of this length.
ATTENTION23_LONGEST = 4096
# Beyond this length the NumPy reference takes seconds, so that only the fewest hashes are checked.
ALL_CHECKED = 4096
TORCH_LONGEST = 8192  # twice that length takes minutes
TORCH_TOLERANCE = {"float32": 1e-4, "bfloat16": 3e-2}
# Name: sequences, shortest, longest. Lengths are drawn log-uniformly: short texts are the most common.
RAGGED = {"16 sequences of 16 to 512": (16, 16, 512), "8 sequences of 64 to 2048": (8, 64, 2048)}
MASKED = ("mha, padded and masked", "attention23, padded and masked")
# Exact attention's seconds for a pair of tokens, and how often each contender runs at least: for the progress bar.
PAIR_SECONDS, FEWEST_RUNS = 25e-9, 5


def expected(pairs: int, contenders: int, threads: int) -> float:
    """Seconds that a case takes beyond its budget: every contender runs a few times, however long a run is."""
    return 0.5 + FEWEST_RUNS * contenders * pairs * PAIR_SECONDS / threads


def yoso_names(num_hashes: Sequence[int]) -> dict[str, int]:
    """Number of hashes by contender."""
    return {f"yoso m={m}": m for m in num_hashes}


def conv_names(num_hashes: Sequence[int]) -> tuple[str, ...]:
    """YOSO-C's contender, where its number of hashes is among those that run."""
    return (f"yoso-c m={CONV_HASHES}",) if CONV_HASHES in num_hashes else ()


def own_runs(packed: Packed, num_hashes: Sequence[int], threads: int) -> tuple[Runs, dict[str, float]]:
    """This project's operators on a packed batch, checked."""
    rows = (packed.query, packed.key, packed.value, packed.cu_seqlens)
    runs: Runs = {}
    errors = {}
    for name, m in yoso_names(num_hashes).items():
        runner = nodes.yoso(*rows, m, HEADS, HASH_BITS, threads=threads)
        if max(packed.lengths) <= ALL_CHECKED or m == min(num_hashes):
            errors[name] = checked(name, error_of_yoso(packed, runner.result()["output"], m, HASH_BITS))
        runs[name] = runner
    for name in conv_names(num_hashes):
        kernel = conv_kernel(HEADS, CONV_SIZE)
        runner = nodes.yoso(*rows, CONV_HASHES, HEADS, HASH_BITS, conv_weight=kernel, threads=threads)
        if max(packed.lengths) <= ALL_CHECKED:
            output = runner.result()["output"]
            errors[name] = checked(name, error_of_yoso(packed, output, CONV_HASHES, HASH_BITS, conv_weight=kernel))
        runs[name] = runner
    runner = nodes.softmax(*rows, HEADS, threads=threads)
    errors["softmax"] = checked("softmax", error_of_softmax(packed, runner.result()["output"]))
    return runs | {"softmax": runner}, errors


def one_sequence(length: int, num_hashes: Sequence[int], threads: int, torch: bool) -> tuple[Runs, dict[str, float]]:
    """Every attention over one sequence."""
    packed = gaussian([length], HEADS, HEAD_DIM)
    runs, errors = own_runs(packed, num_hashes, threads)
    batch = (packed.query[None], packed.key[None], packed.value[None])
    exact = {"mha": nodes.multi_head_attention(*batch, HEADS, threads=threads)}
    if length <= ATTENTION23_LONGEST:
        exact["attention23"] = nodes.onnx_attention(*batch, HEADS, threads=threads)
    for name, runner in exact.items():
        output = runner.result()["output"].reshape(length, CHANNELS)
        errors[name] = checked(name, error_of_softmax(packed, output))
    runs |= exact
    for name, dtype in torch_baseline.DTYPES.items() if torch else ():
        runs[name] = torch_baseline.attention(packed.query, packed.key, packed.value, HEADS, dtype)
        error = error_of_softmax(packed, torch_baseline.as_rows(runs[name]()))
        errors[name] = checked(name, error, TORCH_TOLERANCE[dtype])
    return runs, errors


def ragged_batch(lengths: Sequence[int], num_hashes: Sequence[int], threads: int) -> tuple[Runs, dict[str, float]]:
    """Packed attention, and padded attention with a mask. Padding is done beforehand and costs the padded nothing."""
    packed = gaussian(lengths, HEADS, HEAD_DIM)
    runs, errors = own_runs(packed, num_hashes, threads)
    padded = packed.padded()
    makers = (nodes.masked_multi_head_attention, nodes.masked_onnx_attention)
    for name, make in zip(masked_names(lengths), makers, strict=False):
        runner = make(*padded, lengths, HEADS, threads=threads)
        output = runner.result()["output"].reshape(*padded[0].shape)
        errors[name] = checked(name, error_of_softmax(packed, output[packed.is_token()]))
        runs[name] = runner
    # Without its mask it attends to padding: a wrong result, timed to tell what padding alone costs.
    runs["mha, padded, unmasked (wrong)"] = nodes.multi_head_attention(*padded, HEADS, threads=threads)
    return runs, errors


def masked_names(lengths: Sequence[int]) -> tuple[str, ...]:
    """The padded baselines that memory allows."""
    return MASKED if len(lengths) * max(lengths) ** 2 <= ATTENTION23_LONGEST**2 else MASKED[:1]


def one_sequence_cases(
    lengths: Sequence[int], num_hashes: Sequence[int], threads: Sequence[int], torch: bool
) -> Iterator[Case]:
    """Lengths, on one thread and on several."""
    for count in threads:
        short = SHORTEST if count == 1 and lengths else ()
        chosen = [*short, *lengths] if count == 1 else [n for n in lengths if n in THREADED]
        for length in sorted(set(chosen)):
            hashes = num_hashes if length in lengths else ()
            exact = ("mha", "attention23") if length <= ATTENTION23_LONGEST else ("mha",)

            def prepare(n: int = length, m: Any = hashes, t: int = count) -> tuple[Runs, dict[str, float]]:
                return one_sequence(n, m, t, torch and t == 1 and n <= TORCH_LONGEST)

            ours = (*yoso_names(hashes), *conv_names(hashes), "softmax")
            contenders = 1 + len(exact) + 2 * (torch and count == 1 and length <= TORCH_LONGEST)
            beyond = expected(length**2, contenders, count)
            yield Case("attention", {"n": length}, prepare, ours, exact, count, beyond)


def ragged_lengths() -> dict[str, list[int]]:
    """Lengths of each ragged batch's sequences."""
    random = np.random.default_rng(3)
    return {
        name: [int(n) for n in np.exp(random.uniform(np.log(low), np.log(high), count))]
        for name, (count, low, high) in RAGGED.items()
    }


def ragged_cases(num_hashes: Sequence[int], threads: Sequence[int]) -> Iterator[Case]:
    """Ragged batches, on one thread and on several."""
    for name, lengths in ragged_lengths().items():
        for t in threads:

            def prepare(n: Any = lengths, t: int = t) -> tuple[Runs, dict[str, float]]:
                return ragged_batch(n, num_hashes, t)

            facts = {"batch": name, "lengths": lengths}
            ours = (*yoso_names(num_hashes), *conv_names(num_hashes), "softmax")
            masked = masked_names(lengths)
            beyond = expected(2 * len(lengths) * max(lengths) ** 2, len(masked), t)
            yield Case("ragged", facts, prepare, ours, masked, t, beyond)
