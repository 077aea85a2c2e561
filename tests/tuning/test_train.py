"""`attenuator train`: from texts to a checkpoint that exports and classifies, and what it refuses."""

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from checkpoints import CHECKPOINTS, SMALL, VOCAB, fast_tokenizer, save, word_tokenizer
from training_data import LABELS, lines, write

from attenuator.errors import InvalidRequest
from attenuator.export.encoder import Encoder, EncoderConfig
from attenuator.export.pipeline import export
from attenuator.runtime import Row, load
from attenuator.tuning.output import RECORD
from attenuator.tuning.train.__main__ import main

HASHED = ("--attention", "yoso", "--num-hashes", "4", "--hash-bits", "4")
QUICK = ("--epochs", "6", "--learning-rate", "4e-3", "--batch-tokens", "256", "--threads", "1")


@pytest.fixture(autouse=True)
def threads() -> Any:
    """The command sets the number of PyTorch's threads for its whole process."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("data") / "texts.jsonl", 120)


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of a small BERT, beside a tokenizer and no weights."""
    folder = tmp_path_factory.mktemp("config")
    shape = SMALL | {"num_labels": 2, "hidden_dropout_prob": 0.0, "initializer_range": 0.2}
    transformers.BertConfig(**shape).save_pretrained(folder)
    fast_tokenizer().save_pretrained(folder)
    return folder / "config.json"


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of the own encoder with random weights, its labels those of the texts in another order."""
    folder = tmp_path_factory.mktemp("encoder")
    torch.manual_seed(0)
    shape = {"vocab_size": VOCAB, "hidden_size": 32, "num_attention_heads": 2, "intermediate_size": 37}
    Encoder(
        EncoderConfig(**shape, attention="softmax", max_tokens=40, id2label=dict(enumerate(reversed(LABELS))))
    ).save_pretrained(folder)
    word_tokenizer().save(str(folder / "tokenizer.json"))
    return folder


def trained(
    capsys: pytest.CaptureFixture[str], source: Path, texts: Path, output: Path, *flags: str
) -> tuple[dict[str, Any], str]:
    """What a successful run records, and what it prints."""
    assert main([str(source), "--data", str(texts), "--output", str(output), *QUICK, *flags]) == 0
    record: dict[str, Any] = json.loads((output / RECORD).read_text())
    assert record["finished"]
    assert not (output / "steps").exists()
    losses = [row["loss"] for row in record["log"] if "loss" in row]
    assert losses[-1] < 0.8 * losses[0]
    return record, capsys.readouterr().out


def answers(checkpoint: Path, attention: str, folder: Path) -> tuple[list[str], dict[str, float]]:
    """Labels that the exported checkpoint gives, and the defaults of its knobs."""
    manifest = export(str(checkpoint), attention=attention, output=folder, schedule="none")  # one graph to trace
    bundle = load(folder)
    defaults = {knob.name: knob.default for knob in manifest.knobs}
    rows = []
    for text in ("a good good film it is good", "the plot is bad bad bad"):
        encoded = bundle.encode(text)
        rows.append(Row(encoded.token_ids, encoded.type_ids, bundle.knobs.check({})))
    return [bundle.predict(result.logits).label for result in bundle.run(rows)], defaults


def test_a_config_becomes_a_bundle_that_classifies(
    config: Path, texts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = tmp_path / "texts.csv"
    with table.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["review", "stars"])
        rows.writerows((row["text"], row["label"]) for row in lines(120))
    columns = ("--column", "review", "--label-column", "stars")
    record, out = trained(capsys, config, table, tmp_path / "an out", *HASHED, *columns)
    assert set(record["held_out"]) == {"as trained", "at the exact value"}
    assert record["held_out"]["as trained"]["accuracy"] > 0.9
    assert "95 % interval" in out
    assert f"next: attenuator tune '{tmp_path / 'an out'}' --texts FILE --output BUNDLE" in out, "as a shell takes it"
    stored = json.loads((tmp_path / "an out" / "config.json").read_text())
    assert (stored["id2label"], stored["attenuator"]["hash_bits"]) == (dict(zip("01", LABELS, strict=True)), 4)
    labels, defaults = answers(tmp_path / "an out", "yoso", tmp_path / "bundle")
    assert labels == ["positive", "negative"]
    assert defaults["num_hashes"] == 4


def test_an_encoder_trains_with_its_own_attention_then_with_another(
    encoder: Path, texts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record, _ = trained(capsys, encoder, texts, tmp_path / "first")
    assert record["held_out"]["as trained"]["accuracy"] > 0.9
    assert set(record["held_out"]) == {"as trained"}
    more = ("--learning-rate", "1e-3", "--epochs", "1", "--batch-tokens", "256")
    arguments = [str(tmp_path / "first"), "--data", str(texts), "--output", str(tmp_path / "second"), *HASHED, *more]
    assert main(arguments) == 0
    stored = EncoderConfig.load(tmp_path / "second")
    assert (stored.attention, stored.hash_bits, stored.knobs) == ("yoso", 4, {"num_hashes": 4})
    assert [stored.id2label[index] for index in range(2)] == list(reversed(LABELS))
    labels, defaults = answers(tmp_path / "second", "yoso", tmp_path / "hashed")
    assert labels == ["positive", "negative"]
    assert defaults["num_hashes"] == 4


def test_an_encoder_goes_on_with_an_attention_that_only_it_has(
    texts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Attributes, sizes and knobs of its config go the whole way; its own weights are trained like the others."""
    torch.manual_seed(0)
    shape = {"vocab_size": VOCAB, "hidden_size": 32, "num_attention_heads": 2, "intermediate_size": 37}
    own = {"attributes": {"trained_window": 5}, "sizes": {"global_rows": 3}, "knobs": {"window": 2}}
    labels = dict(enumerate(LABELS))
    model = Encoder(EncoderConfig(**shape, **own, attention="longshort", max_tokens=40, id2label=labels))
    model.save_pretrained(tmp_path / "start")
    word_tokenizer().save(str(tmp_path / "start" / "tokenizer.json"))
    record, _ = trained(capsys, tmp_path / "start", texts, tmp_path / "trained")
    assert record["held_out"]["as trained"]["accuracy"] > 0.9
    learned = Encoder.from_pretrained(tmp_path / "trained")
    assert learned.config.sizes == {"global_rows": 3}
    before, after = (each.layers[0].attention.weights for each in (model, learned))
    assert all(not torch.equal(before[name], after[name]) for name in before)
    manifest = export(str(tmp_path / "trained"), attention="longshort", output=tmp_path / "bundle")
    [knob] = manifest.knobs
    assert (knob.name, knob.low, knob.high, knob.default) == ("window", 0, 5, 2)


def test_several_labels_and_places_of_labels(encoder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    several = tmp_path / "several.jsonl"
    rows = [{"text": row["text"], "labels": [row["label"]] if i % 3 else LABELS} for i, row in enumerate(lines(60))]
    several.write_text("".join(json.dumps(row) + "\n" for row in rows))
    run = [str(encoder), "--epochs", "1", "--output"]
    assert main([*run, str(tmp_path / "several"), "--data", str(several)]) == 0
    captured = capsys.readouterr()
    assert "F1 over all labels" in captured.out
    assert "its weights are drawn anew" not in captured.err, "the two labels are the checkpoint's own"
    assert EncoderConfig.load(tmp_path / "several").problem_type == "multi_label_classification"
    places = tmp_path / "places.jsonl"
    places.write_text("".join(json.dumps(row | {"label": i % 2}) + "\n" for i, row in enumerate(lines(60))))
    assert main([*run, str(tmp_path / "places"), "--data", str(places), "--max-minutes", "0.0001"]) == 0
    assert EncoderConfig.load(tmp_path / "places").id2label == dict(enumerate(reversed(LABELS)))


def rewritten(change: Callable[[list[dict[str, Any]]], Any]) -> Callable[[Path], Path]:
    """A file of texts with a change."""

    def make(folder: Path) -> Path:
        rows: list[dict[str, Any]] = list(lines(40))
        change(rows)
        path = folder / "changed.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return path

    return make


@pytest.mark.parametrize(
    ("make", "flags", "sentence"),
    [
        (lambda folder: folder / "none.jsonl", (), "none.jsonl cannot be read: No such file or directory"),
        (rewritten(lambda rows: rows.clear()), (), "changed.jsonl has no texts, must have one on each line"),
        (rewritten(lambda rows: rows.__delitem__(slice(9, None))), (), "has 9 texts, must have at least 20"),
        (
            rewritten(lambda rows: [row.update(label="all") for row in rows]),
            (),
            "changed.jsonl has one label only, 'all', must have at least 2",
        ),
        (
            rewritten(lambda rows: rows[6].pop("label")),
            (),
            "changed.jsonl line 7 has no label, must have one in the column or field label or labels",
        ),
        (
            rewritten(lambda rows: rows[6].update(label=0.5)),
            (),
            "changed.jsonl line 7 has the label 0.5, must be a text or a whole number",
        ),
        (
            rewritten(lambda rows: rows[6].update(label="\x1b[31mgood")),
            (),
            "changed.jsonl line 7 has the label '\\x1b[31mgood', must have at most 1000 characters and none of control",
        ),
        (
            rewritten(lambda rows: rows[6].update(label="good" * 300)),
            (),
            "must have at most 1000 characters and none of control",
        ),
        (
            rewritten(len),
            ("--label-column", "text"),
            "changed.jsonl has 40 different labels on 40 texts, must have several texts of a label",
        ),
        (
            rewritten(lambda rows: rows[6].update(text="film " * 60)),
            (),
            "changed.jsonl line 7.text has 62 tokens, must have at most 40, or give --truncate to cut it",
        ),
        (rewritten(len), ("--num-hashes", "8"), "num_hashes cannot be set for softmax attention"),
        (rewritten(len), ("--held-out-share", "0.000001"), "which leaves 40 texts to train on and 0 held out"),
        (rewritten(len), ("--held-out", "changed.jsonl"), "--held-out 'changed.jsonl' has the same content as --data"),
        (rewritten(len), ("--column", "body"), "changed.jsonl line 1 has no field body, its fields are text, label"),
    ],
    ids=[
        "missing",
        "empty",
        "few",
        "one-label",
        "no-label",
        "number",
        "control",
        "long-label",
        "own-labels",
        "long",
        "setting",
        "share",
        "same",
        "column",
    ],  # fmt: skip
)
def test_data_and_settings_that_cannot_be_trained_with_are_refused(
    make: Callable[[Path], Path],
    flags: tuple[str, ...],
    sentence: str,
    encoder: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from attenuator.__main__ import main as command

    monkeypatch.chdir(tmp_path)
    output = tmp_path / "out"
    code = command(["train", str(encoder), "--data", str(make(tmp_path)), "--output", str(output), *flags])
    assert code == 1
    assert sentence in capsys.readouterr().err
    assert not output.exists(), "the same command can be given again"


def test_folders_that_a_run_cannot_go_to_are_refused(
    encoder: Path, texts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from attenuator.__main__ import main as command

    def error(output: Path, *flags: str, source: Path = encoder) -> str:
        assert command(["train", str(source), "--data", str(texts), "--output", str(output), *flags]) == 1
        return capsys.readouterr().err

    used = tmp_path / "used"
    used.mkdir()
    (used / "notes.txt").write_text("mine")
    assert "is not empty, must be a new folder or an empty one\n" in error(used)
    assert f"has no run to go on with: it lacks a readable {RECORD}" in error(used, "--resume")
    (used / "notes.txt").unlink()
    (used / RECORD).write_text(
        json.dumps({"identity": {"checkpoint": str(encoder), "data": "another"}, "finished": False})
    )
    assert "--resume goes on with the run that was stopped there" in error(used)
    assert "was begun with data 'another' and cannot go on with" in error(used, "--resume")
    (used / RECORD).write_text(json.dumps({"identity": {}, "finished": True}))
    assert "is finished, must be one that was stopped" in error(used, "--resume")
    begun = {"checkpoint": str(encoder), "hash_bits": 4}
    (used / RECORD).write_text(json.dumps({"identity": begun, "finished": False}))
    assert "was begun with hash_bits 4 and cannot go on with None" in error(used, "--resume")
    for broken in (b"\xe9", b"[" * 10**5, b"[]", b'{"finished": false, "identity": []}'):
        (used / RECORD).write_bytes(broken)
        assert f"has no run to go on with: it lacks a readable {RECORD}" in error(used, "--resume")
    for steps in (0, 1.5, "all"):
        (used / RECORD).write_text(json.dumps({"identity": {}, "finished": False, "steps": steps}))
        assert f"it lacks a readable {RECORD}" in error(used, "--resume")
    assert "cannot be a folder to write to: Not a directory" in error(texts)
    assert (
        "'nowhere' is not a folder; give a checkpoint folder, a Hugging Face id (org/name) or a config.json"
        in error(tmp_path / "new", source=Path("nowhere"))
    )


@pytest.mark.parametrize(
    ("flag", "value"),
    [("epochs", "inf"), ("max-minutes", "inf"), ("learning-rate", "10"), ("threads", "100000")],
)
def test_numbers_without_bounds_are_refused(flag: str, value: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["checkpoint", "--data", "texts.jsonl", "--output", "out", f"--{flag}", value])
    assert ended.value.code == 2
    assert f"--{flag} (or " in (error := capsys.readouterr().err)
    assert f"is '{value}', must be a" in error


def test_a_config_that_leaves_trained_layers_out_is_refused(
    texts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from attenuator.__main__ import main as command

    source = save(CHECKPOINTS["bert"], tmp_path / "bert")
    config = json.loads((source / "config.json").read_text())
    for layers in (1, 0):
        (source / "config.json").write_text(json.dumps(config | {"num_hidden_layers": layers}))
        assert command(["train", str(source), "--data", str(texts), "--output", str(tmp_path / "out")]) == 1
        assert f"with num_hidden_layers {layers} the trained weight " in capsys.readouterr().err


def test_a_family_that_computes_attention_by_itself_keeps_its_own(
    texts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from attenuator.__main__ import main as command

    source = save(CHECKPOINTS["mpnet"], tmp_path / "mpnet")
    run = ["train", str(source), "--data", str(texts), "--max-minutes", "0.0001", "--output"]
    assert command([*run, str(tmp_path / "refused"), *HASHED]) == 1
    assert "computes its attention by itself" in capsys.readouterr().err
    assert command([*run, str(tmp_path / "out")]) == 0
    assert "its labels are one of: 'LABEL_0', 'LABEL_1', 'LABEL_2': its weights are drawn anew" in (
        capsys.readouterr().err
    )


def test_numbers_are_learnt_as_a_score(config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By a model that is begun, and on by the same score."""
    texts = tmp_path / "texts.jsonl"
    scores = {"negative": -0.5, "positive": "1.5"}
    texts.write_text("".join(json.dumps(row | {"label": scores[row["label"]]}) + "\n" for row in lines(120)))
    record, out = trained(capsys, config, texts, tmp_path / "first", "--regression")
    assert record["held_out"]["as trained"]["r2"] > 0.8
    assert record["held_out"]["as trained"]["rmse"] < 0.5
    assert "root mean squared error 0." in out
    stored = transformers.AutoConfig.from_pretrained(tmp_path / "first")
    assert (stored.problem_type, stored.id2label) == ("regression", {0: "score"})
    manifest = export(str(tmp_path / "first"), attention="softmax", output=tmp_path / "bundle", schedule="none")
    assert (manifest.task, manifest.labels) == ("regression", ["score"])
    bundle = load(tmp_path / "bundle")
    encoded = [bundle.encode(text) for text in ("a good good film", "the plot is bad bad")]
    rows = [Row(one.token_ids, one.type_ids, bundle.knobs.check({})) for one in encoded]
    good, bad = (float(result.logits[0]) for result in bundle.run(rows))
    assert good > 1 > 0 > bad
    more = ("--data", str(texts), "--output", str(tmp_path / "second"), "--regression", "--epochs", "0.1")
    assert main([str(tmp_path / "first"), *more]) == 0
    assert "drawn anew" not in capsys.readouterr().err
    texts.write_text(texts.read_text().replace('"1.5"', '"good"', 1))
    with pytest.raises(InvalidRequest, match="line 2 has the label a text, must be a number from -1e"):
        main([str(tmp_path / "first"), *more])
