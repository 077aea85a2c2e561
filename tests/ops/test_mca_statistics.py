"""What McaAttention's estimators promise: unbiasedness, Lemma 1, Theorem 2, and the deterministic bound.

Seeds are fixed, so each test passes always or never; the confidence levels say how rarely a correct estimator would
have failed had the seeds been drawn. One run holds many copies of a sequence, each with a seed of its own.
"""

import itertools

import numpy as np
import pytest
from harness import Array, AttributeValue, offsets, run
from scipy import stats

from attenuator.ops.mca import reference_plan, rule
from attenuator.ops.softmax.reference import probabilities, visible

WEIGHT_KINDS = ("gaussian", "one heavy row", "rank one", "zero rows", "two rows", "decaying")
INPUT_KINDS = ("gaussian", "common mean", "one heavy row", "one column", "clusters", "mostly zero")
ALPHAS = (0.1, 0.4, 1.0)
# Tokens enough for sampling to pay and too few for a probe, which would make much of this exact.
TOKENS, CHANNELS, HEADS, HEAD_DIM = 64, 96, 2, 32


def make_weight(kind: str, rng: np.random.Generator, channels: int = CHANNELS, contrast: float = 1000.0) -> Array:
    """W_v [C, H * D]; `contrast` is how much heavier heavy rows are."""
    weight = rng.standard_normal((channels, HEADS * HEAD_DIM))
    if kind == "one heavy row":
        weight[7] *= contrast
    elif kind == "rank one":
        weight = np.outer(rng.standard_normal(channels), rng.standard_normal(HEADS * HEAD_DIM))
    elif kind == "zero rows":
        weight[::2] = 0
    elif kind == "two rows":
        weight[2:] /= contrast
    elif kind == "decaying":
        weight *= np.exp(-3 * np.arange(channels) / channels)[:, None]
    return weight.astype(np.float32)


def make_hidden(kind: str, rng: np.random.Generator, tokens: int = TOKENS, channels: int = CHANNELS) -> Array:
    """X [n, C]."""
    hidden = rng.standard_normal((tokens, channels))
    if kind == "common mean":
        hidden += 30 * rng.standard_normal(channels)
    elif kind == "one heavy row":
        hidden[3] *= 100
    elif kind == "one column":
        hidden[:, 5] += 50
    elif kind == "clusters":
        hidden = 0.1 * hidden + rng.standard_normal((3, channels))[np.arange(tokens) % 3]
    elif kind == "mostly zero":
        hidden[4:] = 0
    return hidden.astype(np.float32)


def make_problem(
    weight_kind: str,
    hidden_kind: str,
    sharpness: float = 0.3,
    tokens: int = TOKENS,
    channels: int = CHANNELS,
    contrast: float = 1000.0,
) -> dict[str, Array]:
    """One sequence; `sharpness` scales the queries."""
    rng = np.random.default_rng([WEIGHT_KINDS.index(weight_kind), INPUT_KINDS.index(hidden_kind)])
    width = HEADS * HEAD_DIM
    return {
        "query": (sharpness * rng.standard_normal((tokens, width))).astype(np.float32),
        "key": rng.standard_normal((tokens, width)).astype(np.float32),
        "hidden": make_hidden(hidden_kind, rng, tokens, channels),
        "value_weight": make_weight(weight_kind, rng, channels, contrast),
        "value_bias": rng.standard_normal(width).astype(np.float32),
    }


def sample(problem: dict[str, Array], alpha: float, copies: int, **attributes: AttributeValue) -> tuple[Array, Array]:
    """Outputs [copies, n, H, D] and value_flops [copies] of one sequence under seeds 0, 1, ..."""
    tokens = len(problem["key"])
    inputs = dict(problem)
    for name in ("query", "key", "hidden"):
        inputs[name] = np.tile(problem[name], (copies, 1))
    inputs["cu_seqlens"] = offsets([tokens] * copies)
    inputs["alpha"] = np.full(copies, alpha, np.float32)
    inputs["seed"] = np.arange(copies, dtype=np.int64)
    output, flops = run("mca", inputs, {"num_heads": HEADS, **attributes}, 1, ("value_weight", "value_bias"))
    return output.reshape(copies, tokens, HEADS, HEAD_DIM).astype(np.float64), flops


def heads_of(array: Array) -> Array:
    """[rows, H, D] in float64."""
    return array.reshape(len(array), HEADS, HEAD_DIM).astype(np.float64)


def attention(problem: dict[str, Array], window: int = 0, global_tokens: int = 0) -> Array:
    """A [H, n, n]."""
    query, key = heads_of(problem["query"]), heads_of(problem["key"])
    return np.asarray([probabilities(query[:, h], key[:, h], 0.0, window, global_tokens) for h in range(HEADS)])


def exact_output(problem: dict[str, Array], a: Array) -> Array:
    """[n, H, D]."""
    values = problem["hidden"].astype(np.float64) @ problem["value_weight"] + problem["value_bias"]
    return np.asarray(np.einsum("hij,jhd->ihd", a, heads_of(values)))


def frobenius(problem: dict[str, Array]) -> Array:
    """||W_a||_F of each head: [H]."""
    weight = problem["value_weight"].reshape(-1, HEADS, HEAD_DIM).astype(np.float64)
    return np.asarray(np.sqrt((weight**2).sum(axis=(0, 2))))


def assert_unbiased(outputs: Array, exact: Array, confidence: float = 1 - 1e-4) -> None:
    """Every component's mean lies within the confidence interval, Bonferroni over the components."""
    copies = len(outputs)
    deviation = outputs.std(axis=0, ddof=1)
    error = np.abs(outputs.mean(axis=0) - exact)
    limit = stats.t.ppf(1 - (1 - confidence) / 2 / exact.size, copies - 1)
    rounding = 1e-5 * np.abs(exact).max()
    assert (error <= limit * deviation / np.sqrt(copies) + rounding).all()


@pytest.mark.parametrize("estimator", ["sampled", "paper"])
@pytest.mark.parametrize("weight_kind", WEIGHT_KINDS)
@pytest.mark.parametrize("alpha", [0.5, 1.0])
def test_unbiased_whatever_the_weight(estimator: str, weight_kind: str, alpha: float) -> None:
    # At a contrast of 1,000 the light rows would be drawn too rarely for a mean over 1,500 seeds to be near normal.
    problem = make_problem(weight_kind, "clusters", contrast=8.0)
    outputs, flops = sample(problem, alpha, 1500, estimator=estimator)
    assert flops.mean() < 0.8, "nothing was sampled"
    assert_unbiased(outputs, exact_output(problem, attention(problem)))


def test_paper_draws_columns_of_the_smallest_probabilities() -> None:
    """4,095 columns share 2^-22 of the draws; with 32 random bits a draw reached one in four of them.

    With this seed token 27 draws one of them, p = 2^-34, which the mean over 40 tokens shows 2^34 times enlarged.
    """
    tokens, channels, head_dim, column = 40, 4096, 8, 1582
    weight = np.full((channels, head_dim), 2.0**-17 / np.sqrt(head_dim), np.float32)
    weight[0] = np.eye(head_dim, dtype=np.float32)[0]
    cdf, p = reference_plan.paper_distribution(weight)
    assert (p > 0).all()
    assert p[column] < 2.0**-33
    assert cdf[-1] == 2**rule.DRAW_BITS
    inputs = {
        "query": np.zeros((tokens, head_dim), np.float32),
        "key": np.zeros((tokens, head_dim), np.float32),
        "hidden": np.random.default_rng(5).standard_normal((tokens, channels)).astype(np.float32),
        "value_weight": weight,
        "value_bias": np.zeros(head_dim, np.float32),
        "cu_seqlens": np.array([0, tokens], np.int32),
        "alpha": np.ones(1, np.float32),
        "seed": np.array([10251], np.int64),
    }
    output, flops = run("mca", inputs, {"num_heads": 1, "estimator": "paper"})
    assert flops[0] < 1e-3
    drawn = inputs["hidden"][27, column].astype(np.float64) * 2.0**34 * weight[column] / tokens
    drawn /= np.ceil(flops[0] * channels)  # r, the same for all
    np.testing.assert_allclose(output, np.tile(drawn, (tokens, 1)), rtol=0, atol=0.01 * np.abs(drawn).max())


@pytest.mark.parametrize("hidden_kind", INPUT_KINDS)
def test_unbiased_whatever_the_input(hidden_kind: str) -> None:
    problem = make_problem("gaussian", hidden_kind)
    outputs, flops = sample(problem, 1.0, 1500)
    assert flops.mean() < 0.8
    assert_unbiased(outputs, exact_output(problem, attention(problem)))


@pytest.mark.parametrize("global_tokens", [0, 1])
def test_unbiased_with_a_window(global_tokens: int) -> None:
    problem = make_problem("gaussian", "gaussian", tokens=60)
    outputs, flops = sample(problem, 1.0, 1500, window=12, global_tokens=global_tokens)
    assert flops.mean() < 0.8
    assert_unbiased(outputs, exact_output(problem, attention(problem, 12, global_tokens)))


@pytest.mark.parametrize(("tokens", "channels", "window"), [(130, 300, 0), (300, 150, 20)])
def test_unbiased_after_a_probe(tokens: int, channels: int, window: int) -> None:
    """Whether a head is approximated hangs on its attention alone, not on what is drawn."""
    assert rule.probe_of(tokens, window).rows
    problem = make_problem("gaussian", "gaussian", 0.1, tokens, channels)
    outputs, flops = sample(problem, 1.0, 400, window=window)
    assert flops.max() < 0.5, "nothing was sampled"
    assert_unbiased(outputs, exact_output(problem, attention(problem, window)))


# So that r, (2 WINDOW + 1)^2 at alpha = 1, is small beside C though many tokens make sampling pay.
WINDOW = 4


def one_token_each(weight_kind: str, hidden_kind: str, contrast: float = 1000.0) -> tuple[dict[str, Array], float]:
    """A = I to the last bit within WINDOW, so that the output is the projection itself; also r, the same for all."""
    keys = rule.row_keys(TOKENS, WINDOW, 0)[0]
    problem = make_problem(weight_kind, hidden_kind, channels=8 * keys**2, contrast=contrast)
    basis = np.zeros((TOKENS, HEADS * HEAD_DIM), np.float32)
    for head in range(HEADS):
        basis[np.arange(TOKENS), head * HEAD_DIM + np.arange(TOKENS) % HEAD_DIM] = 40.0
    problem["query"] = problem["key"] = basis
    problem["value_bias"][:] = 0
    a = attention(problem, WINDOW)
    assert np.abs(a - np.eye(TOKENS)).max() < 1e-30
    return problem, float(keys**2)


@pytest.mark.parametrize("estimator", ["sampled", "paper"])
@pytest.mark.parametrize(("weight_kind", "hidden_kind"), list(itertools.product(WEIGHT_KINDS, INPUT_KINDS)))
def test_lemma_1(estimator: str, weight_kind: str, hidden_kind: str) -> None:
    """E||H~_j - x_j W|| <= ||x_j|| ||W||_F / sqrt(r_j), and in the quadratic mean too.

    Where tokens are centred the bound holds on their average, which is what Theorem 2 needs.
    """
    problem, r = one_token_each(weight_kind, hidden_kind)
    copies = 150
    outputs, flops = sample(problem, 1.0, copies, estimator=estimator, window=WINDOW)
    assert flops.mean() < 0.5
    squares = ((outputs - heads_of(problem["hidden"].astype(np.float64) @ problem["value_weight"])) ** 2).sum(axis=3)
    norms = np.linalg.norm(problem["hidden"].astype(np.float64), axis=1)
    rounding = 1e-5 * norms.max() * frobenius(problem)
    bound = norms[:, None] * frobenius(problem) / np.sqrt(r)
    centred = estimator == "sampled" and np.any(reference_plan.centre_of(problem["hidden"], WINDOW))
    mean_error = np.sqrt(squares).mean(axis=0)
    root_mean_square = np.sqrt(squares.mean(axis=0))
    if centred:
        bound, mean_error, root_mean_square = (x.mean(axis=0) for x in (bound, mean_error, root_mean_square))
    # The quadratic mean may sit at the bound itself, so its sampling error is allowed for: five standard errors.
    spread = 5 * squares.std(axis=0) / np.sqrt(copies) / np.maximum(2 * np.sqrt(squares.mean(axis=0)), 1e-30)
    assert (mean_error <= bound + rounding + (spread.max(axis=0) if centred else spread)).all()
    assert (root_mean_square <= bound + rounding + (spread.max(axis=0) if centred else spread)).all()


@pytest.mark.parametrize("weight_kind", WEIGHT_KINDS)
def test_variance_is_that_of_poisson_sampling(weight_kind: str) -> None:
    """Var = sum_k (1/pi_k - 1) x_jk^2 ||W_k||^2 with pi_k = min(1, r p_k), within its confidence interval."""
    problem, r = one_token_each(weight_kind, "mostly zero", contrast=8.0)
    copies = 300
    outputs, flops = sample(problem, 1.0, copies, window=WINDOW)
    assert flops.mean() < 0.5
    exact = heads_of(problem["hidden"].astype(np.float64) @ problem["value_weight"])
    weight = problem["value_weight"].reshape(-1, HEADS, HEAD_DIM).astype(np.float64)
    x = problem["hidden"].astype(np.float64) - reference_plan.centre_of(problem["hidden"], WINDOW)
    for head in range(HEADS):
        squares = (weight[:, head] ** 2).sum(axis=1)
        p = np.maximum(squares / squares.sum(), rule.SMALLEST_P)
        expected = x**2 @ np.where(squares > 0, (1 / np.minimum(1, r * p) - 1) * squares, 0)
        errors = ((outputs - exact) ** 2).sum(axis=3)[:, :, head]
        standard_error = errors.std(axis=0, ddof=1) / np.sqrt(copies)
        slack = 5 * standard_error + 1e-6 * expected + 1e-9 * squares.sum() * (x**2).sum(axis=1)
        assert (np.abs(errors.mean(axis=0) - expected) <= slack).all()


def theorem_2_bound(problem: dict[str, Array], alpha: float, window: int = 0, global_tokens: int = 0) -> Array:
    """alpha beta_i ||W_a||_F: [n, H]. beta_i is the mean norm over the keys of row i, taken over n_w of MATH 2.6."""
    norms = np.linalg.norm(problem["hidden"].astype(np.float64), axis=1)
    keys, wide_first = rule.row_keys(len(norms), window, global_tokens)
    beta = visible(len(norms), len(norms), window, global_tokens) @ norms / keys
    if wide_first:
        beta[0] = 0  # computed exactly
    return np.asarray(float(np.float32(alpha)) * beta[:, None] * frobenius(problem))


@pytest.mark.parametrize("estimator", ["sampled", "paper"])
@pytest.mark.parametrize("hidden_kind", INPUT_KINDS)
@pytest.mark.parametrize("weight_kind", WEIGHT_KINDS)
def test_theorem_2(estimator: str, weight_kind: str, hidden_kind: str) -> None:
    """The mean error of every row, over 256 seeds, with four standard errors on top, is inside the bound."""
    work = []
    for alpha, sharpness in itertools.product(ALPHAS, (0.1, 0.5, 2.0)):
        # At a contrast of 1,000 one draw in thousands carries the mean: 256 could not tell.
        problem = make_problem(weight_kind, hidden_kind, sharpness, contrast=30.0)
        outputs, flops = sample(problem, alpha, 256, estimator=estimator)
        work.append(flops.mean())
        errors = np.linalg.norm(outputs - exact_output(problem, attention(problem)), axis=3)
        upper = errors.mean(axis=0) + 4 * errors.std(axis=0) / 16
        rounding = 1e-5 * np.abs(problem["hidden"]).max() * frobenius(problem)
        assert (upper <= theorem_2_bound(problem, alpha) + rounding).all()
    assert sum(share < 0.9 for share in work) >= 3, "next to nothing was sampled"


@pytest.mark.parametrize("hidden_kind", INPUT_KINDS)
@pytest.mark.parametrize(("window", "global_tokens"), [(4, 0), (15, 0), (15, 1)])
def test_theorem_2_with_a_window(hidden_kind: str, window: int, global_tokens: int) -> None:
    for alpha in ALPHAS:
        problem = make_problem("gaussian", hidden_kind, 1.0, tokens=120)
        outputs, flops = sample(problem, alpha, 64, window=window, global_tokens=global_tokens)
        exact = exact_output(problem, attention(problem, window, global_tokens))
        errors = np.linalg.norm(outputs - exact, axis=3)
        rounding = 1e-5 * np.abs(problem["hidden"]).max() * frobenius(problem)
        bound = theorem_2_bound(problem, alpha, window, global_tokens)
        assert (errors.mean(axis=0) + 4 * errors.std(axis=0) / 8 <= bound + rounding).all()
    assert flops.mean() < 0.5, "nothing was sampled at alpha = 1"


@pytest.mark.parametrize("hidden_kind", INPUT_KINDS)
@pytest.mark.parametrize(("tokens", "window", "global_tokens"), [(200, 0, 0), (300, 10, 0), (300, 10, 1)])
@pytest.mark.parametrize("estimator", ["sampled", "deterministic"])
def test_theorem_2_after_a_probe(
    estimator: str, tokens: int, window: int, global_tokens: int, hidden_kind: str
) -> None:
    """The probe may be wrong of the rows that it has not seen; the bound holds all the same."""
    assert rule.probe_of(tokens, window).rows
    copies = 128 if estimator == "sampled" else 1
    problem = make_problem("gaussian", hidden_kind, 0.1, tokens, 200 if window else 400)
    # The first rows are flat, the last ones sharp: what looks like a small r becomes anything up to exact.
    problem["query"] *= np.geomspace(1.0, 60.0, tokens, dtype=np.float32)[:, None]
    work = []
    for alpha in ALPHAS:
        outputs, flops = sample(problem, alpha, copies, estimator=estimator, window=window, global_tokens=global_tokens)
        work.append(flops.mean())
        errors = np.linalg.norm(outputs - exact_output(problem, attention(problem, window, global_tokens)), axis=3)
        upper = errors.mean(axis=0) + 4 * errors.std(axis=0) / np.sqrt(copies)
        rounding = 1e-5 * np.abs(problem["hidden"]).max() * frobenius(problem)
        assert (upper <= theorem_2_bound(problem, alpha, window, global_tokens) + rounding).all()
    zero_beta = hidden_kind == "mostly zero" and estimator == "deterministic"  # of rows that see zeros alone
    assert work[-1] < 0.95 or zero_beta, "nothing was approximated"


@pytest.mark.parametrize("hidden_kind", INPUT_KINDS)
@pytest.mark.parametrize("weight_kind", WEIGHT_KINDS)
@pytest.mark.parametrize(("window", "global_tokens"), [(0, 0), (10, 0), (10, 1)])
def test_deterministic_obeys_its_bound_always(
    weight_kind: str, hidden_kind: str, window: int, global_tokens: int
) -> None:
    for alpha, sharpness in itertools.product((0.01, *ALPHAS), (0.1, 1.0, 4.0)):
        problem = make_problem(weight_kind, hidden_kind, sharpness, 120 if window else TOKENS)
        outputs, _ = sample(problem, alpha, 1, estimator="deterministic", window=window, global_tokens=global_tokens)
        exact = exact_output(problem, attention(problem, window, global_tokens))
        errors = np.linalg.norm(outputs[0] - exact, axis=2)
        rounding = 4e-6 * np.abs(exact).max()
        assert (errors <= theorem_2_bound(problem, alpha, window, global_tokens) + rounding).all()


def test_deterministic_saves_work() -> None:
    flops = [
        sample(make_problem("gaussian", "clusters", 0.1), alpha, 1, estimator="deterministic")[1][0] for alpha in ALPHAS
    ]
    assert flops[0] >= flops[1] >= flops[2]
    assert flops[2] < 0.2


def test_a_rank_one_weight_has_equal_norms() -> None:
    """||W||_2 = ||W||_F, so the deterministic rule compares n max_i A_ij ||x_j - mu|| with alpha beta alone."""
    problem = make_problem("rank one", "common mean", 0.5)
    a = attention(problem)
    x = problem["hidden"].astype(np.float64)
    distances, beta = np.linalg.norm(x - x.mean(axis=0), axis=1), np.linalg.norm(x, axis=1).mean()
    shares = len(x) * a.max(axis=1) * distances / beta  # [H, n]
    limit = float(np.quantile(shares, 0.4))
    alpha = limit / (1 - rule.ROUNDING_MARGIN)
    kept = (shares > limit).sum(axis=1)
    assert alpha <= 1.0
    expected = (kept + 1).sum() / (HEADS * len(x))
    assert sample(problem, alpha, 1, estimator="deterministic")[1][0] == pytest.approx(expected, abs=1.5 / shares.size)


def test_centring_is_refused_where_it_would_widen_the_bound() -> None:
    """A few long rows among zeros lie, on average, further from their mean than from zero."""
    assert not np.any(reference_plan.centre_of(make_hidden("mostly zero", np.random.default_rng(0))))
    assert np.any(reference_plan.centre_of(make_hidden("common mean", np.random.default_rng(0))))


def test_centring_takes_the_common_mean_out_of_the_error() -> None:
    """With a mean 30 times the spread the uncentred error would be about 30 times the centred one."""
    plain, shifted = make_problem("gaussian", "gaussian"), make_problem("gaussian", "common mean")
    for name in ("query", "key", "value_weight"):
        shifted[name] = plain[name]
    errors = [
        np.sqrt(((sample(problem, 1.0, 200)[0] - exact_output(problem, attention(problem))) ** 2).mean())
        for problem in (plain, shifted)
    ]
    assert errors[1] < 1.5 * errors[0]


def test_error_and_work_follow_alpha() -> None:
    problem = make_problem("gaussian", "clusters")
    exact = exact_output(problem, attention(problem))
    errors, work = [], []
    for alpha in (0.2, 0.4, 0.7, 1.0):
        outputs, flops = sample(problem, alpha, 200)
        errors.append(float(np.sqrt(((outputs - exact) ** 2).mean())))
        work.append(float(flops.mean()))
    assert errors == sorted(errors)
    assert work == sorted(work, reverse=True)


def test_work_is_on_average_what_the_formula_for_r_says() -> None:
    """Poisson sampling reads r_j columns on average; a group of six takes the largest r among them."""
    channels = 400  # after a probe: enough to save
    problem = make_problem("gaussian", "gaussian", tokens=200, channels=channels)
    _, flops = sample(problem, 0.6, 100)
    maxima = attention(problem).max(axis=1)
    r = np.ceil(reference_plan.required_samples(maxima, 200, float(np.float32(0.6))))
    columns = np.where(r < np.ceil(rule.BREAK_EVEN * channels), r, channels)
    formula = columns.sum() / (HEADS * 200 * channels) + 1 / 200  # the mean row is projected too
    assert formula < flops.mean() < 1.15 * formula
