"""YOSO in the place of a softmax model's attention, without training: the table in docs/lab/yoso.md.

    python -m benchmarks.yoso_in_place --data IMDB_FOLDER [--bundle BUNDLE] [--texts 500] [--num-hashes 0,32]

Takes a bundle exported with `mca`, whose nodes compute softmax at alpha 0, and compares it with the same graph where
YosoAttention gives their output: accuracy, and agreement with softmax's labels, on the first texts of each label.
"""

import argparse
import copy
import gzip
import json
import math
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import tokenizers
from onnx import TensorProto, helper

from attenuator.ops import DOMAIN, library_path

HASH_BITS = 8
BATCH_TEXTS = 8


def with_yoso(model: onnx.ModelProto, normalize: int, norm_lift: float) -> onnx.ModelProto:
    """The graph with YosoAttention for the output of each McaAttention node, and an input `num_hashes` int32 `[B]`."""
    changed = copy.deepcopy(model)
    del changed.functions[:]
    old = list(changed.graph.node)
    del changed.graph.node[:]
    for index, node in enumerate(old):
        if (node.domain, node.op_type) != (DOMAIN, "McaAttention"):
            changed.graph.node.append(node)
            continue
        query, key, hidden, weight, bias, cu_seqlens, _, seed = node.input[:8]
        output, node.output[0] = node.output[0], f"softmax_{index}"
        attributes = {item.name: helper.get_attribute_value(item) for item in node.attribute}
        changed.graph.node.extend(
            [
                node,
                helper.make_node("MatMul", [hidden, weight], [f"product_{index}"]),
                helper.make_node("Add", [f"product_{index}", bias], [f"value_{index}"]),
                helper.make_node(
                    "YosoAttention",
                    [query, key, f"value_{index}", cu_seqlens, "num_hashes", seed],
                    [output],
                    domain=DOMAIN,
                    hash_bits=HASH_BITS,
                    normalize=normalize,
                    norm_lift=norm_lift,
                    **{name: attributes[name] for name in ("num_heads", "layer", "queries")},
                ),
            ]
        )
    changed.graph.input.append(helper.make_tensor_value_info("num_hashes", TensorProto.INT32, ["B"]))
    return changed


def labels(model: onnx.ModelProto, texts: list[list[int]], num_hashes: int) -> np.ndarray:
    """The label of each text `[texts]`, by index."""
    options = onnxruntime.SessionOptions()
    options.register_custom_ops_library(str(library_path()))
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    names = {item.name for item in session.get_inputs()}
    predicted = []
    for first in range(0, len(texts), BATCH_TEXTS):
        batch = texts[first : first + BATCH_TEXTS]
        lengths, count = [len(ids) for ids in batch], len(batch)
        feeds = {
            "input_ids": np.concatenate(batch).astype(np.int64),
            "position_ids": np.concatenate([np.arange(length) for length in lengths]).astype(np.int64),
            "cu_seqlens": np.cumsum([0, *lengths]).astype(np.int32),
            "keep": np.ones(count, np.float32),
            "alpha": np.zeros(count, np.float32),
            "seed": np.arange(first, first + count, dtype=np.int64),
            "num_hashes": np.full(count, num_hashes, np.int32),
        }
        [logits] = session.run(["logits"], {name: value for name, value in feeds.items() if name in names})
        predicted.append(logits.argmax(axis=1))
    return np.concatenate(predicted)


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder with test.jsonl.gz: text and label, a line")
    parser.add_argument("--bundle", type=Path, default=Path("examples/bundles/reviews-mca"))
    parser.add_argument("--texts", type=int, default=500)
    parser.add_argument("--num-hashes", default="0,32", help="0 is the expectation")
    arguments = parser.parse_args()
    with gzip.open(arguments.data / "test.jsonl.gz", "rt", encoding="utf-8") as lines:
        rows = [json.loads(line) for line in lines]
    rows = [row for label in (0, 1) for row in [r for r in rows if r["label"] == label][: arguments.texts // 2]]
    truth = np.array([row["label"] for row in rows])
    manifest = json.loads((arguments.bundle / "bundle.json").read_text())
    tokenizer = tokenizers.Tokenizer.from_file(str(arguments.bundle / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.enable_truncation(manifest["max_tokens"])
    texts = [encoding.ids for encoding in tokenizer.encode_batch([row["text"] for row in rows])]
    model = onnx.load(arguments.bundle / "model.onnx")
    exact = labels(model, texts, 0)
    [attention] = [item for item in model.graph.node if item.op_type == "McaAttention"][:1]
    heads = next(item.i for item in attention.attribute if item.name == "num_heads")
    weight = next(item for item in model.graph.initializer if item.name == attention.input[4])
    bound = HASH_BITS * math.sqrt(weight.dims[0] / heads)
    print(f"| what replaces softmax, tau = {HASH_BITS} | num_hashes | accuracy | agreement |\n|---|---|---|---|")
    print(f"| nothing | | {(exact == truth).mean():.3f} | 1.000 |")
    kinds = [("l2", 1, 0.0), ("ratio", 2, 0.0), ("ratio, norm_lift 0.5", 2, bound / 2), ("ratio, norm_lift", 2, bound)]
    for title, normalize, norm_lift in kinds:
        changed = with_yoso(model, normalize, norm_lift)
        for num_hashes in map(int, arguments.num_hashes.split(",")):
            answers = labels(changed, texts, num_hashes)
            name = title.replace("norm_lift 0.5", "norm_lift") + (f" = {norm_lift:g}" if norm_lift else "")
            accuracy, agreement = (answers == truth).mean(), (answers == exact).mean()
            print(f"| {name} | {num_hashes} | {accuracy:.3f} | {agreement:.3f} |", flush=True)


if __name__ == "__main__":
    main()
