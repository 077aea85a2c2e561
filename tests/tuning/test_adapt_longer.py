"""`attenuator adapt` for models with windows, and for texts longer than a model's learned positions."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from checkpoints import CHECKPOINTS, VOCAB, save
from training_data import write

from attenuator.__main__ import main as attenuator
from attenuator.bundle import TRAINED_POSITIONS
from attenuator.errors import ExportError
from attenuator.export.longer import POSITIONS
from attenuator.export.source import load as load_to_export
from attenuator.training.yoso.settings import starting
from attenuator.tuning import checkpoints
from attenuator.tuning.adapt.pipeline import load_student, load_teacher, recorded
from attenuator.tuning.adapt.recording import packed, recording
from attenuator.tuning.windows import without_windows

LONG = 190


def adapt(source: Path, data: Path, output: Path, *further: str) -> int:
    """A run of few steps, without a search for settings."""
    options = [
        "--num-hashes",
        "4",
        "--hash-bits",
        "4",
        "--norm-lift",
        "0",
        "--epochs",
        "1",
        "--batch-tokens",
        "2048",
        "--threads",
        "1",
    ]
    options += ["--held-out-share", "0.4", *further]
    return attenuator(["adapt", str(source), "--data", str(data), "--output", str(output), *options])


def ids_of(tokens: int, model: Any) -> dict[str, torch.Tensor]:
    """A text of drawn tokens, where a model is."""
    drawn = np.random.default_rng(1).integers(5, VOCAB, (1, tokens))
    ids = torch.from_numpy(drawn).to(next(model.parameters()).device)
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def windowed(folder: Path) -> Any:
    """A Longformer whose global token has the projections of the others."""
    model = checkpoints.load(save(CHECKPOINTS["longformer"], folder)).model.cpu().eval()
    for layer in model.longformer.encoder.layer:
        attention = layer.attention.self
        for name in ("query", "key", "value"):
            getattr(attention, f"{name}_global").load_state_dict(getattr(attention, name).state_dict())
    return model


def test_without_its_windows_a_longformer_is_what_it_was_where_they_reach_over_the_text(tmp_path: Path) -> None:
    model = windowed(tmp_path / "longformer")
    other = without_windows(model).eval()
    assert other.config.model_type == "roberta"
    assert (other.config.id2label, other.config.problem_type) == (model.config.id2label, model.config.problem_type)
    with torch.no_grad():
        for tokens, same in ((5, True), (40, False)):  # 4 tokens on either side in the first layer
            logits, expected = (one(**ids_of(tokens, one)).logits for one in (other, model))
            assert torch.allclose(logits, expected, atol=1e-5) is same
    bert = checkpoints.load(save(CHECKPOINTS["bert"], tmp_path / "bert")).model
    assert without_windows(bert) is bert


def test_attention_of_windows_is_recorded_without_padding(tmp_path: Path) -> None:
    source = save(CHECKPOINTS["longformer"], tmp_path / "longformer")
    teacher, expected = load_teacher(source), checkpoints.load(source).model.eval()
    batch = ids_of(21, expected)
    outputs: list[torch.Tensor] = []
    for layer in expected.longformer.encoder.layer:
        layer.attention.self.register_forward_hook(lambda _, __, output: outputs.append(output[0]))
    with torch.no_grad(), recording() as samples:
        logits = teacher.model(**batch).logits
        torch.testing.assert_close(logits, expected(**batch).logits)
    for sample, output in zip(packed(samples, batch["attention_mask"].bool()), outputs, strict=True):
        assert sample.query.shape == sample.key.shape == sample.value.shape == (21, 4, 8)
        torch.testing.assert_close(sample.mixed.flatten(1), output[0, :21])


def test_a_longformer_is_adapted_and_read_again(tmp_path: Path) -> None:
    source = save(CHECKPOINTS["longformer"], tmp_path / "longformer")
    data = write(tmp_path / "texts.jsonl", 60)
    assert adapt(source, data, tmp_path / "adapted", "--label-column", "label") == 1, "its labels are not the model's"
    plain = tmp_path / "texts.txt"
    plain.write_text("".join(json.loads(line)["text"] + "\n" for line in data.read_text().splitlines()))
    assert adapt(source, plain, tmp_path / "adapted") == 0
    student = checkpoints.load(tmp_path / "adapted")
    assert (student.attention, student.inner.config.model_type) == ("yoso", "roberta")
    longest = load_to_export(str(tmp_path / "adapted")).max_tokens
    assert longest == student.texts.max_tokens == load_teacher(source).texts.max_tokens


@pytest.mark.parametrize("positions", [name for name in POSITIONS if name != TRAINED_POSITIONS])
def test_texts_beyond_the_learned_positions_are_read(positions: str, tmp_path: Path) -> None:
    source = save(CHECKPOINTS["bert"], tmp_path / "bert")
    for model in (load_teacher(source, positions, LONG), load_student(source, "yoso", starting(), positions, LONG)):
        with torch.no_grad():
            assert model.model(**ids_of(LONG, model.model)).logits.isfinite().all()


def test_texts_beyond_the_learned_positions_are_learnt(tmp_path: Path) -> None:
    positions = "interpolated"
    source = save(CHECKPOINTS["bert"], tmp_path / "bert")
    words = "the quick brown fox jumps over the lazy dog " * 18
    texts = tmp_path / "texts.txt"
    texts.write_text("".join(f"{words}{index}\n" for index in range(60)))
    assert adapt(source, texts, tmp_path / "cut") == 1, "too long for its positions"
    assert adapt(source, texts, tmp_path / "out", "--positions", positions, "--max-tokens", str(LONG)) == 0
    record = json.loads((tmp_path / "out" / "training.json").read_text())
    assert (record["identity"]["positions"], record["identity"]["max_tokens"]) == (positions, LONG)
    assert load_to_export(str(tmp_path / "out")).max_tokens == LONG


def test_the_student_begins_with_the_longer_table_of_its_teacher(tmp_path: Path) -> None:
    source = save(CHECKPOINTS["roberta"], tmp_path / "roberta")
    teacher = load_teacher(source, "repeated", LONG)
    student = load_student(source, "yoso", starting(), "repeated", LONG)
    tables = [one.inner.base_model.embeddings.position_embeddings.weight for one in (teacher, student)]
    assert torch.equal(*tables)
    assert tables[1].requires_grad
    text = teacher.texts.encode("the lazy dog " * 60, None, truncate=False, param="text")
    [(samples, _)] = recorded(teacher, [text])
    assert len(samples[0].query) > 100


def test_lengths_that_a_model_cannot_have_are_refused(tmp_path: Path) -> None:
    source = save(CHECKPOINTS["bert"], tmp_path / "bert")
    own = save(CHECKPOINTS["encoder-softmax"], tmp_path / "own")
    assert load_teacher(source, TRAINED_POSITIONS, 32).texts.max_tokens == 32
    cases = [
        (
            source,
            TRAINED_POSITIONS,
            LONG,
            f"max_tokens is {LONG}, must be at most the 70 that the model .* repeated or",
        ),
        (source, "repeated", 70, "max_tokens is 70, must be more than the 70 positions"),
        (source, "interpolated", None, "max_tokens is None, must be more than the 70 positions"),
        (own, "repeated", 1024, "no table of learned positions"),
    ]
    for folder, positions, tokens, sentence in cases:
        with pytest.raises(ExportError, match=sentence):
            load_teacher(folder, positions, tokens)
