"""`attenuator classify` from a file to a file: columns, rows with errors, and going on where a run ended."""

import csv
import functools
import io
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import calibrations
import numpy as np
import pytest
import tiny
from running import Run
from service import Service

import attenuator
from attenuator.bundle import CALIBRATION
from attenuator.errors import InvalidRequest
from attenuator.rows import Columns, FileRow, file_rows

TABLE = """id,review,label
1,"good film, bad plot",pos
2,"good
bad",neg
3, ,neg
4,too,many,cells
5,"ab"c,x
6,very good,pos
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle with a default goal."""
    return calibrations.promising(tiny.write(tmp_path_factory.mktemp("promising") / "promising", "yoso"))


def rows_of(text: str, kind: str) -> list[dict[str, Any]]:
    if kind == "jsonl":
        return [json.loads(line) for line in text.splitlines()]
    return list(csv.DictReader(io.StringIO(text), delimiter={"csv": ",", "tsv": "\t"}[kind]))


def read(tmp_path: Path, content: bytes | str, kind: Any, columns: Columns | None = None) -> list[FileRow]:
    file = tmp_path / "file"
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    return list(file_rows(str(file), kind, columns or Columns()))


def test_a_table_keeps_its_columns_and_rows_that_cannot_be_answered(
    run: Run, bundles: dict[str, Path], tmp_path: Path
) -> None:
    source, output = tmp_path / "in.csv", tmp_path / "out.csv"
    source.write_text(TABLE)
    arguments = ["classify", "--bundle", bundles["mca"], "--alpha", "0.5"]
    code, shown, errors = run(*arguments, "--input", source, "--column", "review", "--output", output)
    assert (code, shown) == (1, "")
    assert errors == (
        f"attenuator classify: 3 of 6 rows have an error, the first: {source} line 5 is empty, must be a text with at "
        "least one visible character\n"
    )
    rows = rows_of(output.read_text(), "csv")
    assert [row["id"] for row in rows] == ["1", "2", "3", "4", "", "6"]
    assert [row["input_label"] for row in rows] == ["pos", "neg", "neg", "many", "", "pos"]
    assert rows[1]["review"] == "good\nbad"
    assert rows[3]["error"] == f"{source} line 6 has 4 cells, the header has 3"
    assert rows[4]["error"].startswith(f"{source} line 7 is not CSV: ")
    answered = [rows[0], rows[1], rows[5]]
    alone = [
        json.loads(line) for line in run(*arguments, "--json", *(row["review"] for row in answered))[1].splitlines()
    ]
    for row, record in zip(answered, alone, strict=True):
        assert (row["label"], float(row["score"])) == (record["label"], record["score"])
        assert int(row["tokens"]) == record["tokens"]
        assert (json.loads(row["knobs"]), row["seed"], row["error"]) == ({"alpha": 0.5}, "0", "")
    assert not list(tmp_path.glob("*.partial*"))


@pytest.mark.parametrize("kind", ["csv", "tsv", "jsonl"])
def test_bundle_and_server_write_the_same(
    run: Run, bundles: dict[str, Path], url: str, tmp_path: Path, kind: str
) -> None:
    source = tmp_path / "in.jsonl"
    pairs = [{"n": number, "a": f"good film {number}", "b": "bad plot" * (number % 3)} for number in range(20)]
    source.write_text("".join(json.dumps(pair) + "\n" for pair in pairs) + '{"n": 20}\n')
    written = []
    for name, place in (("here", [bundles["multi"]]), ("there", ["--url", url, "--model", "multi"])):
        output = tmp_path / f"{name}.{kind}"
        further = ["--input", source, "--output", output, "--column", "a", "--pair-column", "b"]
        code, _, errors = run("classify", *place, "--num-hashes", "8", "--top-k", "2", "--logits", *further)
        assert code == 1
        assert errors.startswith("attenuator classify: 8 of 21 rows have an error")
        written.append(output.read_text())
    assert written[0] == written[1]
    rows = rows_of(written[0], kind)
    assert [int(row["n"]) for row in rows] == list(range(21))
    assert rows[1].keys() >= {"a", "b", "label", "score", "labels", "scores", "logits", "knobs"}
    assert ["is empty" in row["error"] for row in rows if row.get("b") == "" and int(row["n"]) < 20] == [True] * 7
    assert rows[20]["error"].endswith("line 21 has no field a, its fields are n")


def test_standard_input_and_output(
    run: Run, bundles: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "in.tsv"
    source.write_text("text\tn\ngood film\t1\nbad\t2\n")
    with source.open() as stream:
        monkeypatch.setattr("sys.stdin", stream)
        arguments = ["--input", "-", "--format", "tsv", "--output", "-"]
        code, output, errors = run("classify", "--bundle", bundles["yoso"], *arguments)
    assert (code, errors) == (0, "")
    assert [(row["text"], row["n"]) for row in rows_of(output, "tsv")] == [("good film", "1"), ("bad", "2")]
    code, output, _ = run("classify", "--bundle", bundles["yoso"], "--output", "-", "good film", "bad")
    assert (code, [row["text"] for row in rows_of(output, "csv")]) == (0, ["good film", "bad"])
    shown = run("classify", "--bundle", bundles["yoso"], "--input", source)[1]
    assert [line.split("\t")[-1] for line in shown.splitlines()] == ["good film", "bad"]


def test_a_stopped_run_loses_nothing_and_goes_on(
    run: Run, bundles: dict[str, Path], url: str, key: str, tmp_path: Path
) -> None:
    source, output = tmp_path / "in.csv", tmp_path / "out.csv"
    partial = tmp_path / "out.csv.partial.jsonl"
    source.write_text("text\n" + "".join(f"good film {number}\n" for number in range(150)))
    arguments = ["classify", "--url", url, "--model", "yoso", "--concurrency", "2", "--input", str(source)]
    command = [sys.executable, "-m", "attenuator", *arguments, "--output", str(output)]
    environment = os.environ | {"ATTENUATOR_API_KEY": key}
    # Background jobs of shells, such as CI may be, start without heed of this signal.
    heeds = functools.partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment, preexec_fn=heeds) as process:
        assert process.stderr is not None
        end = time.monotonic() + 60
        while not (partial.exists() and partial.read_bytes().count(b"\n") > 30) and time.monotonic() < end:
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        errors = process.stderr.read()
    finished = partial.read_bytes()
    assert process.returncode == 130
    assert "Traceback" not in errors
    assert f"rows: the same command goes on from {partial}" in errors
    assert 30 < finished.count(b"\n") < 150
    assert output.read_text().count("\n") <= finished.count(b"\n")
    written = output.read_text()
    code, _, errors = run(*arguments, "--num-hashes", "8", "--output", output)
    assert output.read_text() == written
    assert (code, partial.read_bytes()) == (1, finished)
    assert "holds answers to a call with other options" in errors
    assert "--restart" in errors
    assert run(*arguments, "--output", output)[0] == 0
    assert not partial.exists()
    assert run(*arguments, "--output", tmp_path / "whole.csv")[0] == 0
    assert output.read_text() == (tmp_path / "whole.csv").read_text()
    partial.write_bytes(finished)
    assert run(*arguments, "--num-hashes", "8", "--output", output, "--restart")[0] == 0
    assert {row["knobs"] for row in rows_of(output.read_text(), "csv")} == {'{"num_hashes": 8}'}


def test_an_output_on_a_full_disk_is_one_sentence_and_its_answers_are_kept(
    run: Run, bundles: dict[str, Path], tmp_path: Path
) -> None:
    output, kept = tmp_path / "full.csv", tmp_path / "kept.jsonl"
    output.symlink_to("/dev/full")
    code, _, errors = run("classify", "--bundle", bundles["mca"], "--output", output, "--resume", kept, "good film")
    sentence = f"{output} cannot be written to its end: No space left on device"
    assert (code, errors) == (1, f"attenuator classify: {sentence}\n")
    output.unlink()
    assert run("classify", "--bundle", bundles["mca"], "--output", output, "--resume", kept, "good film")[0] == 0
    assert len(rows_of(output.read_text(), "csv")) == 1


def test_an_output_without_answers_replaces_what_was_there(run: Run, bundles: dict[str, Path], tmp_path: Path) -> None:
    source, output = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text("no JSON\n")
    output.write_text("older\n")
    assert run("classify", "--bundle", bundles["mca"], "--input", source, "--output", output)[0] == 1
    [row] = rows_of(output.read_text(), "jsonl")
    assert "line 1 is not JSON" in row["error"]


@pytest.mark.parametrize(
    ("arguments", "code", "sentence"),
    [
        (["--input", "{csv}", "--output", "{csv}", "--column", "review"], 2, "the file that is read"),
        (["--input", "{csv}", "--output", "o.csv", "--resume", "{csv}", "--restart"], 2, "--resume is "),
        (
            ["--input", "{csv}", "--output", "o.csv", "--resume", "o.csv"],
            2,
            "--resume is o.csv, the file that is read or",
        ),
        (
            ["--input", "{csv}", "--output", "answers.txt"],
            2,
            "--output is answers.txt, must end in .csv",
        ),
        (["--input", "{csv}", "--output", "-"], 1, "has no column 'text', its columns are id, review, label"),
        (["--input", "{csv}", "--column", "reviews", "--output", "-"], 1, "has no column 'reviews'"),
        (["--input", "{csv}", "--column", "review"], 1, "line 6 has 4 cells, the header has 3"),
        (["--input", "{empty}", "--output", "-"], 1, "is empty: the first line must name the columns"),
        (["--input", "/nowhere.csv", "--output", "-"], 1, "/nowhere.csv cannot be read"),
        (["--input", "/nowhere.csv", "--output", "{out}"], 1, "/nowhere.csv cannot be read"),
        (["--input", "{csv}", "--column", "review", "--output", "/nowhere/out.csv"], 1, "cannot be written"),
        (["--input", "{csv}", "--column", "review", "--output", "-", "--top-k", "9"], 1, "--top-k is 9"),
        (["--output", "-", "--concurrency", "0", "x"], 2, "--concurrency (or ATTENUATOR_CONCURRENCY) is '0'"),
    ],
    ids=lambda value: " ".join(value)[:40] if isinstance(value, list) else None,
)
def test_what_is_wrong_with_more_than_a_row_is_one_sentence(
    run: Run, bundles: dict[str, Path], tmp_path: Path, arguments: list[str], code: int, sentence: str
) -> None:
    places = {"csv": tmp_path / "in.csv", "empty": tmp_path / "empty.csv", "out": tmp_path / "out.csv"}
    places["csv"].write_text(TABLE)
    places["empty"].write_text("")
    filled = [argument.format(**places) for argument in arguments]
    exit_code, _, errors = run("classify", "--bundle", bundles["mca"], *filled)
    assert (exit_code, len(errors.splitlines())) == (code, 1)
    assert sentence in errors
    assert places["csv"].read_text() == TABLE
    assert not list(tmp_path.glob("out.csv*")), "what answered nothing leaves nothing"


def test_the_file_that_is_piped_in_is_not_written(bundles: dict[str, Path], tmp_path: Path) -> None:
    path = tmp_path / "texts.csv"
    path.write_text("text\na good film\n")
    command = [sys.executable, "-m", "attenuator", "classify", bundles["mca"], "--format", "csv", "--output", path]
    with path.open() as stream:
        done = subprocess.run(command, stdin=stream, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"attenuator classify: --output is {path}, the file that is read: give another one\n"
    assert path.read_text() == "text\na good film\n"


def test_pipes_and_devices_keep_no_journal_and_are_none(run: Run, bundles: dict[str, Path], tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    discarded = ("--output", "/dev/null", "--output-format", "csv")
    code, _, errors = run("classify", "--bundle", bundles["mca"], *discarded, "fox")
    assert (code, errors) == (0, "")
    assert not Path("/dev/null.partial.jsonl").exists()
    for resume in ("/dev/zero", str(tmp_path / "pipe")):
        output = str(tmp_path / "out.csv")
        code, _, errors = run("classify", "--bundle", bundles["mca"], "--output", output, "--resume", resume, "fox")
        assert code == 1
        assert "None" not in errors
        assert len(errors.splitlines()) == 1
    code, _, errors = run("calibrate", bundles["mca"], "--data", str(tmp_path / "pipe"))
    assert (code, "is a pipe or a device, must be a file: it is read more than once" in errors) == (1, True)


def test_lines_begin_where_their_row_begins(tmp_path: Path) -> None:
    rows = read(tmp_path, '\ufefftext,n\r\n"a\r\nb",1\r\n\r\nc,2\r\n"open,3\r\nd,4\r\n', "csv")
    assert [row.where.rpartition(" ")[2] for row in rows] == ["2", "5", "6"]
    assert [row.content for row in rows] == [{"text": "a\r\nb"}, {"text": "c"}, None]
    assert rows[2].error.endswith("line 6 is not CSV: unexpected end of data")


def test_rows_that_are_not_utf8_or_not_json_stand_alone(tmp_path: Path) -> None:
    rows = read(tmp_path, b"text\ncaf\xe9\ncaf\xc3\xa9\n", "csv")
    assert [(row.content, row.error.rpartition(" line ")[2]) for row in rows] == [
        (None, "2 is not UTF-8"),
        ({"text": "café"}, ""),
    ]
    lines = b'{"text": "a", "text_pair": "b", "n": 1}\n{\n3\n{"t": 1}\n{"token_ids": [2, 3]}\n"\xff"\n'
    rows = read(tmp_path, lines, "jsonl")
    assert [row.content for row in rows] == [
        {"text": "a", "text_pair": "b"},
        None,
        None,
        None,
        {"token_ids": [2, 3]},
        None,
    ]
    assert [row.error.partition(" line ")[2].partition(":")[0] for row in rows if row.error] == [
        "2 is not JSON",
        "3 is 3, must be an object with text, with text and text_pair, or with token_ids",
        "4 has no field text or text_pair or token_ids or token_type_ids, its fields are t",
        "6 is not UTF-8",
    ]


def test_half_a_surrogate_pair_is_an_error_of_its_row(run: Run, bundles: dict[str, Path], tmp_path: Path) -> None:
    source, output = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text(
        '{"text": "good \\ud83d\\ude00 \\\\ud800"}\n{"text": "bad \\ud83d"}\n{"text": "c", "\\udc80": 1}\n'
    )
    code, _, errors = run(
        "classify", "--bundle", bundles["mca"], "--input", source, "--output", output, "an argument \udcff"
    )
    assert (code, errors.splitlines()[-1]) == (
        1,
        "attenuator classify: 3 of 4 rows have an error, the first: text 1 is not UTF-8",
    )
    _, first, *others = rows_of(output.read_text(), "jsonl")
    assert (first["text"], "error" in first) == ("good \U0001f600 \\ud800", False)
    reason = "has half of a surrogate pair, must be Unicode text"
    assert [row["error"] for row in others] == [f"{source} line {line} {reason}" for line in (2, 3)]


def test_cells_may_be_as_long_as_documents(tmp_path: Path) -> None:
    [row] = read(tmp_path, "text\n" + "good " * 100_000 + "\n", "csv")
    assert len(row.columns["text"]) == 500_000


def test_pairs_by_their_own_name_or_by_choice(tmp_path: Path) -> None:
    table = "text,text_pair,other\na,b,c\n"
    assert read(tmp_path, table, "csv")[0].content == {"text": "a", "text_pair": "b"}
    assert read(tmp_path, table, "csv", Columns("other"))[0].content == {"text": "c"}
    assert read(tmp_path, table, "csv", Columns("text", "other"))[0].content == {"text": "a", "text_pair": "c"}
    with pytest.raises(InvalidRequest, match="has no column 'none'"):
        read(tmp_path, table, "csv", Columns("text", "none"))


def test_a_file_has_the_answers_of_its_rows_alone_whatever_their_order_and_goal(
    run: Run, folder: Path, tmp_path: Path
) -> None:
    """Rows of all lengths, more than run together, with a goal that chooses other knobs for long ones."""
    random = np.random.default_rng(3)
    texts = [" ".join(random.choice(tiny.WORDS, int(words))) for words in random.integers(1, 60, 1100)]
    source, output = tmp_path / "in.tsv", tmp_path / "out.jsonl"
    source.write_text("text\n" + "\n".join(texts) + "\n")
    model = attenuator.load(folder, check=False)
    for flags, fields in (([], {}), (["--min-agreement", "0.97", "--logits"], {"min_agreement": 0.97})):
        assert run("classify", folder, "--input", source, "--output", output, *flags)[0] == 0
        rows = rows_of(output.read_text(), "jsonl")
        assert [row["text"] for row in rows] == texts
        for row in rows[::50]:
            answer = model.classify(row["text"], **fields)
            prediction = answer.predictions[0]
            assert (row["label"], row["score"], row["knobs"]) == (prediction.label, prediction.score, answer.knobs)
        assert len({str(row["knobs"]) for row in rows}) == 2


@pytest.mark.parametrize(
    ("asked", "hashes"), [([], [16, 64, 16]), (["--min-agreement", "0.97"], [4, 16, 4])], ids=["default", "goal"]
)
def test_printed_answers_are_those_of_each_text_alone(
    run: Run, folder: Path, asked: list[str], hashes: list[int]
) -> None:
    """A long text among short ones does not choose their setting."""
    texts = ["good film", "good film " * 40, "bad plot"]
    one = Service([folder])
    for place in ([folder], ["--url", f"http://{one.host}:{one.port}"]):
        together = run("classify", *place, "--json", *asked, *texts)[1].splitlines()
        alone = [run("classify", *place, "--json", *asked, text)[1] for text in texts]
        records, wanted = ([json.loads(line) | {"input": ""} for line in lines] for lines in (together, alone))
        assert records == wanted
        assert [record["knobs"]["num_hashes"] for record in records] == hashes
    assert one.stop() == 0, one.log()


def test_a_run_is_not_gone_on_with_by_another_calibration(run: Run, tmp_path: Path) -> None:
    """One output would have answers by two default goals."""
    bundle = calibrations.promising(tiny.write(tmp_path / "promising", "yoso"))
    output, kept = tmp_path / "out.csv", tmp_path / "kept.jsonl"
    arguments = ["classify", bundle, "--output", output, "--resume", kept, "good film"]
    assert run(*arguments)[0] == 0
    written = output.read_text()
    assert run(*arguments)[0] == 0
    content = json.loads((bundle / CALIBRATION).read_text())
    calibrations.write(bundle, content | {"default_agreement": 0.97})
    code, _, errors = run(*arguments)
    assert (code, len(errors.splitlines()), output.read_text()) == (1, 1, written)
    assert "by another calibration" in errors
    assert "; --restart begins anew" in errors
    assert run(*arguments, "--restart")[0] == 0


def test_a_stopped_run_with_a_bundle_goes_on(run: Run, bundles: dict[str, Path], tmp_path: Path) -> None:
    """Its input stays open, so that it cannot be done before it is stopped."""
    texts, output, whole = (tmp_path / name for name in ("in.csv", "out.csv", "whole.csv"))
    texts.write_text("text\n" + "".join(f"good film {'a ' * (number % 50)}\n" for number in range(1300)))
    partial = tmp_path / "out.csv.partial.jsonl"
    command = [sys.executable, "-m", "attenuator", "classify", str(bundles["mca"]), "--format", "csv"]
    piped = [*command, "--input", "-", "--output", str(output)]
    heeds = functools.partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    with subprocess.Popen(piped, stdin=subprocess.PIPE, stderr=subprocess.PIPE, preexec_fn=heeds) as process:
        assert process.stdin is not None
        assert process.stderr is not None
        process.stdin.write(texts.read_bytes())
        process.stdin.flush()
        end = time.monotonic() + 60
        while not (partial.exists() and partial.read_bytes().count(b"\n") > 600) and time.monotonic() < end:
            time.sleep(0.001)
        process.send_signal(signal.SIGINT)
        assert b"Traceback" not in process.stderr.read()
    assert process.returncode == 130
    assert 600 < partial.read_bytes().count(b"\n") < 1300
    with texts.open("rb") as stream:
        subprocess.run(piped, stdin=stream, check=True)
    assert run(*command[3:], "--input", texts, "--output", whole)[0] == 0
    assert output.read_text() == whole.read_text()
    assert not partial.exists()
