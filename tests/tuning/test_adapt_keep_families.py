"""`attenuator adapt --keep` for every family whose bundles have `keep`."""

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from checkpoints import CHECKPOINTS, TEXTS, save
from safetensors.torch import load_file

from attenuator.errors import ExportError
from attenuator.export import taught
from attenuator.export.families import FAMILIES, OWN_ENCODER
from attenuator.export.pipeline import export
from attenuator.export.taught import TaughtWeights
from attenuator.runtime import Row, load
from attenuator.tuning import data
from attenuator.tuning.adapt.keep import HeldOut, taught_in
from attenuator.tuning.adapt.pipeline import Texts, load_teacher
from attenuator.tuning.adapt.selecting import Student, load_keep_student
from attenuator.tuning.batches import Rows, predict
from attenuator.tuning.plan import Plan
from attenuator.tuning.run import last_checkpoint

SCHEDULE, BELOW, SMALL = "first", 0.5, 0.1
# Of each family, the first of the checkpoints that tests have: its name by that of the family.
FIRST = {checkpoint.config.model_type: name for name, checkpoint in reversed(CHECKPOINTS.items())}
FIRST[OWN_ENCODER] = "encoder-softmax"
WITHOUT_KEEP = ["yoso", "nystromformer"]
# Others that are prepared otherwise: a mean over tokens, and unshared projections beside a convolution.
FURTHER = ["modernbert-mean", "deberta-v2-convolution"]


def taught_from(source: Path, folder: Path) -> tuple[Student, list[data.Encoded]]:
    """Teaches a checkpoint for a few steps and writes it; gives the student, and texts that it was taught with."""
    teacher = load_teacher(source, recordable=False)
    encoded = data.encode([data.Text("", {"text": text}) for text in TEXTS * 4], teacher.texts, truncate=False)
    texts = Texts(encoded, encoded[:6], None)
    plan = Plan(folder / "steps", epochs=3, learning_rate=1e-2, batch_tokens=64)
    student, outcome = taught_in(SCHEDULE, teacher, texts, HeldOut(texts, teacher), plan, shown=False)
    assert outcome.reason == "finished"
    saved = load_file(Path(last_checkpoint(plan.steps_folder) or "") / "model.safetensors")
    assert set(saved) == set(teacher.model.state_dict()), "what a run goes on with"
    teacher.save(folder)
    taught.write(folder, TaughtWeights(student.changed(teacher), SCHEDULE, student.merge, BELOW))
    return student, encoded[:3]


def test_each_family_is_tried() -> None:
    assert set(FIRST) == {family.model_type for family in FAMILIES}


@pytest.mark.parametrize("name", [*(name for name in FIRST.values() if name not in WITHOUT_KEEP), *FURTHER])
def test_a_family_is_taught(name: str, tmp_path: Path) -> None:
    source = save(CHECKPOINTS[name], tmp_path / "source")
    student, texts = taught_from(source, tmp_path / "taught")
    weights = taught.read(tmp_path / "taught")
    assert weights is not None
    if "modernbert" in name:
        assert any("Wqkv" in tensor for tensor in weights.tensors), "which its projections share"
    loaded = load_keep_student(tmp_path / "taught", SCHEDULE)
    rows = Rows(texts)
    before, after = loaded.predict(rows, SMALL, 512), student.predict(rows, SMALL, 512)
    assert np.abs(before - after).max() > 1e-3
    with weights.within(loaded.trainable.inner):
        np.testing.assert_array_equal(loaded.predict(rows, SMALL, 512), after)
    np.testing.assert_array_equal(loaded.predict(rows, SMALL, 512), before)


def test_a_bundle_answers_as_taught_and_exactly_as_it_did_bit_for_bit(tmp_path: Path) -> None:
    source = save(CHECKPOINTS["modernbert"], tmp_path / "source")
    student, texts = taught_from(source, tmp_path / "taught")
    export(str(source), output=tmp_path / "original", schedule=SCHEDULE, merge=student.merge)
    export(str(tmp_path / "taught"), output=tmp_path / "both")
    original, both = (load(tmp_path / name, check=False) for name in ("original", "both"))

    def answers(model: Any, keep: float) -> np.ndarray:
        rows = [Row(text.token_ids, text.type_ids, both.knobs.check({"keep": keep})) for text in texts]
        return np.stack([answer.logits for answer in model.run(rows)])

    np.testing.assert_array_equal(answers(both, 1.0), answers(original, 1.0))
    of_student = student.predict(Rows(texts), SMALL, 512)
    np.testing.assert_allclose(answers(both, SMALL), of_student, rtol=0, atol=2e-4)
    assert np.abs(answers(original, SMALL) - of_student).max() > 1e-3


def test_a_big_bird_teaches_full_attention_to_long_texts_too(tmp_path: Path) -> None:
    source = save(CHECKPOINTS["big_bird"], tmp_path / "source")
    teacher = load_teacher(source, recordable=False)
    short, long = (
        data.encode([data.Text("", {"text": " ".join(TEXTS[:2] * repeats)})], teacher.texts, truncate=False)
        for repeats in (1, 3)
    )
    assert len(long[0].token_ids) > 28, "where its blocks would be sparse"
    exact = load_keep_student(source, SCHEDULE).predict(Rows(long), 1.0, 512)
    for encoded in (long, short + long):
        logits = predict(teacher.model, Rows(encoded), teacher.collator, 512)
        np.testing.assert_allclose(logits[-1:], exact, rtol=0, atol=1e-4)


def test_families_without_keep_are_refused(tmp_path: Path) -> None:
    exact = copy.deepcopy(CHECKPOINTS["nystromformer"])
    exact.config.num_landmarks = exact.config.segment_means_seq_len
    for name, checkpoint in {"yoso": CHECKPOINTS["yoso"], "nystromformer": exact}.items():
        with pytest.raises(ExportError, match="has no keep to teach"):
            load_keep_student(save(checkpoint, tmp_path / name), SCHEDULE)


def test_batches_are_where_their_model_is(tmp_path: Path) -> None:
    model = load_teacher(save(CHECKPOINTS["bert"], tmp_path / "source"), recordable=False)
    elsewhere = replace(model.collator, device=torch.device("meta"))
    rows = [Rows(data.encode([data.Text("", {"text": TEXTS[0]})], model.texts, truncate=False))[0]]
    assert {tensor.device.type for tensor in elsewhere(rows).values()} == {"meta"}


def test_a_text_far_shorter_than_its_batch_spoils_no_gradient(tmp_path: Path) -> None:
    """Where layers have windows, its padding sees no token."""
    student = load_keep_student(save(CHECKPOINTS["modernbert-mean"], tmp_path / "source"), "second")
    model = student.trainable
    lengths = [data.Text("", {"text": " ".join(TEXTS[:2] * repeats)}) for repeats in (3, 1)]
    batch = model.collator([Rows(data.encode(lengths, model.texts, truncate=False))[at] for at in range(2)])
    student.logits(batch, SMALL).square().sum().backward()
    gradients = [weight.grad for weight in model.model.parameters() if weight.grad is not None]
    assert gradients
    assert all(bool(each.isfinite().all()) for each in gradients)
