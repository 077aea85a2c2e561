"""YosoAttention's tables of int16 beside those of float32: times, and what rounding moves in trained models.

    python -m benchmarks.rounded_tables times [--threads 1] [--lengths 128,512] [--num-hashes 8,32] [--seconds 1]
    python -m benchmarks.rounded_tables models BUNDLE --texts FILE.jsonl [--num-hashes 8,64] [--count 1000]

`times` runs both in turns with ONNX Runtime's two attention nodes, the faster of which counts, H = 12, D = 64, tau = 8,
on independent rows. `models` runs a bundle's texts, one at a time, with both in its nodes: how often the labels are
those of the exact graph, how far each node's rows move, and how far they are from their expectation anyhow, given the
same inputs.
"""

import argparse
import json
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import tokenizers
from onnx import TensorProto, helper

from attenuator.ops import DOMAIN, library_path
from attenuator.ops.yoso.spec import SPEC
from benchmarks.contenders.inputs import Array, gaussian
from benchmarks.contenders.nodes import is_yoso, multi_head_attention, onnx_attention, set_attribute, yoso
from benchmarks.measure.cases import fastest
from benchmarks.measure.timing import interleave

HEADS, HEAD_DIM, HASH_BITS = 12, 64, 8
FLOATS, ROUNDED = "float32", "int16"
NODES = {"mha": multi_head_attention, "attention23": onnx_attention}


def times(lengths: list[int], num_hashes: list[int], threads: int, seconds: float) -> None:
    """Prints least times, nanoseconds a token, hash and head, and how many times as fast in the median of rounds."""
    print(f"| N, threads {threads} | m | {FLOATS}, ns | {ROUNDED}, ns | {ROUNDED} over {FLOATS}, least | median "
          f"| {FLOATS} over ONNX Runtime | {ROUNDED} over it |")  # fmt: skip
    print("|---|---|---|---|---|---|---|---|")
    for length in lengths:
        packed = gaussian([length], HEADS, HEAD_DIM)
        batch = [rows[None] for rows in (packed.query, packed.key, packed.value)]
        for hashes in num_hashes:
            runners = {name: node(*batch, HEADS, threads=threads) for name, node in NODES.items()} | {
                precision: yoso(
                    packed.query, packed.key, packed.value, packed.cu_seqlens, hashes, HEADS, HASH_BITS,
                    table_precision=precision, threads=threads,
                )
                for precision in (FLOATS, ROUNDED)
            }  # fmt: skip
            timing = interleave(runners, threads=threads, seconds=seconds, most_rounds=200)
            least = {name: min(taken.own_us if threads == 1 else taken.wall_us) for name, taken in timing.items()}
            own = {name: 1000 * value / (length * hashes * HEADS) for name, value in least.items()}
            best = fastest(timing, tuple(NODES))
            pairs = ((ROUNDED, FLOATS), (FLOATS, best), (ROUNDED, best))
            ratios = [timing[one].times_faster_than(timing[other], wall=threads > 1)["median"] for one, other in pairs]
            print(
                f"| {length} | {hashes} | {own[FLOATS]:.2f} | {own[ROUNDED]:.2f} | {own[FLOATS] / own[ROUNDED]:.2f} | "
                f"{' | '.join(f'{ratio:.2f}' for ratio in ratios)} |",
                flush=True,
            )


def session_of(model: onnx.ModelProto) -> onnxruntime.InferenceSession:
    """One thread, the operators registered."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.register_custom_ops_library(str(library_path()))
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def with_precision(model: onnx.ModelProto, precision: str) -> tuple[onnx.ModelProto, list[onnx.NodeProto]]:
    """The graph with this table precision, the rows that its nodes read as outputs more, and the nodes."""
    changed = onnx.ModelProto()
    changed.CopyFrom(model)
    nodes = [node for node in changed.graph.node if is_yoso(node)]
    for node in nodes:
        set_attribute(node, "table_precision", precision)
        for name in node.input[:3]:
            changed.graph.output.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, None))
    return changed, nodes


def alone(node: onnx.NodeProto) -> onnxruntime.InferenceSession:
    """One node as a graph, its inputs by the spec's names."""
    single = onnx.NodeProto()
    single.CopyFrom(node)
    single.input[:] = [item.name for item in SPEC.inputs[: len(node.input)]]
    single.output[:] = ["output"]
    types = {"float": TensorProto.FLOAT, "int32": TensorProto.INT32, "int64": TensorProto.INT64}
    feeds = [
        helper.make_tensor_value_info(item.name, types[item.dtype], [f"{item.name}{axis}" for axis in item.axes])
        for item in SPEC.inputs[: len(node.input)]
    ]
    graph = helper.make_graph(
        [single], "node", feeds, [helper.make_tensor_value_info("output", TensorProto.FLOAT, None)]
    )
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid(DOMAIN, SPEC.version)]
    return session_of(helper.make_model(graph, opset_imports=opsets, ir_version=10))


def read(bundle: Path, texts: Path, count: int) -> list[Array]:
    """Token ids of the first texts `[length]`."""
    manifest = json.loads((bundle / "bundle.json").read_text())
    tokenizer = tokenizers.Tokenizer.from_file(str(bundle / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.enable_truncation(manifest["max_tokens"])
    with texts.open(encoding="utf-8") as lines:
        rows = [json.loads(line)["text"] for line, _ in zip(lines, range(count), strict=False)]
    return [np.array(encoding.ids) for encoding in tokenizer.encode_batch(rows)]


def labels(logits: Array) -> Array:
    """The answer: the largest of two logits, or for each of more whether it is positive."""
    return logits.argmax(axis=1) if logits.shape[1] == 2 else logits > 0


def models(bundle: Path, texts: Path, num_hashes: list[int], count: int) -> None:
    """Prints a row for each number of hashes."""
    model = onnx.load(bundle / "model.onnx")
    graphs = {precision: with_precision(model, precision) for precision in (FLOATS, ROUNDED)}
    sessions = {precision: session_of(changed) for precision, (changed, _) in graphs.items()}
    single = {precision: [alone(node) for node in nodes] for precision, (_, nodes) in graphs.items()}
    nodes = graphs[FLOATS][1]
    ids = read(bundle, texts, count)
    exact = []

    def feed(tokens: Array, hashes: int, seed: int) -> dict[str, Array]:
        return {
            "input_ids": tokens.astype(np.int64), "position_ids": np.arange(len(tokens)),
            "cu_seqlens": np.array([0, len(tokens)], np.int32), "num_hashes": np.array([hashes], np.int32),
            "seed": np.array([seed]),
        }  # fmt: skip

    expected: list[list[tuple[dict[str, Array], Array]]] = []  # of each text and node: its inputs and expectation
    for i, tokens in enumerate(ids):
        rows = sessions[FLOATS].run(None, feed(tokens, 0, i))
        exact.append(labels(rows[0]))
        own = []
        for k, node in enumerate(nodes):
            shared = {name: x for name, x in feed(tokens, 0, i).items() if name in ("cu_seqlens", "num_hashes", "seed")}
            inputs = dict(zip(("query", "key", "value"), rows[1 + 3 * k : 4 + 3 * k], strict=True)) | shared
            if len(node.input) > len(inputs):
                weight = next(item for item in model.graph.initializer if item.name == node.input[-1])
                inputs["conv_weight"] = onnx.numpy_helper.to_array(weight)
            own.append((inputs, single[FLOATS][k].run(None, inputs)[0]))
        expected.append(own if i < 40 else [])
    tokens = sum(map(len, ids))
    print(f"{bundle.name}: {len(ids)} texts of {tokens / len(ids):.0f} tokens on average\n")
    print(f"| m | agreement, {FLOATS} | {ROUNDED} | with each other | sampling error | moved by rounding | share |")
    print("|---|---|---|---|---|---|---|")
    for hashes in num_hashes:
        answers = {
            name: [labels(session.run(None, feed(tokens, hashes, i))[0]) for i, tokens in enumerate(ids)]
            for name, session in sessions.items()
        }
        agreed = {
            name: np.mean([np.mean(a == b) for a, b in zip(x, exact, strict=True)]) for name, x in answers.items()
        }
        same = np.mean([np.mean(a == b) for a, b in zip(*answers.values(), strict=True)])
        sampled, moved, rows_total = 0.0, 0.0, 0
        for own in expected:
            for k, (inputs, expectation) in enumerate(own):
                at = inputs | {"num_hashes": np.array([hashes], np.int32)}
                floats, rounded = (single[name][k].run(None, at)[0] for name in (FLOATS, ROUNDED))
                sampled += float(((floats - expectation).astype(np.float64) ** 2).sum())
                moved += float(((rounded - floats).astype(np.float64) ** 2).sum())
                rows_total += len(floats)
        errors = [np.sqrt(square / max(rows_total, 1)) for square in (sampled, moved)]
        print(
            f"| {hashes} | {agreed[FLOATS]:.4f} | {agreed[ROUNDED]:.4f} | {same:.4f} "
            f"| {errors[0]:.4f} | {errors[1]:.5f} | {errors[1] / errors[0]:.4f} |",
            flush=True,
        )


def main() -> None:
    """Runs one of the two."""

    def numbers(text: str) -> list[int]:
        return [int(part) for part in text.split(",")]

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    timed = commands.add_parser("times")
    timed.add_argument("--lengths", type=numbers, default=[128, 256, 512, 1024, 4096])
    timed.add_argument("--num-hashes", type=numbers, default=[8, 16, 32])
    timed.add_argument("--threads", type=int, default=1)
    timed.add_argument("--seconds", type=float, default=1.0)
    moved = commands.add_parser("models")
    moved.add_argument("bundle", type=Path)
    moved.add_argument("--texts", type=Path, required=True, help="JSON lines with a text each")
    moved.add_argument("--num-hashes", type=numbers, default=[8, 32, 64, 512])
    moved.add_argument("--count", type=int, default=1000, help="texts at most")
    arguments = parser.parse_args()
    if arguments.command == "times":
        times(arguments.lengths, arguments.num_hashes, arguments.threads, arguments.seconds)
    else:
        models(arguments.bundle, arguments.texts, arguments.num_hashes, arguments.count)


if __name__ == "__main__":
    main()
