"""Gradients of YOSO attention against dense float64 oracles: n by n matrices, and PyTorch's own differentiation."""

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from attenuator.ops.yoso import reference
from attenuator.training.yoso import compiled, cost, operators, pairs, tables
from attenuator.training.yoso.attention import attend, attend_padded
from attenuator.training.yoso.hashing import Hashing, codes
from attenuator.training.yoso.operators import SOFTENING, yoso_mix
from attenuator.training.yoso.settings import L2, RATIO, RAW, Settings

LENGTHS = (1, 0, 9, 33)
HEADS, HEAD_DIM, VALUE_DIM, SEED, LAYER = 2, 8, 12, 11, 3
NORMALISATIONS = pytest.mark.parametrize("normalize", [RAW, L2, RATIO], ids=["raw", "l2", "ratio"])


def offsets(lengths: tuple[int, ...]) -> Tensor:
    return torch.tensor([0, *np.cumsum(lengths)], dtype=torch.int32)


def draw(lengths: tuple[int, ...] = LENGTHS, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    """Query, key, value and a gradient; keys lie near one another, and some near a query."""
    generator = torch.Generator().manual_seed(0)
    rows = sum(lengths)
    query, key = (torch.randn(rows, HEADS, HEAD_DIM, generator=generator) for _ in range(2))
    value, grad = (torch.randn(rows, HEADS, VALUE_DIM, generator=generator) for _ in range(2))
    key = 0.5 * key + 0.5 * query.roll(1, 0) + 0.4
    return [tensor.to(dtype) for tensor in (query, key, value, grad)]


def dense_counts(query: Tensor, key: Tensor, settings: Settings, head: int, seed: int = SEED) -> Tensor:
    """`[queries, keys]`: in how many hashes a pair of one head and sequence collides, by the NumPy reference."""
    options = (settings.num_hashes, settings.hash_bits, settings.hash, settings.norm_lift)
    query_codes, key_codes = (
        reference.codes(rows[:, head].detach().float().numpy(), seed, LAYER, head, *options, side)  # type: ignore[arg-type]
        for rows, side in ((query, "query"), (key, "key"))
    )
    return torch.from_numpy((query_codes[:, None, :] == key_codes[None, :, :]).sum(axis=2)).double()


def dense_expectation(cosine: Tensor, bits: int) -> Tensor:
    return (1 - torch.acos(cosine.clamp(-1, 1)) / math.pi) ** bits


def dense_slope(cosine: Tensor, bits: int, softening: float) -> Tensor:
    share = 1 - torch.acos(cosine.clamp(-1, 1)) / math.pi
    return bits * share ** (bits - 1) / (math.pi * torch.sqrt(1 - cosine**2 + softening))


def oracle(query: Tensor, key: Tensor, value: Tensor, settings: Settings, lengths: tuple[int, ...]) -> Tensor:
    """Dense attention in float64; a weight's value is exact and its derivative by the cosine is the estimate's."""
    output = torch.zeros_like(value)
    starts = offsets(lengths).tolist()
    for head in range(HEADS):
        for first, end in zip(starts[:-1], starts[1:], strict=True):
            q, k, v = query[first:end, head], key[first:end, head], value[first:end, head]
            q, k = (rows / rows.norm(dim=1, keepdim=True).clamp_min(math.sqrt(settings.norm_lift)) for rows in (q, k))
            cosine = q @ k.T
            fixed = cosine.detach()
            if settings.num_hashes:
                counts = dense_counts(query[first:end], key[first:end], settings, head)
                weights, met = counts / settings.num_hashes, counts > 0
            else:
                weights = dense_expectation(fixed, settings.hash_bits)
                met = torch.ones_like(fixed, dtype=torch.bool)
            slope = weights * settings.hash_bits / 2
            if settings.gradient == "collided":
                slope = torch.where(met, dense_slope(fixed, settings.hash_bits, SOFTENING), 0.0)
            weights = weights + slope * (cosine - fixed)
            mixed = weights @ v
            if settings.normalize == L2:
                mixed = mixed / mixed.norm(dim=1, keepdim=True).clamp_min(1e-12)
            if settings.normalize == RATIO:
                share = weights.sum(dim=1, keepdim=True)
                mixed = torch.where(share > 0, mixed / share.clamp_min(1e-12), 0.0)
            output[first:end, head] = mixed
    return output


def gradients(attention: Callable[..., Tensor], tensors: list[Tensor]) -> list[Tensor]:
    """Output of an attention, and its gradients by query, key and value."""
    leaves = [tensor.clone().requires_grad_() for tensor in tensors[:3]]
    output = attention(*leaves)
    return [output.detach(), *torch.autograd.grad(output, leaves, tensors[3])]


def close(actual: list[Tensor], expected: list[Tensor], tolerance: float = 3e-6) -> None:
    for name, one, other in zip(("output", "query", "key", "value"), actual, expected, strict=True):
        assert torch.isfinite(one).all(), name
        difference = (one.double() - other.double()).abs().max() / other.abs().max()
        assert difference < tolerance, f"{name} differs by {difference:.1e}"


@pytest.fixture(params=["library", "pytorch"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Who computes gradients: the library, or PyTorch as where the library does not take the rows."""
    if request.param == "pytorch":
        monkeypatch.setattr(compiled, "takes", lambda rows: False)
    return str(request.param)


@NORMALISATIONS
@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("gradient", ["bound", "collided"])
@pytest.mark.parametrize(
    ("num_hashes", "hash", "norm_lift"),
    [
        (5, "gaussian", 0.0),
        (40, "hadamard", 0.0),
        (0, "gaussian", 0.0),
        # Some rows are shorter than the bound and some longer; then all are shorter.
        (12, "gaussian", 6.0),
        (40, "hadamard", 60.0),
        (0, "gaussian", 6.0),
    ],
)
def test_gradients_are_those_of_the_dense_oracle(
    normalize: int, gradient: str, num_hashes: int, hash: str, norm_lift: float
) -> None:
    settings = Settings(
        num_hashes=num_hashes, hash_bits=3, hash=hash, normalize=normalize, norm_lift=norm_lift, gradient=gradient
    )
    drawn = draw()
    actual = gradients(lambda *rows: attend(*rows, offsets(LENGTHS), settings, SEED, LAYER), drawn)
    wide = [tensor.double() for tensor in drawn]
    close(actual, gradients(lambda *rows: oracle(*rows, settings, LENGTHS), wide))


@pytest.mark.parametrize("hash", ["gaussian", "hadamard"])
def test_tables_pairs_and_buckets_give_one_gradient(hash: str) -> None:
    """What is chosen by cost must not be seen; groups of channels and blocks of pairs that do not divide evenly."""
    query, key, value, grad = draw((1, 70, 40))
    hashing = Hashing(offsets((1, 70, 40)), torch.tensor([3, 4, 5]), 9, 4, hash, 1)
    by_tables = tables.table_gradients(grad, query, key, value, hashing)
    for one, other in zip(by_tables, pairs.pair_gradients(grad, query, key, value, hashing), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)
    by_rows = [operators.through_unit(by_tables[0], query), operators.through_unit(by_tables[1], key), by_tables[2]]
    for one, other in zip(by_rows, compiled.bucket_gradients(grad, query, key, value, hashing), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("compute", [tables.table_gradients, compiled.bucket_gradients], ids=["tables", "buckets"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_gradients_of_narrow_rows_are_rounded_once(
    compute: Callable[..., tuple[Tensor, ...]], dtype: torch.dtype
) -> None:
    drawn = draw((70,), dtype)
    hashing = Hashing(offsets((70,)), torch.tensor([3]), 9, 4, "gaussian", 1)
    query, key, value, grad = drawn
    actual = compute(grad, query, key, value, hashing)
    wide = [tensor.float() for tensor in (grad, query, key, value)]
    for one, other in zip(actual, compute(*wide, hashing), strict=True):
        assert torch.equal(one, other.to(dtype))


def test_gradients_have_the_layout_of_their_rows() -> None:
    """Whatever that is, so that PyTorch need not copy them; channels that do not lie side by side are copied."""
    query, key, value, grad = draw((20,))
    hashing = Hashing(offsets((20,)), torch.tensor([3]), 9, 4, "gaussian", 1)
    expected = compiled.bucket_gradients(grad, query, key, value, hashing)
    heads_first, channels_last = (
        rows.permute(order).contiguous().permute(order) for rows, order in ((query, (1, 0, 2)), (key, (0, 2, 1)))
    )
    every_second = torch.stack([value, value], dim=2).flatten(1, 2)[:, ::2]
    actual = compiled.bucket_gradients(grad, heads_first, channels_last, every_second, hashing)
    for one, other, rows in zip(actual, expected, (heads_first, channels_last, every_second), strict=True):
        assert torch.equal(one, other)
        assert one.stride() == torch.empty_like(rows).stride()


def test_the_library_takes_rows_of_the_host_up_to_float32_where_it_is_built(monkeypatch: pytest.MonkeyPatch) -> None:
    assert all(compiled.takes(torch.zeros(1, dtype=dtype)) for dtype in (torch.float32, torch.bfloat16, torch.float16))
    assert not compiled.takes(torch.zeros(1, dtype=torch.float64))
    assert not compiled.takes(torch.zeros(1, device="meta"))
    monkeypatch.setenv("ATTENUATOR_OPS_LIBRARY", "/nowhere")
    assert not compiled.takes(torch.zeros(1))


def test_what_is_predicted_to_be_cheaper_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "takes", lambda rows: False)
    taken = []
    for name in ("table_gradients", "pair_gradients"):
        compute = getattr(operators, name)
        monkeypatch.setattr(
            operators, name, lambda *rest, name=name, compute=compute: (taken.append(name), compute(*rest))[1]
        )
    for tokens, limit in ((8, 0.0), (8, 1e9)):
        monkeypatch.setattr(cost, "PAIR", limit)
        rows = draw((tokens,))
        gradients(lambda *leaves, n=tokens: attend(*leaves, offsets((n,)), Settings(num_hashes=4), SEED), rows)
    assert taken == ["pair_gradients", "table_gradients"]
    settings = Settings(num_hashes=4, gradient="cheapest")
    for limit, gradient in ((0.0, "collided"), (1e9, "bound")):
        monkeypatch.setattr(cost, "TRUE_SLOPE", limit)
        monkeypatch.setattr(cost, "PAIR", 0.0)
        named = replace(settings, gradient=gradient)
        rows = draw((8,))
        chosen, expected = (
            gradients(lambda *leaves, one=one: attend(*leaves, offsets((8,)), one, SEED), rows)
            for one in (settings, named)
        )
        close(chosen, expected)


class Largest(TorchDispatchMode):
    """The largest tensor that anything computed."""

    elements = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        result = function(*args, **(kwargs or {}))
        for one in result if isinstance(result, tuple | list) else [result]:
            if isinstance(one, Tensor):
                self.elements = max(self.elements, one.numel())
        return result


@pytest.mark.parametrize("compute", [tables.table_gradients, pairs.pair_gradients], ids=["tables", "pairs"])
def test_no_tensor_has_the_square_of_the_length(
    compute: Callable[..., tuple[Tensor, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pairs, "BLOCK_PAIRS", 1 << 14)
    monkeypatch.setattr(tables, "GROUP_BYTES", 1 << 14)
    tokens = 700
    query, key, value, grad = draw((tokens,))
    hashing = Hashing(offsets((tokens,)), torch.tensor([3]), 2, 4, "gaussian", 1)
    with Largest() as largest:
        compute(grad, query, key, value, hashing)
    assert largest.elements < 64 * tokens


@pytest.mark.parametrize("hash", ["gaussian", "hadamard"])
@pytest.mark.parametrize("bits", [1, 9, 16])
def test_codes_are_those_of_the_reference(hash: str, bits: int) -> None:
    rows = draw((50,))[0] * torch.logspace(-20, 20, 50)[:, None, None]
    hashing = Hashing(offsets((50,)), torch.tensor([7]), 5, bits, hash, LAYER)
    coded = codes(rows.transpose(0, 1), hashing, 7, "query").numpy().view(np.uint16)
    for head in range(HEADS):
        expected = reference.codes(rows[:, head].numpy(), 7, LAYER, head, 5, bits, hash)  # type: ignore[arg-type]
        assert np.array_equal(coded[:, head].T, expected)


def test_codes_of_rows_with_halves_of_their_maximum_are_those_of_the_reference() -> None:
    """127 / max|x| rounded twice puts some of these ties on the other side; rows of bfloat16 have many of them."""
    generator = torch.Generator().manual_seed(0)
    halves = torch.randint(1, 3, (HEADS, 200, HEAD_DIM), generator=generator) / 2.0
    rows = halves * torch.randn(HEADS, 200, HEAD_DIM, generator=generator).sign() * torch.linspace(1, 2, 200)[:, None]
    coded = codes(rows, Hashing(offsets((200,)), torch.tensor([7]), 64, 8, "gaussian", LAYER), 7, "key").numpy()
    for head in range(HEADS):
        expected = reference.codes(rows[head].numpy(), 7, LAYER, head, 64, 8, "gaussian")
        assert np.array_equal(coded[:, head].T, expected)


@pytest.mark.parametrize("weight", [1e-33, 1e-40])
def test_a_ratio_of_weights_that_nearly_vanish_has_a_gradient(weight: float) -> None:
    """One key, nearly opposite to its query: the served divisor is 1e-30, and the inverse of 1e-40 is no float."""
    turn = math.pi * weight ** (1 / 16)
    query, key, value = (torch.zeros(1, 1, HEAD_DIM) for _ in range(3))
    query[..., 0], key[..., 0], key[..., 1], value[...] = 1, -math.cos(turn), math.sin(turn), 2
    settings = Settings(num_hashes=0, hash_bits=16, normalize=RATIO)
    grad = torch.ones_like(value)
    output, *others = gradients(lambda *rows: attend(*rows, offsets((1,)), settings, SEED), [query, key, value, grad])
    assert all(torch.isfinite(one).all() for one in others)
    torch.testing.assert_close(output, value * weight / 1e-30, rtol=1e-3, atol=0)
    torch.testing.assert_close(others[2], grad * weight / 1e-30, rtol=1e-3, atol=0)


@NORMALISATIONS
@pytest.mark.parametrize("norm_lift", [0.0, 6.0])
@pytest.mark.parametrize("num_hashes", [0, 6])
def test_training_computes_what_is_served(normalize: int, num_hashes: int, norm_lift: float) -> None:
    query, key, value, _ = draw()
    settings = Settings(num_hashes=num_hashes, hash_bits=4, normalize=normalize, norm_lift=norm_lift)
    batch = len(LENGTHS)
    expected = reference.yoso_attention(
        *(tensor.flatten(1).numpy() for tensor in (query, key, value)),
        offsets(LENGTHS).numpy(), np.full(batch, num_hashes, np.int32), np.full(batch, SEED),
        num_heads=HEADS, hash_bits=4, layer=LAYER, normalize=normalize, norm_lift=norm_lift,
    )  # fmt: skip
    actual = attend(query, key, value, offsets(LENGTHS), settings, SEED, LAYER).flatten(1)
    np.testing.assert_allclose(actual.numpy(), expected, rtol=0, atol=2e-6 * np.abs(expected).max())


@pytest.mark.parametrize("norm_lift", [0.0, 6.0, 60.0])
def test_true_derivative_of_the_expectation_passes_gradcheck(norm_lift: float) -> None:
    lengths = (1, 4)
    tensors = [tensor.requires_grad_() for tensor in draw(lengths, torch.float64)[:3]]
    seeds = torch.zeros(2, dtype=torch.int64)

    def expected(*rows: Tensor) -> Tensor:
        options = {"gradient": "collided", "softening": 0.0, "norm_lift": norm_lift}
        mixed: Tensor = yoso_mix(*rows, offsets(lengths), seeds, 0, 5, **options)
        return mixed

    assert torch.autograd.gradcheck(expected, tensors)


def test_lower_bound_lies_below_and_farthest_where_a_pair_is_close() -> None:
    """eq. 4 over eq. 3 is (1/2)(pi - angle) sin(angle): 0.91 at most, nearly 0 for equal or opposite rows."""
    angle = torch.linspace(1e-3, math.pi - 1e-3, 2001, dtype=torch.float64)
    weights = pairs.PairWeights(9, False, 0.0)
    _, bound = weights.of(angle.cos(), slice(None))
    _, true = replace(weights, collided=True).of(angle.cos(), slice(None))
    share = bound / true
    torch.testing.assert_close(share, 0.5 * (math.pi - angle) * angle.sin())
    assert share.max() == pytest.approx(0.910, abs=1e-3)
    assert math.cos(angle[share.argmax()]) == pytest.approx(0.442, abs=2e-3)
    assert share[0] < 0.01


@pytest.mark.parametrize("gradient", ["bound", "collided"])
def test_mean_of_sampled_gradients_over_seeds(gradient: str) -> None:
    """Mean of eq. 4: that of the expectation. Of *YOSO: the true derivative times 1 - (1 - E)^m, pair by pair.

    2,000 or 500 seeds, 288 entries. Each mean's distance in standard errors is below 5.5, which all of them pass with
    a probability above 0.99998, up to what the rounding of rows to int8 moves: 1 % of the largest entry.
    """
    lengths, hashes, bits = (9,), 4, 4
    draws = 2000 if gradient == "bound" else 500
    query, key, value, grad = (tensor.double() for tensor in draw(lengths))
    unit_query, unit_key = (rows / rows.norm(dim=2, keepdim=True) for rows in (query, key))
    cosine = torch.einsum("ihd,jhd->hij", unit_query, unit_key)
    met = dense_expectation(cosine, bits)
    slope = met * bits / 2
    if gradient == "collided":
        slope = dense_slope(cosine, bits, SOFTENING) * (1 - (1 - met) ** hashes)
    slope = slope * torch.einsum("ihd,jhd->hij", grad, value)
    expected = torch.cat(
        [torch.einsum("hij,jhd->ihd", slope, unit_key), torch.einsum("hij,ihd->jhd", slope, unit_query)]
    )
    many = [tensor.float().repeat(draws, 1, 1) for tensor in (grad, query, key, value)]
    hashing = Hashing(offsets(lengths * draws), torch.arange(draws), hashes, bits, "gaussian", 0)
    compute = tables.table_gradients if gradient == "bound" else pairs.pair_gradients
    options = {} if gradient == "bound" else {"collided": True, "softening": SOFTENING}
    by_query, by_key, _ = compute(*many, hashing, **options)
    samples = torch.cat([by_query.unflatten(0, (draws, -1)), by_key.unflatten(0, (draws, -1))], dim=1).double()
    error = samples.std(dim=0) / math.sqrt(draws)
    distance = (samples.mean(dim=0) - expected).abs()
    assert (distance < 5.5 * error + 0.01 * expected.abs().max()).all()
    assert error.max() < 0.04 * expected.abs().max(), "there are enough seeds to tell"


@NORMALISATIONS
def test_padding_has_no_part_in_anything(normalize: int) -> None:
    """Padding in front, behind and in the middle: the gradients of the packed rows, and none of padding."""
    settings = Settings(num_hashes=6, hash_bits=3, normalize=normalize)
    lengths = (3, 5, 1)
    packed = draw(lengths)
    is_token = torch.tensor([[False, True, True, True, False], [True] * 5, [False, False, True, False, False]])
    generator = torch.Generator().manual_seed(1)
    padded = []
    for rows in packed:
        whole = 100 * torch.randn(3, 5, HEADS, rows.shape[2], generator=generator)
        whole[is_token] = rows
        padded.append(whole.transpose(1, 2).contiguous())
    one = gradients(lambda *rows: attend(*rows, offsets(lengths), settings, SEED), packed)
    other = gradients(lambda *rows: attend_padded(*rows, is_token, settings, SEED), padded)
    for expected, actual in zip(one, other, strict=True):
        rows_first = actual.transpose(1, 2)
        torch.testing.assert_close(rows_first[is_token], expected)
        assert not rows_first[~is_token].any()


@pytest.mark.usefixtures("way")
def test_a_row_without_direction_gets_no_gradient() -> None:
    query, key, value, grad = draw((6,))
    query[2] = 0
    actual = gradients(lambda *rows: attend(*rows, offsets((6,)), Settings(4, 3), SEED), [query, key, value, grad])
    assert all(torch.isfinite(one).all() for one in actual)
    assert not actual[1][2].any()


def test_a_row_without_direction_gets_a_gradient_where_it_is_lifted() -> None:
    """Its products with keys are what counts, and those of 0 grow with it."""
    drawn = draw((6,))
    drawn[0][2] = 0
    settings = Settings(16, 3, norm_lift=6.0, normalize=RAW)
    actual = gradients(lambda *rows: attend(*rows, offsets((6,)), settings, SEED, LAYER), drawn)
    wide = [tensor.double() for tensor in drawn]
    close(actual, gradients(lambda *rows: oracle(*rows, settings, (6,)), wide))
    assert actual[1][2].abs().max() > 0


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("num_hashes", [0, 4])
def test_operator_keeps_pytorch_s_rules(num_hashes: int) -> None:
    lengths = (1, 6)
    tensors = [tensor.requires_grad_() for tensor in draw(lengths)[:3]]
    torch.library.opcheck(yoso_mix, (*tensors, offsets(lengths), torch.arange(2), num_hashes, 3))
