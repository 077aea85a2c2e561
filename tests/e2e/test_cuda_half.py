"""Bundles of half precision the whole way on a GPU: exported, loaded with every check, served, asked with a knob.

The CPU goes the same way in fp32, so that this file is known to work where there is no GPU.
"""

from pathlib import Path

import numpy as np
import pytest
from checkpoints import CHECKPOINTS, reference, save
from service import Started

from attenuator.clients import Client
from attenuator.export import export
from attenuator.precision import PRECISIONS, PrecisionName
from attenuator.runtime import Row, load
from attenuator.runtime.device import Device

HALF = pytest.mark.cuda
WAYS = [
    pytest.param("fp32", "cpu"),
    pytest.param("fp16", "cuda", marks=HALF),
    pytest.param("bf16", "cuda", marks=HALF),
]
# Checkpoint, attention, a setting that samples.
BERT, YOSO = ("bert", "mca", {"alpha": 0.5}), ("encoder-yoso", "yoso", {"num_hashes": 16})
# On the CPU, where tests/e2e/test_export_serve_call.py goes further, one will do.
CASES = [
    pytest.param(*model, *way.values, marks=way.marks, id=f"{model[0]}-{'-'.join(way.values)}")
    for model in (BERT, YOSO)
    for way in (WAYS if model is BERT else WAYS[1:])
]
LENGTHS = (1, 3, 20, 44)


@pytest.mark.parametrize(("name", "attention", "knobs", "precision", "kind"), CASES)
def test_a_bundle_of_half_precision_answers_as_pytorch_does(
    name: str, attention: str, knobs: dict[str, float], precision: PrecisionName, kind: str, tmp_path: Path
) -> None:
    checkpoint = save(CHECKPOINTS[name], tmp_path / "checkpoint")
    folder = tmp_path / "bundle"
    export(str(checkpoint), attention=attention, output=folder, precision=precision)
    model = load(folder, device=Device(kind))
    generator = np.random.default_rng(3)
    ids = [generator.integers(5, model.manifest.vocab_size, length) for length in LENGTHS]
    rows = [Row(row, np.zeros_like(row), model.knobs.exact()) for row in ids]
    actual = np.stack([result.logits for result in model.run(rows)])
    eager = reference(checkpoint)
    expected = np.stack([eager(row, np.zeros_like(row)) for row in ids])
    tolerance = PRECISIONS[precision].probe_tolerance
    np.testing.assert_allclose(actual, expected, rtol=0, atol=tolerance * max(1.0, float(np.abs(expected).max())))

    service = Started([folder], "--device", kind)
    try:
        with Client(f"http://{service.host}:{service.port}") as client:
            answer = client.classify("the quick brown fox", seed=1, **knobs)
        assert answer.device == str(model.device)
        assert answer.knobs == model.knobs.defaults() | knobs
        assert 0 < answer.predictions[0].score <= 1
    finally:
        assert service.stop() == 0, service.log()
