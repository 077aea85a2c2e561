"""Refusals of the C ABI itself: what it was passed, and what is allowed. The operators' own are in test_operator.py."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from attenuator.errors import EngineError
from attenuator.ops import OPERATORS, library_path
from attenuator.ops.c_api import Call, Memory, run

POOL = next(operator for operator in OPERATORS if operator.key == "pool")
HIDDEN = np.ones((3, 4), np.float32)
OFFSETS = np.array([0, 3], np.int32)
POOLED = np.empty((1, 4), np.float32)


def memory(array: np.ndarray[Any, Any], dtype: str) -> Memory:
    return Memory(array.ctypes.data, dtype, array.shape)


GOOD = Call(POOL, [memory(HIDDEN, "float"), memory(OFFSETS, "int32")], [memory(POOLED, "float")], {"mode": "mean"})


def test_a_call() -> None:
    run(str(library_path()), GOOD, 1)
    assert (POOLED == 1).all()


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (
            replace(GOOD, operator=replace(POOL, name="Nothing")),
            "operator is 'Nothing', must be one of: " + ", ".join(operator.name for operator in OPERATORS),
        ),
        (replace(GOOD, inputs=[GOOD.inputs[0], None]), "SequencePool: input cu_seqlens is missing"),
        (
            replace(GOOD, inputs=[memory(HIDDEN.reshape(-1), "float16"), GOOD.inputs[1]]),
            "SequencePool: hidden is float16 of rank 1, must be float of rank 2",
        ),
        (
            replace(GOOD, outputs=[memory(np.empty((3, 1), np.float32), "float")]),
            "SequencePool: output output has shape [3, 1], must have shape [1, 4]",
        ),
        (replace(GOOD, outputs=[]), "SequencePool: output output is missing"),
        (
            replace(GOOD, attributes={"mode": 1}),
            "SequencePool: attribute mode is of type int, must be of type string",
        ),
        (
            replace(GOOD, attributes={"mode": "median"}),
            "SequencePool: attribute mode is 'median', must be one of: first, mean",
        ),
    ],
    ids=["operator", "input", "type", "shape", "output", "attribute", "choice"],
)
def test_a_refusal_names_what_was_passed_and_what_is_allowed(call: Call, sentence: str) -> None:
    with pytest.raises(EngineError) as caught:
        run(str(library_path()), call, 1)
    assert str(caught.value) == sentence
