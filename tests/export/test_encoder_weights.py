"""What the own encoder takes from an operator without knowing it: attributes, trained weights and their sizes."""

import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from checkpoints import ENCODER, randomise, word_tokenizer
from torch import nn

from attenuator import bundle
from attenuator.export.encoder import Encoder, EncoderConfig
from attenuator.export.pipeline import export
from attenuator.ops import DOMAIN
from attenuator.ops.spec import Attribute
from attenuator.ops.yoso import eager

LENGTHS = (9, 1, 30)
TAPS = Attribute("taps", "int", "of the shared kernel", default=3, low=1, high=9)


def config(**changes: Any) -> EncoderConfig:
    return EncoderConfig(**ENCODER | changes)


def logits(model: Encoder) -> torch.Tensor:
    total = sum(LENGTHS)
    ids = torch.arange(total) % 90
    starts = torch.tensor([0, *np.cumsum(LENGTHS)], dtype=torch.int32)
    positions = torch.cat([torch.arange(length) for length in LENGTHS])
    with torch.no_grad():
        return model(ids, positions, starts)


@pytest.fixture
def sharing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A YOSO whose layers have one convolution kernel among them, of a size that its config sets."""

    def shared_parameters(config: EncoderConfig) -> dict[str, nn.Parameter]:
        return {"conv_weight": nn.Parameter(torch.randn(config.num_attention_heads, config.size("taps")))}

    monkeypatch.setattr(eager, "parameters", lambda config: {})
    monkeypatch.setattr(eager, "shared_parameters", shared_parameters, raising=False)
    monkeypatch.setattr(eager, "SIZES", (TAPS,), raising=False)


def saved(model: Encoder, folder: Path) -> Path:
    model.save_pretrained(folder)
    word_tokenizer().save(str(folder / "tokenizer.json"))
    return folder


def nodes(folder: Path) -> tuple[list[onnx.NodeProto], dict[str, onnx.TensorProto]]:
    graph = onnx.load(str(folder / bundle.MODEL)).graph
    own = [node for node in graph.node if node.domain == DOMAIN and node.op_type.endswith("Attention")]
    return own, {item.name: item for item in graph.initializer}


def test_layers_share_one_weight_from_checkpoint_to_bundle(sharing: None, tmp_path: Path) -> None:
    model = Encoder(config(attention="yoso", sizes={"taps": 5}, num_hidden_layers=3))
    assert [name for name in model.state_dict() if "conv_weight" in name] == ["layers.0.attention.conv_weight"]
    randomise(model)
    folder = saved(model, tmp_path / "checkpoint")
    assert json.loads((folder / "config.json").read_text())["sizes"] == {"taps": 5}
    export(str(folder), attention="yoso", output=tmp_path / "bundle")
    found, initialisers = nodes(tmp_path / "bundle")
    [name] = {node.input[-1] for node in found}
    assert len(found) == 3
    kernel = onnx.numpy_helper.to_array(initialisers[name])
    np.testing.assert_array_equal(kernel, model.layers[0].attention.conv_weight.detach())
    assert kernel.shape == (2, 5)


def test_a_shared_weight_is_learned_from_every_layer(sharing: None) -> None:
    model = Encoder(config(attention="yoso")).eval()
    copied = copy.deepcopy(model)
    kernel = copied.layers[0].attention.weights["conv_weight"]
    assert kernel.shape == (2, 3)
    assert all(layer.attention.weights["conv_weight"] is kernel for layer in copied.layers)
    before = logits(model)
    with torch.no_grad():
        kernel.add_(1.0)
    assert torch.equal(logits(model), before)
    assert not torch.allclose(logits(copied), before)


def test_attributes_reach_the_eager_form_and_the_node(tmp_path: Path) -> None:
    """Parity at export holds only where both have the same."""
    model = Encoder(config(attention="softmax", attributes={"window": 3, "global_tokens": 1, "scale": 0.4})).eval()
    randomise(model)
    everything = Encoder(config(attention="softmax"))
    everything.load_state_dict(model.state_dict())
    assert not torch.allclose(logits(model), logits(everything.eval()), atol=1e-3)
    export(str(saved(model, tmp_path / "checkpoint")), attention="softmax", output=tmp_path / "bundle")
    for node in nodes(tmp_path / "bundle")[0]:
        values = {item.name: onnx.helper.get_attribute_value(item) for item in node.attribute}
        assert (values["window"], values["global_tokens"]) == (3, 1)
        assert values["scale"] == pytest.approx(0.4)


def test_attributes_of_yoso_may_stand_in_either_place() -> None:
    new = config(attention="yoso", attributes={"hash_bits": 5, "hash": "hadamard", "table_precision": "int16"})
    old = config(attention="yoso", hash_bits=5, hash="hadamard", attributes={"table_precision": "int16"})
    assert new == old
    assert new.all_attributes == {
        "hash_bits": 5, "hash": "hadamard", "normalize": 1, "norm_lift": 0.0, "table_precision": "int16"
    }  # fmt: skip


def test_a_config_from_before_there_were_attributes_is_read(tmp_path: Path) -> None:
    of_yoso = {"attention": "yoso", "hash_bits": 6, "normalize": 2, "conv_size": 3}
    values = {"vocab_size": 9, "id2label": {"0": "a", "1": "b"}, **of_yoso}
    (tmp_path / "config.json").write_text(json.dumps(values))
    loaded = EncoderConfig.load(tmp_path)
    assert (loaded.all_attributes["hash_bits"], loaded.all_attributes["normalize"]) == (6, 2)
    assert Encoder(loaded).layers[1].attention.weights["conv_weight"].shape == (2, 3)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"attention": "linear", "attributes": {"window": 3}}, "attributes names 'window', must be of: none"),
        ({"attributes": {"num_heads": 3}}, "attributes names 'num_heads', must be of: hash_bits, hash, normalize"),
        ({"attributes": ["window"]}, r"attributes are \['window'\], must be values by name"),
        (
            {"attention": "softmax", "attributes": {"window": -1}},
            r"window is -1, must be a whole number in \[0, 1.07374e\+09\]",
        ),
        ({"sizes": {"taps": 3}}, "sizes names 'taps', must be of: none"),
    ],
)
def test_what_an_operator_does_not_have_is_refused(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        config(**changes)


@pytest.mark.parametrize(("taps", "given"), [(10, "10"), (2.0, "2.0")])
def test_a_size_that_does_not_fit_is_refused(sharing: None, taps: float, given: str) -> None:
    with pytest.raises(ValueError, match=rf"taps is {given}, must be a whole number in \[1, 9\]"):
        config(attention="yoso", sizes={"taps": taps})


def test_a_weight_that_is_no_input_is_refused(sharing: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(eager, "parameters", lambda config: {"kernel": nn.Parameter(torch.zeros(2))})
    with pytest.raises(ValueError, match=r"parameters of yoso draws \['kernel'\], which are no inputs"):
        Encoder(config(attention="yoso"))
