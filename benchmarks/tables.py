"""The README's tables of measured figures, made from the result files; standard library only.

`make gen` writes them.
"""

import csv
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parent
RESULTS = FOLDER / "results"
PAPER = FOLDER / "paper" / "yoso_efficiency.csv"
# Most capable first; the first that was measured is the README's.
ISAS = ("avx512_vnni", "avx512", "avx2")
ISA_NAMES = {"avx512_vnni": "AVX-512 with VNNI", "avx512": "AVX-512", "avx2": "AVX2"}
SHAPE_NAMES = {
    "paper": "6 layers, 256 dimensions, 4 heads, feed-forward 1024 (YOSO paper, efficiency)",
    "lra": "2 layers, 64 dimensions, 2 heads, feed-forward 128 (Long Range Arena)",
}

Result = dict[str, Any]
Row = dict[str, Any]


def load(benchmark: str) -> dict[str, Result]:
    """Result files of a benchmark by instruction set, most capable first."""
    paths = {isa: RESULTS / f"{benchmark}-{isa}.json" for isa in ISAS}
    return {isa: json.loads(path.read_text(encoding="utf-8")) for isa, path in paths.items() if path.is_file()}


def paper_times() -> dict[str, dict[int, float]]:
    """The YOSO paper's milliseconds per instance, by method and n."""
    times: dict[str, dict[int, float]] = {}
    with PAPER.open(encoding="utf-8", newline="") as stream:
        for row in csv.DictReader(stream):
            times.setdefault(row["method"], {})[int(row["n"])] = float(row["ms_per_instance"])
    return times


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in Markdown; all columns but the first are right-aligned."""
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def times(value: float) -> str:
    """A ratio with two significant digits."""
    return f"{value:.2f}" if value < 0.995 else f"{value:.1f}" if value < 9.95 else f"{value:.0f}"


def one_thread(rows: Sequence[Row], **facts: Any) -> list[Row]:
    """Rows measured on one thread with these facts."""
    return [row for row in rows if row["threads"] == 1 and all(row.get(key) == value for key, value in facts.items())]


def names(rows: Sequence[Row], field: str, prefix: str) -> list[str]:
    """Contenders with a prefix that any row has, in their order."""
    return list(dict.fromkeys(name for row in rows for name in row[field] if name.startswith(prefix)))


def yoso_table(results: dict[str, Result]) -> str:
    """Speed-up of the operator over n, for each number of hashes and instruction set."""
    first = next(iter(results.values()))
    lengths = [row["n"] for row in one_thread(first["attention"]) if names([row], "speed_up", "yoso")]
    body = []
    for isa, result in results.items():
        rows = {row["n"]: row for row in one_thread(result["attention"])}
        for name in names(list(rows.values()), "speed_up", "yoso"):
            cells = [rows[n]["speed_up"].get(name) if n in rows else None for n in lengths]
            body.append([f"{name[5:]}, {ISA_NAMES[isa]}", *(times(c["median"]) if c else "" for c in cells)])
    return table(["tokens", *map(str, lengths)], body)


def softmax_table(result: Result) -> str:
    """Speed-up of SoftmaxAttention."""
    rows = one_thread(result["attention"])
    return table(
        ["tokens", *(str(row["n"]) for row in rows)],
        [["`SoftmaxAttention`", *(times(row["speed_up"]["softmax"]["median"]) for row in rows)]],
    )


def ragged_table(result: Result) -> str:
    """Speed-ups over padded attention with a mask."""
    rows = one_thread(result["ragged"])
    contenders = ["softmax", *names(rows, "speed_up", "yoso")]
    body = [[row["batch"], *(times(row["speed_up"][name]["median"]) for name in contenders)] for row in rows]
    return table(["batch", "exact", *(name[5:] for name in contenders[1:])], body)


def projection_table(result: Result) -> str:
    """MCA's value projection at stated shares of the multiply-adds."""
    body = []
    for row in result["projection"]:
        for share, alpha in row["alpha_of_share"].items():
            if alpha is None:
                continue
            setting = next(item for item in row["settings"] if item["alpha"] == alpha)
            ratios = (setting["projection"]["median"], setting["whole"]["median"])
            body.append(
                [f"{row['n']}, scores' deviation {row['sharpness']:g}", share, f"{alpha:g}", *map(times, ratios)]
            )
    return table(["tokens", "multiply-adds", "`alpha`", "projection", "projection and attention"], body)


def memory_table(result: Result) -> str:
    """Peak temporary memory of the first call."""
    rows = result["memory"]
    lengths = sorted({row["n"] for row in rows})
    found = {(row["contender"], row["n"]): row["first_call_mib"] for row in rows}
    body = [
        [name, *(f"{found[name, n]:.1f}" if (name, n) in found else "" for n in lengths)]
        for name in dict.fromkeys(row["contender"] for row in rows)
    ]
    return table(["MiB at tokens", *map(str, lengths)], body)


def model_tables(results: dict[str, Result]) -> Iterator[str]:
    """Whole models, the paper's own figures beside those of its shape."""
    first = next(iter(results.values()))
    for shape in dict.fromkeys(row["shape"] for row in first["models"]):
        lengths = [row["n"] for row in one_thread(first["models"], shape=shape)]
        body = []
        for isa, result in results.items():
            rows = {row["n"]: row for row in one_thread(result["models"], shape=shape)}
            for name in names(list(rows.values()), "over_softmax", ""):
                cells = [rows[n]["over_softmax"][name]["median"] if n in rows else None for n in lengths]
                body.append(
                    [f"{name.removeprefix('yoso ')}, {ISA_NAMES[isa]}", *(times(c) if c else "" for c in cells)]
                )
        if shape == "paper":
            paper = paper_times()
            for name in ("yoso m=16", "yoso m=32"):
                ratios = [times(paper["softmax"][n] / paper[name][n]) if n in paper[name] else "" for n in lengths]
                body.append([f"{name.removeprefix('yoso ')}, the paper's own on a GPU", *ratios])
        yield f"{SHAPE_NAMES[shape]}:\n\n{table(['tokens', *map(str, lengths)], body)}"


def origin(result: Result) -> str:
    """Where the figures come from, in one sentence."""
    machine = result["machine"]
    return (
        f"Measured on one core of an {machine['processor']} (family {machine['family']}, model {machine['model']}, "
        f"{ISA_NAMES[result['isa']]}), onnxruntime {result['versions']['onnxruntime']}, commit {result['commit'][:12]}"
        f"{' with changes' if result['modified'] else ''}, by the programs of `make bench`: CPU time, fp32, contenders "
        "in turns in one process, medians."
    )


def results() -> tuple[dict[str, Result], dict[str, Result]]:
    """The committed results of `operators.py` and of `models.py`, by instruction set.

    Raises:
        FileNotFoundError: there are none.
    """
    operators, models = load("operators"), load("models")
    if not operators or not models:
        raise FileNotFoundError(f"{RESULTS} lacks result files: run `make bench`")
    return operators, models


def summary() -> str:
    """YOSO over one sequence and in whole models: the README's block."""
    operators, models = results()
    first = next(iter(operators.values()))
    parts = [
        origin(first),
        "`YosoAttention`, times faster than the fastest exact fp32 attention of ONNX Runtime "
        "(`com.microsoft.MultiHeadAttention`, `Attention` of opset 23) on one sequence, 12 heads of 64 channels, 8 "
        "hash bits, for each `num_hashes`. Where the operator is restricted to AVX2, ONNX Runtime keeps AVX-512:",
        yoso_table(operators),
        "![speed-up over the number of tokens](benchmarks/results/speed_up.svg)",
        'Whole models, times faster than the same model with exact `SoftmaxAttention`; no attention can beat "free '
        'attention", which only adds its inputs:',
        *model_tables(models),
    ]
    return "\n\n".join(parts)


def details() -> str:
    """Everything else: the block of the benchmarks' own README."""
    operators, models = results()
    first, whole = next(iter(operators.values())), next(iter(models.values()))
    parts = [
        origin(first),
        *([] if whole["commit"] == first["commit"] else [f"Whole models: commit {whole['commit'][:12]}."]),
        "Exact attention, times faster than ONNX Runtime's fastest fp32 attention on one sequence:",
        softmax_table(first),
        "Ragged batches, times faster than ONNX Runtime's fastest attention on the padded batch with its mask:",
        ragged_table(first),
        "MCA's value projection of 768 channels, times faster than ONNX Runtime's prepacked MatMul; and with "
        "attention, than that MatMul followed by `SoftmaxAttention`:",
        projection_table(first),
        f"Peak temporary memory of a first call, {first['memory'][0]['threads']} threads:",
        memory_table(first),
        "![whole models](results/models.svg)",
        "![error beside time](results/frontier.svg)",
        "![value projection](results/projection.svg)",
    ]
    return "\n\n".join(parts)


if __name__ == "__main__":
    print(summary(), details(), sep="\n\n")
