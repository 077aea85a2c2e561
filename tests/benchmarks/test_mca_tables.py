"""The tables of MCA: GLUE's files, scores, and how work is counted over real tokens and in the paper's way."""

from argparse import Namespace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from benchmarks import mca_tables
from benchmarks.contenders import glue

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
    result = mca_tables.answer(model, rows, 0.4, "128", 0)  # type: ignore[arg-type]
    assert result["real"] == 2.0
    assert result["padded"] == 2 * 128 / (0.5 * 64)
    assert result["scores"]["acc"] == 100.0
    assert model.alphas == pytest.approx([0.4 * 16 / 128, 0.4 * 48 / 128])


def test_tables_stand_beside_the_papers() -> None:
    result = {"scores": dict.fromkeys(glue.METRICS, 70.0), "tokens": 32.0, "real": 1.5, "padded": 6.0}
    done = {("mrpc", "2 layers", *each): result for each in mca_tables.settings(2)}
    lines = list(mca_tables.lines(Namespace(tasks=["mrpc"], seeds=2), done, "2 layers"))
    assert len(lines) == 2 * 5
    assert lines[0][6] == "4.00 (padding alone)"
    assert lines[1] == ["MRPC, acc", "0.2", "70.0 ± 0.0", "1.50", "70.0 ± 0.0", "1.50", "6.00", "85.26 (85.78)", "2.98"]
