"""What `attenuator classify` reads, and how it cuts that into requests."""

import io
import json
from pathlib import Path

import pytest
from running import Run

from attenuator.commands.classify import BATCH_CHARACTERS, named
from attenuator.errors import InputTooLong, InvalidRequest
from attenuator.texts import STDIN, Item, items, label_places, parts


def contents(texts: list[str], files: list[str], *, jsonl: bool = False) -> list[dict[str, object]]:
    return [item.content for item in items(texts, files, jsonl=jsonl)]


def test_words_are_taken_as_they_are() -> None:
    texts = ["Hello, world", "[x", '{"text": 1}', " spaces stay ", "--"]
    assert contents(texts, []) == [{"text": text} for text in texts]


def test_lines_are_texts_and_blank_ones_are_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_bytes("\ufefffirst\r\n\n  \n zweite Zeile: ß\n".encode())
    lines = list(items([], [str(path)], jsonl=False))
    assert [item.content["text"] for item in lines] == ["first", " zweite Zeile: ß"]
    assert [item.where for item in lines] == [f"{path} line 1", f"{path} line 4"]


def test_json_lines_hold_texts_pairs_and_token_ids(tmp_path: Path) -> None:
    records = [{"text": "a", "label": "x"}, {"text": "a", "text_pair": "b"}, {"token_ids": [1, 2]}]
    records.append({"token_ids": [1, 2], "token_type_ids": [0, 1], "id": 7})
    path = tmp_path / "data.jsonl"
    path.write_text("\n".join(json.dumps(record) for record in records))
    kept = [{"text": "a"}, *records[1:3], {"token_ids": [1, 2], "token_type_ids": [0, 1]}]
    assert contents([], [str(path)]) == kept
    assert [item.excerpt for item in items([], [str(path)], jsonl=False)] == ["a", "a | b", "1 2", "1 2"]


@pytest.mark.parametrize(
    ("names", "labels", "expected"),
    [
        (["b", "a"], ["a", "b"], {"a": 0, "b": 1}),
        (["1", "0"], ["a", "b"], {"0": 0, "1": 1}),
        (["1", "2"], ["1", "2", "0"], {"1": 0, "2": 1, "0": 2}),  # names before places
        (["1", "0"], ["1", "2"], {"0": 0, "1": 1}),  # not all are names
        (["0", "a"], ["a", "b"], {"a": 0, "b": 1}),
        (["2"], ["a", "b"], {"a": 0, "b": 1}),
        (["²"], ["a", "b"], {"a": 0, "b": 1}),
    ],
)
def test_labels_of_a_file_are_names_or_else_all_of_them_places(
    names: list[str], labels: list[str], expected: dict[str, int]
) -> None:
    assert label_places(names, labels) == expected


def test_standard_input_is_text_unless_told_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    def standard_input() -> io.TextIOWrapper:
        return io.TextIOWrapper(io.BufferedReader(io.BytesIO(b'{"text": "a"}\n')))  # type: ignore[type-var]

    monkeypatch.setattr("sys.stdin", standard_input())
    assert contents([], [STDIN]) == [{"text": '{"text": "a"}'}]
    monkeypatch.setattr("sys.stdin", standard_input())
    assert contents([], [STDIN], jsonl=True) == [{"text": "a"}]


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b'{"text": "a"}\n{"text": \n', "line 2 is not JSON"),
        (b'{"text": "a", "n": NaN}\n', "line 1 is not JSON: NaN is not a number in JSON"),
        (b'{"text": "a", "n": [-Infinity]}\n', "line 1 is not JSON: -Infinity is not a number in JSON"),
        (b'{"text": "a", "n": 1e999}\n', "line 1 is not JSON: 1e999 is too large for a number"),
        (b'{"text": "a", "text": "b"}\n', "line 1: the field 'text' occurs more than once, must occur once"),
        (b'["a"]\n', "must be an object with text"),
        (b'{"label": "x"}\n', "must be an object with text"),
        (b"[" * 100_000, "line 1 is not JSON"),
        (b'{"text": "a"}\n{"text": "\xff"}\n', "line 2 is not UTF-8"),
        (b'{"text": "a", "n": ["\\ud800"]}\n', "line 1 has half of a surrogate pair, must be Unicode text"),
        (b"PK\x03\x04\x14\0\x06\0", "is no text in UTF-8, must be CSV, TSV, JSON lines or one text a line"),
        (None, "cannot be read: No such file"),
    ],
    ids=[
        "truncated",
        "nan",
        "infinity",
        "overflow",
        "twice",
        "list",
        "no text",
        "deep",
        "not utf-8",
        "half a pair",
        "workbook",
        "missing",
    ],
)
def test_what_cannot_be_read_is_told_with_its_place(tmp_path: Path, content: bytes | None, sentence: str) -> None:
    path = tmp_path / "data.jsonl"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InvalidRequest, match=sentence) as caught:
        contents([], [str(path)])
    assert "data.jsonl" in str(caught.value)


def test_batches_keep_order_and_bounds() -> None:
    sizes = [1, 5, BATCH_CHARACTERS, 3, BATCH_CHARACTERS - 3, 1, *[1] * 20]
    everything = [Item(str(i), {"text": "x" * size}) for i, size in enumerate(sizes)]
    cut = list(parts(iter(everything), lambda item: len(item.excerpt), 8, BATCH_CHARACTERS))
    assert [item for batch in cut for item in batch] == everything
    assert all(len(batch) <= 8 for batch in cut)
    assert all(len(batch) == 1 or sum(len(item.excerpt) for item in batch) <= BATCH_CHARACTERS for batch in cut)
    assert list(parts(iter([]), len, 8, BATCH_CHARACTERS)) == []


def test_errors_name_the_line_rather_than_the_place_in_a_request() -> None:
    error = InputTooLong(
        "inputs[1].text has 600 tokens, must have at most 512, or set truncate", param="inputs[1].text", allowed="512"
    )
    assert named(error, "f.txt line 9") == "f.txt line 9 has 600 tokens, must have at most 512, or give --truncate"
    assert named(InvalidRequest("top_k is 9", param="top_k"), "f.txt line 9") == "top_k is 9"


@pytest.mark.parametrize("further", [[], ["--output", "-"], ["--json"]], ids=str)
@pytest.mark.parametrize("name", ["void.txt", "void.jsonl", "head.csv", "-"])
def test_an_input_without_a_text_is_said_to_be_empty(
    run: Run,
    bundles: dict[str, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    further: list[str],
) -> None:
    (tmp_path / name).write_text("text\n" if name == "head.csv" else "") if name != "-" else None
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BufferedReader(io.BytesIO())))
    file = name if name == "-" else tmp_path / name
    code, output, errors = run("classify", bundles["mca"], "--input", file, *further)
    called = "standard input" if name == "-" else str(file)
    kind = "row" if "--output" in further else "text"
    assert (code, output) == (1, "")
    assert errors == f"attenuator classify: {called} is empty, must have at least one {kind}\n"
