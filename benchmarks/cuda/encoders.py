"""Whole encoders on CUDA: YOSO beside exact attention in the same graph, half precision, one sequence."""

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch

from attenuator.runtime import create
from benchmarks.contenders.graphs import SWAPS, Shape, swapped, traced
from benchmarks.contenders.model_batches import Batch
from benchmarks.contenders.model_sessions import PARITY_LENGTH, relative
from benchmarks.cuda.attention import TOLERANCES
from benchmarks.cuda.device import Place
from benchmarks.cuda.nodes import DTYPES, ELEMENTS, DeviceRunner, attempt
from benchmarks.measure.cases import Row, Runs, checked, fastest, records
from benchmarks.measure.timing import Sampler, interleave

SHAPES = {
    "paper": Shape("paper", "Zeng et al., ICML 2021, appendix, efficiency tables", 6, 256, 4, 1024),
    "base": Shape("base", "Devlin et al., NAACL 2019, two layers of BERT-base", 2, 768, 12, 3072),
}
LENGTHS = (1024, 4096, 16384)
NUM_HASHES = (16, 32)
PRECISION = "fp16"  # ONNX Runtime has all kernels of an encoder in it
ON_DEVICE = ("input_ids", "position_ids")
# Errors of a node add up over the layers.
LAYERS_TOLERANCE = 4


class DeviceModels:
    """One shape's graphs on a device.

    Args:
        place: where.
        shape: of the encoder.
        precision: of weights and activations.
    """

    def __init__(self, place: Place, shape: Shape, precision: str = PRECISION) -> None:
        self.place, self.shape, self.precision = place, shape, precision
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "model.onnx"
            plain = traced(shape.model(), path)
            onnx.save(plain, path)
            self.reference = create(path)
            yoso = traced(shape.model().to(DTYPES[precision]), path)
        self.graphs = {"yoso": yoso, **{name: swapped(yoso, swap) for name, swap in SWAPS.items()}}

    def runner(self, name: str, batch: Batch, **knobs: float) -> DeviceRunner:
        """What runs a graph over a batch."""
        graph = self.graphs[name]
        input_names = {value.name for value in graph.graph.input}
        feeds = {key: value for key, value in batch.packed(**knobs).items() if key in input_names}
        data = {key: torch.from_numpy(feeds[key]).to(self.place.torch_device) for key in ON_DEVICE if key in feeds}
        host = {key: value for key, value in feeds.items() if key not in ON_DEVICE}
        kinds = {element: dtype for dtype, element in ELEMENTS.items()}
        logits = graph.graph.output[0].type.tensor_type
        shape = (len(batch.lengths), logits.shape.dim[1].dim_value)
        outputs = {"logits": (shape, kinds[logits.elem_type])}
        return DeviceRunner(self.place, graph.SerializeToString(), data, outputs, host)

    def parity(self) -> float:
        """Difference of YOSO's exact value to the same graph in fp32 on the CPU."""
        batch = Batch((PARITY_LENGTH,))
        logits = self.runner("yoso", batch, num_hashes=0).result()["logits"]
        names = {value.name for value in self.reference.get_inputs()}
        feeds = {key: value for key, value in batch.packed(num_hashes=0).items() if key in names}
        return relative(logits, self.reference.run(["logits"], feeds)[0])


def run(
    models: DeviceModels, length: int, seconds: float, sampler: Sampler, num_hashes: Sequence[int] = NUM_HASHES
) -> Row:
    """Checks and times one length.

    Returns:
        A row of a result file: times, errors, attentions that refused, and speed-ups over the fastest exact attention.
    """
    place, batch = models.place, Batch((length,))
    tolerance = LAYERS_TOLERANCE * TOLERANCES[models.precision]
    with place.active():
        errors = {"yoso m=0": checked("yoso", models.parity(), tolerance)}
        runs: Runs = {f"yoso m={m}": models.runner("yoso", batch, num_hashes=m) for m in num_hashes}
        refused: dict[str, str] = {}
        truth: Any = None
        for name in ("softmax", "mha", "attention23"):
            runner, result, reason = attempt(lambda name=name: models.runner(name, batch))
            if result is None:
                refused[name] = reason
                continue
            truth = result["logits"] if truth is None else truth
            errors[name] = checked(name, relative(result["logits"], truth), tolerance)
            runs[name] = runner
        runs["free attention"] = models.runner("free attention", batch)
        for name in (f"yoso m={m}" for m in num_hashes):
            if not np.isfinite(runs[name].result()["logits"]).all():  # type: ignore[attr-defined]
                raise SystemExit(f"benchmarks: {name} gives logits that are not finite")
        timings = interleave(runs, seconds=seconds, sampler=sampler, clock="device")
    exact = tuple(name for name in ("softmax", "mha", "attention23") if name in runs)
    if not exact:
        raise SystemExit(f"benchmarks: no exact attention runs in the encoder {models.shape.name}: {refused}")
    best = fastest(timings, exact)
    ours = [name for name in runs if name not in exact]
    return {
        "shape": models.shape.name,
        "precision": models.precision,
        "n": length,
        "contenders": records(timings),
        "errors": errors,
        "refused": refused,
        "best_exact": best,
        "over_exact": {name: timings[name].times_faster_than(timings[best]) for name in ours},
        "over_exact_wall": {name: timings[name].times_faster_than(timings[best], wall=True) for name in ours},
    }
