"""Writes what is generated in tracked files; with --check, tells whether it is current.

Knobs come from the operators' specs, measured figures from benchmarks/results, TypeScript's types from the HTTP API's,
what a release was tried on from docs/release.json; the client's package and the Helm chart have the package's version.

Run it as `make gen`; it needs nothing but the package itself.
"""

import argparse
import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path

from attenuator import __version__
from attenuator.ops import KNOBS, OPERATORS, attention_with
from attenuator.ops.spec import Knob
from attenuator.serve.observe.metrics import GAUGES, Metrics

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
import typescript  # noqa: E402
from benchmarks.report import pages  # noqa: E402
from benchmarks.report.origins import SINCE_THEN  # noqa: E402

WHAT_IT_IS = {"int32": "integer", "float": "number"}
ACCURACY = {"rises": "rises with it", "falls": "falls with it"}


def row(knob: Knob) -> str:
    """One line of the table of knobs."""
    cells = (
        f"`{knob.name}`",
        ", ".join(f"`{key}`" for key in attention_with(knob.name)),
        f"{WHAT_IT_IS[knob.dtype]}, {knob.low:g} to {knob.high:g}",
        f"{knob.default:g}",
        f"{knob.exact:g}",
        ACCURACY[knob.accuracy],
    )
    return "| " + " | ".join(cells) + " |"


def knob_table() -> str:
    """The table of knobs, in Markdown."""
    head = ("knob", "attention", "values", "default", "exact value", "accuracy")
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    lines += [row(knob) for knob in KNOBS.values()]
    return "\n".join(lines)


def device_table() -> str:
    """The table of the devices that each attention runs on, in Markdown."""
    lines = ["| runs on | attention |", "|---|---|"]
    for where, cpu_only in (("CPU and GPU", False), ("CPU alone", True)):
        keys = ", ".join(f"`{each.key}`" for each in OPERATORS if each.attention and each.cpu_only == cpu_only)
        lines.append(f"| {where} | {keys} |")
    return "\n".join(lines)


def metric_table() -> str:
    """The table of metrics, in Markdown."""
    lines = ["| metric | type | labels | what it measures |", "|---|---|---|---|"]
    for one in (*Metrics().described, *GAUGES):
        labels = ", ".join(f"`{label}`" for label in one.labels)
        lines.append(f"| `{one.name}` | {one.kind} | {labels} | {one.doc} |")
    return "\n".join(lines)


def release_table() -> str:
    """The systems and Pythons on which `scripts/release_check.py --record` tried the wheel, in Markdown."""
    record = json.loads((ROOT / "docs/release.json").read_text(encoding="utf-8"))
    lines = ["| system | state | what ran |", "|---|---|---|"]
    for row in record["rows"]:
        if ran := re.search(r"Python [\d.]+, glibc [\d.]+, onnxruntime [\d.]+", row["result"]):
            lines.append(f"| {row['what']} | supported | {ran[0]} |")
        elif not row["tried"]:
            lines.append(f"| {row['what']} | untested | {row['result']} |")
    older = "" if record["version"] == __version__ else f" Version {__version__} has not been through it yet."
    return "\n".join([*lines, "", f"Version {record['version']}, commit {record['commit']}.{older}"])


# File, then block, then what makes it.
BLOCKS: dict[str, dict[str, Callable[[], str]]] = {
    "docs/gpu.md": {"devices": device_table},
    "docs/knobs.md": {"knobs": knob_table},
    "docs/reference/metrics.md": {"metrics": metric_table},
    "docs/status.md": {"release": release_table},
    **pages.BLOCKS,
}


def block_of(block: str, text: str) -> str:
    """The content between a block's markers; empty where they are missing."""
    return text.partition(f"<!-- {block}:begin -->")[2].partition(f"<!-- {block}:end -->")[0]


def outdated(name: str, old: str, new: str) -> Iterator[str]:
    """A sentence for each block of a file that does not say yet that it is older than the kernels it measures."""
    for block in BLOCKS.get(name, {}):
        [was, now] = [set(re.findall(rf"{SINCE_THEN} .*? have changed", block_of(block, text))) for text in (old, new)]
        for change in sorted(now - was):
            yield (
                f'{name}, block "{block}", is older than the kernels it measures ({change}): measure again as '
                "benchmarks/README.md says, or let `make gen` say so there"
            )


def filled(name: str, blocks: Mapping[str, Callable[[], str]], text: str) -> str:
    """The text of a file with every generated block replaced by its current content.

    Raises:
        ValueError: a block's markers are missing.
    """
    for block, content in blocks.items():
        begin, end = f"<!-- {block}:begin -->", f"<!-- {block}:end -->"
        before, found_begin, rest = text.partition(begin)
        _, found_end, after = rest.partition(end)
        if not found_begin or not found_end:
            raise ValueError(f"{name} has no block {begin} ... {end}")
        text = f"{before}{begin}\n{content()}\n{end}{after}"
    return text


def chart(old: str) -> str:
    """The Helm chart's `Chart.yaml` with the version that the Python package has, for itself and for the image."""
    return re.sub(r"^(version|appVersion): [^ \n]+", rf"\1: {__version__}", old, flags=re.M)


# File, then what makes its new content from the old one.
FILES: dict[str, Callable[[str], str]] = {
    **{name: partial(filled, name, blocks) for name, blocks in BLOCKS.items()},
    "clients/js/api.d.ts": lambda old: typescript.declarations(),
    "clients/js/package.json": typescript.package,
    "deploy/kubernetes/attenuator/Chart.yaml": chart,
}


def main(arguments: list[str] | None = None) -> int:
    """Runs the program; 0 where all is current or was written, 1 where --check found something stale."""
    parser = argparse.ArgumentParser(prog="scripts/gen.py", description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 where something is not current")
    options = parser.parse_args(arguments)
    stale = []
    for name, content in FILES.items():
        try:
            old = (ROOT / name).read_text(encoding="utf-8")
            new = content(old)
        except (OSError, ValueError) as error:
            print(f"scripts/gen.py: {error}", file=sys.stderr)
            return 1
        if new != old:
            stale.append(name)
            if not options.check:
                (ROOT / name).write_text(new, encoding="utf-8")
                continue
            for sentence in outdated(name, old, new):
                print(f"scripts/gen.py: {sentence}", file=sys.stderr)
    if stale and options.check:
        print(f"scripts/gen.py: {', '.join(stale)}: what is generated is not current: run `make gen`", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
