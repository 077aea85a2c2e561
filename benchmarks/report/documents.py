"""The measured parts of the pages about operators and models, from the result files."""

from collections.abc import Iterator

from benchmarks.report import cuda_tables, end_to_end_tables, tables
from benchmarks.report.origins import commit
from benchmarks.report.results_files import ISA_NAMES, RESULTS, Result, load, load_cuda, read


def origin(result: Result) -> str:
    """Where the figures come from, in one sentence."""
    machine = result["machine"]
    return (
        f"Measured on one core of an {machine['processor']} (family {machine['family']}, model {machine['model']}, "
        f"{ISA_NAMES[result['isa']]}), onnxruntime {result['versions']['onnxruntime']}, {commit(result)}, "
        "by the programs of `make bench`: CPU time, fp32, contenders "
        "in turns in one process, medians."
    )


def measured(benchmark: str) -> Result:
    """The committed result of a benchmark.

    Raises:
        FileNotFoundError: there is none.
    """
    result = load(benchmark)
    if result is None:
        raise FileNotFoundError(f"{RESULTS} lacks {benchmark}-*.json: run `make bench`")
    return result


def demo_request() -> str:
    """A table of one request: its score and time at each setting, from `benchmarks.models.demo_request`."""
    result = read(RESULTS / "demo_request.json")
    body = [
        [
            str(row["num_hashes"]) if row["num_hashes"] else "0, the exact value",
            f"{row['score']:.3f}",
            f"{row['cpu_us']['median'] / 1000:,.0f}",
        ]
        for row in result["settings"]
    ]
    head = ["`num_hashes`", f'score of the best label, "{result["label"]}"', "milliseconds of one core"]
    return (
        f"{tables.table(head, body)}\n\nMeasured on {result['machine']['processor']}, "
        f"{ISA_NAMES[result['isa']]}, {commit(result)}: CPU time of the model on one thread; an answer's `timing_ms` "
        "has tokenizing too. `python -m benchmarks.models.demo_request && make gen` measures it on yours."
    )


def operators() -> str:
    """What `operators.py` measured, on the CPU and on CUDA.

    Raises:
        FileNotFoundError: there is no result.
    """
    result = measured("operators")
    on_cuda = cuda_tables.parts(load_cuda("cuda_operators"), load_cuda("cuda_models"))
    return "\n\n".join(part for part in [origin(result), *operator_parts(result), *on_cuda] if part)


def models() -> str:
    """What `models.py` measured on the CPU.

    Raises:
        FileNotFoundError: there is no result.
    """
    result = measured("models")
    return "\n\n".join(part for part in [origin(result), *model_parts(result)] if part)


def operator_parts(operators: Result) -> Iterator[str]:
    """Tables of `operators.py`."""
    yield "## YOSO on one sequence"
    yield (
        "Times faster than the fastest exact fp32 attention of ONNX Runtime (`com.microsoft.MultiHeadAttention`, "
        "`Attention` of opset 23), 12 heads of 64 channels, 8 hash bits, for each `num_hashes`:"
    )
    yield tables.length_table(operators, "attention", "speed_up", ("yoso ",))
    yield "![one operator alone, its speed-up over the number of tokens](../results/speed_up.svg)"
    yield "## From which length on YOSO is faster"
    yield "One sequence, one thread; between measured lengths interpolated over logarithms:"
    yield tables.crossover_table(operators)
    yield "## Exact attention and YOSO-C on one sequence"
    yield "Times faster than ONNX Runtime's fastest fp32 attention; YOSO-C has 33 taps:"
    yield tables.length_table(operators, "attention", "speed_up", ("softmax", "yoso-c"))
    if any(row["threads"] == 2 and "speed_up_wall" in row for row in operators["attention"]):
        yield "Two threads, elapsed time, both sides with two:"
        yield tables.length_table(operators, "attention", "speed_up_wall", ("softmax", "yoso"), threads=2)
    if operators.get("ragged"):
        yield "## Ragged batches"
        yield "Times faster than ONNX Runtime's fastest attention on the padded batch with its mask:"
        yield tables.ragged_table(operators)
    if operators.get("projection"):
        yield "## MCA's value projection"
        yield (
            "768 channels, times faster than ONNX Runtime's prepacked MatMul, in the projection's own time; and with "
            "attention, than that MatMul followed by `SoftmaxAttention`, and by the better of ONNX Runtime's "
            "attention nodes, which have no window:"
        )
        yield tables.projection_table(operators)
        yield tables.slowest_alpha(operators)
        yield "![value projection](../results/projection.svg)"
    if operators.get("frontier"):
        yield "## Error beside time"
        yield tables.frontier_table(operators)
    if operators.get("memory"):
        yield "## Memory"
        yield f"Peak temporary memory, {operators['memory'][0]['threads']} threads:"
        yield tables.memory_table(operators)


def model_parts(models: Result) -> Iterator[str]:
    """Tables of `models.py`."""
    yield (
        "Times faster than the same model with exact `SoftmaxAttention`, one sequence, one thread; no attention over "
        'the same values can beat "free attention", which only adds its inputs:'
    )
    yield from tables.model_tables(models, paper=True)
    yield "Times faster than the same model with ONNX Runtime's fastest fused attention:"
    yield from tables.model_tables(models, "over_fused")
    if any(row["threads"] == 2 and "over_softmax_wall" in row for row in models["models"]):
        yield "Two threads, elapsed time, than with exact `SoftmaxAttention`:"
        yield from tables.model_tables(models, "over_softmax_wall", threads=2)
    if models.get("ragged"):
        yield "Ragged batches, times faster than the same model on the padded batch with ONNX Runtime's attention:"
        yield tables.ragged_model_table(models)
    if models.get("int8"):
        yield "int8 weights, times faster than the same model in fp32:"
        yield tables.int8_table(models)


def end_to_end_origin(result: Result) -> str:
    """Where the end-to-end figures come from, in one sentence."""
    machine = result["machine"]
    return (
        f"{machine['processor']} ({ISA_NAMES[result['isa']]}), onnxruntime {result['versions']['onnxruntime']}, torch "
        f"{result['versions']['torch']}, {commit(result)}, load average "
        f"{result['load_average']:.0f} on {machine['cores']} cores before the run: CPU time on one thread, elapsed "
        "time on several, contenders in turns in one process, medians. A factor is the median over "
        "the turns, which may differ a little from the quotient of two lines."
    )


def served() -> str:
    """One classifier served in every way that `end_to_end.py` compares.

    Raises:
        FileNotFoundError: there is no result.
    """
    result = load("end_to_end")
    if result is None:
        raise FileNotFoundError(f"{RESULTS} lacks end_to_end: run `python -m benchmarks.models.end_to_end`")
    return "\n\n".join([*end_to_end_tables.parts(result), end_to_end_origin(result)])
