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
from attenuator.serve.holdings import HELD_BY_ENGINE, HELD_BY_SERVER
from attenuator.serve.metrics import Metrics

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
import typescript  # noqa: E402
from benchmarks.report import (  # noqa: E402
    added_time_tables,
    attention_tables,
    bert_small_tables,
    brownout_tables,
    documents,
    efficiency_tables,
    error_tables,
    lra_tables,
    profile_tables,
    score_tables,
    server_tables,
)
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
        f"{knob.doc} ({knob.source})",
    )
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def knob_table() -> str:
    """The table of knobs, in Markdown."""
    head = ("knob", "attention", "values", "default", "exact value", "accuracy", "what it does")
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    lines += [row(knob) for knob in KNOBS.values()]
    return "\n".join(lines)


def attention_table() -> str:
    """What `attenuator export --attention` takes, in Markdown."""
    lines = [
        "| `--attention` | for a model trained with | knobs (exact value) | runs on | what it computes |",
        "|---|---|---|---|---|",
    ]
    for operator in OPERATORS:
        if not operator.attention or operator.asked_as:
            continue
        knobs = [
            f"`{knob.name}` ({knob.exact:g})" for knob in KNOBS.values() if operator.key in attention_with(knob.name)
        ]
        device = "CPU" if operator.cpu_only else "CPU, CUDA"
        cells = (f"`{operator.key}`", operator.attention, ", ".join(knobs) or "none", device, operator.doc)
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def metric_table() -> str:
    """The table of metrics, in Markdown."""
    lines = ["| metric | type | labels | what it measures |", "|---|---|---|---|"]
    for one in (*Metrics().described, *HELD_BY_ENGINE, *HELD_BY_SERVER):
        labels = ", ".join(f"`{label}`" for label in one.labels)
        lines.append(f"| `{one.name}` | {one.kind} | {labels} | {one.doc} |")
    return "\n".join(lines)


def release_table() -> str:
    """What `scripts/release_check.py --record` tried, in Markdown."""
    record = json.loads((ROOT / "docs/release.json").read_text(encoding="utf-8"))
    lines = ["| what | result |", "|---|---|"]
    for row in record["rows"]:
        lines.append(f"| {row['what']} | {'' if row['tried'] else '**not tried**: '}{row['result']} |")
    older = "" if record["version"] == __version__ else f" Version {__version__} has not been through it yet."
    return "\n".join([*lines, "", f"Version {record['version']}, commit {record['commit']}.{older}"])


def image_size() -> str:
    """What `.ci/container.sh` measured with RECORD=1, and the limit that it keeps, in Markdown.

    Raises:
        ValueError: the script states no limit.
    """
    record = json.loads((ROOT / "docs/image.json").read_text(encoding="utf-8"))
    limit = re.search(r"^limit_mb=(\d+)", (ROOT / ".ci/container.sh").read_text(encoding="utf-8"), re.M)
    if limit is None:
        raise ValueError(".ci/container.sh has no limit_mb")
    debian = record["megabytes"] - record["packages"] - record["models"]
    parts = f"Debian with Python {debian}, Python packages {record['packages']}, models {record['models']}"
    size = f"**Size.** The image for CPUs has {record['megabytes']} MB: {parts} (commit {record['commit']})."
    return f"{size}\n`make container` fails from {limit[1]} MB on."


# File, then block, then what makes it.
BLOCKS: dict[str, dict[str, Callable[[], str]]] = {
    "docs/knobs.md": {"knobs": knob_table, "brownout": brownout_tables.brownout},
    "docs/own-model.md": {"attentions": attention_table},
    "docs/operations.md": {"metrics": metric_table},
    "docs/status.md": {"release": release_table},
    "docs/deploy-container.md": {"image-size": image_size},
    "README.md": {
        "end-to-end": partial(documents.served, whole=False),
        "demo-request": documents.demo_request,
    },
    "docs/attention-error.md": {"attention-error": error_tables.attention_error},
    **{
        f"ops/{key}/README.md": {"times": partial(attention_tables.beside_nodes, key)}
        for key in attention_tables.ATTENTIONS
    },
    "docs/efficiency.md": {"efficiency": efficiency_tables.efficiency},
    "docs/long-range-arena.md": {"long-range-arena": lra_tables.long_range_arena},
    "docs/lab/models.md": {"profile": profile_tables.profiles},
    "docs/bert-small.md": {"bert-small": bert_small_tables.bert_small},
    "docs/scores.md": {"scores": score_tables.scores},
    "docs/benchmarks.md": {
        "end-to-end": partial(documents.served, whole=True),
        "servers": server_tables.servers,
        "added-time": added_time_tables.added_time,
        "benchmarks": documents.summary,
        "benchmark-details": documents.details,
    },
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
