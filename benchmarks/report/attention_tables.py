"""The tables of `attentions.py` in the operators' READMEs; standard library only."""

from pathlib import Path

from attenuator.ops import OPERATORS
from benchmarks.report.origins import commit
from benchmarks.report.results_files import ISA_NAMES, RESULTS, read, select
from benchmarks.report.tables import table

FILE = RESULTS / "attentions.json"
COMMAND = "python -m benchmarks.operators.attentions"
STEPS = Path(__file__).resolve().parents[1] / "contenders" / "steps"
# Operators that have a graph of nodes beside them, and so a table.
ATTENTIONS = tuple(operator.key for operator in OPERATORS if (STEPS / f"{operator.key}.py").is_file())


def beside_nodes(key: str) -> str:
    """Of one operator: its time, that of the same steps as nodes, and exact softmax attention's."""
    result = read(FILE) if FILE.is_file() else {"rows": []}
    rows = select(result["rows"], attention=key)
    if not rows:
        return f"No result is committed; `{COMMAND} --attention {key}` measures it."
    origin = (
        f"One sequence, one thread, median CPU time in turns, on an {result['machine']['processor']} "
        f"({ISA_NAMES[result['isa']]}), {commit(*rows)}, by `{COMMAND}`:"
    )
    facts = list(rows[0]["case"])
    body = [
        [
            *(f"{row['case'][name]:,}" for name in facts),
            *(f"{row['ms'][name]:.2f}" for name in ("own", "nodes", "softmax")),
            f"{row['ms']['own'] / row['ms']['nodes']:.2f}",
        ]
        for row in rows
    ]
    names = [name.replace("_", " ") for name in facts]
    return (
        f"{origin}\n\n{table([*names, 'operator, ms', 'nodes, ms', 'SoftmaxAttention, ms', 'operator / nodes'], body)}"
    )
