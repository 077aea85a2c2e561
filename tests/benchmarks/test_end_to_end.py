"""The way from labelled texts to the end-to-end tables: training, exports, contenders, labels, report."""

import gzip
import json
import random
from pathlib import Path

import pytest
from benchmarks.contenders import documents, served
from benchmarks.measure import intervals
from benchmarks.models import end_to_end, files, train_classifier, tune
from benchmarks.report import end_to_end_tables
from transformers import BertForSequenceClassification

WORDS = {"rec.autos": "engine wheel brake clutch", "sci.med": "dose pain nerve blood", "comp.graphics": "pixel shader"}


def message(group: str, source: random.Random) -> str:
    words = [*WORDS[group].split(), *(f"{a}{b}" for a in "bcdfgh" for b in ("at", "ine", "or"))]
    lines = (" ".join(source.choices(words, k=12)) for _ in range(3))
    return "From: someone\nSubject: secret\n\n> secret quotation\n" + "\n\n".join(lines)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Trained for a second on made-up messages."""
    folder = tmp_path_factory.mktemp("training")
    source = random.Random(0)
    for split, count in (("train", 60), ("test", 400)):
        groups = source.choices(list(WORDS), k=count)
        rows = ({"group": group, "text": message(group, source)} for group in groups)
        with gzip.open(folder / f"{split}.jsonl.gz", "wt", encoding="utf-8") as lines:
            lines.writelines(json.dumps(row) + "\n" for row in rows)
    output = folder / "checkpoint"
    small = ["--layers", "2", "--channels", "16", "--length", "30", "--minutes", "0.01"]
    assert train_classifier.main(["--data", str(folder), "--task", "topics", *small, "--output", str(output)]) == 0
    return output


def test_a_checkpoint_is_trained_on_bodies_of_known_topics(checkpoint: Path) -> None:
    rows = documents.read(checkpoint / "test.jsonl")
    assert {row["label"] for row in rows} == {"vehicles", "computers"}  # no topic holds sci.med
    assert not any("secret" in row["text"] for row in rows)
    model = BertForSequenceClassification.from_pretrained(checkpoint)
    assert model.config.label2id["vehicles"] == list(train_classifier.TOPICS).index("vehicles")


def test_a_topic_begins_with_its_subject_if_asked() -> None:
    header = "From: someone\nSubject: Re: RE: brakes that squeal\nLines: 3"
    subject = train_classifier.subject_of(header)
    text = train_classifier.Text("one\n\ntwo", 0, subject=subject)
    assert [part.text for part in train_classifier.paragraphs([text])] == [
        "brakes that squeal. one",
        "brakes that squeal. two",
    ]


def test_every_contender_classifies_the_same_documents(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(end_to_end, "MOST_TIMED", 40)
    output = tmp_path / "e.json"
    words = ["--shapes", "--quick", "--seconds", "0", "--threads", "1", "--output", str(output)]
    assert end_to_end.main([str(checkpoint), *words]) == 0
    result = json.loads(output.read_text(encoding="utf-8"))
    [whole] = result["texts"]
    assert whole["cut"] == 30
    assert whole["mean_tokens"] <= 30
    ours = [name for name in whole["contenders"] if name.endswith(served.EXACT) or served.KEEP in name]
    assert ours[0] == served.EXACT
    assert f"int8, {served.EXACT}" in ours
    others = [served.TORCH, served.PIPELINE, served.ORT_FP32, served.ORT_FP32_SORTED]
    assert list(whole["contenders"]) == [
        *others,
        served.ORT_INT8,
        served.ORT_INT8_SORTED,
        served.ORT_STATIC,
        served.ORT_STATIC_SORTED,
        *ours,
    ]
    assert whole["over_exact"][served.EXACT]["median"] == 1
    assert max(whole["errors"].values()) < 1e-4
    exact = whole["labels"][served.EXACT]
    # Labels are compared on as many documents as have the tokens that were asked for, however few are timed.
    assert whole["documents"] == 40 < exact["agreement"]["documents"]
    assert exact["agreement"]["share"] == 1
    assert exact["accuracy"] == whole["labels"][served.ORT_FP32]["accuracy"]
    [table] = end_to_end_tables.parts(result)
    assert "100.0% (" in table


def test_documents_keep_their_order_through_sorted_batches() -> None:
    ids = tuple([5] * n for n in (9, 3, 7, 1, 4))
    some = documents.Documents(ids, 9, batch_size=2)
    assert [list(batch) for batch in some.batches()] == [[0, 1], [2, 3], [4]]
    assert [list(batch) for batch in some.batches(by_length=True)] == [[3, 1], [4, 2], [0]]
    assert len(some.first(13, 5).ids) == 2
    assert len(some.first(100, 4).ids) == 4


def test_an_interval_is_wilsons() -> None:
    share = intervals.share([True] * 9 + [False])
    assert share["share"] == 0.9
    assert (share["low"], share["high"]) == pytest.approx((0.5958, 0.9821), abs=1e-4)


def test_a_file_is_timed_beside_the_pipeline(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "files.json"
    words = ["--most", "20", "--threads", "1", "--seconds", "0", "--keep", "0.5", "--output", str(output)]
    assert files.main([str(checkpoint), *words]) == 0
    names = list(json.loads(output.read_text())["contenders"])
    assert names[:2] == ["pipeline", "pipeline, sorted"]
    assert names[2:] == [f"classify, {each}" for each in ("fp32", "fp32, keep 0.5", "int8", "int8, keep 0.5")]
    printed = capsys.readouterr().out.splitlines()
    assert [line.split("  ")[0] for line in printed] == names
    assert "1.00 times the pipeline" in printed[0]


def test_the_promise_of_a_tuning_is_followed_over_many_draws(
    checkpoint: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    texts = ["--texts", str(checkpoint / "test.jsonl"), "--tuning", "150"]
    assert tune.main([str(checkpoint), *texts, "--splits", "3", "--min-agreement", "0.9"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["draws"] == sum(result["settings"].values()) == 3
    assert 0 <= result["promise_holds"] <= 3
    assert result["less_work_times"] >= 1
