"""Damaged and hostile bundles: refused with one sentence that names the file."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import tiny
from onnx import TensorProto, helper, numpy_helper
from tokenizers import Tokenizer, models

from attenuator import bundle
from attenuator.errors import BundleError, OperatorLibraryMissing
from attenuator.runtime import load
from attenuator.runtime.check import check_bundle
from attenuator.runtime.model import check_in_child

FILES = (bundle.MANIFEST, bundle.MODEL, bundle.TOKENIZER, bundle.PROBE)


@pytest.fixture
def copy(bundles: dict[str, Path], tmp_path: Path) -> Path:
    return Path(shutil.copytree(bundles["yoso"], tmp_path / "bundle"))


def refused(folder: Path, *phrases: str, child: bool = False) -> None:
    """The check fails with one short sentence that holds the words; in a child process where it might do harm."""
    with pytest.raises(BundleError) as caught:
        (load if child else check_bundle)(folder)
    sentence = str(caught.value)
    for phrase in phrases:
        assert phrase in sentence, sentence
    assert "\n" not in sentence
    assert len(sentence) < 600
    assert "Traceback" not in sentence


@pytest.mark.parametrize("name", ["numpy", "tokenizers"])
def test_modules_beside_a_bundle_are_not_imported(copy: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """A command that is started inside a bundle's folder runs none of what lies there."""
    (copy / f"{name}.py").write_text("raise SystemExit(3)\n")
    monkeypatch.chdir(copy)
    check_in_child(Path())


@pytest.mark.parametrize("name", FILES)
def test_missing_file(copy: Path, name: str) -> None:
    (copy / name).unlink()
    refused(copy, name, "is missing")


@pytest.mark.parametrize("share", [0.0, 0.5, 0.99], ids=["emptied", "half", "last bytes"])
@pytest.mark.parametrize("name", FILES)
def test_truncated_file(copy: Path, name: str, share: float) -> None:
    data = (copy / name).read_bytes()
    (copy / name).write_bytes(data[: int(len(data) * share)])
    refused(copy, name)


@pytest.mark.parametrize("at", [0.001, 0.3, 0.7, 0.999])
@pytest.mark.parametrize("name", FILES[1:])
def test_flipped_bit(copy: Path, name: str, at: float) -> None:
    data = bytearray((copy / name).read_bytes())
    data[int(len(data) * at)] ^= 0x10
    (copy / name).write_bytes(data)
    refused(copy, name, "is damaged")


@pytest.mark.parametrize("share", [0.0, 0.3, 0.9])
@pytest.mark.parametrize("name", FILES[1:])
def test_truncated_file_that_was_signed_again(copy: Path, name: str, share: float) -> None:
    data = (copy / name).read_bytes()
    (copy / name).write_bytes(data[: int(len(data) * share)])
    tiny.sign(copy)
    refused(copy, name)


@pytest.mark.parametrize("seed", range(4))
def test_random_bytes_in_a_model_that_was_signed_again(copy: Path, seed: int) -> None:
    draw = np.random.default_rng(seed)
    data = bytearray((copy / bundle.MODEL).read_bytes())
    for at in draw.integers(0, len(data), 2000):
        data[at] = draw.integers(0, 256)
    (copy / bundle.MODEL).write_bytes(data)
    tiny.sign(copy)
    refused(copy, bundle.MODEL, child=True)


def changed(folder: Path, **fields: Any) -> None:
    """Changes `bundle.json` without any check."""
    path = folder / bundle.MANIFEST
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


KNOB = {"name": "num_hashes", "dtype": "int32", "default": 32, "low": 0, "high": 512, "exact": 0}
KNOB |= {"accuracy": "rises", "unit": "hash tables", "doc": "..."}


def yoso_with(**attributes: Any) -> dict[str, Any]:
    return {"attention": {"operator": "yoso", "layers": 2, "attributes": attributes, "other_nodes": {"pool": 1}}}


MANIFEST_CASES: dict[str, tuple[dict[str, Any], str]] = {
    "newer format": ({"format_version": 2}, "format_version 2"),
    "format a text": ({"format_version": "1"}, "format_version '1'"),
    "no format": ({"format_version": None}, "format_version None"),
    "other revision": ({"revision": "0" * 64}, "revision"),
    "unknown field": ({"colour": "red"}, "colour"),
    "no labels": ({"labels": []}, "labels"),
    "label twice": ({"labels": ["a", "a", "b"]}, "labels has a label twice"),
    "empty label": ({"labels": ["a", "", "c"]}, "label 1 is empty"),
    "white label": ({"labels": ["a", "b", " \n"]}, "label 2 is empty"),
    "label with a control character": ({"labels": ["a", "b\x1b[31m", "c"]}, "label 1 is 'b\\x1b[31m', must"),
    "label of a megabyte": ({"labels": ["a", "b", "c" * 2**20]}, "label 2 has 1048576 characters, must"),
    "label that turns direction": ({"labels": ["a", "b", "\u202ec"]}, "label 2 is '\\u202ec', must"),
    "half a surrogate pair": ({"labels": ["a", "b", "\ud800"]}, "half of a surrogate pair"),
    "half a pair elsewhere": ({"knobs": [KNOB | {"doc": "\udc00"}]}, "half of a surrogate pair"),
    "one label more": ({"labels": ["a", "b", "c", "d"]}, "gives 3 logits per sequence, but bundle.json has 4 labels"),
    "one label fewer": ({"labels": ["a", "b"]}, "gives 3 logits per sequence, but bundle.json has 2 labels"),
    "task unknown": ({"task": "ranking"}, "task"),
    "regression of three labels": ({"task": "regression"}, "labels has 3 names, must have one"),
    "score with a threshold": ({"task": "regression", "labels": ["a"], "thresholds": [0.5]}, "thresholds is set"),
    "thresholds missing": ({"task": "multi_label"}, "thresholds"),
    "threshold NaN": ({"task": "multi_label", "thresholds": [float("nan"), 0.5, 0.5]}, "thresholds.0"),
    "threshold above 1": ({"task": "multi_label", "thresholds": [0.5, 0.5, 7.0]}, "thresholds.2"),
    "knob twice": ({"knobs": [KNOB, KNOB]}, "knobs has a name twice"),
    "knob NaN": ({"knobs": [KNOB | {"low": float("nan")}]}, "ranges from nan"),
    "absurd max_tokens": ({"max_tokens": 2**62}, "max_tokens"),
    "absurd vocabulary": ({"vocab_size": 2**70}, "vocab_size"),
    "name leaves the folder": ({"name": "../x"}, "name"),
    "too many tokens": ({"max_tokens": 8193}, "last position"),
    "position offset": ({"position_offset": 2}, "last position"),
    "vocabulary too large": ({"vocab_size": 1000}, "last token id"),
    "vocabulary too small": ({"vocab_size": 5}, "tokenizer.json has token id"),
    "unknown operator": ({"attention": {"operator": "lsh", "layers": 2, "attributes": {}}}, "attention.operator"),
    "other operator": ({"attention": {"operator": "mca", "layers": 2, "attributes": {}}}, "knobs"),
    "one layer more": (
        {"attention": {"operator": "yoso", "layers": 3, "attributes": {}, "other_nodes": {"pool": 1}}},
        "2 YosoAttention, but bundle.json says 1 SequencePool, 3 YosoAttention",
    ),
    "unknown attribute": (yoso_with(colour="red"), "attention.attributes has 'colour'"),
    "other heads": (yoso_with(num_heads=4), "num_heads 2, but bundle.json says 4"),
    "other hashes": (yoso_with(hash="hadamard"), "hash 'gaussian', but bundle.json says 'hadamard'"),
    "attribute of other type": (yoso_with(hash_bits="8"), "hash_bits 8, but bundle.json says '8'"),
    "estimator where there is none": (yoso_with(estimator="sampled"), "attention.attributes has 'estimator'"),
    "unknown knob": ({"knobs": [KNOB | {"name": "temperature"}]}, "knobs"),
    "no knob": ({"knobs": []}, "knobs"),
    "knob too wide": ({"knobs": [KNOB | {"high": 100000}]}, "0 to 512"),
    "knob of other type": ({"knobs": [KNOB | {"dtype": "float"}]}, "dtype"),
    "knob of unknown direction": ({"knobs": [KNOB | {"accuracy": "wanders"}]}, "knobs.0.accuracy"),
    "knob of other direction": ({"knobs": [KNOB | {"accuracy": "falls"}]}, "accuracy 'falls', must be 'rises'"),
    "other exact value": ({"knobs": [KNOB | {"exact": 512}]}, "exact 512, must be 0"),
    "default outside": ({"knobs": [KNOB | {"high": 16}]}, "default 32"),
    "default a fraction": ({"knobs": [KNOB | {"default": 1.5}]}, "default 1.5"),
    "unknown input": ({"inputs": ["input_ids", "pixels"]}, "pixels"),
    "input missing": ({"inputs": ["input_ids", "cu_seqlens", "num_hashes", "seed"]}, "takes"),
    "other output": ({"outputs": ["logits", "value_flops"]}, "has the outputs"),
    "no model listed": ({"files": {"tokenizer.json": "0" * 64, "probe.npz": "0" * 64}}, "model.onnx is missing from"),
}


@pytest.mark.parametrize("case", MANIFEST_CASES.values(), ids=MANIFEST_CASES)
def test_manifest_that_does_not_fit(copy: Path, case: tuple[dict[str, Any], str]) -> None:
    changed(copy, **case[0])
    refused(copy, case[1])


@pytest.mark.parametrize("name", ["../secret", "/etc/passwd", "a/../../b", "sub/model.onnx", "..", "a\\b", "", "a\0b"])
def test_file_name_that_leaves_the_folder(copy: Path, name: str) -> None:
    files = json.loads((copy / bundle.MANIFEST).read_text())["files"] | {name: "0" * 64}
    changed(copy, files=files)
    refused(copy, bundle.MANIFEST, "must be a name in the bundle's folder")


@pytest.mark.parametrize("name", FILES[1:])
def test_link_that_leaves_the_folder(copy: Path, tmp_path: Path, name: str) -> None:
    outside = tmp_path / "outside"
    (copy / name).rename(outside)
    (copy / name).symlink_to(outside)
    refused(copy, name, "link that leaves the folder")


@pytest.mark.parametrize("content", [b"[]", b"{", b"\xff\xfe", b"[" * 200_000, b'{"labels": 1}', b'{"a":1, "a":2}'])
def test_manifest_that_is_no_manifest(copy: Path, content: bytes) -> None:
    (copy / bundle.MANIFEST).write_bytes(content)
    refused(copy, bundle.MANIFEST)


def test_folder_that_is_none(tmp_path: Path) -> None:
    refused(tmp_path / "nowhere", "is not a folder", child=True)
    (tmp_path / "file").write_text("x")
    refused(tmp_path / "file", "is not a folder")


Edit = Callable[[onnx.ModelProto], None]


def foreign_operator(model: onnx.ModelProto) -> None:
    model.graph.node.append(helper.make_node("Shell", ["input_ids"], ["shell"], domain="evil"))


def unknown_own_operator(model: onnx.ModelProto) -> None:
    model.graph.node.append(helper.make_node("Shell", ["input_ids"], ["shell"], domain="attenuator"))


def newer_operators(model: onnx.ModelProto) -> None:
    next(entry for entry in model.opset_import if entry.domain == "attenuator").version = 2


def external(path: str) -> Edit:
    def edit(model: onnx.ModelProto) -> None:
        weight = model.graph.initializer[0]
        weight.ClearField("raw_data")
        weight.data_location = TensorProto.EXTERNAL
        weight.external_data.add(key="location", value=path)

    return edit


def loop(model: onnx.ModelProto, body_op: str = "Loop") -> None:
    """Counts to 2^62 before anything else."""
    body = helper.make_graph(
        [helper.make_node("Identity", ["go"], ["go_on"]), helper.make_node("Add", ["x", "x"], ["y"])],
        "body",
        [
            helper.make_tensor_value_info("i", TensorProto.INT64, []),
            helper.make_tensor_value_info("go", TensorProto.BOOL, []),
            helper.make_tensor_value_info("x", TensorProto.FLOAT, [1]),
        ],
        [
            helper.make_tensor_value_info("go_on", TensorProto.BOOL, []),
            helper.make_tensor_value_info("y", TensorProto.FLOAT, [1]),
        ],
    )
    model.graph.initializer.append(numpy_helper.from_array(np.array(2**62), "trips"))
    model.graph.initializer.append(numpy_helper.from_array(np.ones(1, np.float32), "start"))
    model.graph.node.append(helper.make_node(body_op, ["trips", "", "start"], ["spun"], body=body))
    keep(model, "spun")


def loop_in_a_function(model: onnx.ModelProto) -> None:
    inner = onnx.ModelProto()
    inner.CopyFrom(model)
    loop(inner)
    opsets = [helper.make_opsetid("", 20)]
    function = helper.make_function("hidden", "Spin", ["start"], ["spun"], [inner.graph.node[-3]], opsets)
    model.functions.append(function)
    model.opset_import.append(helper.make_opsetid("hidden", 1))
    model.graph.initializer.append(numpy_helper.from_array(np.ones(1, np.float32), "start"))
    model.graph.node.append(helper.make_node("Spin", ["start"], ["spun"], domain="hidden"))
    keep(model, "spun")


def keep(model: onnx.ModelProto, name: str) -> None:
    """Makes the logits depend on a value, so that nothing drops it."""
    last = next(node for node in model.graph.node if "logits" in node.output)
    last.output[0] = "plain_logits"
    model.graph.node.append(helper.make_node("ReduceMax", [name], [f"{name}_max"], keepdims=0))
    model.graph.node.append(helper.make_node("Add", ["plain_logits", f"{name}_max"], ["logits"]))


def lines_in_a_name(model: onnx.ModelProto) -> None:
    model.graph.node.append(helper.make_node("Shell\nINFO all is well", ["input_ids"], ["shell"], domain="evil" * 999))


def logits_of(element: int) -> Edit:
    def edit(model: onnx.ModelProto) -> None:
        model.graph.node[-1].output[0] = "plain_logits"
        model.graph.node.append(helper.make_node("Cast", ["plain_logits"], ["logits"], to=element))
        model.graph.output[0].type.tensor_type.elem_type = element

    return edit


def memory_bomb(model: onnx.ModelProto) -> None:
    """Fills 64 GiB when run."""
    model.graph.initializer.append(numpy_helper.from_array(np.array([2**34]), "huge"))
    value = numpy_helper.from_array(np.zeros(1, np.float32))
    model.graph.node.append(helper.make_node("ConstantOfShape", ["huge"], ["filled"], value=value))
    keep(model, "filled")


def other_weights(model: onnx.ModelProto) -> None:
    weight = next(one for one in model.graph.initializer if len(one.dims) == 2)
    weight.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(weight) * 2, weight.name))


def endless_nesting(model: onnx.ModelProto) -> None:
    graph = helper.make_graph([], "leaf", [], [])
    for _ in range(20):
        graph = helper.make_graph([helper.make_node("Identity", ["a"], ["b"], body=graph)], "level", [], [])
    model.graph.node.append(helper.make_node("Identity", ["input_ids"], ["same"], body=graph))


HOSTILE: dict[str, tuple[Edit, str]] = {
    "foreign operator": (foreign_operator, "evil:Shell"),
    "operator named like log lines": (lines_in_a_name, "evilevil"),
    "logits in half precision": (logits_of(TensorProto.FLOAT16), "of type tensor(float16), must be tensor(float)"),
    "logits of text": (logits_of(TensorProto.STRING), "'logits' of type tensor(string), must be tensor(float)"),
    "unknown operator of ours": (unknown_own_operator, "attenuator:Shell"),
    "newer operators": (newer_operators, "version 2 of the operators"),
    "data outside": (external("../outside.bin"), "'../outside.bin'"),
    "data anywhere": (external("/etc/passwd"), "'/etc/passwd'"),
    "data unlisted": (external("weights.bin"), "'weights.bin'"),
    "endless loop": (loop, "a Loop node"),
    "loop in a function": (loop_in_a_function, "a Loop node"),
    "memory bomb": (memory_bomb, "model.onnx"),
    "other weights": (other_weights, "other logits than probe.npz"),
    "endless nesting": (endless_nesting, "nested"),
}


@pytest.mark.parametrize("case", HOSTILE.values(), ids=HOSTILE)
def test_hostile_model(copy: Path, tmp_path: Path, case: tuple[Edit, str]) -> None:
    edit, phrase = case
    (tmp_path / "outside.bin").write_bytes(bytes(10_000))
    model = onnx.load(copy / bundle.MODEL)
    edit(model)
    (copy / bundle.MODEL).write_bytes(model.SerializeToString())
    tiny.sign(copy)
    refused(copy, bundle.MODEL, phrase, child=True)


def arrays(copy: Path, **changes: Any) -> None:
    probe = dict(np.load(copy / bundle.PROBE))
    np.savez(copy / bundle.PROBE, **{name: value for name, value in {**probe, **changes}.items() if value is not None})


PROBES: dict[str, dict[str, Any]] = {
    "pickle": {"logits": np.array([print, print], dtype=object)},
    "no logits": {"logits": None},
    "NaN": {"logits": np.full((3, 3), np.nan, np.float32)},
    "other logits": {"logits": np.zeros((3, 3), np.float32)},
    "logits for other labels": {"logits": np.zeros((3, 7), np.float32)},
    "ids outside": {"input_ids": np.full(48, 10**6)},
    "offsets that fall": {"cu_seqlens": np.array([0, 30, 7, 48], np.int32)},
    "a zip bomb": {"input_ids": np.zeros(8 * 10**6, np.int64)},
}


@pytest.mark.parametrize("changes", PROBES.values(), ids=PROBES)
def test_hostile_probe(copy: Path, changes: dict[str, Any]) -> None:
    arrays(copy, **changes)
    tiny.sign(copy)
    refused(copy, bundle.PROBE)


def test_tokenizer_of_another_model(copy: Path) -> None:
    large = Tokenizer(models.WordLevel({f"w{index}": index for index in range(500)}, unk_token="w0"))
    large.save(str(copy / bundle.TOKENIZER))
    tiny.sign(copy)
    refused(copy, "tokenizer.json has token id 499, must be below vocab_size")


def with_pattern(copy: Path, pattern: str) -> None:
    raw = json.loads((copy / bundle.TOKENIZER).read_text())
    split = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
    (copy / bundle.TOKENIZER).write_text(json.dumps(raw | {"normalizer": None, "pre_tokenizer": split}))
    tiny.sign(copy)


def test_tokenizer_whose_pattern_backtracks_without_end(copy: Path) -> None:
    with_pattern(copy, "(a+)+$")
    refused(copy, "tokenizer.json has the pattern '(a+)+$'")


def test_manifest_that_is_a_pipe_or_a_device(copy: Path) -> None:
    (copy / bundle.MANIFEST).unlink()
    os.mkfifo(copy / bundle.MANIFEST)
    refused(copy, "bundle.json is not a file")
    (copy / bundle.MANIFEST).unlink()
    (copy / bundle.MANIFEST).symlink_to("/dev/zero")
    refused(copy, "bundle.json is not a file")


def test_manifest_of_a_gigabyte(copy: Path) -> None:
    os.truncate(copy / bundle.MANIFEST, 2**30)
    refused(copy, "bundle.json cannot be read: it has 1073741824 bytes")


def test_check_that_never_ends_is_given_up(copy: Path) -> None:
    with pytest.raises(BundleError, match=r"the process that checks it did not end within 0\.01 s"):
        check_in_child(copy, timeout_s=0.01)


def test_missing_library_is_said_as_such(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATTENUATOR_OPS_LIBRARY", str(copy / "none.so"))
    with pytest.raises(OperatorLibraryMissing, match="does not exist"):
        load(copy)


def test_untouched_bundles_load(bundles: dict[str, Path]) -> None:
    for name, folder in bundles.items():
        assert load(folder).manifest.name == name
