"""At which commit figures were measured, and whether the kernels that they measure have changed since."""

import json
from collections.abc import Sequence

from attenuator.ops import OPERATORS
from benchmarks.measure.kernels import fingerprint
from benchmarks.report.results_files import Result

NAMES = {operator.key: operator.name for operator in OPERATORS}
# Stands in every block that is older than its kernels; `scripts/gen.py --check` looks for it.
SINCE_THEN = "since then the kernels of"


def changed(result: Result) -> list[str]:
    """Names of the operators that a result measured whose kernels are others now."""
    cuda = "card" in result
    recorded = result["kernels"].items()
    return sorted(
        NAMES.get(key, key) for key, was in recorded if key not in NAMES or fingerprint(key, cuda=cuda) != was
    )


def commit(*results: Result) -> str:
    """`commit 6932c4024457`, and in bold what of it the current tree computes otherwise.

    A result file without `kernels` is of a tree that was not committed, from before they were recorded.
    """
    groups: dict[str, list[Result]] = {}
    for result in results:
        name = f"commit {result['commit'][:12]}{' with changes' if result['modified'] else ''}"
        groups.setdefault(name, []).append(result)
    return ", ".join(name + _since_then(group) for name, group in groups.items())


def _since_then(results: Sequence[Result]) -> str:
    if any(result.get("kernels") is None for result in results):
        return " (**which kernels that were is not known**)"
    # Rows by the hundred have the same kernels, and sources take a while to read.
    different = {json.dumps([result["kernels"], "card" in result]): result for result in results}
    names = sorted({name for result in different.values() for name in changed(result)})
    if not names:
        return ""
    listed = " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))
    return f" (**{SINCE_THEN} {listed} have changed**)"
