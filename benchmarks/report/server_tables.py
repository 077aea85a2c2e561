"""The tables of `service/server.py`: a server beside others; standard library only."""

from collections.abc import Iterator

from benchmarks.report.end_to_end_tables import percent
from benchmarks.report.origins import commit
from benchmarks.report.results_files import ISA_NAMES, Result, Row, load_all
from benchmarks.report.tables import table

CAPACITY_HEAD = (
    "",
    "capacity, answers a second",
    "CPU ms an answer",
    "largest difference of a probability",
    "agreement",
)
LOAD_HEAD = (
    "",
    "refused",
    "goodput a second",
    "answered within the target",
    "until the answer, ms: median · 95 % · 99 %",
    "agreement",
)


def servers() -> str:
    """What each server did, and where that was measured."""
    results = load_all("server")
    if not results:
        return "No result is committed; `python -m benchmarks.service.server` measures it."
    return "\n\n".join(part for result in results for part in parts(result))


def parts(result: Result) -> Iterator[str]:
    """Heading, capacities, one table for each load, origin."""
    tokens = result["texts"]["tokens"]
    yield (
        f"`{result['checkpoint']}`, {result['texts']['count']} texts of {tokens['least']} to {tokens['most']} tokens, "
        f"{tokens['median']:.0f} in the median. In a closed loop of many clients:"
    )
    yield table(CAPACITY_HEAD, [line for row in result["capacity"] for line in capacity_lines(row)])
    loads = dict.fromkeys(row["load"] for row in result["variants"])
    for load in loads:
        rows = [row for row in result["variants"] if row["load"] == load]
        yield (
            f"{rows[0]['rate_per_s']:.0f} requests a second, {load:g} times the best peer's capacity, target "
            f"{result['target_ms']:g} ms:"
        )
        yield table(LOAD_HEAD, [load_line(row) for row in rows])
    yield origin(result)


def name(server: str, variant: str) -> str:
    """How tables call a server that is asked in one way."""
    return f"{server}, {variant}" if variant else server


def capacity_lines(row: Row) -> Iterator[list[str]]:
    """One line for each way to ask a server."""
    for each in row["variants"]:
        yield [
            name(row["server"], each["variant"]),
            f"{each['capacity_per_s']:.0f}",
            f"{each['cpu_ms_per_answer']:.2f}",
            f"{each['largest_difference']:.1g}",
            percent(each["agreement"]),
        ]


def load_line(row: Row) -> list[str]:
    """One way to ask a server, at one load."""
    latency_ms = [1000 * seconds for seconds in row["latency_s"].values()]
    return [
        name(row["server"], row["variant"]),
        f"{row['refused'] / row['requests']:.1%}",
        f"{row['goodput_per_s']:.0f}",
        f"{row['within_target']['share']:.1%}",
        " · ".join(f"{each:.0f}" if each >= 9.95 else f"{each:.1f}" for each in latency_ms),
        f"{row['agreement']['share']:.1%}" if row["agreement"] else "",
    ]


def origin(result: Result) -> str:
    """Where the figures come from."""
    machine, peers = result["machine"], result.get("peers", {})
    versions = ", ".join(f"{package} {version}" for package, version in sorted(peers.items()))
    mixture = " and ".join(f"`{key}` {value:g}" for setting in result["mixture"] for key, value in setting.items())
    floor = ", ".join(f"`{key}` {value:g}" for key, value in result["floor"].items())
    busiest = max(row["generator_share"] for row in result["variants"])
    return (
        f"Measured on an {machine['processor']} ({ISA_NAMES[result['isa']]}), each server alone on one core with one "
        f"thread, the load generator on another, of which it used at most {busiest:.0%}; {result['repeats']} rounds of "
        f"{result['round_s']:g} s at each load, servers in turns, latency from the moment at which a request was to "
        "leave. Above a load of 1 the latency of a server that refuses nothing grows as long as the load lasts. Mixed "
        f"knobs: equal shares of the texts exactly and with {mixture}; brownout may lower to {floor}. Agreement is "
        "with the checkpoint's own labels in PyTorch. Load average before the run "
        f"{result['load_average']:.1f}, {commit(result)}; "
        f"this project on onnxruntime {result['versions']['onnxruntime']}; peers: {versions or 'none'}."
    )
