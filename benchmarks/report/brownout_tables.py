"""The table of `brownout.py` in benchmarks/knobs.md; standard library only."""

from benchmarks.report.origins import commit
from benchmarks.report.results_files import ISA_NAMES, RESULTS, Result, load_all
from benchmarks.report.tables import table

HEAD = (
    "model, tokens",
    "a second: exactly, at the floors, offered",
    "brownout",
    "refused",
    "answered within the target",
    "until the answer, median · 95 % · 99 %",
    "answers as exactly",
)


def brownout() -> str:
    """What each bundle's server did, and where that was measured."""
    results = load_all("brownout")
    if not results:
        raise FileNotFoundError(f"{RESULTS} lacks brownout-*.json: run `python -m benchmarks.service.brownout`")
    body = [line for result in results for line in _lines(result)]
    first = results[0]
    loads = ", ".join(f"{result['load_average']:.1f}" for result in results)
    texts = " · ".join(str(result["texts"]) for result in results)
    origin = (
        f"Measured on {first['machine']['cores']} cores of an {first['machine']['processor']} "
        f"({ISA_NAMES[first['isa']]}), which the load generator shares, load average before the runs {loads}, "
        f"{commit(*results)}; Poisson arrivals, latency from the "
        f"moment at which a request was to leave, exact values asked for, {texts} texts. An answer is as the exact one "
        "where its label is the same, with several labels all of them; in brackets the share of single labels that are "
        "the same."
    )
    return f"{table(HEAD, body)}\n\n{origin}"


def _lines(result: Result) -> list[list[str]]:
    floor = ", ".join(f"`{name}` {value:g}" for name, value in result["floor"].items())
    lines = []
    for run, name in (("without", "no"), ("with", f"to {floor}")):
        row = result[run]
        agreement = row["agreement"]
        single = (
            f" ({1 - row['labels_differing']:.3f})" if row["labels_differing"] < 1 - agreement["share"] - 1e-9 else ""
        )
        lines.append(
            [
                f"`{result['bundle']}`, {result['tokens']['median']:.0f}",
                f"{result['capacity_per_s']:.1f}, {result['floor_capacity_per_s']:.1f}, {result['rate_per_s']:.1f}",
                name,
                f"{100 * row['refused']['share']:.1f} %",
                f"{100 * row['within_target']['share']:.1f} % of {result['target_ms'] / 1000:g} s",
                " · ".join(f"{row['latency_s'][q]:.2f}" for q in ("0.5", "0.95", "0.99")) + " s",
                f"{agreement['share']:.3f}{single}",
            ]
        )
    return lines
