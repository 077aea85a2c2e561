"""WindowAttention against its NumPy reference and SoftmaxAttention; what every operator promises: test_operator.py."""

import numpy as np
import pytest
from cases import same_bits
from harness import Array, AttributeValue, offsets, run
from importance_cases import KINDS, gaps

from attenuator.ops.window.reference import window_attention
from attenuator.ops.window.rule import narrowed

LENGTHS = (17, 0, 1, 200, 300, 65, 300)
WINDOWS = (0, 3, 5, 1, 64, 7, 65536)


def attention_inputs(first: bool = False) -> dict[str, Array]:
    rng = np.random.default_rng(4)
    tokens = sum(LENGTHS)
    return {
        "query": rng.standard_normal((len(LENGTHS) if first else tokens, 2 * 24)).astype(np.float32),
        "key": rng.standard_normal((tokens, 2 * 24)).astype(np.float32),
        "value": rng.standard_normal((tokens, 2 * 16)).astype(np.float32),
        "cu_seqlens": offsets(LENGTHS),
        "window": np.array(WINDOWS, np.int32),
    }


@pytest.mark.parametrize("trained_window", [0, 1, 7, 70, 2**30])
@pytest.mark.parametrize("global_tokens", [0, 1])
@pytest.mark.parametrize("queries", ["all", "first"])
def test_equals_the_reference(trained_window: int, global_tokens: int, queries: str) -> None:
    inputs = attention_inputs(queries == "first")
    attributes: dict[str, AttributeValue] = {
        "num_heads": 2, "trained_window": trained_window, "global_tokens": global_tokens, "queries": queries
    }  # fmt: skip
    [output] = run("window", inputs, attributes, threads=2)
    np.testing.assert_allclose(output, window_attention(**inputs, **attributes), atol=5e-6)  # type: ignore[arg-type]


@pytest.mark.parametrize("knob", [0, 20, 21, 65536])
def test_trained_window_gives_the_bits_of_softmax_attention(knob: int) -> None:
    inputs = attention_inputs()
    inputs["window"][:] = knob
    [output] = run("window", inputs, {"num_heads": 2, "trained_window": 20, "global_tokens": 1})
    del inputs["window"]
    assert output.tobytes() == run("softmax", inputs, {"num_heads": 2, "window": 20, "global_tokens": 1})[0].tobytes()


@pytest.mark.parametrize("trained_window", [0, 5, 70])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("queries", ["all", "first"])
@pytest.mark.parametrize("global_tokens", [0, 1])
def test_importance_and_positions_are_those_of_softmax_attention(
    trained_window: int, kind: str, queries: str, global_tokens: int
) -> None:
    """Sequences of every window in one batch, against each one alone."""
    inputs = attention_inputs(queries == "first") | {"positions": gaps(LENGTHS)}
    attributes: dict[str, AttributeValue] = {"num_heads": 2, "global_tokens": global_tokens, "queries": queries}
    together = run("window", inputs, attributes | {"trained_window": trained_window, "importance": kind}, threads=3)
    plain = run("window", inputs, attributes | {"trained_window": trained_window})
    assert same_bits(plain, together[:1])
    for b, (window, length) in enumerate(zip(WINDOWS, LENGTHS, strict=True)):
        rows = slice(*inputs["cu_seqlens"][b : b + 2])
        of_query = slice(b, b + 1) if queries == "first" else rows
        alone = {name: inputs[name][rows] for name in ("key", "value", "positions")}
        alone |= {"query": inputs["query"][of_query], "cu_seqlens": offsets([length])}
        expected = run("softmax", alone, attributes | {"window": narrowed(trained_window, window), "importance": kind})
        assert same_bits([together[0][of_query], together[1][rows]], expected)
