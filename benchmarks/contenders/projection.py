"""MCA's value projection: its own time beside a dense one, and the whole operator beside exact attention."""

from collections.abc import Callable
from typing import Any

import numpy as np

from attenuator.ops.mca.reference import mca_attention
from benchmarks.contenders import nodes
from benchmarks.contenders.inputs import Packed, correlated, gaussian
from benchmarks.measure.cases import CHANNELS, HEAD_DIM, HEADS, Row, Runs, checked, records
from benchmarks.measure.timing import interleave, remainder_ratio

# Tokens, and the window if any.
CASES = ((128, 0), (512, 0), (1024, 64))
# Factors on Gaussian queries: the flatter attention is, the fewer columns an alpha keeps.
SHARPNESS = (0.5, 1.0)
ALPHAS = (0.0, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.6, 0.8, 1.0)
# At which r is above FEW_CHANNELS: n times a column maximum is never as small as 0.04 here.
SMALLEST_ALPHA = 0.01
# Shares of the dense projection's multiply-adds whose alpha is searched for and timed as well.
SHARES = (1 / 2, 1 / 4, 1 / 8)
SEARCH_STEPS = 12
# So few channels that their projection costs next to nothing: what is left is attention with its column maxima.
FEW_CHANNELS = 16
BY_ORT = {"matmul, mha": nodes.mha_node, "matmul, attention23": nodes.attention23_node}
# Small differences of large times need more rounds than a ratio does.
BUDGETS, MOST_ROUNDS = 3, 120
# The reference is float64: rounding may put a head on the other side of "exact is cheaper", or a count one off.
TOLERANCE, HEADS_CHECKED = 1e-3, 0.75


def weights(channels: int) -> dict[str, Any]:
    """W_v and b_v."""
    random = np.random.default_rng(2)
    weight = random.standard_normal((channels, CHANNELS), dtype=np.float32) / np.float32(np.sqrt(channels))
    return {"value_weight": weight, "value_bias": np.zeros(CHANNELS, np.float32)}


def feeds(packed: Packed, hidden: Any, alpha: float) -> dict[str, Any]:
    """Inputs of McaAttention for one sequence."""
    return {
        "query": packed.query,
        "key": packed.key,
        "hidden": hidden,
        "cu_seqlens": packed.cu_seqlens,
        "alpha": np.full(1, alpha, np.float32),
        "seed": np.zeros(1, np.int64),
    }


def mca(
    packed: Packed, hidden: Any, alpha: float, window: int, estimator: str = "sampled", threads: int = 1
) -> nodes.Runner:
    """`McaAttention` with its weight as an initializer."""
    names = [tensor.name for tensor in nodes.BY_KEY["mca"].inputs if not tensor.optional]
    outputs = {"output": (packed.query.shape, np.float32), "value_flops": ((1,), np.float32)}
    node = nodes.own("mca", names, list(outputs), num_heads=HEADS, estimator=estimator, window=window)
    constants = weights(hidden.shape[1])
    return nodes.Runner([node], feeds(packed, hidden, alpha), outputs, constants=constants, threads=threads)


def dense(packed: Packed, hidden: Any, attend: bool, window: int = 0) -> nodes.Runner:
    """ONNX Runtime's prepacked MatMul as value projection, alone or followed by exact attention over its values."""
    weight = {"value_weight": weights(hidden.shape[1])["value_weight"]}
    matmul = nodes.node("MatMul", ["hidden", "value_weight"], ["value"])
    if not attend:
        return nodes.Runner([matmul], {"hidden": hidden}, {"value": (packed.value.shape, np.float32)}, constants=weight)
    inputs = {"query": packed.query, "key": packed.key, "hidden": hidden, "cu_seqlens": packed.cu_seqlens}
    attention = nodes.own(
        "softmax", ["query", "key", "value", "cu_seqlens"], ["output"], num_heads=HEADS, window=window
    )
    outputs = {"output": (packed.query.shape, np.float32)}
    return nodes.Runner([matmul, attention], inputs, outputs, constants=weight)


def dense_by_ort(packed: Packed, hidden: Any, attention_node: Callable[[list[str], int], Any]) -> nodes.Runner:
    """The same MatMul followed by an attention node of ONNX Runtime, on one sequence."""
    weight = {"value_weight": weights(hidden.shape[1])["value_weight"]}
    matmul = nodes.node("MatMul", ["hidden", "value_weight"], ["value"])
    inputs = {"query": packed.query[None], "key": packed.key[None], "hidden": hidden[None]}
    outputs = {"output": (inputs["query"].shape, np.float32)}
    attention = attention_node(["query", "key", "value"], HEADS)
    return nodes.Runner([matmul, attention], inputs, outputs, constants=weight)


def alpha_for(packed: Packed, hidden: Any, share: float, window: int) -> float | None:
    """The alpha at which about this share of the multiply-adds is spent, if any."""
    low, high = 0.0, 1.0
    if spent(packed, hidden, high, window) > share:
        return None
    for _ in range(SEARCH_STEPS):
        middle = (low + high) / 2
        low, high = (middle, high) if spent(packed, hidden, middle, window) > share else (low, middle)
    return round(high, 4)


def spent(packed: Packed, hidden: Any, alpha: float, window: int) -> float:
    """value_flops at an alpha."""
    return float(mca(packed, hidden, alpha, window).result()["value_flops"][0])


def error_of(packed: Packed, hidden: Any, alpha: float, window: int, output: Any) -> float:
    """Difference to the reference over the reference, in Frobenius norm, of the best three quarters of the heads."""
    truth, _ = mca_attention(**feeds(packed, hidden, alpha), **weights(hidden.shape[1]), num_heads=HEADS, window=window)
    heads = (len(truth), HEADS, HEAD_DIM)
    off, whole = (np.linalg.norm(rows.reshape(heads), axis=(0, 2)) for rows in (output - truth, truth))
    return float(np.quantile(off / whole, HEADS_CHECKED))


def run(length: int, window: int, sharpness: float, seconds: float) -> Row:
    """Every alpha at one length.

    Args:
        length: tokens.
        window: keys to either side that a row sees; 0 = all.
        sharpness: factor on the queries.
        seconds: see `timing.interleave`.

    Returns:
        A row of a result file. For each alpha: share of multiply-adds, error against the reference, `projection`: how
        many times faster than MatMul the projection is, its time being what the operator takes beyond the operator on
        16 channels (beyond exact attention where nothing was sampled, so that maxima taken in vain count), and
        `whole`: the operator over MatMul followed by SoftmaxAttention; without a window `whole_by_ort`: followed by the
        better of ONNX Runtime's attention nodes.
    """
    packed = gaussian([length], HEADS, HEAD_DIM)
    packed = Packed(packed.query * np.float32(sharpness), packed.key, packed.value, packed.lengths, HEADS)
    hidden, few = correlated(length, CHANNELS), correlated(length, FEW_CHANNELS)
    alpha_of_share = {share: alpha_for(packed, hidden, share, window) for share in SHARES}
    alphas = sorted({*ALPHAS, *(alpha for alpha in alpha_of_share.values() if alpha is not None)})
    runs: Runs = {
        "matmul": dense(packed, hidden, attend=False),
        "matmul, softmax": dense(packed, hidden, attend=True, window=window),
        **{name: dense_by_ort(packed, hidden, node) for name, node in BY_ORT.items() if not window},
        "mca, 16 channels, exact": mca(packed, few, 0.0, window),
        # The one estimator that keeps the attention weights and takes their maxima unpromised; all is exact then.
        "mca, 16 channels": mca(packed, few, SMALLEST_ALPHA, window, "paper"),
    }
    settings: list[Row] = []
    for alpha in alphas:
        runner = mca(packed, hidden, alpha, window)
        result = runner.result()
        name = f"mca alpha={alpha:g}"
        error = checked(name, error_of(packed, hidden, alpha, window, result["output"]), TOLERANCE)
        settings.append({"alpha": alpha, "value_flops": float(result["value_flops"][0]), "error": error})
        runs[name] = runner
    timings = interleave(runs, seconds=seconds, most_rounds=MOST_ROUNDS)
    by_ort = None if window else min(BY_ORT, key=lambda name: timings[name].median)
    for setting in settings:
        timing = timings[f"mca alpha={setting['alpha']:g}"]
        attention = timings["mca, 16 channels" if setting["value_flops"] < 1 else "mca, 16 channels, exact"]
        setting["projection"] = remainder_ratio(timing, attention, timings["matmul"])
        setting["whole"] = timing.times_faster_than(timings["matmul, softmax"])
        if by_ort:
            setting["whole_by_ort"] = timing.times_faster_than(timings[by_ort])
    return {
        "n": length,
        "window": window,
        "channels": CHANNELS,
        "sharpness": sharpness,
        "threads": 1,
        "contenders": records(timings),
        "settings": settings,
        "alpha_of_share": {f"1/{round(1 / share)}": alpha for share, alpha in alpha_of_share.items()},
    }
