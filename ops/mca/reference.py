"""McaAttention in NumPy, as plainly as it can be said: float64, with the very samples the kernels draw.

The choices a sample depends on (uniform numbers, inverse probabilities) are rounded to float32 as the kernels round
them, so that both keep the same columns. Only a token whose r lies within rounding of an integer may differ.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attenuator.ops.mca.reference_plan import (
    Float64s,
    Floats,
    centre_of,
    paper_distribution,
    paper_draws,
    probe_pays,
    replaced,
    required_samples,
    samples_of,
    smallest_row_sum,
    span_of,
    worth_sampling,
)
from attenuator.ops.mca.rule import SAMPLE_GROUP, SMALLEST_P, maxima_cost, probe_of, row_keys, worth_approximating
from attenuator.ops.softmax.reference import Positions, probabilities, rows_of_last
from attenuator.ops.yoso.reference_hashes import PhiloxWords, philox

Ints = NDArray[np.integer[Any]]

SAMPLES_STREAM, PAPER_STREAM = 2, 3  # Stream in ops/common/philox.h


def philox_words(seed: int, layer: int, head: int, stream: int, first_block: int, blocks: int) -> PhiloxWords:
    """Words of the random stream (seed, layer, head, stream): Philox4x32-10, Salmon et al., SC 2011.

    Args:
        seed: the caller's.
        layer: attribute of the node.
        head: index.
        stream: what the words are for.
        first_block: block of four words to start with.
        blocks: how many.

    Returns:
        [4 * blocks].
    """
    block = np.arange(first_block, first_block + blocks, dtype=np.uint64)
    counter = np.zeros((blocks, 4), np.uint64)
    counter[:, 0], counter[:, 1] = block & np.uint64(0xFFFFFFFF), (block >> np.uint64(32)) | np.uint64(stream << 24)
    counter[:, 2], counter[:, 3] = head, layer
    return philox(seed, counter).reshape(-1)


def uniforms(seed: int, layer: int, head: int, channels: int) -> NDArray[np.float32]:
    """u_k of each column of `hidden`, in (0, 1]: [C]."""
    words = philox_words(seed, layer, head, SAMPLES_STREAM, 0, -(-channels // 4))[:channels]
    return (words.astype(np.float32) + np.float32(0.5)) * np.float32(2.0**-32)


def inverse_probabilities(weight: Floats) -> NDArray[np.float32]:
    """1 / p_k with p_k = ||W_k||^2 / ||W||_F^2 (paper, equation 6), infinite for a zero row: [C]."""
    squares = (weight.astype(np.float64) ** 2).sum(axis=1)
    p = np.where(squares > 0, np.maximum(squares / squares.sum(), SMALLEST_P), 0.0)
    with np.errstate(divide="ignore"):
        return (1.0 / p).astype(np.float32)


def project_sampled(
    hidden: Floats,
    weight: Floats,
    centre: Floats,
    required: Float64s,
    u: NDArray[np.float32],
    overhead: float = 0.0,
) -> tuple[Float64s, float]:
    """Poisson sampling with one uniform number per column, shared by all tokens.

    Column k is kept for token j where u_k <= r_j p_k, with weight 1 / min(1, r_j p_k): unbiased, and of variance
    sum_k (1 / pi_k - 1) x_jk^2 ||W_k||^2 <= ||x_j||^2 ||W||_F^2 / r_j for every W.

    Args:
        hidden: [n, C].
        weight: W_a, [C, head_dim].
        centre: [C]: the mean row or zeros; its projection is exact.
        required: `required_samples`.
        u: `uniforms`.
        overhead: columns that approximating costs the head beside its tokens.

    Returns:
        Projected rows [n, head_dim], and the columns read, over all tokens.
    """
    tokens, channels = hidden.shape
    r, sampled = samples_of(required, channels)
    if not worth_sampling(sampled.sum(), r[sampled].sum(), channels, weight.shape[1], overhead):
        sampled[:] = False
    values = hidden.astype(np.float64) @ weight
    columns = float((~sampled).sum() * channels)
    if not sampled.any():
        return values, columns
    columns += channels * bool(np.any(centre))
    inverse_p = inverse_probabilities(weight)
    reach = u * inverse_p
    order = np.nonzero(sampled)[0]
    order = order[np.argsort(-r[order], kind="stable")]
    for begin in range(0, len(order), SAMPLE_GROUP):
        group = order[begin : begin + SAMPLE_GROUP]
        shared = np.float32(r[group[0]])
        kept = np.nonzero(reach <= shared)[0]
        weights = np.maximum(1.0, inverse_p[kept].astype(np.float64) / float(shared))
        rest = (hidden[group][:, kept].astype(np.float64) - centre[kept]) * weights
        values[group] = centre.astype(np.float64) @ weight + rest @ weight[kept].astype(np.float64)
        columns += len(group) * len(kept)
    return values, columns


def project_deterministic(
    hidden: Floats,
    weight: Floats,
    centre: Floats,
    maxima: Floats,
    keys: int,
    alpha: float,
    beta: float,
    overhead: float = 0.0,
) -> tuple[Float64s, float]:
    """Tokens whose share of the bound allows it are replaced by the mean row, the others are exact.

    x_j becomes mu where n max_i A_ij ||x_j - mu|| ||W||_2 <= alpha beta ||W||_F; then every row errs by at most
    alpha beta ||W||_F, surely.

    Args:
        hidden: [n, C].
        weight: W_a, [C, head_dim].
        centre: mu, [C].
        maxima: max_i A_ij, [n].
        keys: n of the rule.
        alpha: the knob.
        beta: (1/keys) sum ||x_j|| over a row's keys, the smallest over rows.
        overhead: as in `project_sampled`.

    Returns:
        As `project_sampled`.
    """
    distances = np.linalg.norm(hidden.astype(np.float64) - centre, axis=1)
    dropped = replaced(distances, weight, maxima.astype(np.float64), keys, alpha, beta)
    weight = weight.astype(np.float64)
    channels = hidden.shape[1]
    if channels * (dropped.sum() - 1) <= overhead:
        dropped[:] = False
    values = hidden.astype(np.float64) @ weight
    values[dropped] = centre.astype(np.float64) @ weight
    return values, float((~dropped).sum() * channels + channels * dropped.any())


def project_paper(
    hidden: Floats, weight: Floats, required: Float64s, seed: int, layer: int, head: int, overhead: float = 0.0
) -> tuple[Float64s, float]:
    """Sampling with replacement as in section 3.1 of the paper, r rounded up, each token with samples of its own.

    Args:
        hidden: [n, C].
        weight: W_a, [C, head_dim].
        required: `required_samples`.
        seed: with layer and head the random stream; token j's words start at block j * ceil(C / 2), two for a draw.
        layer: attribute of the node.
        head: index.
        overhead: as in `project_sampled`.

    Returns:
        As `project_sampled`.
    """
    tokens, channels = hidden.shape
    weight = weight.astype(np.float64)
    cdf, p = paper_distribution(weight)
    r = np.maximum(1.0, np.ceil(required))
    values = hidden.astype(np.float64) @ weight
    if (channels - np.minimum(r, channels)).sum() < overhead:
        return values, float(tokens * channels)
    for j in np.nonzero(r < channels)[0]:
        words = philox_words(seed, layer, head, PAPER_STREAM, int(j) * -(-channels // 2), -(-int(r[j]) // 2))
        s = np.searchsorted(cdf, paper_draws(words)[: int(r[j])], side="right")
        values[j] = (hidden[j, s].astype(np.float64) / p[s]) @ weight[s] / r[j]
    return values, float(np.minimum(r, channels).sum())


def mca_attention(
    query: Floats,
    key: Floats,
    hidden: Floats,
    value_weight: Floats,
    value_bias: Floats,
    cu_seqlens: Ints,
    alpha: Floats,
    seed: Ints,
    positions: Positions | None = None,
    unmerged_cu_seqlens: NDArray[np.int32] | None = None,
    *,
    num_heads: int,
    scale: float = 0.0,
    layer: int = 0,
    estimator: str = "sampled",
    window: int = 0,
    global_tokens: int = 0,
    queries: str = "all",
) -> tuple[Float64s, Float64s]:
    """Softmax attention over approximately projected values.

    Args:
        query: [T, num_heads * head_dim], or [B, num_heads * head_dim] with queries = "first".
        key: [T, num_heads * head_dim].
        hidden: [T, C].
        value_weight: [C, num_heads * head_dim].
        value_bias: [num_heads * head_dim].
        cu_seqlens: [B + 1].
        alpha: [B], 0 = exact.
        seed: [B].
        positions: [T], ascending in each sequence: what windows measure; None: the row's index.
        unmerged_cu_seqlens: as in `softmax_attention`.
        num_heads: heads.
        scale: factor on the scores; 0 means 1/sqrt(head_dim).
        layer: random stream of this node.
        estimator: "sampled", "deterministic" or "paper".
        window: keys with |i - j| <= window; 0 = all.
        global_tokens: 1: the first token is a key of every row and its row sees all keys.
        queries: "all" or "first".

    Returns:
        Output, shaped as query, and value_flops [B].
    """
    head_dim = key.shape[1] // num_heads
    channels = hidden.shape[1]
    output = np.zeros(query.shape)
    value_flops = np.ones(len(alpha))
    stands_for = rows_of_last(cu_seqlens, unmerged_cu_seqlens)
    for b, (begin, end) in enumerate(zip(cu_seqlens[:-1], cu_seqlens[1:], strict=True)):
        length = int(end - begin)
        if length == 0:
            continue
        first = queries == "first"
        rows = slice(b, b + 1) if first else slice(begin, end)
        places = None if positions is None else positions[begin:end]
        sequence = _study(
            hidden[begin:end], float(alpha[b]), int(seed[b]), layer, estimator, window, global_tokens, places
        )
        columns = 0.0
        for head in range(num_heads):
            block = slice(head * head_dim, (head + 1) * head_dim)
            weight, bias = value_weight[:, block], value_bias[block].astype(np.float64)
            a = probabilities(
                query[rows, block], key[begin:end, block], scale, window, global_tokens, places, stands_for[b]
            )
            if first:
                output[rows, block] = a @ (sequence.hidden.astype(np.float64) @ weight) + bias
                columns += _first_row_columns(sequence, int(np.count_nonzero(a)), head_dim)
            else:
                output[rows, block], spent = _attend(sequence, a, weight, bias, head)
                columns += spent
        value_flops[b] = columns / (length * channels * num_heads)
    return output, value_flops


@dataclass(frozen=True)
class _Sequence:
    """What all heads of one sequence share.

    Attributes:
        hidden: [n, C].
        alpha: the knob.
        seed: the caller's.
        layer: attribute of the node.
        estimator: "sampled", "deterministic" or "paper".
        window: keys with |i - j| <= window; 0 = all.
        global_tokens: 1: the first token is a key of every row and its row sees all keys.
        positions: [n], or None: what windows measure.
        span: last position less the first, or None.
        keys: n of the rule.
        wide_first: row 0 sees all keys though others do not.
        beta: (1/keys) sum ||x_j|| over a row's keys, the smallest over rows.
        mean: the mean row, [C].
        distances: ||x_j - mean||, [n].
    """

    hidden: Floats
    alpha: float
    seed: int
    layer: int
    estimator: str
    window: int
    global_tokens: int
    positions: Positions | None
    span: int | None
    keys: int
    wide_first: bool
    beta: float
    mean: Float64s
    distances: Float64s


def _study(
    hidden: Floats,
    alpha: float,
    seed: int,
    layer: int,
    estimator: str,
    window: int,
    global_tokens: int,
    positions: Positions | None,
) -> _Sequence:
    """The facts of a sequence that is not empty."""
    span = span_of(positions)
    keys, wide_first = row_keys(len(hidden), window, global_tokens, span)
    norms = np.linalg.norm(hidden.astype(np.float64), axis=1)
    mean = hidden.astype(np.float64).mean(axis=0)
    return _Sequence(
        hidden=hidden,
        alpha=alpha,
        seed=seed,
        layer=layer,
        estimator=estimator,
        window=window,
        global_tokens=global_tokens,
        positions=positions,
        span=span,
        keys=keys,
        wide_first=bool(wide_first),
        beta=smallest_row_sum(norms, window, global_tokens, positions) / keys,
        mean=mean,
        distances=np.linalg.norm(hidden - mean, axis=1),
    )


def _first_row_columns(sequence: _Sequence, keys: int, head_dim: int) -> float:
    """Multiply-adds of a row that sees so many keys by (A X) W, divided by head_dim; exact where nothing is mixed."""
    length, channels = sequence.hidden.shape
    if sequence.alpha == 0 or length == 1:
        return float(length * channels)
    return float(channels + channels * keys / head_dim)


def _attend(sequence: _Sequence, a: Float64s, weight: Floats, bias: Float64s, head: int) -> tuple[Float64s, float]:
    """All rows of a head [n, head_dim], and the columns read; `a` are its attention weights [n, n]."""
    length, channels = sequence.hidden.shape
    exact = sequence.hidden.astype(np.float64) @ weight
    if sequence.alpha == 0 or not worth_approximating(
        length, channels, sequence.alpha, sequence.estimator, sequence.window, sequence.global_tokens, sequence.span
    ):
        return a @ exact + bias, float(length * channels)
    overhead = channels * (1 + length / weight.shape[1]) if sequence.wide_first else 0.0
    values, spent = exact, float(length * channels)
    if np.any(weight) and _probe_pays(sequence, a, weight, overhead):
        values, spent = _project(sequence, a, weight, head, overhead)
    output = a @ values + bias
    if sequence.wide_first:
        output[0] = a[0] @ exact + bias
        spent += 0.0 if np.array_equal(values, exact) else overhead
    return output, spent


def _probe_pays(sequence: _Sequence, a: Float64s, weight: Floats, overhead: float) -> bool:
    """Whether the maxima of the probe's rows predict that approximating the head pays; true without a probe."""
    probe = probe_of(len(sequence.hidden), sequence.window, sequence.span)
    if probe.rows == 0 or sequence.estimator == "paper":
        return True
    return bool(
        probe_pays(
            a[probe.first_row : probe.first_row + probe.rows].max(axis=0),
            sequence.distances,
            weight,
            sequence.keys,
            sequence.alpha,
            sequence.estimator,
            probe,
            overhead + maxima_cost(len(sequence.hidden), sequence.window, weight.shape[1], sequence.span),
            sequence.beta,
        )
    )


def _project(sequence: _Sequence, a: Float64s, weight: Floats, head: int, overhead: float) -> tuple[Float64s, float]:
    """The head's values [n, head_dim] by the estimator, and the columns read."""
    x = sequence.hidden
    maxima = a[int(sequence.wide_first) :].max(axis=0)
    required = required_samples(maxima, sequence.keys, sequence.alpha)
    if sequence.estimator == "sampled":
        u = uniforms(sequence.seed, sequence.layer, head, x.shape[1])
        centre = centre_of(x, sequence.window, sequence.global_tokens, sequence.positions)
        return project_sampled(x, weight, centre, required, u, overhead)
    if sequence.estimator == "paper":
        return project_paper(x, weight, required, sequence.seed, sequence.layer, head, overhead)
    return project_deterministic(
        x, weight, sequence.mean, maxima, sequence.keys, sequence.alpha, sequence.beta, overhead
    )
