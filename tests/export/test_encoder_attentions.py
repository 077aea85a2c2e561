"""Every attention that the own encoder can be trained with goes the whole way: export, inspect, serve, classify."""

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from checkpoints import CHECKPOINTS, ENCODER, Checkpoint, reference, save
from refusals import refuse
from service import Service

from attenuator.__main__ import main
from attenuator.bundle import read_manifest
from attenuator.clients import Client
from attenuator.export.encoder import EncoderConfig
from attenuator.export.encoder_attention import ATTENTIONS
from attenuator.ops import FOLDERS, OPERATORS
from attenuator.ops.spec import Operator

TEXT = "the quick brown fox jumps over the lazy dog"
# Those of CHECKPOINTS go further, in test_families.py.
ELSEWHERE = {item.config.attention for item in CHECKPOINTS.values() if isinstance(item.config, EncoderConfig)}
EVERY = [key for key in ATTENTIONS if key in FOLDERS and key not in ELSEWHERE]
CPU_ONLY = [operator for operator in OPERATORS if operator.key in EVERY and operator.cpu_only]


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("checkpoints")
    return {
        key: save(Checkpoint(EncoderConfig(**ENCODER, attention=key, pooling="first")), root / key) for key in EVERY
    }


@pytest.fixture(scope="module")
def bundles(checkpoints: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("bundles")
    for key, folder in checkpoints.items():
        assert main(["export", str(folder), "--attention", key, "--output", str(root / key)]) == 0
    return {key: root / key for key in checkpoints}


@pytest.fixture(scope="module")
def address(bundles: dict[str, Path]) -> Iterator[str]:
    service = Service(bundles.values())
    yield f"http://{service.host}:{service.port}"
    assert service.stop() == 0, service.log()


@pytest.mark.parametrize("key", EVERY)
def test_served_answers_are_pytorchs(
    key: str, address: str, bundles: dict[str, Path], checkpoints: dict[str, Path]
) -> None:
    manifest = read_manifest(bundles[key])
    assert (manifest.attention.operator, manifest.attention.layers) == (key, 2)
    ids = np.random.default_rng(3).integers(5, manifest.vocab_size, 40)
    exact = {knob.name: int(knob.exact) if knob.dtype == "int32" else knob.exact for knob in manifest.knobs}
    with Client(address) as client:
        answer = client.classify({"token_ids": ids.tolist()}, model=key, return_logits=True, **exact)
    expected = reference(checkpoints[key])(ids, None)
    np.testing.assert_allclose(answer.predictions[0].logits, expected, atol=2e-5 * max(1, np.abs(expected).max()))


@pytest.mark.parametrize("key", EVERY)
def test_the_commands_know_it(
    key: str, address: str, bundles: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["inspect", str(bundles[key])]) == 0
    assert ATTENTIONS[key].name in capsys.readouterr().out
    assert main(["classify", "--url", address, "--model", key, "--json", TEXT]) == 0
    assert json.loads(capsys.readouterr().out)["label"]


@pytest.mark.parametrize("operator", CPU_ONLY, ids=lambda operator: operator.key)
def test_a_precision_of_cuda_alone_is_refused_where_the_operator_has_no_kernels_there(
    operator: Operator, checkpoints: dict[str, Path], tmp_path: Path
) -> None:
    sentence = refuse(checkpoints[operator.key], tmp_path, operator.key, precision="fp16")
    assert f"runs on CUDA alone, where {operator.name} does not run; must be fp32 or int8" in sentence
