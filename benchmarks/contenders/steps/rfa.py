"""RfaAttention beside nodes with constant directions, those of the operator's seed."""

import numpy as np

from attenuator.ops.reference_features import RFA_STREAM, directions
from attenuator.ops.rfa.reference import NORM_FLOOR, least_denominator
from benchmarks.contenders.nodes import Runner
from benchmarks.contenders.steps.graph import SEED, Case, Graph, compared, rows_of
from benchmarks.contenders.steps.performer import quotient
from benchmarks.measure.cases import HEAD_DIM, HEADS

CASES = tuple({"tokens": tokens, "num_features": 256} for tokens in (128, 512, 1024, 4096))
TOLERANCE = 1e-3  # of quotients whose denominators may be small


def standard_nodes(tokens: int, count: int) -> Graph:
    """`query`, `key` and `value` `[n, H * D]` to `output`: unit rows, sines and cosines, their sums, and a quotient."""
    graph = Graph()
    drawn = [directions(SEED, 0, head, RFA_STREAM, count, HEAD_DIM).T for head in range(HEADS)]
    matrices, floor, last = graph.constant(drawn, np.float32), graph.number(NORM_FLOOR), graph.constant([-1])

    def features(name: str) -> str:
        rows = graph.heads(name, tokens)
        length = graph.op("Max", graph.op("ReduceL2", rows, last, keepdims=1), floor)
        angles = graph.op("MatMul", graph.op("Div", rows, length), matrices)
        return graph.op("Concat", graph.op("Sin", angles), graph.op("Cos", angles), axis=2)

    least = count * least_denominator(tokens, 1.0)  # features here have no factor of 1 / sqrt(m)
    mixed = quotient(graph, features("query"), features("key"), graph.heads("value", tokens), least)
    graph.output(mixed, tokens)
    return graph


def contenders(case: Case, threads: int) -> dict[str, Runner]:
    """The operator, the nodes and exact softmax attention."""
    tokens, count = case["tokens"], case["num_features"]
    knobs = {"num_features": np.array([count], np.int32), "seed": np.array([SEED])}
    return compared("rfa", rows_of(tokens), knobs, standard_nodes(tokens, count), threads, tolerance=TOLERANCE)
