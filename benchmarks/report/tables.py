"""Tables of measured figures in Markdown, made from the result files; standard library only."""

from collections.abc import Iterator, Sequence

from benchmarks.report.results_files import (
    Result,
    Row,
    crossovers,
    label,
    length_of,
    names,
    paper_ratios,
    select,
)

SHAPE_NAMES = {
    "paper": "6 layers, 256 dimensions, 4 heads, feed-forward 1024 (YOSO paper, efficiency)",
    "lra": "2 layers, 64 dimensions, 2 heads, feed-forward 128 (Long Range Arena)",
    "bert": "1 layer, 768 dimensions, 12 heads, feed-forward 3072 (BERT-base)",
}
BASELINES = {None: "ONNX Runtime, fp32", "torch fp32": "PyTorch, fp32", "torch bf16": "PyTorch, bf16"}


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in Markdown; all columns but the first are right-aligned."""
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def times(value: float | None) -> str:
    """A ratio with two significant digits; empty where there is none."""
    if value is None:
        return ""
    return f"{value:.2f}" if value < 0.995 else f"{value:.1f}" if value < 9.95 else f"{value:.0f}"


def median(row: Row | None, field: str, name: str) -> float | None:
    """A ratio's median, where the row has it."""
    return row[field][name]["median"] if row and name in row[field] else None


def over_lengths(
    result: Result, section: str, field: str, prefixes: tuple[str, ...], threads: int = 1, shape: str = ""
) -> tuple[list[int], list[list[str]]]:
    """A field's medians over length: lengths, and a line for each contender."""
    facts = {"threads": threads} | ({"shape": shape} if shape else {})
    rows = {row["n"]: row for row in select(result.get(section, []), **facts)}
    chosen = [name for prefix in prefixes for name in names(list(rows.values()), field, prefix)]
    lengths = sorted(n for n, row in rows.items() if any(name in row[field] for name in chosen))
    return lengths, [[label(name), *(times(median(rows[n], field, name)) for n in lengths)] for name in chosen]


def length_table(*args: object, **facts: object) -> str:
    """`over_lengths` in Markdown."""
    lengths, lines = over_lengths(*args, **facts)  # type: ignore[arg-type]
    return table(["tokens", *map(str, lengths)], lines)


def crossover_table(result: Result) -> str:
    """From how many tokens on YOSO is faster, for each number of hashes and baseline."""
    lines = []
    columns: dict[str, None] = {}
    for baseline, called in BASELINES.items():
        crossings = crossovers(result, baseline)
        if crossings:
            columns |= dict.fromkeys(crossings)
            lines.append((f"than {called}", crossings))

    def cell(crossings: tuple[float | None, Sequence[int]] | None) -> str:
        if crossings is None:
            return ""
        length, measured = crossings
        if length is None:
            return f"above {measured[-1]}"
        return f"{length:.0f} or fewer" if length == measured[0] else f"{length:.0f}"

    body = [[head, *(cell(crossings.get(name)) for name in columns)] for head, crossings in lines]
    return table(["faster from this many tokens", *map(label, columns)], body)


def ragged_table(result: Result) -> str:
    """Speed-ups over padded attention with a mask."""
    rows = [
        (f"{row['batch']}, {row['threads']} thread{'s' * (row['threads'] > 1)}", row)
        for row in result.get("ragged", [])
    ]
    contenders = ["softmax", *names([row for _, row in rows], "speed_up", "yoso")]
    body = [[head, *(times(median(row, "speed_up", name)) for name in contenders)] for head, row in rows]
    return table(["batch", "exact", *map(label, contenders[1:])], body)


# With attention: what MatMul is followed by.
WHOLE = {
    "whole": "MatMul and `SoftmaxAttention`",
    "whole_by_ort": "MatMul and the better of ONNX Runtime's attention nodes",
}


def projection_table(result: Result) -> str:
    """MCA's value projection at stated shares of the multiply-adds."""
    body = []
    for row in result.get("projection", []):
        us = {name: item["cpu_us"]["median"] for name, item in row["contenders"].items()}
        for share, alpha in row["alpha_of_share"].items():
            if alpha is None:
                continue
            setting = next(item for item in row["settings"] if item["alpha"] == alpha)
            own = us[f"mca alpha={alpha:g}"] - us["mca, 16 channels"]
            cells = [share, f"{alpha:g}", f"{us['matmul']:.0f}", f"{own:.0f}"]
            # Where noise took all of the projection's time away, there is no ratio.
            ratio = setting["projection"]["median"]
            cells += [
                times(ratio) if ratio > 0 else "",
                *(times(setting[key]["median"]) if key in setting else "" for key in WHOLE),
            ]
            body.append([f"{length_of(row)}, scores' deviation {row['sharpness']:g}", *cells])
    head = [
        "case",
        "multiply-adds",
        "`alpha`",
        "MatMul, us",
        "projection, us",
        "projection",
        "and attention",
        "beside ONNX Runtime's",
    ]
    return table(head, body)


def slowest_alpha(result: Result) -> str:
    """The alpha that wins least, with attention, beside either dense form."""
    rows = [(length_of(row), setting) for row in result.get("projection", []) for setting in row["settings"]]
    sentences = []
    for key, beside in WHOLE.items():
        n, setting = min((row for row in rows if key in row[1]), key=lambda row: row[1][key]["median"])
        ratio = times(setting[key]["median"])
        sentences.append(f"{ratio} times as fast as {beside} ({n}, alpha {setting['alpha']:g})")
    return f"The slowest of all alphas measured, with attention: {'; '.join(sentences)}."


def frontier_table(result: Result) -> str:
    """Error and time for each number of hashes."""
    rows = result["frontier"]
    body = []
    for row in rows:
        cost = {name: item["cpu_us"]["median"] / 1000 for name, item in row["contenders"].items()}
        settings = row["settings"]
        body.append([f"error, {row['n']} tokens", "", "0", *(f"{item['error']:.3f}" for item in settings)])
        hashed = [f"{cost['yoso m=' + str(item['num_hashes'])]:.1f}" for item in settings]
        body.append([f"ms, {row['n']} tokens", f"{cost['mha']:.1f}", f"{cost['yoso m=0']:.1f}", *hashed])
    head = ["`num_hashes`", "softmax (ONNX Runtime)", "0", *(str(s["num_hashes"]) for s in rows[0]["settings"])]
    return table(head, body)


def memory_table(result: Result) -> str:
    """Peak temporary memory of the first call and of the second."""
    rows = result["memory"]
    lengths = sorted({row["n"] for row in rows})
    by_contender = {(row["contender"], row["n"]): row for row in rows}

    def cell(name: str, n: int) -> str:
        row = by_contender.get((name, n))
        return f"{row['first_call_mib']:.1f} / {row['second_call_mib']:.1f}" if row else ""

    contenders = dict.fromkeys(row["contender"] for row in rows)
    body = [[label(name), *(cell(name, n) for n in lengths)] for name in contenders]
    return table(["MiB, first call / second, at tokens", *map(str, lengths)], body)


def model_tables(
    result: Result, field: str = "over_softmax", threads: int = 1, *, paper: bool = False
) -> Iterator[str]:
    """Whole models over length, a table for each shape; the paper's own figures beside those of its shape."""
    for shape in dict.fromkeys(row["shape"] for row in result["models"]):
        lengths, lines = over_lengths(result, "models", field, ("",), threads, shape)
        if not lengths:
            continue
        if shape == "paper" and paper:
            own = paper_ratios(lengths)
            lines += [[f"{label(name)}, the paper's own on a GPU", *map(times, ratios)] for name, ratios in own.items()]
        yield f"{SHAPE_NAMES[shape]}:\n\n{table(['tokens', *map(str, lengths)], lines)}"


def ragged_model_table(result: Result) -> str:
    """Whole models over ragged batches, against the same model on the padded batch, one line per contender."""
    columns: dict[tuple[str, str], None] = {}
    lines: dict[str, dict[tuple[str, str], float]] = {}
    for row in select(result.get("ragged", []), threads=1):
        columns[row["shape"], row["batch"]] = None
        for name, ratio in row["over_fused"].items():
            called = "exact" if name == "softmax" else label(name)
            lines.setdefault(called, {})[row["shape"], row["batch"]] = ratio["median"]
    head = ["batch", *(f"{shape}: {batch}" for shape, batch in columns)]
    return table(head, [[name, *(times(ratios.get(key)) for key in columns)] for name, ratios in lines.items()])


def int8_table(result: Result) -> str:
    """Whole models with linear layers in int8, against themselves in fp32."""
    body = []
    for row in select(result.get("int8", []), threads=1):
        for name, ratio in row["over_fp32"].items():
            error = row["errors"][f"int8 {name}"]
            what = f"{row['shape']}, {row['n']} tokens, {label(name)}"
            body.append([what, times(ratio["median"]), f"{error:.1%}"])
    return table(["model", "times as fast as fp32", "logits move by"], body)
