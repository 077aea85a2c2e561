"""`benchmarks.papers.bert_small` on a few made-up reviews: trained through the product, once, and shown."""

import gzip
import json
from pathlib import Path

import pytest
from benchmarks.papers import bert_small


def test_models_are_trained_once_and_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "imdb").mkdir()
    for split in ("train", "test"):
        rows = [
            {"text": f"{'good' if label else 'bad'} film number {i} of {split}", "label": label}
            for label in (0, 1)
            for i in range(20)
        ]
        with gzip.open(tmp_path / "imdb" / f"{split}.jsonl.gz", "wt", encoding="utf-8") as file:
            file.writelines(json.dumps(row) + "\n" for row in rows)
    output = tmp_path / "bert_small.json"
    command = ["--data", str(tmp_path), "--work", str(tmp_path / "work"), "--output", str(output), "--layers", "1"]
    command += ["--tokens", "16", "--epochs", "1", "--seeds", "1", "--attentions", "linear", "yoso:num_hashes=4"]
    assert bert_small.main([*command, "--minutes", "0"]) == 0
    assert not output.exists()
    assert bert_small.main(command) == 0
    rows = json.loads(output.read_text())["rows"]
    assert [(row["attention"], row["settings"], row["test"]) for row in rows] == [
        ("linear", {}, 40),
        ("yoso", {"num_hashes": 4}, 40),
    ]
    assert all(0 <= row["accuracy"] <= 1 and row["steps"] >= 1 for row in rows)
    output.unlink()  # what was trained is not trained again
    with pytest.MonkeyPatch.context() as nothing_more:
        nothing_more.setattr("benchmarks.contenders.classifiers.command", lambda _: pytest.fail("trained again"))
        assert bert_small.main(command) == 0
    again = json.loads(output.read_text())["rows"]
    assert [row["accuracy"] for row in again] == [row["accuracy"] for row in rows]
    assert "| yoso | num_hashes 4 |" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        bert_small.main([*command[:1], str(tmp_path / "imdb"), *command[2:]])
    assert "which has no imdb/test.jsonl.gz" in capsys.readouterr().err
