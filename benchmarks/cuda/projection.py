"""MCA's value projection on CUDA, beside a dense one."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from attenuator.ops.mca.reference import mca_attention
from benchmarks.contenders.inputs import correlated, gaussian
from benchmarks.contenders.nodes import BY_KEY, node, own
from benchmarks.contenders.projection import FEW_CHANNELS, HEADS_CHECKED, weights
from benchmarks.cuda.attention import TOLERANCES
from benchmarks.cuda.device import Place
from benchmarks.cuda.nodes import DTYPES, DeviceRunner, graph_of
from benchmarks.measure.cases import CHANNELS, HEAD_DIM, HEADS, Row, Runs, checked, records
from benchmarks.measure.timing import Sampler, interleave, remainder_ratio

LENGTH = 512
BATCHES = (1, 128)
ALPHAS = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
EXACT = (0.0,)  # in half types, where every alpha computes exact values
SHARPNESS = 0.5  # factor on Gaussian queries: attention flat enough that every alpha saves something


def as_precision(array: Any, precision: str) -> torch.Tensor:
    """An array in the precision, on the host."""
    return torch.from_numpy(np.ascontiguousarray(array)).to(DTYPES[precision])


class Projection:
    """Inputs of one batch of equally long sequences.

    Args:
        place: where.
        precision: of the data.
        batch: sequences; all hold the same rows, so that one of them is checked for all.
        channels: before the projection.
    """

    def __init__(self, place: Place, precision: str, batch: int, channels: int = CHANNELS) -> None:
        packed = gaussian([LENGTH], HEADS, HEAD_DIM)
        arrays = {"query": packed.query * np.float32(SHARPNESS), "key": packed.key}
        arrays |= {"hidden": correlated(LENGTH, channels)}
        self.place, self.precision, self.batch = place, precision, batch
        self.rows = {name: as_precision(array, precision) for name, array in arrays.items()}
        self.data = {name: rows.repeat(batch, 1).to(place.torch_device) for name, rows in self.rows.items()}
        self.weights = {name: as_precision(array, precision) for name, array in weights(channels).items()}
        self.cu_seqlens = (np.arange(batch + 1) * LENGTH).astype(np.int32)

    def mca(self, alpha: float) -> DeviceRunner:
        """`McaAttention` with its weight as an initializer."""
        names = [tensor.name for tensor in BY_KEY["mca"].inputs if not tensor.optional]
        query = self.data["query"]
        outputs = {"output": (query.shape, query.dtype), "value_flops": ((self.batch,), torch.float32)}
        host = {
            "cu_seqlens": self.cu_seqlens,
            "alpha": np.full(self.batch, alpha, np.float32),
            "seed": np.zeros(self.batch, np.int64),
        }
        operator = own("mca", names, list(outputs), num_heads=HEADS)
        return graph_of(self.place, [operator], self.data, outputs, host=host, constants=self.weights)

    def dense(self, *, attend: bool) -> DeviceRunner:
        """ONNX Runtime's MatMul, alone or followed by exact attention over its values."""
        matmul = node("MatMul", ["hidden", "value_weight"], ["value"])
        query, weight = self.data["query"], {"value_weight": self.weights["value_weight"]}
        if not attend:
            data = {"hidden": self.data["hidden"]}
            return graph_of(self.place, [matmul], data, {"value": (query.shape, query.dtype)}, constants=weight)
        attention = own("softmax", ["query", "key", "value", "cu_seqlens"], ["output"], num_heads=HEADS)
        outputs = {"output": (query.shape, query.dtype)}
        host = {"cu_seqlens": self.cu_seqlens}
        return graph_of(self.place, [matmul, attention], self.data, outputs, host=host, constants=weight)

    def error(self, alpha: float, output: Any) -> float:
        """Difference of the first sequence to the reference over the reference, of the best three quarters of heads."""
        rows = {name: tensor.float().numpy() for name, tensor in {**self.rows, **self.weights}.items()}
        knobs = {"alpha": np.full(1, alpha, np.float32), "seed": np.zeros(1, np.int64)}
        cu_seqlens = np.array([0, LENGTH], np.int32)
        truth, _ = mca_attention(**rows, **knobs, cu_seqlens=cu_seqlens, num_heads=HEADS)
        heads = (LENGTH, HEADS, HEAD_DIM)
        off, whole = (np.linalg.norm(a.reshape(heads), axis=(0, 2)) for a in (output[:LENGTH] - truth, truth))
        return float(np.quantile(off / whole, HEADS_CHECKED))


def run(
    place: Place, precision: str, batch: int, seconds: float, sampler: Sampler, alphas: Sequence[float] = ()
) -> Row:
    """Every alpha on one batch, or what is given.

    Returns:
        A row of a result file; for each alpha `projection` and `whole` as in `projection.run`, in device time.
    """
    with place.active():
        case, few = Projection(place, precision, batch), Projection(place, precision, batch, FEW_CHANNELS)
        runs: Runs = {
            "matmul": case.dense(attend=False),
            "matmul, softmax": case.dense(attend=True),
            "mca, 16 channels, exact": few.mca(0.0),
            "mca, 16 channels": few.mca(1.0),
        }
        settings: list[Row] = []
        for alpha in alphas or (ALPHAS if precision == "fp32" else EXACT):
            name = f"mca alpha={alpha:g}"
            runs[name] = runner = case.mca(alpha)
            result = runner.result()
            error = checked(name, case.error(alpha, result["output"]), TOLERANCES[precision])
            settings.append({"alpha": alpha, "value_flops": float(result["value_flops"][0]), "error": error})
        timings = interleave(runs, seconds=seconds, sampler=sampler, clock="device")
    for setting in settings:
        timing = timings[f"mca alpha={setting['alpha']:g}"]
        attention = timings["mca, 16 channels" if setting["alpha"] else "mca, 16 channels, exact"]
        setting["projection"] = remainder_ratio(timing, attention, timings["matmul"])
        setting["whole"] = timing.times_faster_than(timings["matmul, softmax"])
    facts = {"precision": precision, "n": LENGTH, "batch": batch, "channels": CHANNELS, "sharpness": SHARPNESS}
    return facts | {"contenders": records(timings), "settings": settings}
