"""A Hugging Face classifier as people serve it: PyTorch, the `transformers` pipeline, ONNX Runtime; padded batches."""

import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import torch
from onnxruntime.quantization import CalibrationDataReader, QuantType, quantize_dynamic, quantize_static
from onnxruntime.quantization.shape_inference import quant_pre_process
from onnxruntime.transformers import optimizer
from transformers import pipeline

from benchmarks.contenders.documents import Documents

Logits = Any  # float32 [documents, labels]
INPUTS = ("input_ids", "attention_mask", "token_type_ids")
OPSET = 17
# Rounding Add, Gather or Softmax as well makes it 1.2 times as fast and changes one label in six.
STATIC_OP_TYPES = ["MatMul", "Gemm"]
MOST_CALIBRATION_BATCHES = 10  # that show a quantizer what activations are like


def pad(ids: Sequence[Sequence[int]]) -> dict[str, Any]:
    """A batch padded to its longest row: each input int64 `[B, tokens]`."""
    longest = max(len(row) for row in ids)
    batch = {name: np.zeros((len(ids), longest), np.int64) for name in INPUTS}
    for index, row in enumerate(ids):
        batch["input_ids"][index, : len(row)] = row
        batch["attention_mask"][index, : len(row)] = 1
    return batch


def over_batches(documents: Documents, run: Callable[[dict[str, Any]], Any], *, by_length: bool = False) -> Logits:
    """Runs padded batches and puts the logits in the documents' order."""
    batches = documents.batches(by_length=by_length)
    return in_order(batches, [run(pad([documents.ids[i] for i in batch])) for batch in batches])


def in_order(batches: Sequence[Any], logits: Sequence[Logits]) -> Logits:
    """The logits of batches, which name their documents, in the documents' order."""
    joined = np.concatenate(logits)
    placed = np.empty_like(joined)
    placed[np.concatenate(batches)] = joined
    return placed


class TorchModel(torch.nn.Module):
    """The classifier as a function from arrays to logits."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: Any, attention_mask: Any, token_type_ids: Any) -> Any:
        """Logits `[B, labels]`."""
        return self.model(input_ids=input_ids, attention_mask=attention_mask, token_type_ids=token_type_ids).logits


def eager(model: Any, documents: Documents) -> Logits:
    """PyTorch, with the attention that transformers chooses."""

    def run(batch: dict[str, Any]) -> Any:
        with torch.inference_mode():
            return model(**{name: torch.from_numpy(array) for name, array in batch.items()}).logits.numpy()

    return over_batches(documents, run)


def pipeline_of(model: Any, tokenizer: Any) -> Any:
    """The pipeline of transformers that classifies texts."""
    return pipeline("text-classification", model=model, tokenizer=tokenizer, device="cpu")


def through_pipeline(pipe: Any, documents: Documents) -> Logits:
    """The same through the pipeline, tokenisation included."""
    label_of = pipe.model.config.label2id
    answers = pipe(
        list(documents.texts),
        batch_size=documents.batch_size,
        truncation=True,
        max_length=documents.cut,
        top_k=None,
        function_to_apply="none",
    )
    logits = np.empty((len(answers), len(label_of)), np.float32)
    for index, answer in enumerate(answers):
        for item in answer:
            logits[index, label_of[item["label"]]] = item["score"]
    return logits


def export_onnx(model: Any, folder: Path) -> dict[str, Path]:
    """Files of the model as PyTorch exports it, through ONNX Runtime's transformer optimizer, and that in dynamic int8.

    The optimizer knows the nodes that the TorchScript exporter writes for eager attention: all layers become fused
    `Attention`, `BiasGelu` and `SkipLayerNormalization` nodes.

    Args:
        model: a BERT classifier; its attention is eager while this runs.
        folder: where the files go.

    Returns:
        Paths by precision, `traced` that of PyTorch. Where `static` goes is not written yet (`quantise_statically`).
    """
    paths = {name: folder / f"{name}.onnx" for name in ("traced", "fp32", "int8", "static")}
    example = tuple(torch.from_numpy(array) for array in pad([[1] * 16, [1] * 10]).values())
    usual = model.config._attn_implementation
    model.set_attn_implementation("eager")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            TorchModel(model).eval(),
            example,
            str(paths["traced"]),
            input_names=list(INPUTS),
            output_names=["logits"],
            dynamic_axes={name: {0: "batch", 1: "tokens"} for name in INPUTS} | {"logits": {0: "batch"}},
            opset_version=OPSET,
            dynamo=False,
        )
    model.set_attn_implementation(usual)
    config = model.config
    optimised = optimizer.optimize_model(
        str(paths["traced"]), "bert", num_heads=config.num_attention_heads, hidden_size=config.hidden_size, opt_level=0
    )
    fused = optimised.get_fused_operator_statistics()["Attention"]
    if fused != config.num_hidden_layers:
        raise SystemExit(f"benchmarks: the optimizer fused {fused} of {config.num_hidden_layers} attention layers")
    optimised.save_model_to_file(str(paths["fp32"]))
    # Shape inference does not know the fused nodes' types.
    options = {"DefaultTensorType": onnx.TensorProto.FLOAT}
    quantize_dynamic(paths["fp32"], paths["int8"], weight_type=QuantType.QInt8, extra_options=options)
    return paths


class FirstBatches(CalibrationDataReader):
    """The first batches of documents, for the inputs that a graph has."""

    def __init__(self, path: Path, documents: Documents) -> None:
        names = {value.name for value in onnx.load(path, load_external_data=False).graph.input}
        batches = (pad([documents.ids[i] for i in batch]) for batch in documents.batches()[:MOST_CALIBRATION_BATCHES])
        self._batches = ({name: batch[name] for name in INPUTS if name in names} for batch in batches)

    def get_next(self) -> dict[str, Any] | None:
        """The next one."""
        return next(self._batches, None)


def quantise_statically(traced: Path, path: Path, documents: Documents) -> None:
    """Writes the model in int8 with scales fixed beforehand, as Optimum does, weights by channel.

    Args:
        traced: as PyTorch exports it; ONNX Runtime cannot quantize the optimizer's fused nodes so.
        path: of the file that is written.
        documents: whose first batches show what activations are like. They are those that are timed, which is in its
            favour.
    """
    prepared = path.with_suffix(".prepared.onnx")
    quant_pre_process(str(traced), str(prepared), skip_symbolic_shape=True)
    quantize_static(
        prepared,
        path,
        FirstBatches(prepared, documents),
        op_types_to_quantize=STATIC_OP_TYPES,
        per_channel=True,
        activation_type=QuantType.QUInt8,  # 1.5 times as fast as QInt8
        weight_type=QuantType.QInt8,
        extra_options={"DefaultTensorType": onnx.TensorProto.FLOAT, "MatMulConstBOnly": True},
    )
    prepared.unlink()


def session(path: Path, threads: int) -> onnxruntime.InferenceSession:
    """A session with ONNX Runtime's defaults but for its threads."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def through_ort(session: onnxruntime.InferenceSession, documents: Documents, *, by_length: bool) -> Logits:
    """ONNX Runtime over padded batches, of documents as they arrive or sorted by length."""
    names = {value.name for value in session.get_inputs()}

    def run(batch: dict[str, Any]) -> Any:
        return session.run(["logits"], {name: array for name, array in batch.items() if name in names})[0]

    return over_batches(documents, run, by_length=by_length)
