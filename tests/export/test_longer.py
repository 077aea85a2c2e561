"""Models that read more tokens than they have trained positions for."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from checkpoints import CHECKPOINTS, DEBERTA, VOCAB, Checkpoint, load, save
from exported import LENGTHS, rows, run

from attenuator.bundle import TRAINED_POSITIONS, read_manifest
from attenuator.errors import ExportError
from attenuator.export import export
from attenuator.export.longer import lengthen
from attenuator.export.source import load as load_source
from attenuator.runtime import Row, create

LONG = 190
LEARNED = {name: CHECKPOINTS[name] for name in ("bert", "roberta", "distilbert", "electra", "albert", "mpnet")} | {
    "deberta-v2": Checkpoint(transformers.DebertaV2Config(**DEBERTA | {"position_biased_input": True}))
}
Folder = Callable[[str], Path]


def at_repeated_positions(folder: Path, ids: np.ndarray) -> np.ndarray:
    """Logits of the checkpoint as it is, told the position of each token, modulo those it has."""
    source = load_source(str(folder))
    offset = source.architecture.position_offset(source.model.config)
    positions = offset + torch.arange(len(ids)) % source.max_tokens
    more = {} if source.model.config.model_type == "distilbert" else {"token_type_ids": torch.zeros(1, len(ids)).long()}
    model: Any = load(folder)
    with torch.inference_mode():
        logits = model(input_ids=torch.from_numpy(ids)[None], position_ids=positions[None], **more).logits[0]
    return np.asarray(logits)


@pytest.mark.parametrize("name", LEARNED)
def test_repeated_rows_are_looked_up_modulo_the_trained_ones(name: str, tmp_path: Path) -> None:
    folder = save(LEARNED[name], tmp_path / name)
    ids = np.random.default_rng(1).integers(5, VOCAB, LONG)
    source = load_source(str(folder))
    lengthen(source, "repeated", LONG)
    model: Any = source.model
    with torch.inference_mode():
        logits = model(input_ids=torch.from_numpy(ids)[None]).logits[0].numpy()
    np.testing.assert_allclose(logits, at_repeated_positions(folder, ids), rtol=1e-5, atol=1e-5)
    assert source.max_tokens == LONG


def test_a_bundle_reads_longer_texts_and_answers_short_ones_as_before(
    checkpoint: Folder, exported: Callable[[str, str], Path], tmp_path: Path
) -> None:
    """The bundle itself, through ONNX Runtime; RoBERTa's positions begin behind two other rows."""
    before = exported("roberta", "mca")
    export(
        str(checkpoint("roberta")),
        attention="mca",
        output=tmp_path / "longer",
        max_tokens=LONG,
        positions="repeated",
    )
    manifest, short = read_manifest(tmp_path / "longer"), read_manifest(before)
    assert (manifest.max_tokens, manifest.provenance.positions) == (LONG, "repeated")
    batch = rows(short, LENGTHS, {"alpha": 0.4, "keep": 0.6})
    session = create(tmp_path / "longer" / "model.onnx")
    logits = run(session, manifest, batch)["logits"]
    assert logits.tobytes() == run(create(before / "model.onnx"), short, batch)["logits"].tobytes()
    ids = np.random.default_rng(2).integers(5, VOCAB, LONG)  # no padding token, which has no position of its own
    long = Row(ids, np.zeros_like(ids), {knob.name: knob.exact for knob in manifest.knobs}, seed=1)
    expected = at_repeated_positions(checkpoint("roberta"), ids)
    np.testing.assert_allclose(run(session, manifest, [long])["logits"][0], expected, rtol=1e-4, atol=1e-4)


def test_interpolated_rows_lie_on_straight_lines(checkpoint: Folder) -> None:
    source = load_source(str(checkpoint("roberta")))
    model: Any = source.model
    trained = model.base_model.embeddings.position_embeddings.weight.numpy().copy()
    lengthen(source, "interpolated", LONG)
    model = source.model
    table = model.base_model.embeddings.position_embeddings.weight.numpy()
    places = np.linspace(0, len(trained) - 3, LONG)
    expected = [np.interp(places, np.arange(len(trained) - 2), column) for column in trained[2:].T]
    assert table[:2].tobytes() == trained[:2].tobytes(), "rows that are no position stay"
    np.testing.assert_allclose(table[2:], np.stack(expected, axis=1), rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "positions", "max_tokens", "sentence"),
    [
        ("bert", "repeated", None, "max_tokens is None, must be more than the 70 positions"),
        ("bert", "interpolated", 70, "max_tokens is 70, must be more than the 70 positions"),
        ("bert", "repeated", 10**10, "max_tokens is 10000000000, must be at most 1048576"),
        ("roberta", "interpolated", 10**25, "must be at most 1048576"),
        ("bert", "stretched", 100, "must be one of: trained, repeated, interpolated"),
        ("modernbert", "repeated", 100, "family 'modernbert' has no table of learned positions"),
        ("encoder-softmax", "repeated", 10_000, "family 'attenuator-encoder' has no table of learned positions"),
    ],
)
def test_refusals(name: str, positions: str, max_tokens: int | None, sentence: str, checkpoint: Folder) -> None:
    source = load_source(str(checkpoint(name)))
    with pytest.raises(ExportError, match=sentence):
        lengthen(source, positions, max_tokens)


def test_trained_positions_are_left_alone(checkpoint: Folder) -> None:
    source = load_source(str(checkpoint("bert")))
    model, longest = source.model, source.max_tokens
    lengthen(source, TRAINED_POSITIONS, 20)
    assert (source.model, source.max_tokens) == (model, longest)
