"""Tiny bundles with random weights and the real operators: an encoder of two layers written node by node."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

from attenuator import bundle, ops
from attenuator.runtime import Row, session
from attenuator.runtime.batch import pack

TEXT = "good bad film plot actor the a of was is not very clause contract party term law shall may renew"
WORDS = TEXT.split()
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
LETTERS = [*"abcdefghijklmnopqrstuvwxyz", *(f"##{letter}" for letter in "abcdefghijklmnopqrstuvwxyz")]
VOCAB = {word: index for index, word in enumerate(dict.fromkeys([*SPECIAL, *WORDS, *LETTERS]))}
HIDDEN, HEADS, LAYERS, FFN, MAX_TOKENS = 64, 2, 2, 128, 8192

KINDS = {"yoso": "num_hashes", "mca": "alpha", "softmax": ""}
NODES = {"yoso": "YosoAttention", "mca": "McaAttention", "softmax": "SoftmaxAttention", "keep": "McaAttention"}
ATTRIBUTES = {"yoso": {"hash_bits": 8}, "mca": {}, "softmax": {}, "keep": {}}
OPERATORS = {
    "keep": ["mca", "kept_lengths", "select", "pool"]
}  # that of attention first; others: the kind itself, pool


def operators_of(kind: str) -> list[ops.Operator]:
    """The operators of a kind of bundle."""
    by_key = {operator.key: operator for operator in ops.OPERATORS}
    return [by_key[key] for key in OPERATORS.get(kind, [kind, "pool"])]


def knob_names(kind: str) -> list[str]:
    """Its knobs."""
    return [knob.name for operator in operators_of(kind) for knob in operator.knobs]


def tokenizer() -> Tokenizer:
    """A WordPiece tokenizer with BERT's template."""
    wordpiece = Tokenizer(models.WordPiece(VOCAB, unk_token="[UNK]"))
    wordpiece.normalizer = normalizers.BertNormalizer()
    wordpiece.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    wordpiece.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", VOCAB["[CLS]"]), ("[SEP]", VOCAB["[SEP]"])],
    )
    return wordpiece


class Builder:
    """Collects nodes and weights of a graph."""

    def __init__(self, seed: int) -> None:
        self.random = np.random.default_rng(seed)
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []

    def weight(self, *shape: int, scale: float | None = None) -> str:
        name = f"w{len(self.weights)}"
        scale = 1 / np.sqrt(shape[0]) if scale is None else scale
        array = (self.random.standard_normal(shape) * scale).astype(np.float32)
        self.weights.append(numpy_helper.from_array(array, name))
        return name

    def node(self, op: str, inputs: Sequence[str], *, outputs: int = 1, domain: str = "", **attributes: object) -> str:
        names = [f"v{len(self.nodes)}_{index}" for index in range(outputs)]
        self.nodes.append(helper.make_node(op, inputs, names, domain=domain, **attributes))
        return names[0]

    def dense(self, value: str, fan_in: int, fan_out: int) -> str:
        product = self.node("MatMul", [value, self.weight(fan_in, fan_out)])
        return self.node("Add", [product, self.weight(fan_out, scale=0.1)])

    def select(self, stored: list[tuple[str, str]], rows: str, importance: str, boundaries: str) -> tuple[str, str]:
        """The rows that go on and their boundaries; what rejoins later is stored with the places of these rows."""
        kept_boundaries = self.node("KeptLengths", [boundaries, "keep"], domain=ops.DOMAIN)
        inputs = [rows, importance, boundaries, kept_boundaries]
        kept = self.node("TokenSelect", inputs, outputs=2, domain=ops.DOMAIN)
        self.weights.append(numpy_helper.from_array(np.array([1]), f"axes{len(stored)}"))
        stored.append((rows, self.node("Unsqueeze", [kept.replace("_0", "_1"), f"axes{len(stored)}"])))
        return kept, kept_boundaries

    def norm(self, value: str) -> str:
        return self.node("LayerNormalization", [value, self.weight(HIDDEN), self.weight(HIDDEN)], axis=-1)


def model(kind: str, num_labels: int, pooling: str, seed: int = 1) -> onnx.ModelProto:
    """A BERT-like encoder on packed batches.

    Args:
        kind: `yoso`, `mca`, `softmax`, or `keep`: MCA whose second layer sees only the tokens that the first one keeps,
            the others rejoining before the pool.
        num_labels: width of the logits.
        pooling: `first` or `mean`, or `none`.
        seed: of the weights.
    """
    build = Builder(seed)
    tables = {"input_ids": len(VOCAB), "position_ids": MAX_TOKENS, "token_type_ids": 2}
    rows = [build.node("Gather", [build.weight(size, HIDDEN, scale=1.0), name]) for name, size in tables.items()]
    hidden = build.norm(build.node("Add", [build.node("Add", rows[:2]), rows[2]]))
    flops, boundaries, stored = [], "cu_seqlens", []
    for layer in range(LAYERS):
        query, key = (build.dense(hidden, HIDDEN, HIDDEN) for _ in range(2))
        shared = {"num_heads": HEADS, "domain": ops.DOMAIN} | ATTRIBUTES[kind]
        if kind == "softmax":
            mixed = build.node(NODES[kind], [query, key, build.dense(hidden, HIDDEN, HIDDEN), "cu_seqlens"], **shared)
        elif kind == "yoso":
            value = build.dense(hidden, HIDDEN, HIDDEN)
            mixed = build.node(
                NODES[kind], [query, key, value, "cu_seqlens", "num_hashes", "seed"], layer=layer, **shared
            )
        else:
            value = [hidden, build.weight(HIDDEN, HIDDEN), build.weight(HIDDEN)]
            inputs = [query, key, *value, boundaries, "alpha", "seed"]
            selects = kind == "keep" and layer < LAYERS - 1
            shared |= {"importance": "maximum"} if selects else {}
            mixed = build.node(NODES[kind], inputs, outputs=2 + selects, layer=layer, **shared)
            flops.append(mixed.replace("_0", "_1"))
        hidden = build.norm(build.node("Add", [hidden, build.dense(mixed, HIDDEN, HIDDEN)]))
        if kind == "keep" and layer < LAYERS - 1:
            hidden, boundaries = build.select(stored, hidden, mixed.replace("_0", "_2"), boundaries)
        wide = build.node("Gelu", [build.dense(hidden, HIDDEN, FFN)])
        hidden = build.norm(build.node("Add", [hidden, build.dense(wide, FFN, HIDDEN)]))
    for rows_before, places in reversed(stored):
        hidden = build.node("ScatterND", [rows_before, places, hidden])
    if pooling != "none":
        hidden = build.node("SequencePool", [hidden, "cu_seqlens"], domain=ops.DOMAIN, mode=pooling)
    pooled = build.node("Tanh", [build.dense(hidden, HIDDEN, HIDDEN)])
    weights = [build.weight(HIDDEN, num_labels), build.weight(num_labels)]
    build.nodes.append(helper.make_node("Gemm", [pooled, *weights], ["logits"]))
    outputs = [
        helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["T" if pooling == "none" else "B", num_labels])
    ]
    if flops:
        build.nodes.append(helper.make_node("Mean", flops, ["value_flops"]))
        outputs.append(helper.make_tensor_value_info("value_flops", TensorProto.FLOAT, ["B"]))
    inputs = [helper.make_tensor_value_info(name, TensorProto.INT64, ["T"]) for name in tables]
    inputs.append(helper.make_tensor_value_info("cu_seqlens", TensorProto.INT32, ["B + 1"]))
    if kind != "softmax":
        dtype = TensorProto.INT32 if kind == "yoso" else TensorProto.FLOAT
        inputs += [helper.make_tensor_value_info(name, dtype, ["B"]) for name in knob_names(kind)]
        inputs.append(helper.make_tensor_value_info("seed", TensorProto.INT64, ["B"]))
    graph = helper.make_graph(build.nodes, "tiny", inputs, outputs, build.weights)
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid(ops.DOMAIN, 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def sign(folder: Path, **changes: object) -> bundle.Manifest:
    """Writes `bundle.json` again, with the hashes of the files as they are and some fields changed."""
    fields = bundle.Manifest.model_validate_json((folder / bundle.MANIFEST).read_text(), strict=False).model_dump()
    skipped = (bundle.MANIFEST, bundle.CALIBRATION)
    files = {p.name: bundle.file_sha256(p) for p in sorted(folder.iterdir()) if p.name not in skipped}
    manifest = bundle.Manifest(**fields | {"files": files, "revision": bundle.revision(files)} | changes)
    bundle.write_manifest(folder, manifest)
    return manifest


def probe(folder: Path, feeds: dict[str, np.ndarray]) -> None:
    """Writes `probe.npz`: the feeds, and the logits that the bundle's model gives for them."""
    arrays = {name: value for name, value in feeds.items() if name != "logits"}
    logits = session.create(folder / bundle.MODEL).run(["logits"], arrays)[0]
    np.savez(folder / bundle.PROBE, **arrays, logits=logits)


def write(
    folder: Path,
    kind: str,
    *,
    name: str | None = None,
    labels: Sequence[str] = ("negative", "neutral", "positive"),
    multi_label: bool = False,
    pooling: str = "first",
    seed: int = 1,
) -> Path:
    """Writes a bundle.

    Args:
        folder: made; must not exist.
        kind: `yoso`, `mca`, `softmax` or `keep`.
        name: what requests call it; the folder's name by default.
        labels: in the order of the logits.
        multi_label: sigmoid instead of softmax.
        pooling: `first` or `mean`; `none` makes a token classifier.
        seed: of the weights.

    Returns:
        The folder.
    """
    folder.mkdir(parents=True)
    graph = model(kind, len(labels), pooling, seed)
    onnx.save(graph, folder / bundle.MODEL)
    tokenizer().save(str(folder / bundle.TOKENIZER))
    attention, *others = operators_of(kind)
    rows = [
        bundle.BundleKnob(**{field: getattr(knob, field) for field in bundle.BundleKnob.model_fields})
        for operator in (attention, *others)
        for knob in operator.knobs
    ]
    manifest = bundle.Manifest.model_construct(
        format_version=bundle.FORMAT_VERSION,
        name=name or folder.name,
        revision="0" * 64,
        task="token_classification" if pooling == "none" else "multi_label" if multi_label else "single_label",
        labels=list(labels),
        thresholds=[0.5] * len(labels) if multi_label else [],
        max_tokens=MAX_TOKENS,
        position_offset=0,
        vocab_size=len(VOCAB),
        attention=bundle.Attention(
            operator=attention.key,
            layers=LAYERS,
            attributes={"num_heads": HEADS},
            other_nodes={operator.key: 1 for operator in others if pooling != "none" or operator.key != "pool"},
        ),
        knobs=rows,
        inputs=[entry.name for entry in graph.graph.input],
        outputs=[entry.name for entry in graph.graph.output],
        precision="fp32",
        pooling=pooling,
        provenance=bundle.Provenance(source="random weights"),
        files={},
    )
    random = np.random.default_rng(0)
    exact = {row.name: int(row.exact) if row.dtype == "int32" else row.exact for row in rows}
    ids = [random.integers(0, len(VOCAB), length) for length in (1, 7, 40)]
    feeds = pack([Row(row, np.zeros_like(row), exact) for row in ids], manifest)
    probe(folder, feeds)
    files = {path.name: bundle.file_sha256(path) for path in sorted(folder.iterdir())}
    manifest = manifest.model_copy(update={"files": files, "revision": bundle.revision(files)})
    bundle.write_manifest(folder, manifest)
    return folder


def write_all(root: Path) -> dict[str, Path]:
    """One bundle a kind, and `multi`: multi-label, 33 labels, mean pooling."""
    folders = {kind: write(root / kind, kind) for kind in KINDS}
    labels = [f"clause {index}" for index in range(33)]
    return folders | {"multi": write(root / "multi", "yoso", labels=labels, multi_label=True, pooling="mean")}


def reranker(folder: Path, seed: int = 1) -> Path:
    """Writes a cross-encoder with two knobs, `alpha` and `keep`; `seed` is that of its weights."""
    write(folder, "keep", labels=("relevance",), seed=seed)
    sign(folder, task="regression")
    return folder
