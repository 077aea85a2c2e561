"""One classifier served in every way that is compared: see `end_to_end.py`."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from tokenizers import BertWordPieceTokenizer
from transformers import BertConfig, BertForSequenceClassification, BertTokenizerFast

from attenuator import runtime
from attenuator.export import export
from attenuator.export.selection import DROPPED
from benchmarks.contenders import openvino_models, padded
from benchmarks.contenders.documents import Documents
from benchmarks.measure.cases import checked

TORCH, PIPELINE = "PyTorch, eager", "transformers pipeline"
ORT_FP32, ORT_FP32_SORTED = "ONNX Runtime fp32", "ONNX Runtime fp32, sorted"
ORT_INT8, ORT_INT8_SORTED = "ONNX Runtime int8", "ONNX Runtime int8, sorted"
ORT_STATIC, ORT_STATIC_SORTED = "ONNX Runtime int8 static", "ONNX Runtime int8 static, sorted"
THROUGH_ORT = {
    "fp32": (ORT_FP32, ORT_FP32_SORTED),
    "int8": (ORT_INT8, ORT_INT8_SORTED),
    "static": (ORT_STATIC, ORT_STATIC_SORTED),
}
OPENVINO, SORTED = "OpenVINO", ", sorted"
OPENVINO_MODES = {
    openvino_models.LATENCY: ("", openvino_models.through_openvino),
    openvino_models.THROUGHPUT: (", throughput", openvino_models.beside_one_another),
}
EXACT = "exact"
# They compute what another contender computes, bit for bit or but for rounding: its labels are theirs.
OPENVINO_FP32 = [f"{OPENVINO} fp32{label}{suffix}" for label, _ in OPENVINO_MODES.values() for suffix in ("", SORTED)]
SLOW_TWINS = (TORCH, PIPELINE, ORT_FP32_SORTED, *OPENVINO_FP32)
EXACT_CONTENDERS = (*SLOW_TWINS, ORT_FP32, EXACT)
PRECISIONS = ("fp32", "int8")
KEEP = "keep"
MERGED = ", merged"  # behind the name of a contender whose left out tokens become one
RANDOM_VOCABULARY, RANDOM_LABELS = 8192, 4

Runs = dict[str, Callable[[], Any]]


class Served:
    """A classifier, its tokenizer, its ONNX files and its bundles.

    Args:
        name: in result files.
        model: of transformers, in evaluation mode.
        tokenizer: of transformers; None where documents are random tokens.
        onnx: file by precision; see `padded.export_onnx`.
        bundles: folder by precision.
        keep: values of the knob that are compared, beside the bundle's default.
        merged: bundles by precision that merge the tokens that they leave out; empty where these are not compared.
    """

    def __init__(
        self,
        name: str,
        model: Any,
        tokenizer: Any,
        onnx: Mapping[str, Path],
        bundles: Mapping[str, Path],
        keep: Sequence[float],
        merged: Mapping[str, Path] = MappingProxyType({}),
    ) -> None:
        self.name = name
        self.model = model
        self.tokenizer = tokenizer
        self.onnx = onnx
        self.bundles = {(precision, ""): path for precision, path in bundles.items()}
        self.bundles |= {(precision, MERGED): path for precision, path in merged.items()}
        self.layers = int(model.config.num_hidden_layers)
        self.hidden = int(model.config.hidden_size)
        self._sessions: dict[Any, Any] = {}
        self.keep_default = keep_default(bundles["fp32"])
        self.merged_default = keep_default(merged["fp32"]) if merged else None
        self.keep_values = self.values(self.keep_default, keep)
        self.merged_values = self.values(self.merged_default, keep)

    @staticmethod
    def values(default: float | None, more: Sequence[float]) -> list[float]:
        """A bundle's default of the knob and others, falling, without the exact one; none without the knob."""
        return sorted((set() if default is None else {default, *more}) - {1.0}, reverse=True)

    def session(self, precision: str, threads: int, documents: Documents) -> Any:
        """ONNX Runtime's session, created once; in static int8, once for each cut of the documents."""
        path = self.onnx[precision]
        if precision == "static":
            path = path.with_stem(f"{path.stem}-{documents.cut}")
            if not path.exists():
                padded.quantise_statically(self.onnx["traced"], path, documents)
        key = ("onnx", path, threads)
        if key not in self._sessions:
            self._sessions[key] = padded.session(path, threads)
        return self._sessions[key]

    def compiled(self, precision: str, threads: int, documents: Documents, mode: str) -> Any:
        """OpenVINO's model, made once for each cut of the documents, which fixes its scales in int8."""
        key = (OPENVINO, precision, threads, mode, documents.cut)
        if key not in self._sessions:
            traced = self.onnx["traced"]
            self._sessions[key] = openvino_models.compiled(traced, precision, threads, documents, mode)
        return self._sessions[key]

    def bundle(self, precision: str, threads: int, suffix: str = "") -> runtime.Model:
        """A bundle's model, loaded once; with the suffix `MERGED` that of the bundle which merges tokens."""
        key = ("bundle", precision, suffix, threads)
        if key not in self._sessions:
            self._sessions[key] = runtime.load(self.bundles[precision, suffix], threads=threads, check=False)
        model: runtime.Model = self._sessions[key]
        return model

    def contenders(self, documents: Documents, threads: int) -> Runs:
        """What classifies the documents, by name; each gives logits `[documents, labels]`."""
        runs: Runs = {TORCH: partial(padded.eager, self.model, documents)}
        if documents.texts:
            pipe = padded.pipeline_of(self.model, self.tokenizer)
            runs[PIPELINE] = partial(padded.through_pipeline, pipe, documents)
        for precision, names in THROUGH_ORT.items():
            session = self.session(precision, threads, documents)
            for name, by_length in zip(names, (False, True), strict=True):
                runs[name] = partial(padded.through_ort, session, documents, by_length=by_length)
        for precision in openvino_models.precisions():
            for mode, (label, through) in OPENVINO_MODES.items():
                if mode == openvino_models.THROUGHPUT and threads == 1:  # the same as the other
                    continue
                compiled = self.compiled(precision, threads, documents, mode)
                for suffix in ("", SORTED):
                    name = f"{OPENVINO} {precision}{label}{suffix}"
                    runs[name] = partial(through, compiled, documents, by_length=suffix == SORTED)
        for precision in PRECISIONS:
            prefix = "" if precision == "fp32" else f"{precision}, "
            model = self.bundle(precision, threads)
            runs[f"{prefix}{EXACT}"] = partial(classify, model, documents, model.knobs.exact())
            for suffix, values in (("", self.keep_values), (MERGED, self.merged_values)):
                for value in values:
                    model = self.bundle(precision, threads, suffix)
                    knobs = model.knobs.exact() | {KEEP: value}
                    runs[f"{prefix}{KEEP} {value:g}{suffix}"] = partial(classify, model, documents, knobs)
        return runs

    def checked(self, runs: Runs, tolerance: float) -> dict[str, float]:
        """How far the exact contenders are from PyTorch, relative to the largest logit.

        Raises:
            SystemExit: one computes something else.
        """
        truth = runs[TORCH]()
        names = [name for name in EXACT_CONTENDERS if name in runs and name != TORCH]
        errors = {name: float(np.abs(runs[name]() - truth).max() / np.abs(truth).max()) for name in names}
        return {name: checked(name, error, tolerance) for name, error in errors.items()}


def keep_default(folder: Path) -> float | None:
    """What a bundle says of the knob; None where it has none."""
    manifest = runtime.load(folder, threads=1, check=False).manifest
    return next((float(knob.default) for knob in manifest.knobs if knob.name == KEEP), None)


def classify(model: runtime.Model, documents: Documents, knobs: Mapping[str, float]) -> Any:
    """Logits of the bundle through the runtime that serves, packed batches as they arrive."""
    values = model.knobs.check(knobs)
    rows = []
    for ids in documents.ids:
        tokens = np.asarray(ids, np.int64)
        rows.append(runtime.Row(tokens, np.zeros_like(tokens), values))
    results = [
        result.logits
        for start in range(0, len(rows), documents.batch_size)
        for result in model.run(rows[start : start + documents.batch_size])
    ]
    return np.stack(results)


def of_checkpoint(
    checkpoint: Path,
    folder: Path,
    calibration: Path | None,
    keep: Sequence[float],
    schedule: str | None = None,
    name: str = "",
    *,
    merge: bool = False,
) -> Served:
    """Exports a checkpoint in every way.

    Args:
        checkpoint: a folder that transformers reads.
        folder: where the exports go.
        calibration: texts from which export chooses the default of `keep`, and its schedule.
        keep: further values of it.
        schedule: that one; it is not chosen then.
        name: in result files; the checkpoint's own by default.
        merge: also with the tokens that are left out merged to one.
    """
    folder.mkdir(parents=True)
    model = BertForSequenceClassification.from_pretrained(checkpoint).eval()
    bundles: dict[str, dict[str, Path]] = {DROPPED: {}, "mean": {}}
    for kind in bundles if merge else (DROPPED,):
        chosen: dict[str, Any] = {"schedule": schedule, "texts": calibration}
        for precision in PRECISIONS:
            path = bundles[kind][precision] = folder / f"bundle-{precision}-{kind}"
            options = {"precision": precision, "merge": kind, **chosen}
            manifest = export(str(checkpoint), attention="softmax", output=path, **options)
            if selection := manifest.provenance.selection:  # chosen in fp32, so the same for every precision
                chosen = {"schedule": selection.schedule, "knob_default": {KEEP: selection.share}}
    tokenizer = BertTokenizerFast.from_pretrained(checkpoint)
    onnx = padded.export_onnx(model, folder)
    return Served(name or checkpoint.name, model, tokenizer, onnx, bundles[DROPPED], keep, bundles["mean"])


def of_shape(name: str, folder: Path, longest: int, keep: Sequence[float], **size: int) -> Served:
    """The same for a shape with random weights, large enough that attention is not flat.

    Args:
        name: in result files.
        folder: where checkpoint and exports go.
        longest: tokens that its position table has.
        keep: values of the knob that are compared.
        size: fields of BERT's configuration.
    """
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=RANDOM_VOCABULARY,
        intermediate_size=4 * size["hidden_size"],
        max_position_embeddings=longest,
        num_labels=RANDOM_LABELS,
        initializer_range=size["hidden_size"] ** -0.5,
        **size,
    )
    checkpoint = folder / "checkpoint"
    BertForSequenceClassification(config).save_pretrained(checkpoint)
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    vocabulary = {
        word: index for index, word in enumerate([*special, *(f"w{i}" for i in range(RANDOM_VOCABULARY - 5))])
    }
    BertTokenizerFast(tokenizer_object=BertWordPieceTokenizer(vocabulary)).save_pretrained(checkpoint)
    return of_checkpoint(checkpoint, folder / "served", None, keep, name=name)
