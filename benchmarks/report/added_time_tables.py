"""The table of `service/added_time.py`; standard library only."""

from typing import Any

from benchmarks.report.origins import commit
from benchmarks.report.results_files import ISA_NAMES, RESULTS, read
from benchmarks.report.tables import table

HEAD = ("milliseconds", "median", "95 %", "99 %")
ROWS = {
    "request_ms": "a request, until its answer is there",
    "bare_ms": "a bare run of the model",
    "added_ms": "a request, less the median bare run",
    "over_bare_ms": "a request, less the bare run at the same percentile",
    "all_added_ms": "the first of each turn counted in: less the median bare run",
    "all_over_bare_ms": "likewise, less the bare run at the same percentile, the first ones counted in",
}


def _first(result: dict[str, Any]) -> str:
    """What the first requests of a turn took, where they were kept apart."""
    if "first_ms" not in result:
        return ""
    median, most = (result["first_ms"]["request"][q] for q in ("0.5", "0.99"))
    return (
        f"beside the first {result['settle']} of each turn, after a second in which the service slept ({median:.2f} ms "
        f"in the median, {most:.2f} at the 99th percentile); "
    )


def added_time() -> str:
    """What the service adds to a request, and where that was measured."""
    path = RESULTS / "added_time.json"
    if not path.is_file():
        return "No result is committed; `python -m benchmarks.service.added_time` measures it."
    result = read(path)
    rows = [(name, result[field]) for field, name in ROWS.items() if field in result]
    body = [[name, *(f"{values[q]:.2f}" for q in ("0.5", "0.95", "0.99"))] for name, values in rows]
    targets = result["targets_ms"]
    body.append(["target of what is added", f"{targets['0.5']:.2f}", "", f"{targets['0.99']:.2f}"])
    machine = result["machine"]
    return (
        f"{table(HEAD, body)}\n\nCPU time of the service's process: {result['server_cpu_ms']:.2f} ms a request, "
        f"{result['added_cpu_ms']:.2f} ms more than a bare run. `{result['bundle']}`, a text of {result['tokens']} "
        f"tokens, {result['requests']} requests one at a time with pauses of {result['pause_ms']:g} ms, "
        f"{_first(result)}"
        f"{machine['processor']} ({ISA_NAMES[result['isa']]}), {machine['cores']} cores, load average before the run "
        f"{result['load_average']:.1f}, {commit(result)}."
    )
