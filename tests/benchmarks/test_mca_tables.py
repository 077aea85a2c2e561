"""The tables of MCA: GLUE's files, scores, and how work is counted over real tokens and in the paper's way."""

import gzip
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from benchmarks.contenders import classifiers, glue
from benchmarks.papers import mca_tables
from safetensors.numpy import load_file

FILES = {
    "sst2": "sentence\tlabel\na charming film \t1\n",
    "mrpc": '\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String\n0\t12\t13\tHe said "no .\tShe did .\n',
    "rte": "index\tsentence1\tsentence2\tlabel\n0\tIt rains.\tIt is wet.\tentailment\n",
    "cola": "gj04\t0\t*\tThem sailed.\n",
}


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ("sst2", {"text": "a charming film", "label": 1}),
        ("mrpc", {"text": 'He said "no .', "text_pair": "She did .", "label": 0}),
        ("rte", {"text": "It rains.", "text_pair": "It is wet.", "label": 1}),
        ("cola", {"text": "Them sailed.", "label": 0}),
    ],
)
def test_files_in_their_published_form(key: str, expected: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / key).mkdir()
    (tmp_path / key / "dev.tsv").write_text(FILES[key], encoding="utf-8")
    assert glue.read(tmp_path, key, "dev") == [expected]


def test_scores() -> None:
    given, true = np.array([1, 1, 0, 0, 1]), np.array([1, 0, 0, 1, 1])
    assert glue.accuracy(given, true) == pytest.approx(0.6)
    assert glue.f1(given, true) == pytest.approx(2 / 3)
    assert glue.matthews(given, true) == pytest.approx((2 * 1 - 1 * 1) / 6)  # (TP TN - FP FN) / sqrt(3 * 3 * 2 * 2)
    assert glue.matthews(np.ones(5), true) == 0.0


class Model:
    """Spends half of the projection on every text; the label is whether the text is long. Keeps the alphas."""

    def __init__(self) -> None:
        self.alphas: list[float] = []
        self.knobs = SimpleNamespace(exact=dict, check=lambda knobs: knobs)

    def encode(self, text: str, pair: str | None, truncate: bool) -> Any:
        ids = np.zeros(len(text), np.int64)
        return SimpleNamespace(token_ids=ids, type_ids=ids)

    def run(self, rows: list[Any]) -> list[Any]:
        self.alphas += [row.knobs["alpha"] for row in rows]
        logits = [np.array([0, 1]) if len(row.token_ids) > 20 else np.array([1, 0]) for row in rows]
        return [SimpleNamespace(logits=each, outputs={"value_flops": 0.5}) for each in logits]


def test_padding_counts_as_saved_work_in_the_papers_way_alone() -> None:
    model, rows = Model(), [{"text": "x" * 16, "label": 0}, {"text": "x" * 48, "label": 1}]
    result = mca_tables.answer(model, "sst2", rows, 0.4, "padded", 0)  # type: ignore[arg-type]
    assert result["real"] == 2.0
    assert result["padded"] == 2 * 128 / (0.5 * 64)
    assert result["scores"]["acc"] == 100.0
    assert model.alphas == pytest.approx([0.4 * 16 / 128, 0.4 * 48 / 128])


def test_what_a_run_starts_from_and_refuses(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    texts = [
        {"text": f"a {'fine' if label else 'dull'} film {i % 7}", "label": label} for label in (0, 1) for i in range(60)
    ]
    classifiers.fresh_bert(texts, ("0", "1"), 4, 16, tmp_path / "bert")
    classifiers.pretrained(tmp_path / "bert", ("0", "1"), True, 8, tmp_path / "half")
    config = json.loads((tmp_path / "half" / "config.json").read_text())
    assert (config["num_hidden_layers"], config["max_position_embeddings"]) == (2, 16)
    whole, half = (load_file(tmp_path / name / "model.safetensors") for name in ("bert", "half"))
    second = "bert.encoder.layer.{}.attention.self.value.weight"
    assert (half[second.format(1)] == whole[second.format(2)]).all()
    with pytest.raises(SystemExit, match="must be the folder of a BERT"):
        classifiers.pretrained(tmp_path, ("0", "1"), False, 8, tmp_path / "none")
    for wrong, sentence in (([], "which has no sst2/dev.tsv"), (["--start", "nowhere"], "--start is 'nowhere'")):
        if wrong:
            (tmp_path / "sst2").mkdir()
            (tmp_path / "sst2" / "dev.tsv").write_text(FILES["sst2"])
        with pytest.raises(SystemExit):
            mca_tables.parse(["--data", str(tmp_path), "--work", str(tmp_path / "work"), *wrong])
        assert sentence in capsys.readouterr().err


def test_long_documents_are_divided_and_not_in_the_order_of_labels(tmp_path: Path) -> None:
    (tmp_path / "hyperpartisan").mkdir()
    rows = [{"text": f"text<br />{i}", "label": int(i > 24)} for i in range(50)]
    with gzip.open(tmp_path / "hyperpartisan" / "byarticle.jsonl.gz", "wt") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)
    assert glue.present(tmp_path) == ["hyperpartisan"]
    train, dev = (glue.read(tmp_path, "hyperpartisan", split) for split in ("train", "dev"))
    assert (len(train), len(dev)) == (40, 10)
    assert {row["text"] for row in train + dev} == {f"text {i}" for i in range(50)}
    assert len({row["label"] for row in dev}) == 2
