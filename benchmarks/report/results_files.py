"""Reads result files, for tables and plots; standard library only."""

import csv
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.measure import summaries

FOLDER = Path(__file__).resolve().parents[1]
RESULTS = FOLDER / "results"
PAPER = FOLDER / "papers" / "figures" / "yoso_efficiency.csv"
# Most capable first; the first that was measured is the one that pages and plots show.
ISAS = ("avx512_amx", "avx512_vnni", "avx512", "avx2")
ISA_NAMES = {"avx512_amx": "AVX-512 with AMX", "avx512_vnni": "AVX-512 with VNNI", "avx512": "AVX-512", "avx2": "AVX2"}

Result = dict[str, Any]
Row = dict[str, Any]


def read(path: Path) -> Result:
    """A result file, or the summary of one."""
    result: Result = json.loads(path.read_text(encoding="utf-8"))
    return summaries.whole(result)


def load(benchmark: str) -> Result | None:
    """A benchmark's result on the most capable instruction set that was measured; None where there is none."""
    paths = [RESULTS / f"{benchmark}-{isa}.json" for isa in ISAS]
    return next((read(path) for path in paths if path.is_file()), None)


def load_all(benchmark: str) -> list[Result]:
    """Every result file of a benchmark, by what it measured."""
    return [read(path) for path in sorted(RESULTS.glob(f"{benchmark}-*.json"))]


def load_cuda(benchmark: str) -> dict[str, Result]:
    """Result files of a benchmark on CUDA by card."""
    return {result["card"]["name"]: result for result in load_all(benchmark)}


def paper_times() -> dict[str, dict[int, float]]:
    """The YOSO paper's milliseconds per instance, by method and n."""
    times: dict[str, dict[int, float]] = {}
    with PAPER.open(encoding="utf-8", newline="") as stream:
        for row in csv.DictReader(stream):
            times.setdefault(row["method"], {})[int(row["n"])] = float(row["ms_per_instance"])
    return times


def paper_ratios(lengths: Sequence[int]) -> dict[str, list[float | None]]:
    """The paper's own speed-ups over softmax, by contender; None where it has no figure."""
    times = paper_times()
    softmax = times.pop("softmax")
    return {
        name: [softmax[n] / times_of_one[n] if n in times_of_one else None for n in lengths]
        for name, times_of_one in times.items()
    }


def label(contender: str) -> str:
    """A contender as tables and plots call it: `yoso m=8` is `m=8`, `yoso-c m=32` is `YOSO-C, m=32`."""
    if contender.startswith("yoso-c "):
        return f"YOSO-C, {contender.removeprefix('yoso-c ')}"
    if contender.startswith("mca alpha="):
        return f"MCA, `{contender.removeprefix('mca ')}`"
    if contender == "softmax":
        return "`SoftmaxAttention`"
    return contender.replace("yoso m=", "m=")


def select(rows: Sequence[Row], **facts: Any) -> list[Row]:
    """Rows with these facts."""
    return [row for row in rows if all(row.get(key) == value for key, value in facts.items())]


def names(rows: Sequence[Row], field: str, prefix: str) -> list[str]:
    """Contenders with a prefix that any row has, in their order."""
    return list(dict.fromkeys(name for row in rows for name in row[field] if name.startswith(prefix)))


def crossover(lengths: Sequence[int], ratios: Sequence[float]) -> float | None:
    """Length from which a ratio stays at 1 or above, interpolated over logarithms.

    Returns:
        The first length where the ratio never falls below 1; None where it ends below.
    """
    if not ratios or ratios[-1] < 1:
        return None
    last = max((i for i, ratio in enumerate(ratios) if ratio < 1), default=None)
    if last is None:
        return float(lengths[0])
    share = math.log(1 / ratios[last]) / math.log(ratios[last + 1] / ratios[last])
    return math.exp(math.log(lengths[last]) + share * math.log(lengths[last + 1] / lengths[last]))


def crossovers(result: Result, baseline: str | None = None) -> dict[str, tuple[float | None, Sequence[int]]]:
    """From which length on YOSO is faster, on one thread.

    Args:
        result: of `operators.py`.
        baseline: a contender; the fastest of ONNX Runtime's by default.

    Returns:
        By contender: the length (see `crossover`), and the lengths that were measured.
    """
    rows = select(result["attention"], threads=1)
    by_contender = {}
    for name in names(rows, "speed_up", "yoso"):
        lengths, ratios = [], []
        for row in (row for row in rows if name in row["speed_up"]):
            against = row["contenders"].get(baseline or row["best_exact"])
            if against:
                lengths.append(row["n"])
                ratios.append(against["cpu_us"]["median"] / row["contenders"][name]["cpu_us"]["median"])
        if lengths:
            by_contender[name] = (crossover(lengths, ratios), lengths)
    return by_contender


def length_of(row: Row) -> str:
    """Tokens, and the window if there is one."""
    window = f", window {row['window']}" if row.get("window") else ""
    return f"{row['n']} tokens{window}"
