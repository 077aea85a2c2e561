"""NystromAttention against its NumPy reference; what every operator promises is in test_operator.py."""

import numpy as np
import pytest
from harness import offsets, run
from nystrom_cases import attention_inputs

from attenuator.ops.nystrom.reference import nystrom_attention, pseudo_inverse, segment_starts, softmax

LENGTHS = (3, 0, 1, 64, 65, 300, 0, 17, 128)


def close(output: np.ndarray, expected: np.ndarray, share: float = 2e-5) -> None:
    """Within a share of the largest element, since the inverse may give elements far above those of the values."""
    assert np.isfinite(output).all()
    np.testing.assert_allclose(output, expected, rtol=0, atol=share * max(1.0, float(np.abs(expected).max(initial=0))))


@pytest.mark.parametrize("divisor", ["head", "sequence"])
@pytest.mark.parametrize(
    ("heads", "head_dim", "value_dim", "landmarks", "taps"),
    [
        (1, 8, 8, 1, 0),
        (3, 9, 15, 2, 1),
        (2, 16, 16, 16, 3),
        (4, 31, 33, 17, 33),
        (12, 64, 64, 64, 65),
        (2, 100, 24, 63, 5),
        (1, 255, 127, 299, 0),
        (1, 256, 256, 100, 127),
        (5, 40, 17, [0, 64, 1, 32, 64, 512, 9, 5, 33], 9),
    ],
)
def test_equals_the_reference(
    heads: int, head_dim: int, value_dim: int, landmarks: int | list[int], taps: int, divisor: str
) -> None:
    inputs = attention_inputs(LENGTHS, heads, head_dim, value_dim, landmarks, taps=taps)
    attributes = {"num_heads": heads, "divisor": divisor}
    outputs = [run("nystrom", inputs, attributes, threads)[0] for threads in (1, 2, 5)]
    assert outputs[0].tobytes() == outputs[1].tobytes() == outputs[2].tobytes()
    close(outputs[0], nystrom_attention(**inputs, **attributes))


@pytest.mark.parametrize("iterations", [1, 2, 6, 11, 16])
@pytest.mark.parametrize("scale", [-0.3, 0.02, 3.0])
def test_iterations_and_scale(iterations: int, scale: float) -> None:
    inputs = attention_inputs((40, 200), 2, 16, 24, 16)
    attributes = {"num_heads": 2, "iterations": iterations, "scale": scale}
    close(run("nystrom", inputs, attributes)[0], nystrom_attention(**inputs, **attributes), 2e-4)


def test_long_sequences_and_many_landmarks() -> None:
    inputs = attention_inputs((900, 513), 1, 32, 16, 512, taps=7)
    outputs = [run("nystrom", inputs, {"num_heads": 1}, threads)[0] for threads in (1, 3)]
    assert outputs[0].tobytes() == outputs[1].tobytes()
    close(outputs[0], nystrom_attention(**inputs, num_heads=1))


@pytest.mark.parametrize("length", [1, 5, 64, 200])
@pytest.mark.parametrize("landmarks", [0, 200, 512])
def test_exact_values_give_the_bits_of_softmax_attention(length: int, landmarks: int) -> None:
    """At 0, and wherever there are no more tokens than landmarks."""
    inputs = attention_inputs((length,), 3, 20, 12, landmarks)
    softmaxed = {name: inputs[name] for name in ("query", "key", "value", "cu_seqlens")}
    [expected] = run("softmax", softmaxed, {"num_heads": 3})
    assert run("nystrom", inputs, {"num_heads": 3})[0].tobytes() == expected.tobytes()


@pytest.mark.parametrize("landmarks", [0, 8])
def test_the_convolution_stays_beside_any_value_of_the_knob(landmarks: int) -> None:
    inputs = attention_inputs((50, 7), 2, 16, 20, landmarks, taps=9)
    plain = {name: value for name, value in inputs.items() if name != "conv_weight"}
    around = run("nystrom", inputs, {"num_heads": 2})[0] - run("nystrom", plain, {"num_heads": 2})[0]
    for begin, end in ((0, 50), (50, 57)):
        for head in range(2):
            columns = slice(20 * head, 20 * head + 20)
            value = np.pad(inputs["value"][begin:end, columns], ((4, 4), (0, 0)))
            expected = sum(inputs["conv_weight"][head, t] * value[t : t + end - begin] for t in range(9))
            np.testing.assert_allclose(around[begin:end, columns], expected, atol=1e-5)


def test_segments_of_any_length_cover_every_token_once() -> None:
    assert segment_starts(10, 4).tolist() == [0, 2, 4, 7, 10]
    assert segment_starts(12, 4).tolist() == [0, 3, 6, 9, 12]
    for tokens in range(2, 90):
        for landmarks in range(1, tokens):
            starts = segment_starts(tokens, landmarks)
            sizes = np.diff(starts)
            assert (starts[0], starts[-1]) == (0, tokens)
            assert (np.diff(sizes) >= 0).all()
            assert sizes[-1] - sizes[0] in (0, 1)


def test_where_landmarks_divide_the_length_it_is_the_published_method() -> None:
    """Means by a reshape, rows over head_dim^1/4, both norms, (F1 Z) (F3 V): as the authors write it."""
    inputs = attention_inputs((96,), 1, 16, 8, 12)
    query, key, value = (inputs[name].astype(np.float64) for name in ("query", "key", "value"))
    query, key = query / 16**0.25, key / 16**0.25
    of_queries, of_keys = query.reshape(12, 8, 16).mean(axis=1), key.reshape(12, 8, 16).mean(axis=1)
    first, core, third = (softmax(a @ b.T) for a, b in ((query, of_keys), (of_queries, of_keys), (of_queries, key)))
    inverse, identity = core.T / (core.sum(axis=0).max() * core.sum(axis=1).max()), np.eye(12)
    for _ in range(6):
        both = core @ inverse
        inverse = 0.25 * inverse @ (13 * identity - both @ (15 * identity - both @ (7 * identity - both)))
    expected = first @ inverse @ (third @ value)
    np.testing.assert_allclose(nystrom_attention(**inputs, num_heads=1), expected, atol=1e-12)
    close(run("nystrom", inputs, {"num_heads": 1})[0], expected, 2e-6)


def test_the_iteration_tends_to_the_pseudo_inverse() -> None:
    rng = np.random.default_rng(4)
    core = softmax(3 * rng.standard_normal((12, 12)))
    np.testing.assert_allclose(pseudo_inverse(core, 16, core.sum(axis=0).max()), np.linalg.pinv(core), atol=1e-6)


ODD = {
    "equal keys": lambda q, k: (q, np.broadcast_to(k[:1], k.shape).copy()),
    "equal rows": lambda q, k: (np.broadcast_to(q[:1], q.shape).copy(), np.broadcast_to(k[:1], k.shape).copy()),
    "zeros": lambda q, k: (0 * q, 0 * k),
    "tiny": lambda q, k: (q * np.float32(1e-30), k * np.float32(1e-30)),
    "large scores": lambda q, k: (q * np.float32(1e4), k * np.float32(1e4)),
    "one key far ahead": lambda q, k: (np.abs(q), k + 1e4 * (np.arange(len(k)) == 7)[:, None].astype(np.float32)),
}


@pytest.mark.parametrize("odd", ODD)
@pytest.mark.parametrize("iterations", [6, 16])
def test_odd_rows_never_give_what_is_no_number(odd: str, iterations: int) -> None:
    inputs = attention_inputs((130, 70), 2, 16, 16, [64, 9])
    inputs["query"], inputs["key"] = ODD[odd](inputs["query"], inputs["key"])
    [output] = run("nystrom", inputs, {"num_heads": 2, "iterations": iterations})
    assert np.isfinite(output).all()
    if odd != "large scores":  # whose landmarks' weights differ wholly with the rounding of a mean
        close(
            output, nystrom_attention(**inputs, num_heads=2, iterations=iterations), 2e-5 if iterations == 6 else 1e-3
        )


def test_equal_rows_get_the_mean_of_the_values() -> None:
    """What softmax attention gives, too: one landmark's weight is as good as all."""
    inputs = attention_inputs((130,), 1, 16, 16, 64)
    inputs["key"][:] = inputs["key"][0]
    [output] = run("nystrom", inputs, {"num_heads": 1})
    np.testing.assert_allclose(output, np.broadcast_to(inputs["value"].mean(axis=0), output.shape), atol=1e-6)


def test_a_divisor_of_the_sequence_counts_no_other_sequence() -> None:
    inputs = attention_inputs((90, 120), 4, 16, 16, 32, scale=2.0)
    of_head, of_sequence = (
        run("nystrom", inputs, {"num_heads": 4, "divisor": divisor})[0] for divisor in ("head", "sequence")
    )
    assert np.abs(of_head - of_sequence).max() > 0.01
    alone = {name: value[:90] for name, value in inputs.items() if name in ("query", "key", "value")}
    alone |= {"cu_seqlens": offsets((90,)), "num_landmarks": inputs["num_landmarks"][:1]}
    [expected] = run("nystrom", alone, {"num_heads": 4, "divisor": "sequence"})
    assert of_sequence[:90].tobytes() == expected.tobytes()


def test_a_kernel_of_an_even_number_of_taps_is_refused() -> None:
    inputs = attention_inputs((5,), 2, 16, 16, 0, taps=4)
    with pytest.raises(
        Exception, match=r"NystromAttention: conv_weight has 4 taps \(columns\), must have an odd number"
    ):
        run("nystrom", inputs, {"num_heads": 2})
