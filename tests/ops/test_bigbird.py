"""BigBirdAttention against its NumPy reference; what every operator promises is in test_operator.py."""

from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from harness import Array, AttributeValue, offsets, run
from torch.nn import functional

from attenuator.ops.bigbird.eager import attend, block_sparse_attention, draw_blocks
from attenuator.ops.bigbird.reference import bigbird_attention, drawn_blocks, fixed_blocks, seen_keys
from attenuator.ops.softmax.reference import softmax_attention

TOLERANCE = 5e-6


def attention_inputs(
    lengths: tuple[int, ...], knobs: tuple[int, ...], heads: int = 2, head_dim: int = 16, value_dim: int = 16
) -> dict[str, Array]:
    rng = np.random.default_rng([sum(lengths), heads, head_dim, value_dim])
    tokens = sum(lengths)
    return {
        "query": rng.standard_normal((tokens, heads * head_dim)).astype(np.float32),
        "key": rng.standard_normal((tokens, heads * head_dim)).astype(np.float32),
        "value": rng.standard_normal((tokens, heads * value_dim)).astype(np.float32),
        "cu_seqlens": offsets(lengths),
        "num_random_blocks": np.array(knobs, np.int32),
        "seed": np.arange(len(lengths), dtype=np.int64) * 987654321987 + 3,
    }


def softmax_of(inputs: dict[str, Array], attributes: dict[str, AttributeValue]) -> Array:
    names = ("query", "key", "value", "cu_seqlens")
    return run("softmax", {name: inputs[name] for name in names}, attributes, threads=2)[0]


@pytest.mark.parametrize("random_blocks", ["drawn", "first"])
@pytest.mark.parametrize(
    ("block_size", "lengths", "knobs"),
    [
        (1, (8, 7, 0, 40, 1, 9, 65), (1, 1, 2, 3, 1, 0, 25)),
        (3, (22, 21, 40, 41, 42, 0, 100), (1, 1, 1, 2, 3, 5, 3)),
        (16, (113, 112, 128, 129, 300, 300, 300), (1, 1, 1, 1, 1, 3, 6)),
        (64, (449, 512, 700, 705), (1, 1, 2, 3)),
        (100, (701, 1000), (1, 2)),
    ],
)
def test_equals_the_reference(
    block_size: int, lengths: tuple[int, ...], knobs: tuple[int, ...], random_blocks: str
) -> None:
    inputs = attention_inputs(lengths, knobs)
    attributes: dict[str, AttributeValue] = {
        "num_heads": 2, "block_size": block_size, "layer": 7, "random_blocks": random_blocks
    }  # fmt: skip
    [output] = run("bigbird", inputs, attributes, threads=2)
    np.testing.assert_allclose(output, bigbird_attention(**inputs, **attributes), atol=TOLERANCE)  # type: ignore[arg-type]
    sparse = np.repeat([r > 0 and n > (5 + 2 * r) * block_size for n, r in zip(lengths, knobs, strict=True)], lengths)
    same = (output == softmax_of(inputs, {"num_heads": 2})).all(axis=1)
    assert same[~sparse].all()
    assert same[sparse].mean() < 0.7  # rows of first and last blocks alone


@pytest.mark.parametrize(
    ("heads", "head_dim", "value_dim"), [(1, 8, 8), (3, 9, 15), (5, 33, 64), (1, 255, 127), (2, 64, 256)]
)
@pytest.mark.parametrize("scale", [0.0, -0.7])
def test_head_dims(heads: int, head_dim: int, value_dim: int, scale: float) -> None:
    inputs = attention_inputs((90, 0, 3, 77), (2, 1, 1, 0), heads, head_dim, value_dim)
    inputs["query"] /= 4
    attributes: dict[str, AttributeValue] = {"num_heads": heads, "block_size": 5, "scale": scale}
    [output] = run("bigbird", inputs, attributes)
    np.testing.assert_allclose(output, bigbird_attention(**inputs, **attributes), atol=2e-5)  # type: ignore[arg-type]


def test_first_rows_see_every_key() -> None:
    lengths = (90, 0, 3, 300)
    inputs = attention_inputs(lengths, (1, 2, 0, 3))
    inputs["query"] = inputs["query"][:4]
    attributes: dict[str, AttributeValue] = {"num_heads": 2, "queries": "first", "block_size": 5}
    [output] = run("bigbird", inputs, attributes)
    np.testing.assert_allclose(output, bigbird_attention(**inputs, **attributes), atol=TOLERANCE)  # type: ignore[arg-type]
    assert output.tobytes() == softmax_of(inputs, {"num_heads": 2, "queries": "first"}).tobytes()
    assert not output[1].any()


def test_exact_value_gives_the_bits_of_softmax_attention() -> None:
    inputs = attention_inputs((700, 1, 0, 130, 2000), (0,) * 5, 3, 40, 24)
    [output] = run("bigbird", inputs, {"num_heads": 3, "block_size": 16}, threads=2)
    assert output.tobytes() == softmax_of(inputs, {"num_heads": 3}).tobytes()


def test_threads_and_neighbours_do_not_change_a_bit_of_sparse_rows() -> None:
    lengths, knobs = (3, 3000, 900), (2, 3, 1)
    inputs = attention_inputs(lengths, knobs)
    attributes: dict[str, AttributeValue] = {"num_heads": 2, "block_size": 32}
    outputs = [run("bigbird", inputs, attributes, threads)[0] for threads in (1, 2, 5)]
    assert outputs[0].tobytes() == outputs[1].tobytes() == outputs[2].tobytes()
    alone = {name: array[3:3003] for name, array in inputs.items() if name in ("query", "key", "value")} | {
        "cu_seqlens": offsets((3000,)), "num_random_blocks": np.array([3], np.int32), "seed": inputs["seed"][1:2]
    }  # fmt: skip
    assert run("bigbird", alone, attributes)[0].tobytes() == outputs[0][3:3003].tobytes()


def test_drawn_blocks_are_others_and_the_first_of_more() -> None:
    for query_block in (1, 2, 9, 18):
        more = drawn_blocks(5, 1, 2, query_block, 20, 7)
        assert len({*more, *fixed_blocks(query_block, 20)}) == 7 + len(fixed_blocks(query_block, 20))
        assert all(drawn_blocks(5, 1, 2, query_block, 20, count) == more[:count] for count in range(7))


def test_output_says_which_keys_were_seen() -> None:
    """With equal scores and one-hot values an output row is the share of each key: read off the kernel itself."""
    length, size, count = 150, 8, 4
    eye = np.zeros((length, 256), np.float32)
    eye[:, :length] = np.eye(length)
    inputs = {
        "query": np.zeros((length, 8), np.float32),
        "key": np.zeros((length, 8), np.float32),
        "value": eye,
        "cu_seqlens": offsets((length,)),
        "num_random_blocks": np.array([count], np.int32),
        "seed": np.array([11], np.int64),
    }
    [output] = run("bigbird", inputs, {"num_heads": 1, "block_size": size, "layer": 3})
    seen = seen_keys(length, 0, num_random_blocks=count, seed=11, layer=3, block_size=size, random_blocks="drawn")
    np.testing.assert_allclose(output[:, :length], seen / seen.sum(axis=1, keepdims=True), rtol=1e-5)
    blocks = seen[::size, ::size]
    assert (blocks[0] == 1).all()
    assert (blocks[-1] == 1).all()
    inner = blocks[2:-2]
    assert (inner.sum(axis=1) == 5 + count).all()
    assert (blocks[[1, -2]].sum(axis=1) == 4 + count).all()


def test_every_other_block_is_equally_likely() -> None:
    """Over 4,000 seeds each of 15 blocks is drawn 800 times, give or take five standard deviations."""
    seeds, count, num_blocks = 4000, 3, 20
    drawn = Counter(block for seed in range(seeds) for block in drawn_blocks(seed, 0, 0, 7, num_blocks, count))
    share = count / (num_blocks - 5)
    spread = 5 * np.sqrt(seeds * share * (1 - share))
    assert sorted(drawn) == [block for block in range(num_blocks) if block not in (0, 6, 7, 8, 19)]
    assert all(abs(times - seeds * share) < spread for times in drawn.values())


def test_seeds_layers_and_heads_draw_their_own_blocks() -> None:
    inputs = attention_inputs((400, 400), (2, 2))
    for name in ("query", "key", "value"):
        inputs[name][400:] = inputs[name][:400]
    attributes: dict[str, AttributeValue] = {"num_heads": 2, "block_size": 10}
    inputs["seed"][:] = 9
    [same] = run("bigbird", inputs, attributes)
    assert same[:400].tobytes() == same[400:].tobytes()
    [other_layer] = run("bigbird", inputs, attributes | {"layer": 1})
    inputs["seed"][1] = 10
    [other_seed] = run("bigbird", inputs, attributes)
    for other in (other_layer, other_seed):
        assert (other[400:] != same[400:]).any(axis=1).mean() > 0.8
    assert drawn_blocks(9, 0, 0, 5, 40, 3) != drawn_blocks(9, 0, 1, 5, 40, 3)


def test_error_falls_as_random_blocks_rise() -> None:
    """The mean over 8 seeds, against full attention."""
    length, knobs = 2000, (1, 4, 16, 48)
    inputs = attention_inputs((length,), (0,), 1, 16, 16)
    exact = softmax_attention(*(inputs[name] for name in ("query", "key", "value", "cu_seqlens")), num_heads=1)
    errors = []
    for knob in knobs:
        inputs["num_random_blocks"] = np.array([knob], np.int32)
        squares = []
        for seed in range(8):
            inputs["seed"] = np.array([seed], np.int64)
            [output] = run("bigbird", inputs, {"num_heads": 1, "block_size": 16})
            squares.append(np.square(output - exact).mean())
        errors.append(np.mean(squares))
    assert all(more > less * 1.1 for more, less in zip(errors[:-1], errors[1:], strict=True))


@pytest.mark.parametrize("block_size", [1, 4])
def test_eager_computes_the_pattern(block_size: int) -> None:
    """Against full attention under a mask that is made block by block."""
    lengths = torch.tensor([8 * block_size, 10 * block_size - block_size // 2])
    numbers = torch.Generator().manual_seed(2)
    shape = (2, 2, int(lengths.max()), 8)
    query, key, value = (torch.randn(shape, generator=numbers, dtype=torch.float64) for _ in range(3))
    drawn = draw_blocks(lengths, block_size, 2, 1, torch.Generator().manual_seed(4))
    output = block_sparse_attention(query, key, value, lengths, block_size, drawn)
    num_blocks = (lengths + block_size - 1) // block_size
    for b, n in enumerate(lengths.tolist()):
        count = int(num_blocks[b])
        block = torch.arange(n) // block_size
        for head in range(2):
            seen = torch.ones(count, count, dtype=torch.bool)
            for i in range(1, count - 1):
                chosen = int(drawn[b, head, i, 0])
                assert chosen < count
                assert chosen not in fixed_blocks(i, count)
                seen[i] = False
                seen[i, [*fixed_blocks(i, count), chosen]] = True
            rows = (tensor[b, head, :n] for tensor in (query, key, value))
            expected = functional.scaled_dot_product_attention(*rows, attn_mask=seen[block[:, None], block])
            torch.testing.assert_close(output[b, head, :n], expected)


def test_eager_is_full_attention_where_the_operator_is() -> None:
    """Short sequences of a batch, and every one without random blocks; all of it has gradients."""
    lengths = torch.tensor([30, 0, 14, 29])
    is_token = torch.arange(30) < lengths[:, None]
    numbers = torch.Generator().manual_seed(2)
    query, key, value = (torch.randn(4, 2, 30, 8, generator=numbers, requires_grad=True) for _ in range(3))
    full = functional.scaled_dot_product_attention(query, key, value, attn_mask=is_token[:, None, None, :])
    for knobs, short in (({}, [0, 2, 3]), ({"num_random_blocks": 1}, [2])):
        attributes = {"scale": 0.0, "block_size": 4, "random_blocks": "drawn"}
        layer = SimpleNamespace(knobs=knobs, attributes=attributes, generator=torch.Generator().manual_seed(1))
        mixed = attend(query, key, value, is_token, layer)
        assert mixed[is_token[:, None].expand(4, 2, 30)].isfinite().all()
        for b in (0, 2, 3):
            close = torch.allclose(mixed[b, :, : lengths[b]], full[b, :, : lengths[b]], atol=1e-6)
            assert close == (b in short)
        mixed[is_token[:, None].expand(4, 2, 30)].square().sum().backward()
        for tensor in (query, key, value):
            assert tensor.grad is not None
            assert tensor.grad.isfinite().all()
            assert tensor.grad[is_token[:, None].expand(4, 2, 30)].abs().amin(dim=-1).gt(0).all()
            tensor.grad = None


def test_eager_counts_the_first_block_again_and_takes_a_scale() -> None:
    """Without chance the two agree in full."""
    inputs = attention_inputs((90, 3, 41), (2, 2, 2))
    attributes: dict[str, AttributeValue] = {"block_size": 5, "scale": 0.3, "random_blocks": "first"}
    [expected] = run("bigbird", inputs, {"num_heads": 2, **attributes})
    is_token = torch.arange(90) < torch.tensor([90, 3, 41])[:, None]
    padded = []
    for name in ("query", "key", "value"):
        rows = torch.zeros(3, 90, 32)
        rows[is_token] = torch.from_numpy(inputs[name])
        padded.append(rows.unflatten(2, (2, 16)).transpose(1, 2))
    layer = SimpleNamespace(knobs={"num_random_blocks": 2}, attributes=attributes, generator=None)
    output = attend(*padded, is_token, layer).transpose(1, 2).flatten(2)[is_token]
    np.testing.assert_allclose(output.numpy(), expected, atol=TOLERANCE)
