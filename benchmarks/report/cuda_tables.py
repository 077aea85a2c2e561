"""Tables of what was measured on GPUs, in Markdown; standard library only."""

from collections.abc import Iterator

from benchmarks.report.origins import commit
from benchmarks.report.results_files import Result, Row, crossover, label, names, select
from benchmarks.report.tables import median, table, times

SHARES = {
    "tflop_s": "of the matrix rate",
    "memory_gb_s": "of the copy rate",
    "hash_top_s": "hashes, of the int8 matrix rate",
    "table_gb_s": "tables, of shared memory's rate",
}


def origin(result: Result) -> str:
    """Where the figures come from, in one sentence."""
    card, versions = result["card"], result["versions"]
    runtime = versions.get("onnxruntime-gpu") or versions.get("onnxruntime", "")
    return (
        f"Measured on an {card['name']} (compute capability {card['compute_capability']}, driver {card['driver']}, "
        f"CUDA {card['cuda']}), onnxruntime {runtime}, torch {versions['torch']}, {commit(result)}: "
        "device time, contenders in turns in one process, medians."
    )


def one_sequence(row: Row) -> bool:
    """Whether the row's batch is a single sequence."""
    return bool(row["batch"] == 1)


def lines_over_length(rows: list[Row]) -> tuple[list[int], list[list[str]]]:
    """Speed-ups over length, a line for each contender, precision and kind of batch."""
    lengths = sorted({row["n"] for row in rows})
    lines = []
    for precision in dict.fromkeys(row["precision"] for row in rows):
        for single in (True, False):
            chosen = [row for row in select(rows, precision=precision) if one_sequence(row) == single]
            by_length = {row["n"]: row for row in chosen}
            batch = "one sequence" if single else "65,536 tokens"
            for name in names(chosen, "speed_up", ""):
                cells = [times(median(by_length.get(n), "speed_up", name)) for n in lengths]
                lines.append([f"{label(name)}, {precision}, {batch}", *cells])
    return lengths, lines


def speed_up_table(result: Result) -> str:
    """Times faster than the fastest exact attention."""
    lengths, lines = lines_over_length(result["attention"])
    return table(["tokens", *map(str, lengths)], lines)


def crossover_table(result: Result) -> str:
    """From how many tokens on YOSO is faster."""
    rows = result["attention"]
    columns = names(rows, "speed_up", "yoso")
    body = []
    for precision in dict.fromkeys(row["precision"] for row in rows):
        for single in (True, False):
            chosen = [row for row in select(rows, precision=precision) if one_sequence(row) == single]
            cells = []
            for name in columns:
                points = [(row["n"], row["speed_up"][name]["median"]) for row in chosen if name in row["speed_up"]]
                start = crossover([n for n, _ in points], [ratio for _, ratio in points])
                cells.append("" if not points else f"{start:.0f}" if start else f"above {points[-1][0]}")
            if chosen:
                body.append([f"{precision}, {'one sequence' if single else '65,536 tokens'}", *cells])
    return table(["faster from this many tokens", *map(label, columns)], body)


def shares_table(result: Result) -> str:
    """Shares of the device's limits that the longest single sequence reaches."""
    body = []
    for precision in dict.fromkeys(row["precision"] for row in result["attention"]):
        row = max(select(result["attention"], precision=precision, batch=1), key=lambda row: int(row["n"]))
        for name, shares in row["share_of_limits"].items():
            cells = [f"{shares[key]:.1%}" if key in shares else "" for key in SHARES]
            us = row["contenders"][name]["device_us"]["median"]
            body.append([f"{label(name)}, {precision}, {row['n']} tokens", f"{us:.0f}", *cells])
    return table(["contender", "us", *SHARES.values()], body)


def limits_line(result: Result) -> str:
    """The device's limits in one sentence."""
    limits = result["limits"][0]
    return (
        f"Measured limits: copy {limits['copy_gb_s']:.0f} GB/s, products of bf16 {limits['bf16_tflop_s']:.0f} and fp16 "
        f"{limits['fp16_tflop_s']:.0f} TFLOP/s, of int8 {limits['int8_top_s']:.0f} TOP/s; shared memory by clock and "
        f"width {limits['shared_gb_s']:.0f} GB/s."
    )


def refused_lines(result: Result) -> Iterator[str]:
    """Baselines that some setting could not run, and why."""
    reasons: dict[tuple[str, str], int] = {}
    for row in result["attention"]:
        for name, reason in row["refused"].items():
            reasons[name, reason] = reasons.get((name, reason), 0) + 1
    for (name, reason), count in reasons.items():
        yield f"- {name} did not run in {count} of {len(result['attention'])} settings: {reason}"


def projection_table(result: Result) -> str:
    """MCA's value projection."""
    body = []
    for row in result.get("projection", []):
        for setting in row["settings"]:
            own = setting["projection"]["median"]
            cells = [f"{setting['alpha']:g}", f"{setting['value_flops']:.3f}", times(own) if own > 0 else ""]
            what = f"{row['batch']} x {row['n']} tokens, {row['precision']}"
            body.append([what, *cells, times(setting["whole"]["median"])])
    return table(["batch", "`alpha`", "multiply-adds", "projection", "and attention"], body)


def models_table(result: Result) -> str:
    """The bundled models: a batch of mixed knobs over the exact value, and over the CPU."""
    body = []
    for row in result["models"]:
        wall = row["contenders"]["mixed"]["wall_us"]["median"] / 1000
        ratio = row["over_exact"]["mixed"]["median"]
        cells = [f"{wall:.2f}", times(ratio), times(row["over_cpu"]["median"])]
        body.append([f"{row['bundle']}, {row['batch']} x up to {row['n']} tokens", *cells])
    return table(["batch", "ms", "over the exact value", "over the CPU"], body)


def encoders_table(result: Result) -> str:
    """Whole encoders in half precision, over the same with the fastest exact attention."""
    body = []
    for row in result["encoders"]:
        ratios = ", ".join(f"{label(name)}: {times(ratio['median'])}" for name, ratio in row["over_exact"].items())
        body.append([f"{row['shape']}, {row['precision']}, {row['n']} tokens", row["best_exact"], ratios])
    return table(["encoder", "fastest exact", "times faster"], body)


def parts(operators: dict[str, Result], models: dict[str, Result]) -> Iterator[str]:
    """The GPUs' part of operators/operators.md; nothing where none was measured."""
    for name, result in operators.items():
        yield f"### On CUDA: {name}"
        yield origin(result)
        yield "Times faster than the fastest of PyTorch's fused attentions and ONNX Runtime's own, 12 heads of 64:"
        yield speed_up_table(result)
        yield crossover_table(result)
        yield f"![on CUDA](../results/{plot_name(name)})"
        yield limits_line(result)
        yield shares_table(result)
        yield "\n".join(refused_lines(result))
        if result.get("projection"):
            yield "MCA's value projection, times faster than a dense one, device time:"
            yield projection_table(result)
    for name, result in models.items():
        yield f"### Bundled models on CUDA: {name}"
        yield origin(result).replace("device time", "elapsed time")
        yield "Rows of different lengths and knobs in one batch, from token ids to logits:"
        if result.get("models"):
            yield models_table(result)
        if result.get("encoders"):
            yield "Untrained encoders, one sequence, device time, times faster than with the fastest exact attention:"
            yield encoders_table(result)


def plot_name(card: str) -> str:
    """File of a card's plot."""
    return f"cuda-{'-'.join(card.lower().split())}.svg"
