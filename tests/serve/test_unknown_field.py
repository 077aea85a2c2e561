"""Unknown fields: their names may have millions of characters."""

import tracemalloc

from attenuator.runtime.request import unknown_field


def test_typing_error_gets_a_hint() -> None:
    assert "did you mean inputs?" in str(unknown_field("imputs", ["inputs", "seed"]))


def test_long_name_is_not_searched_for_a_hint() -> None:
    name = "inputs" * 200_000
    tracemalloc.start()
    error = unknown_field(name, ["inputs", "seed"])
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert "did you mean" not in str(error)
    assert peak < len(name)  # the search keeps the place of every character
