"""A Hugging Face classifier in OpenVINO: fp32, bf16 and int8 by NNCF, on padded batches, one or several at a time.

OpenVINO is the strongest runtime that people use for such models on x86. It is no dependency of the project: where it
is not installed, its rows are left out. `pip install openvino nncf` brings it and its quantizer.
"""

from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.contenders.documents import Documents
from benchmarks.contenders.padded import MOST_CALIBRATION_BATCHES, Logits, in_order, over_batches, pad

INSTALLED = find_spec("openvino") is not None
QUANTIZER_INSTALLED = INSTALLED and find_spec("nncf") is not None
# Its modes: a batch at a time on all threads, or several batches beside one another.
LATENCY, THROUGHPUT = "LATENCY", "THROUGHPUT"
# Its hint, by what the tables call it. What int8 leaves in floating point it computes as it likes: in bf16 if it can.
HINTS = {"fp32": {"INFERENCE_PRECISION_HINT": "f32"}, "bf16": {"INFERENCE_PRECISION_HINT": "bf16"}, "int8": {}}


def precisions() -> list[str]:
    """Those that it computes in here: bf16 only where the processor does."""
    if not INSTALLED:
        return []
    import openvino

    capable = openvino.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")
    names = ["fp32", *(["bf16"] if "BF16" in capable else [])]
    return [*names, *(["int8"] if QUANTIZER_INSTALLED else [])]


def compiled(path: Path, precision: str, threads: int, documents: Documents, mode: str = LATENCY) -> Any:
    """A model of OpenVINO.

    Args:
        path: ONNX file of the classifier in fp32, as PyTorch exports it.
        precision: a key of `HINTS`.
        threads: that it may use.
        documents: whose first batches show the quantizer what activations are like. They are those that are timed,
            which is in its favour.
        mode: `LATENCY` or `THROUGHPUT`.
    """
    import openvino

    core = openvino.Core()
    model = core.read_model(path)
    if precision == "int8":
        model = quantized(model, documents)
    settings = {"PERFORMANCE_HINT": mode, "INFERENCE_NUM_THREADS": threads, **HINTS[precision]}
    return core.compile_model(model, "CPU", settings)


def quantized(model: Any, documents: Documents) -> Any:
    """The same with int8 weights and activations, by NNCF's recipe for transformers."""
    import nncf

    batches = [batch_of(documents, rows) for rows in documents.batches()[:MOST_CALIBRATION_BATCHES]]
    inputs = [name for value in model.inputs for name in value.get_names()]
    data = nncf.Dataset(batches, lambda batch: {name: batch[name] for name in inputs})
    return nncf.quantize(model, data, model_type=nncf.ModelType.TRANSFORMER, subset_size=len(batches))


def batch_of(documents: Documents, rows: Any) -> dict[str, Any]:
    """Some of the documents as a padded batch."""
    return pad([documents.ids[row] for row in rows])


def classifier(model: Any) -> Callable[[Mapping[str, Any]], Any]:
    """What gives logits of a padded batch; names of inputs that the graph has lost are left out."""
    names = [value.get_any_name() for value in model.inputs]
    request = model.create_infer_request()

    def run(batch: Mapping[str, Any]) -> Any:
        return np.array(request.infer({name: batch[name] for name in names})[0])

    return run


def beside_one_another(model: Any, documents: Documents, *, by_length: bool) -> Logits:
    """The same with as many batches under way as its throughput mode asks for."""
    import openvino

    names = [value.get_any_name() for value in model.inputs]
    batches = documents.batches(by_length=by_length)
    results: dict[int, Any] = {}
    queue = openvino.AsyncInferQueue(model)
    queue.set_callback(lambda request, at: results.update({at: np.array(request.get_output_tensor(0).data)}))
    for at, rows in enumerate(batches):
        batch = batch_of(documents, rows)
        queue.start_async({name: batch[name] for name in names}, at)
    queue.wait_all()
    return in_order(batches, [results[at] for at in range(len(batches))])


def through_openvino(model: Any, documents: Documents, *, by_length: bool) -> Logits:
    """OpenVINO over padded batches, of documents as they arrive or sorted by length."""
    return over_batches(documents, classifier(model), by_length=by_length)
