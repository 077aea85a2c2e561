"""Unknown fields: their names may have millions of characters."""

import tracemalloc

from attenuator.runtime import KnobTable
from attenuator.serve.schema import unknown_field


def test_typing_error_gets_a_hint() -> None:
    assert "did you mean inputs?" in str(unknown_field("imputs", KnobTable("model", [])))


def test_long_name_is_not_searched_for_a_hint() -> None:
    name, knobs = "inputs" * 200_000, KnobTable("model", [])
    tracemalloc.start()
    error = unknown_field(name, knobs)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert "did you mean" not in str(error)
    assert peak < len(name)  # the search keeps the place of every character
