"""LinearAttention beside nodes."""

from benchmarks.contenders.nodes import Runner
from benchmarks.contenders.steps.graph import Case, Graph, compared, rows_of
from benchmarks.contenders.steps.performer import quotient

CASES = tuple({"tokens": tokens} for tokens in (128, 512, 1024, 4096))
TOLERANCE = 1e-4


def standard_nodes(tokens: int) -> Graph:
    """`query`, `key` and `value` `[n, H * D]` to `output`: elu + 1, sums over keys, and a quotient."""
    graph = Graph()
    one = graph.number(1.0)
    query, key = (graph.op("Add", graph.op("Elu", graph.heads(name, tokens)), one) for name in ("query", "key"))
    graph.output(quotient(graph, query, key, graph.heads("value", tokens)), tokens)
    return graph


def contenders(case: Case, threads: int) -> dict[str, Runner]:
    """The operator, the nodes and exact softmax attention."""
    tokens = case["tokens"]
    return compared("linear", rows_of(tokens), {}, standard_nodes(tokens), threads, tolerance=TOLERANCE)
