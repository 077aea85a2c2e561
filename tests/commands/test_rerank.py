"""`attenuator rerank` on a real reranker, in this process and through a real server."""

import functools
import json
import os
import pty
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tiny
from running import Run
from service import Service

import attenuator
from attenuator.local import LocalModel

QUERY = "is the plot of the film good"
DOCUMENTS = ["the plot was very good", "a contract shall renew", "bad, actor", "law", "фильм", "the plot was very good"]
KNOBS = ["--alpha", "0.2", "--keep", "0.3", "--seed", "5"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.reranker(tmp_path_factory.mktemp("rankers") / "rank")


@pytest.fixture(scope="module")
def address(folder: Path, bundles: dict[str, Path]) -> Iterator[str]:
    """Of a server of the reranker, of another one called `base`, and of a classifier."""
    base = tiny.reranker(folder.parent / "base", seed=3)
    service = Service([folder, base, bundles["yoso"]])
    yield f"http://{service.host}:{service.port}"
    assert service.stop() == 0, service.log()


@pytest.fixture(scope="module")
def here(folder: Path) -> Iterator[LocalModel]:
    with attenuator.load(folder, check=False) as model:
        yield model


def records(output: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in output.splitlines()]


def lists(path: Path, count: int, documents: int = 6) -> Path:
    """A file of queries with documents of their own."""
    with path.open("w", encoding="utf-8") as file:
        for number in range(count):
            texts = [f"{DOCUMENTS[place % 6]} {place}" for place in range(documents)]
            file.write(json.dumps({"query": f"{QUERY} {number}", "documents": texts, "relevant": [0]}) + "\n")
    return path


@pytest.mark.parametrize("further", [[], KNOBS, [*KNOBS, "--top-n", "2"], [*KNOBS, "--rescore", "3"]], ids=len)
def test_a_bundle_and_a_server_answer_the_same(
    run: Run, folder: Path, address: str, here: LocalModel, further: list[str]
) -> None:
    code, own, errors = run("rerank", folder, "--query", QUERY, *further, *DOCUMENTS)
    assert (code, errors) == (0, "")
    code, there, errors = run("rerank", address, "--model", "rank", "--query", QUERY, *further, *DOCUMENTS)
    assert (code, errors) == (0, "")
    assert own == there
    [record] = records(own)
    fields: dict[str, Any] = {"alpha": 0.2, "keep": 0.3, "seed": 5} if further else {}
    fields |= {"rescore": 3} if "--rescore" in further else {}
    expected = here.rerank(QUERY, DOCUMENTS, return_documents=True, **fields).results
    assert [(each["index"], each["relevance_score"], each["document"]["text"]) for each in record["results"]] == [
        (each.index, each.relevance_score, DOCUMENTS[each.index]) for each in expected
    ][: 2 if "--top-n" in further else 6]
    assert (record["query"], record["model"]) == (QUERY, "rank")


def test_a_second_step_is_told(run: Run, folder: Path, here: LocalModel) -> None:
    [record] = records(run("rerank", folder, "--query", QUERY, *KNOBS, "--rescore", "2", *DOCUMENTS)[1])
    answer = here.rerank(QUERY, DOCUMENTS, rescore=2, alpha=0.2, keep=0.3, seed=5)
    assert [(each["index"], each["step"]) for each in record["results"]] == [
        (each.index, each.step) for each in answer.results
    ]
    assert [step["documents"] for step in record["steps"]] == [6, 2]


def test_budgets_and_cascades_go_to_a_server(run: Run, address: str) -> None:
    arguments = ["rerank", address, "--query", QUERY, *KNOBS]
    code, output, errors = run(*arguments, "--cascade", "rank,base", "--rescore", "2", *DOCUMENTS)
    assert (code, errors) == (0, "")
    assert [(step["model"], step["documents"]) for step in records(output)[0]["steps"]] == [("rank", 6), ("base", 2)]
    code, _, errors = run(*arguments, "--model", "rank", "--max-cost", "1e-9", *DOCUMENTS)
    assert code == 1
    assert errors.startswith("attenuator rerank: --max-cost is 1e-09, must be at least ")
    least = float(errors.split("at least ")[1].split()[0])
    budget = ["--model", "rank", "--max-cost", str(2 * least)]
    assert 1 <= records(run(*arguments, *budget, *DOCUMENTS)[1])[0]["steps"][1]["documents"] < 6
    assert run(*arguments, "--cascade", "rank", "--rescore", "2", *DOCUMENTS)[0] == 1


def test_documents_come_from_words_files_and_standard_input(
    run: Run, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = ["rerank", folder, "--query", QUERY]
    expected = records(run(*arguments, *DOCUMENTS)[1])
    text, table, table_of_tabs, objects = (tmp_path / f"documents.{kind}" for kind in ("txt", "csv", "tsv", "jsonl"))
    text.write_text("\n\n".join(DOCUMENTS), encoding="utf-8")
    table.write_text("n,body\n" + "".join(f'{n},"{each}"\n' for n, each in enumerate(DOCUMENTS)), encoding="utf-8")
    table_of_tabs.write_text("text\n" + "\n".join(DOCUMENTS) + "\n", encoding="utf-8")
    objects.write_text("".join(json.dumps({"body": each}) + "\n" for each in DOCUMENTS), encoding="utf-8")
    for further in (
        ["--input", text],
        ["--input", table, "--column", "body"],
        ["--input", table_of_tabs],
        ["--input", objects, "--column", "body"],
    ):
        assert records(run(*arguments, *further)[1]) == expected
    for further in ([], ["--input", "-"]):
        with text.open(encoding="utf-8") as stream:
            monkeypatch.setattr("sys.stdin", stream)
            assert records(run(*arguments, *further)[1]) == expected
    both = records(run(*arguments, "--input", text, "the first")[1])[0]["results"]
    assert {each["document"]["text"] for each in both} == {"the first", *DOCUMENTS}


@pytest.mark.parametrize("place", ["bundle", "server"])
def test_a_file_of_queries(run: Run, folder: Path, address: str, tmp_path: Path, place: str) -> None:
    file = lists(tmp_path / "lists.jsonl", 5)
    where = [folder] if place == "bundle" else [address, "--model", "rank"]
    code, output, errors = run("rerank", *where, "--input", file, "--top-n", "3")
    assert (code, errors) == (0, "")
    answers = records(output)
    assert [answer["input"] for answer in answers] == [f"{file} line {number}" for number in range(1, 6)]
    alone = [line["documents"] for line in records(file.read_text(encoding="utf-8"))]
    for answer, documents in zip(answers, alone, strict=True):
        [expected] = records(run("rerank", *where, "--query", answer["query"], "--top-n", "3", *documents)[1])
        assert answer["results"] == expected["results"]


def test_a_thousand_documents(run: Run, folder: Path, address: str, tmp_path: Path) -> None:
    file = lists(tmp_path / "lists.jsonl", 1, documents=1000)
    own = records(run("rerank", folder, "--input", file)[1])[0]["results"]
    there = records(run("rerank", address, "--model", "rank", "--input", file)[1])[0]["results"]
    assert [(each["index"], each["relevance_score"]) for each in own] == [
        (each["index"], each["relevance_score"]) for each in there
    ]
    assert sorted(each["index"] for each in own) == list(range(1000))


def test_a_table_on_a_terminal(
    run: Run, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "60")
    code, output, _ = run(
        "rerank", folder, "--query", QUERY, *KNOBS, "--rescore", "2", *DOCUMENTS, "\x1b]0;title\along [good] " * 20
    )
    lines = re.sub(r"\x1b\[[\d;?]*[a-zA-Z]", "", output).splitlines()
    assert (code, "\x1b]" in output, "\a" in output) == (0, False, False)
    assert lines[0].split() == ["score", "step", "index", "document"]
    assert [line.split()[1] for line in lines[1:8]] == ["2", "2", "1", "1", "1", "1", "1"]
    assert any("[good]" in line and line.rstrip().endswith("...") for line in lines)
    assert "".join(lines[8:]).startswith("rank: alpha 0.2, keep 0.3, 7 documents; then rank: alpha 0, keep 1, ")
    output = run("rerank", folder, "--input", lists(tmp_path / "lists.jsonl", 2), "--top-n", "1")[1]
    assert all(f"{QUERY} {number}" in output for number in range(2))
    assert records(run("rerank", folder, "--query", QUERY, "--json", "law")[1])[0]["model"] == "rank"


@pytest.mark.parametrize(
    ("arguments", "code", "sentence"),
    [
        (["{rank}", "law"], 2, "--query is missing: give it, or --input FILE.jsonl"),
        (["{rank}", "--input", "{text}"], 2, "--query is missing"),
        (["--query", "a", "law"], 2, "neither is set, and 'law' is not the folder of a bundle"),
        (["{rank}", "--url", "{url}", "--query", "a", "law"], 2, "ask a server: both are set"),
        (["{rank}", "--query", "a", "--keep", "3", "law"], 2, "--keep is 3.0, must be a number from"),
        (["{rank}", "--query", "a", "--rescore", "0", "law"], 2, "--rescore (or ATTENUATOR_RESCORE) is '0'"),
        (["{rank}", "--query", "a", "--top-n", "0", "law"], 2, "--top-n (or ATTENUATOR_TOP_N) is '0'"),
        (["{rank}", "--query", "a", "--max-cost", "3", "law"], 2, "--max-cost needs a server"),
        (
            ["{url}", "--query", "a", "--max-cost", "inf", "law"],
            2,
            "ATTENUATOR_MAX_COST) is 'inf', must be a number above 0",
        ),
        (
            ["{rank}", "--query", "a", "--timeout-ms", "9", "law"],
            2,
            "--timeout-ms needs a server (--url), but the bundle",
        ),
        (["{rank}", "--query", "a", "--model=x", "law"], 2, "--model needs a server (--url), but the bundle"),
        (["{rank}", "--input", "{array}"], 1, 'array.jsonl line 1 is a list, must be {"query": "..", "documents": '),
        (["{rank}", "--query", "a", "--cascade", "a,b", "law"], 2, "--cascade needs a server"),
        (["{rank}", "--query", "a", "--pair-column", "b", "law"], 2, "the flag --pair-column is unknown"),
        (["{rank}", "--query", "a", "--num-hashes", "3", "law"], 1, "has no knob num_hashes"),
        (["{yoso}", "--query", "a", "law"], 1, "BUNDLE is 'yoso', a single_label classifier with 3 labels, must be a"),
        (["{url}", "--model", "yoso", "--query", "a", "law"], 1, "must be a reranker, which has one output"),
        (["{url}", "--query", "a", "law"], 1, "--model is missing, must be one of"),
        (["http://127.0.0.1:1", "--max-retries", "0", "--query", "a", "law"], 1, "cannot be reached"),
        (["{rank}", "--query", " ", "law"], 1, "query is empty"),
        (["{rank}", "--query", "a", "law", " "], 1, "document 2 is empty"),
        (["{rank}", "--query", "a", "--input", "/nowhere.txt"], 1, "/nowhere.txt cannot be read"),
        (["{rank}", "--query", "a", "--input", "{empty}"], 1, "empty.txt is empty, must have at least one document"),
        (["{rank}", "--input", "{void}"], 1, "void.jsonl is empty, must have at least one list"),
        (["{rank}", "--query", "a", "law", "good " * 9000], 1, "at most 8192, query included, or give --truncate"),
        (["{rank}", "--query", "a", "--input", "{lists}"], 1, "line 1 has no field text, its fields are query"),
        (["{rank}", "--input", "{odd}"], 1, "odd.jsonl line 2 has no field documents, must be"),
        (["{rank}", "--input", "{wrong}"], 1, "wrong.jsonl line 1: documents[1] is 3, must be a text"),
        (["{url}", "--model", "rank", "--input", "{wrong}"], 1, "wrong.jsonl line 1: documents[1] is 3, must be"),
        (["{rank}", "--input", "{none}"], 1, "none.jsonl line 1: documents has 0 items, must have 1 or more"),
        (["{url}", "--model", "rank", "--input", "{none}"], 1, "none.jsonl line 1: documents has 0 items, must have 1"),
    ],
    ids=lambda value: " ".join(value)[:50] if isinstance(value, list) else None,
)
def test_what_is_wrong_is_told_in_one_sentence(
    run: Run,
    folder: Path,
    bundles: dict[str, Path],
    address: str,
    tmp_path: Path,
    arguments: list[str],
    code: int,
    sentence: str,
) -> None:
    good = '{"query": "a", "documents": ["b"]}\n'
    contents = {
        "text.txt": "law\n",
        "empty.txt": "\n",
        "void.jsonl": "",
        "lists.jsonl": good,
        "odd.jsonl": good + '{"query": "a"}\n',
        "array.jsonl": "[1]\n",
        "wrong.jsonl": '{"query": "a", "documents": ["b", 3]}\n',
        "none.jsonl": '{"query": "a", "documents": []}\n',
    }
    places = {"rank": str(folder), "yoso": str(bundles["yoso"]), "url": address}
    for name, content in contents.items():
        (tmp_path / name).write_text(content)
        places[name.partition(".")[0]] = str(tmp_path / name)
    exit_code, output, errors = run("rerank", *(each.format(**places) for each in arguments))
    assert (exit_code, output) == (code, "")
    assert sentence in errors
    assert errors.startswith("attenuator rerank: ")
    assert len(errors.splitlines()) == 1


def test_ctrl_c_ends_it_between_whole_lines(folder: Path, tmp_path: Path) -> None:
    file = lists(tmp_path / "lists.jsonl", 400, documents=60)
    command = [sys.executable, "-m", "attenuator", "rerank", str(folder), "--input", str(file), "--top-n", "1"]
    heeds = functools.partial(signal.signal, signal.SIGINT, signal.SIG_DFL)  # background jobs of shells may not
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, text=True, preexec_fn=heeds, **pipes) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        first = process.stdout.readline()
        process.send_signal(signal.SIGINT)
        rest, errors = process.stdout.read(), process.stderr.read()
    assert process.returncode == 130
    assert errors == ""
    assert 1 <= len(records(first + rest)) < 400


@pytest.mark.parametrize("command", ["rerank", "classify"])
def test_a_progress_bar_leaves_what_goes_to_a_file_alone(folder: Path, tmp_path: Path, command: str) -> None:
    file = lists(tmp_path / "lists.jsonl", 40)
    if command == "classify":
        file = tmp_path / "texts.txt"
        file.write_text("\n".join(DOCUMENTS * 7), encoding="utf-8")
    terminal, device = pty.openpty()
    with (tmp_path / "out").open("w") as output:
        words = [sys.executable, "-m", "attenuator", command, str(folder), "--input", str(file)]
        process = subprocess.Popen(words, stdout=output, stderr=device, env=os.environ | {"TERM": "xterm"})
        os.close(device)
        drawn = b""
        while part := _read(terminal):
            drawn += part
    assert process.wait() == 0
    assert b"ing " in drawn
    assert len((tmp_path / "out").read_text(encoding="utf-8").splitlines()) == (40 if command == "rerank" else 42)


def _read(terminal: int) -> bytes:
    """What a program draws; nothing once it has ended."""
    try:
        return os.read(terminal, 65536)
    except OSError:
        return b""
