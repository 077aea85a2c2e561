"""Peak temporary memory of one attention call, measured in a process of its own.

    python -m benchmarks.operators.peak_memory yoso --length 8192 --num-hashes 64 --threads 2

Prints one JSON object with MiB beyond inputs and output: of the first call at this length, which also fills caches, and
of the second. The peak is the kernel's (VmHWM, reset before each call); memory arenas are off.
"""

import argparse
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
HEADS, HEAD_DIM, HASH_BITS = 12, 64, 8
WARM_UP = 64
CONTENDERS = ("yoso", "softmax", "mha", "attention23", "torch fp32", "torch bf16")


def status_kib(field: str) -> int:
    """A memory field of this process."""
    match = re.search(rf"^{field}:\s+(\d+) kB", Path("/proc/self/status").read_text(encoding="utf-8"), re.MULTILINE)
    assert match
    return int(match.group(1))


def peak_mib(run: Any) -> float:
    """By how much a run lifts resident memory at its peak."""
    Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")  # the peak starts at what is resident now
    before = status_kib("VmRSS")
    result = run()
    peak = (status_kib("VmHWM") - before) / 1024
    output_mib = 0 if result is None else result.nbytes / 2**20  # torch allocates its output
    return max(0.0, peak - output_mib)


def contender(name: str, length: int, num_hashes: int, threads: int) -> Any:
    """What runs the call over fixed inputs and, but for torch, into a fixed output."""
    from benchmarks.contenders import nodes, torch_baseline
    from benchmarks.contenders.inputs import gaussian

    packed = gaussian([length], HEADS, HEAD_DIM)
    rows = (packed.query, packed.key, packed.value)
    settings: dict[str, Any] = {"threads": threads, "arena": False}
    if name in torch_baseline.DTYPES:
        return torch_baseline.attention(*rows, HEADS, torch_baseline.DTYPES[name])
    if name == "yoso":
        return nodes.yoso(*rows, packed.cu_seqlens, num_hashes, HEADS, HASH_BITS, **settings)
    if name == "softmax":
        return nodes.softmax(*rows, packed.cu_seqlens, HEADS, **settings)
    make = nodes.multi_head_attention if name == "mha" else nodes.onnx_attention
    return make(packed.query[None], packed.key[None], packed.value[None], HEADS, **settings)


def measure(name: str, length: int, num_hashes: int, threads: int) -> dict[str, float]:
    """The same in a fresh process."""
    options = {"--length": length, "--num-hashes": num_hashes, "--threads": threads}
    command = [
        sys.executable,
        "-m",
        "benchmarks.operators.peak_memory",
        name,
        *(str(part) for pair in options.items() for part in pair),
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed: {done.stderr.strip()}")
    measured: dict[str, float] = json.loads(done.stdout)
    return measured


def main() -> int:
    """Runs the program."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("contender", choices=CONTENDERS)
    parser.add_argument("--length", type=int, required=True)
    parser.add_argument("--num-hashes", type=int, default=32)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    settings = (options.num_hashes, options.threads)
    contender(options.contender, WARM_UP, *settings)()
    run = contender(options.contender, options.length, *settings)
    if hasattr(run, "touch"):
        run.touch()
    print(json.dumps({"first_call_mib": peak_mib(run), "second_call_mib": peak_mib(run)}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
