"""What an exported bundle holds, and how it gets to its place."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
import transformers
from checkpoints import VOCAB, fast_tokenizer, reference
from tokenizers import Tokenizer
from tracing import trace_again

from attenuator.bundle import Manifest, read_manifest
from attenuator.errors import ExportError
from attenuator.export import export, lower, tokenizer, trace, verify
from attenuator.ops import KNOBS, OPERATORS
from attenuator.runtime import Row, load

Get = Callable[[str, str], Path]


def test_files_and_hashes(exported: Get) -> None:
    folder = exported("bert", "mca")
    manifest = read_manifest(folder)
    assert set(manifest.files) == {"model.onnx", "tokenizer.json", "probe.npz"}
    assert {path.name for path in folder.iterdir()} == {*manifest.files, "bundle.json"}
    assert [path.name for path in folder.parent.iterdir() if path.name.startswith(".")] == []


def test_manifest_of_an_mca_bundle(exported: Get) -> None:
    manifest = read_manifest(exported("bert", "mca"))
    assert manifest.name == "bert-mca"
    assert (manifest.task, manifest.labels, manifest.thresholds) == ("single_label", ["down", "level", "up"], [])
    assert (manifest.max_tokens, manifest.position_offset, manifest.vocab_size) == (70, 0, VOCAB)
    assert (manifest.pooling, manifest.precision) == ("first", "fp32")
    assert manifest.inputs == ["input_ids", "position_ids", "token_type_ids", "cu_seqlens", "keep", "alpha", "seed"]
    assert manifest.outputs == ["logits", "value_flops"]
    assert manifest.attention.attributes["num_heads"] == 4
    assert [knob.name for knob in manifest.knobs] == ["keep", "alpha"]
    for knob in manifest.knobs:
        assert {name: getattr(KNOBS[knob.name], name) for name in type(knob).model_fields} == knob.model_dump()
    assert manifest.provenance.source == "bert"
    assert {"torch", "transformers", "onnxruntime"} <= set(manifest.provenance.tools)
    parity = manifest.provenance.parity
    assert 0 < parity["library"] < 1e-3 * parity["largest_logit"]
    assert 0 < parity["fallback"] < 1e-3 * parity["largest_logit"]
    assert parity["packing"] == 0


@pytest.mark.parametrize(
    ("name", "attention", "expected"),
    [
        ("roberta", "mca", {"position_offset": 2, "max_tokens": 68}),
        ("yoso", "yoso", {"position_offset": 2, "max_tokens": 70}),
        ("bert-multi-label", "softmax", {"task": "multi_label", "thresholds": [0.5] * 5, "outputs": ["logits"]}),
        ("encoder-softmax", "mca", {"task": "multi_label", "pooling": "first", "max_tokens": 512}),
        ("encoder-yoso", "yoso", {"pooling": "mean", "max_tokens": 500, "position_offset": 0}),
        ("modernbert-mean", "mca", {"pooling": "mean"}),
        ("modernbert", "softmax", {"inputs": ["input_ids", "position_ids", "cu_seqlens", "keep"], "pooling": "first"}),
    ],
)
def test_manifest_fields(name: str, attention: str, expected: dict[str, Any], exported: Get) -> None:
    manifest = read_manifest(exported(name, attention))
    assert {field: getattr(manifest, field) for field in expected} == expected


def test_yoso_attributes_come_from_the_config(exported: Get) -> None:
    fast, dense = (read_manifest(exported(name, "yoso")) for name in ("yoso", "yoso-dense"))
    assert (fast.attention.attributes["hash_bits"], fast.attention.attributes["hash"]) == (6, "hadamard")
    assert (dense.attention.attributes["hash_bits"], dense.attention.attributes["hash"]) == (9, "gaussian")
    assert [knob.default for knob in fast.knobs] == [16]
    nodes = [n for n in onnx.load(exported("yoso", "yoso") / "model.onnx").graph.node if n.op_type == "YosoAttention"]
    assert all(len(node.input) == 7 for node in nodes)
    assert [onnx.helper.get_node_attr_value(node, "layer") for node in nodes] == [0, 1]


def test_local_layers_have_a_window(exported: Get) -> None:
    graph = onnx.load(exported("modernbert", "mca") / "model.onnx").graph
    windows = [onnx.helper.get_node_attr_value(n, "window") for n in graph.node if n.op_type == "McaAttention"]
    assert windows == [0, 4]


def test_serving_loads_it_and_answers_texts_as_transformers_does(
    exported: Get, checkpoint: Callable[[str], Path]
) -> None:
    model = load(exported("bert", "mca"), check=False)
    own = transformers.AutoTokenizer.from_pretrained(checkpoint("bert"))
    eager = reference(checkpoint("bert"))
    for pair in (("a film so bad",), ("the quick fox", "it is good, 42!")):
        encoded = model.encode(*pair)
        own_encoding = own(*pair)
        assert encoded.token_ids.tolist() == own_encoding["input_ids"]
        types = np.array(own_encoding.get("token_type_ids", np.zeros(len(encoded.token_ids), np.int64)))
        [result] = model.run([Row(encoded.token_ids, encoded.type_ids, model.knobs.exact())])
        np.testing.assert_allclose(result.logits, eager(np.array(own_encoding["input_ids"]), types), atol=1e-4)


def test_token_types_are_zero_where_transformers_gives_none() -> None:
    marked = fast_tokenizer()
    unmarked = fast_tokenizer(model_input_names=["input_ids", "attention_mask"])
    assert any(tokenizer.bundle_tokenizer(marked).plain.encode("a", "b").type_ids)
    plain = tokenizer.bundle_tokenizer(unmarked).plain
    assert not any(plain.encode("a", "b").type_ids)
    assert plain.encode("a", "b").ids == marked("a", "b")["input_ids"]


def test_tokenizer_neither_cuts_nor_pads(exported: Get) -> None:
    content = json.loads((exported("bert", "mca") / "tokenizer.json").read_text())
    assert content["truncation"] is None
    assert content["padding"] is None


def test_limit_of_the_tokenizer_counts() -> None:
    assert tokenizer.bundle_tokenizer(fast_tokenizer(model_max_length=33)).max_tokens == 33
    assert tokenizer.bundle_tokenizer(fast_tokenizer()).max_tokens == tokenizer.NO_LIMIT


@pytest.mark.parametrize(("name", "estimator"), [("bert", "deterministic"), ("modernbert-mean", "sampled")])
def test_estimator_that_suits_the_pooling(name: str, estimator: str, exported: Get) -> None:
    assert read_manifest(exported(name, "mca")).attention.attributes["estimator"] == estimator


def test_probe_is_the_pytorch_models_answer(exported: Get, checkpoint: Callable[[str], Path]) -> None:
    eager = reference(checkpoint("roberta"))
    with np.load(exported("roberta", "mca") / "probe.npz", allow_pickle=False) as probe:
        starts = probe["cu_seqlens"]
        assert 1 in np.diff(starts)
        assert set(probe) == {*read_manifest(exported("roberta", "mca")).inputs, "logits"}
        for index, (begin, end) in enumerate(zip(starts[:-1], starts[1:], strict=True)):
            logits = eager(probe["input_ids"][begin:end], probe["token_type_ids"][begin:end])
            np.testing.assert_allclose(probe["logits"][index], logits, atol=1e-5)


@pytest.fixture
def again(checkpoint: Callable[[str], Path], tmp_path: Path) -> Callable[..., Manifest]:
    def run(**options: Any) -> Manifest:
        return export(str(checkpoint("encoder-softmax")), output=tmp_path / "bundle", **{"attention": "mca"} | options)

    return run


def test_options_reach_the_bundle_and_an_old_one_is_replaced(
    again: Callable[..., Manifest], exported: Get, tmp_path: Path
) -> None:
    shutil.copytree(exported("bert", "mca"), tmp_path / "bundle")
    (tmp_path / "bundle" / "calibration.json").write_text("{}")
    steps: list[str] = []
    manifest = again(
        name="demo",
        max_tokens=99,
        estimator="sampled",
        knob_default={"alpha": 0.4, "keep": 0.7},
        data="made up",
        licence="CC0",
        progress=steps.append,
    )
    assert read_manifest(tmp_path / "bundle") == manifest
    assert (manifest.name, manifest.max_tokens, {knob.name: knob.default for knob in manifest.knobs}) == (
        "demo",
        99,
        {"keep": 0.7, "alpha": 0.4},
    )
    assert manifest.attention.attributes["estimator"] == "sampled"
    assert (manifest.provenance.data, manifest.provenance.licence) == ("made up", "CC0")
    assert len(steps) >= 5
    assert [path.name for path in tmp_path.iterdir()] == ["bundle"]
    assert not (tmp_path / "bundle" / "calibration.json").exists()


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError])
def test_interrupted_export_leaves_the_old_bundle(
    error: type[BaseException],
    again: Callable[..., Manifest],
    exported: Get,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    output = tmp_path / "bundle"
    before = read_manifest(shutil.copytree(exported("bert", "mca"), output))

    def interrupt(*_: object) -> None:
        raise error

    monkeypatch.setattr(verify, "parity", interrupt)
    with pytest.raises(error):
        again()
    assert read_manifest(output) == before
    assert [path.name for path in tmp_path.iterdir()] == ["bundle"]


def test_a_layer_that_stays_exact_is_noticed(again: Callable[..., Manifest], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        trace.PackedClassifier, "num_layers", property(lambda self: 3, lambda self, value: None), raising=False
    )
    with pytest.raises(ExportError, match="has 2 mca nodes, must have one for each of 3 layers"):
        again()


def test_large_weights_lie_beside_the_graph(again: Callable[..., Manifest], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lower, "INLINE_BYTES", 1000)
    assert "model.onnx.data" in again().files


def test_export_is_reproducible_and_traces_once(
    again: Callable[..., Manifest], exported: Get, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where sizes are declared that PyTorch finds to depend on one another, it traces all over again."""
    revision = read_manifest(exported("encoder-softmax", "mca")).revision
    traces: list[object] = []
    export_program = torch.export.export

    def counted(model: torch.nn.Module, *args: Any, **options: Any) -> Any:
        traces.append(model)
        return export_program(model, *args, **options)

    trace_again(monkeypatch)
    monkeypatch.setattr(torch.export, "export", counted)
    assert again().revision == revision
    assert len(traces) == 1


def test_function_source(checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    (tmp_path / "neighbour.py").write_text(f"folder = {str(checkpoint('distilbert'))!r}\n")
    module = tmp_path / "torch.py"  # a name that must not hide the library's
    module.write_text(
        "import transformers\n"
        "from neighbour import folder\n"
        "def load():\n"
        "    model = transformers.AutoModelForSequenceClassification.from_pretrained(folder)\n"
        "    return model, transformers.AutoTokenizer.from_pretrained(folder), ['x', 'y', 'z']\n"
    )
    manifest = export(f"{module}:load", attention="softmax", output=tmp_path / "bundle")
    assert manifest.labels == ["x", "y", "z"]
    assert manifest.provenance.source == "torch.py:load"


def test_old_vocabulary_files_are_enough(checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    vocabulary = Tokenizer.from_file(str(checkpoint("bert") / "tokenizer.json")).get_vocab()
    (tmp_path / "vocab.txt").write_text("\n".join(sorted(vocabulary, key=lambda token: vocabulary[token])))
    (tmp_path / "config.json").write_text((checkpoint("bert") / "config.json").read_text())
    plain = tokenizer.bundle_tokenizer(tokenizer.load_tokenizer(tmp_path, "bert")).plain
    assert plain.encode("a film").tokens[0] == "[CLS]"
    assert any(plain.encode("a film", "so good").type_ids)


def test_operators_named_in_bundles_exist(exported: Get) -> None:
    assert read_manifest(exported("yoso", "yoso")).attention.operator in {operator.key for operator in OPERATORS}
