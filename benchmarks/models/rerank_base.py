"""What each step of a reranker of BERT-base's shape costs, beside OpenVINO and PyTorch on the same weights.

    python -m benchmarks.models.rerank_base --tokens 326 --documents 10

Weights are random, because no trained checkpoint of that size is at hand: times depend on shapes alone, and nothing is
said of the order. A list has 50 documents in use; a few of them are timed, since every document costs the same. All
contenders read pairs of one length, so that none pads. Prints CPU time of one thread a document, and its share of the
exact fp32 bundle's. Rows of OpenVINO need `pip install openvino nncf` and are left out without it.
"""

import sys
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import BertConfig, BertForSequenceClassification, BertTokenizerFast
from transformers.utils import logging

from attenuator import runtime
from attenuator.export import export
from benchmarks.contenders import openvino_models, padded
from benchmarks.contenders.documents import Documents
from benchmarks.measure import record
from benchmarks.measure.kernels import in_model
from benchmarks.measure.program import parser_for
from benchmarks.measure.timing import Timing, interleave

EXACT = "fp32, exact"
# Bundle and `keep` of each step; the selection stands behind the second layer and merges what it leaves out.
STEPS = {
    EXACT: ("fp32", 1.0),
    "fp32, keep 0.2": ("fp32", 0.2),
    "fp32, keep 0.05": ("fp32", 0.05),
    "int8, exact": ("int8", 1.0),
    "int8, keep 0.2": ("int8", 0.2),
    "int8, keep 0.05": ("int8", 0.05),
    "first step of 6 x 384, int8": ("small-int8", 1.0),
}
SCHEDULE, MERGE = "second", "mean"
SMALL = {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 6, "intermediate_size": 1536}


def save(folder: Path, **shape: int) -> Path:
    """An untrained cross-encoder with one output, and a tokenizer of made-up words."""
    folder.mkdir(parents=True)
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"word{i}" for i in range(1000))]
    (folder / "vocab.txt").write_text("\n".join(words) + "\n", encoding="utf-8")
    BertTokenizerFast(vocab=str(folder / "vocab.txt"), model_max_length=512).save_pretrained(folder)
    config = BertConfig(num_labels=1, problem_type="regression", **shape)
    BertForSequenceClassification(config).eval().save_pretrained(folder)
    return folder


def bundles(folder: Path) -> dict[str, runtime.Model]:
    """What is served, from checkpoints that are written to the folder."""
    base, small = save(folder / "base"), save(folder / "small", **SMALL)
    models = {}
    for name, source, precision in (("fp32", base, "fp32"), ("int8", base, "int8"), ("small-int8", small, "int8")):
        output = folder / name
        export(str(source), attention="softmax", output=output, precision=precision, schedule=SCHEDULE, merge=MERGE)
        models[name] = runtime.load(folder / name, threads=1, check=False)
    return models


def others(checkpoint: Path, folder: Path, documents: Documents) -> dict[str, Callable[[], Any]]:
    """PyTorch, ONNX Runtime and OpenVINO on the same weights."""
    model = BertForSequenceClassification.from_pretrained(checkpoint).eval()
    runs: dict[str, Callable[[], Any]] = {"PyTorch": partial(padded.eager, model, documents)}
    folder.mkdir()
    paths = padded.export_onnx(model, folder)
    for precision in ("fp32", "int8"):
        session = padded.session(paths[precision], 1)
        runs[f"ONNX Runtime, {precision}"] = partial(padded.through_ort, session, documents, by_length=True)
    for precision in openvino_models.precisions():
        compiled = openvino_models.compiled(paths["traced"], precision, 1, documents)
        run = partial(openvino_models.through_openvino, compiled, documents, by_length=True)
        runs[f"OpenVINO, {precision}"] = run
    return runs


def table(timings: dict[str, Timing], documents: int) -> str:
    """Milliseconds a document and a list of 50, and how many times faster than exact fp32, in Markdown."""
    lines = ["| | ms a document | s a list of 50 | times faster |", "|---|---|---|---|"]
    for name, timing in timings.items():
        each_ms = timing.median / 1e3 / documents
        faster = timing.times_faster_than(timings[EXACT])
        spread = f"{faster['median']:.2f} ({faster['low']:.2f} to {faster['high']:.2f})"
        lines.append(f"| {name} | {each_ms:.0f} | {each_ms * 50 / 1e3:.1f} | {spread} |")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the program."""
    parser = parser_for(__doc__, seconds=120)
    parser.add_argument("--tokens", type=int, default=326, help="of a pair")
    parser.add_argument("--documents", type=int, default=10, help="that are timed")
    options = parser.parse_args(arguments)
    logging.set_verbosity_error()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    ids = np.random.default_rng(0).integers(5, 1000, (options.documents, options.tokens))
    documents = Documents(tuple(ids.tolist()), options.tokens)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        models = bundles(folder)
        runs: dict[str, Callable[[], Any]] = {}
        for name, (bundle, keep) in STEPS.items():
            knobs = models[bundle].knobs.check({"keep": keep})
            rows = [runtime.Row(row, np.zeros_like(row), knobs) for row in ids]
            runs[name] = partial(models[bundle].run, rows)
        runs |= others(folder / "base", folder / "others", documents)
        timings = interleave(runs, threads=1, seconds=options.seconds)
        print(table(timings, options.documents))
        if options.output:
            head = record.origin(sys.argv[1:] if arguments is None else arguments, in_model(folder / "fp32"))
            times = {name: timing.record() for name, timing in timings.items()}
            record.write(options.output, head | record.cpu() | {"contenders": times})
    return 0


if __name__ == "__main__":
    sys.exit(main())
