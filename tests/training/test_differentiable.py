"""What a selection is taught through is what the exported graph computes: the operators' forms with gradients."""

from pathlib import Path

import numpy as np
import pytest
import torch
from checkpoints import CHECKPOINTS, save
from torch import Tensor

from attenuator.export.packed import OPERATOR_BY_KEY
from attenuator.export.selection_checks import check_selection
from attenuator.export.source import load
from attenuator.export.trace import PackedClassifier
from attenuator.ops.torch_op import overload
from attenuator.training.differentiable import FORMS, form

FAMILIES = (
    "albert", "bert", "camembert", "deberta", "deberta-v2", "distilbert", "electra", "longformer", "modernbert",
    "modernbert-mean", "mpnet", "roberta", "encoder-softmax",
)  # fmt: skip
MERGING = tuple(name for name in FAMILIES if name != "longformer")
LENGTHS = (1, 2, 13, 30, 7)


def classifier_of(name: str, folder: Path, schedule: str, merge: str) -> PackedClassifier:
    source = load(str(save(CHECKPOINTS[name], folder)))
    source.model.requires_grad_(True)
    keys = source.architecture.operators(source.model.config)
    [key] = [key for key in keys if (OPERATOR_BY_KEY[key].asked_as or key) == "softmax"]
    classifier = PackedClassifier(
        source.architecture, source.model, key, {}, source.has_token_types, schedule=schedule, merge=merge
    )
    check_selection(classifier, schedule)
    return classifier


def inputs_of(classifier: PackedClassifier, keep: float) -> tuple[Tensor, ...]:
    draw = np.random.default_rng(5)
    offset = classifier.architecture.position_offset(classifier.model.config)
    total = sum(LENGTHS)
    values = {
        "input_ids": torch.from_numpy(draw.integers(5, 90, total)),
        "position_ids": torch.cat([torch.arange(length) + offset for length in LENGTHS]),
        "token_type_ids": torch.from_numpy(draw.integers(0, 2, total)),
        "cu_seqlens": torch.tensor([0, *LENGTHS]).cumsum(0).to(torch.int32),
        "keep": torch.full((len(LENGTHS),), keep),
    }
    return tuple(values[name] for name in classifier.inputs)


@pytest.mark.parametrize(("name", "merge"), [*((one, "none") for one in FAMILIES), *((one, "mean") for one in MERGING)])
def test_every_family_computes_what_the_operators_compute(name: str, merge: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    classifier = classifier_of(name, tmp_path, "geometric", merge)
    for keep in (0.05, 0.3, 0.6, 1.0):
        inputs = inputs_of(classifier, keep)
        classifier.form = overload
        with torch.no_grad():
            expected = classifier(*inputs)
        classifier.form = form
        found = classifier(*inputs)
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
        classifier.zero_grad()
        found.square().sum().backward()
        learnt = [weight for weight in classifier.model.parameters() if weight.grad is not None]
        assert len(learnt) > 10
        assert all(bool(weight.grad.isfinite().all()) for weight in learnt)


@pytest.mark.parametrize("seed", range(20))
def test_rows_are_chosen_and_merged_as_the_kernel_does(seed: int) -> None:
    draw = np.random.default_rng(seed)
    lengths = draw.integers(1, 40, 6)
    missing = draw.integers(0, 3, 6) * (lengths > 1)
    kept = np.array([draw.integers(1, length + 1) for length in lengths])
    kept = np.where((missing > 0) & (kept == 1), np.minimum(2, lengths), kept)
    offsets = [torch.from_numpy(np.cumsum([0, *each])).to(torch.int32) for each in (lengths, kept, lengths + missing)]
    total = int(lengths.sum())
    rows = torch.from_numpy(draw.standard_normal((total, 5), np.float32))
    importance = torch.from_numpy(draw.integers(0, 6, total).astype(np.float32))  # many are equal
    for further in ([], [offsets[2]]):
        if further:
            kept = np.maximum(kept, np.minimum(2, lengths))
            offsets[1] = torch.from_numpy(np.cumsum([0, *kept])).to(torch.int32)
        expected = overload(OPERATOR_BY_KEY["select"])(rows, importance, *offsets[:2], *further)
        found = FORMS["select"](rows, importance, *offsets[:2], *further)
        torch.testing.assert_close(found[0], expected[0], rtol=1e-6, atol=1e-6)
        assert found[1].tolist() == expected[1].tolist()


@pytest.mark.parametrize("mode", ["first", "mean"])
def test_pooling_is_that_of_the_operator(mode: str) -> None:
    rows, offsets = torch.randn(9, 4), torch.tensor([0, 2, 3, 9], dtype=torch.int32)
    expected = overload(OPERATOR_BY_KEY["pool"])(rows, offsets, mode=mode)
    torch.testing.assert_close(FORMS["pool"](rows, offsets, mode=mode), expected, rtol=1e-6, atol=1e-6)
