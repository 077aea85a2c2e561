"""Time and memory of attention in a training step, forward and backward, against PyTorch's softmax attention.

    python -m benchmarks.training_step --lengths 1024 4096 16384 65536 --threads 2

Each figure is of a process of its own, after a step of 64 tokens: the second of two steps up to 4,096 tokens, else the
only one; memory is by how much the step lifts resident memory at its peak, gradients and outputs included. `softmax`
writes its scores out, as `eager` of transformers does; `sdpa` is PyTorch's fused attention, which does not.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.peak_memory import peak_mib

ROOT = Path(__file__).resolve().parents[1]
HEAD_DIM, HASH_BITS = 64, 8
WARM_UP, REPEATED = 64, 4096
CONTENDERS = ("yoso", "yoso collided", "softmax", "sdpa")
# Beyond these lengths a contender is left out: its time or its memory grows with the square of the length.
LONGEST = {"yoso collided": 16_384, "softmax": 16_384}


def step(name: str, tokens: int, heads: int, num_hashes: int) -> Any:
    """One forward and backward pass over fresh inputs."""
    import torch
    from torch.nn import functional

    from attenuator.training.yoso.attention import attend_padded, draw_seed
    from attenuator.training.yoso.settings import Settings

    query, key, value = (torch.randn(1, heads, tokens, HEAD_DIM, requires_grad=True) for _ in range(3))
    if name == "sdpa":
        output = functional.scaled_dot_product_attention(query, key, value)
    elif name == "softmax":
        output = torch.softmax(query @ key.transpose(2, 3) * HEAD_DIM**-0.5, dim=-1) @ value
    else:
        gradient = "collided" if name.endswith("collided") else "bound"
        settings = Settings(num_hashes=num_hashes, hash_bits=HASH_BITS, gradient=gradient)
        output = attend_padded(query, key, value, None, settings, draw_seed())
    output.square().mean().backward()


def measured(name: str, tokens: int, heads: int, num_hashes: int, threads: int) -> dict[str, float]:
    """Seconds and MiB of a step, in this process."""
    import torch

    torch.set_num_threads(threads)
    torch.manual_seed(0)
    step(name, WARM_UP, heads, num_hashes)
    peak = peak_mib(lambda: step(name, tokens, heads, num_hashes)) if tokens <= REPEATED else 0.0
    seconds = 0.0

    def timed() -> None:
        nonlocal seconds
        start = time.perf_counter()
        step(name, tokens, heads, num_hashes)
        seconds = time.perf_counter() - start

    peak = max(peak, peak_mib(timed))
    return {"seconds": seconds, "mib": peak}


def in_process(name: str, tokens: int, options: argparse.Namespace) -> dict[str, float]:
    """The same in a fresh process."""
    arguments = ["--lengths", tokens, "--heads", options.heads, "--num-hashes", options.num_hashes]
    arguments += ["--threads", options.threads, "--one", name]
    command = [sys.executable, "-m", "benchmarks.training_step", *map(str, arguments)]
    done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    result: dict[str, float] = json.loads(done.stdout)
    return result


def main() -> None:
    """Print a table, a line as soon as its length is measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lengths", type=int, nargs="+", default=[1024, 4096, 16_384, 65_536], help="in tokens")
    parser.add_argument("--heads", type=int, default=2, help=f"of {HEAD_DIM} channels")
    parser.add_argument("--num-hashes", type=int, default=32)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--one", choices=CONTENDERS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        [tokens] = options.lengths
        print(json.dumps(measured(options.one, tokens, options.heads, options.num_hashes, options.threads)))
        return
    print(f"| tokens | {' | '.join(CONTENDERS)} |\n|---|{'---|' * len(CONTENDERS)}")
    for tokens in options.lengths:
        cells = []
        for name in CONTENDERS:
            if tokens > LONGEST.get(name, tokens):
                cells.append("not run")
                continue
            result = in_process(name, tokens, options)
            cells.append(f"{result['seconds']:.3f} s, {result['mib']:,.0f} MiB")
        print(f"| {tokens:,} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
