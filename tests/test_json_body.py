"""The reader of bodies: reads what the standard library reads, as it does, whatever the size; refuses early."""

import contextlib
import json
import random
from typing import Any

import pytest

from attenuator import json_body
from attenuator.errors import InvalidRequest
from attenuator.json_body import (
    MAX_DEPTH,
    MAX_VALUES,
    PIECE_CHARACTERS,
    PIECE_UNITS,
    MalformedBody,
    parse_json,
    refuse_repeated,
)

CHARACTERS = 'ab é你\U0001f600"\\/\n\t\x7f'


def text(draw: random.Random, length: int) -> str:
    return "".join(draw.choices(CHARACTERS, k=length))


def document(draw: random.Random, depth: int = 3) -> Any:
    kind = draw.randrange(8 if depth else 5)
    if kind == 0:
        return text(draw, draw.randrange(12))
    if kind == 1:
        return draw.choice([0, -1, 7, 2**70, -(10**40)])
    if kind == 2:
        return draw.choice([0.5, -2.0, 1e300, 5e-324, 0.1])
    if kind < 5:
        return draw.choice([None, True, False])
    if kind == 5:
        return [draw.choice([draw.randrange(10**6), draw.random()]) for _ in range(draw.randrange(6))]
    if kind == 6:
        return [document(draw, depth - 1) for _ in range(draw.randrange(6))]
    return {text(draw, 5): document(draw, depth - 1) for _ in range(draw.randrange(6))}


@pytest.fixture(params=[0, json_body.SMALL_BYTES], ids=["in steps", "small in C"])
def reader(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reads small bodies in either way."""
    monkeypatch.setattr(json_body, "SMALL_BYTES", request.param)


@pytest.mark.usefixtures("reader")
@pytest.mark.parametrize("ascii_only", [True, False])
@pytest.mark.parametrize("indent", [None, 1])
def test_documents_read_as_the_standard_library_reads_them(ascii_only: bool, indent: int | None) -> None:
    draw = random.Random(1)
    for _ in range(300):
        expected = {"a": document(draw), "b": document(draw)}
        body = json.dumps(expected, ensure_ascii=ascii_only, indent=indent).encode()
        parsed = parse_json(body)
        assert parsed == expected
        assert json.dumps(parsed) == json.dumps(expected)  # 1 is not 1.0


@pytest.mark.usefixtures("reader")
def test_damaged_documents_are_refused_where_the_standard_library_refuses_them() -> None:
    draw = random.Random(2)
    refused = 0
    for _ in range(1500):
        body = bytearray(json.dumps({"a": document(draw), "b": document(draw)}).encode())
        at = draw.randrange(len(body))
        body[at : at + draw.randint(0, 2)] = draw.choice([b"", b",", b"]", b"}", b'"', b"1", b"e", b"\\", b"[", b" "])
        try:
            expected = json.loads(body)
        except json.JSONDecodeError as error:
            refused += 1
            where = f"{error.msg} at line {error.lineno}, column {error.colno}"
            with pytest.raises(MalformedBody) as caught:
                parse_json(bytes(body))
            assert str(caught.value) == f"the body is not JSON: {where}", body
        else:
            with contextlib.suppress(InvalidRequest):  # a field is there twice, or it is no object any more
                assert parse_json(bytes(body)) == expected
    assert refused > 500


@pytest.mark.parametrize(
    "unit", ["\\n", "\\u00e9", "\\ud83d\\ude00", "a\\ud83d\\ude00", "\\ud83d", "é", "a" * 255, "a" * 257, '\\"', "\\\\"]
)
def test_long_texts_are_whole_where_pieces_meet(unit: str) -> None:
    for count in (PIECE_UNITS - 1, PIECE_UNITS, PIECE_UNITS + 1, 3 * PIECE_UNITS + 5):
        body = f'{{"a":"x{unit * count}y"}}'
        filled = body + " " * PIECE_CHARACTERS
        assert parse_json(filled.encode()) == json.loads(body)


@pytest.mark.parametrize("form", ["{}", "-{}", "{}.5", "{}e1", " {}\n"])
def test_long_lists_of_numbers_are_whole_where_pieces_meet(form: str) -> None:
    body = "[" + ",".join(form.format(number) for number in range(60_000)) + "]"
    assert parse_json(f'{{"a":{body},"b":[{body}]}}'.encode()) == {"a": json.loads(body), "b": [json.loads(body)]}


@pytest.mark.parametrize("end", [",]", ",", "", ",,1]", "e]", " 1]", ", x]", "}"])
def test_fault_behind_many_numbers_is_found_where_it_is(end: str) -> None:
    body = '{"a":[' + "12345,\n" * 20_000 + "1" + end
    with pytest.raises(json.JSONDecodeError) as expected:
        json.loads(body)
    with pytest.raises(MalformedBody) as caught:
        parse_json(body.encode())
    assert f"at line {expected.value.lineno}, column {expected.value.colno}" in str(caught.value)


def test_fault_behind_many_escapes_is_found_where_it_is() -> None:
    body = '{"a":"' + "\\n" * 20_000 + "\\x" + "\\n" * 20_000 + '"}'
    with pytest.raises(MalformedBody, match=rf"escape.* line 1, column {json_column(body)}$"):
        parse_json(body.encode())


def json_column(body: str) -> int:
    with pytest.raises(json.JSONDecodeError) as caught:
        json.loads(body)
    return caught.value.colno


def test_reading_stops_at_the_bounds() -> None:
    values = ",".join(["[]"] * (MAX_VALUES - 2))
    assert len(parse_json(f'{{"a":[{values}]}}'.encode())["a"]) == MAX_VALUES - 2
    with pytest.raises(InvalidRequest, match=f"more than {MAX_VALUES} values"):
        parse_json(f'{{"a":[{values},[] this is never read'.encode())
    inner = "[" * (MAX_DEPTH - 1)
    assert parse_json(f'{{"a":{inner}{inner.replace("[", "]")}}}'.encode())
    with pytest.raises(MalformedBody, match="nested too deeply"):
        parse_json(f'{{"a":{inner}[ this is never read'.encode())
    with pytest.raises(MalformedBody, match="nested too deeply"):  # lists that have ended count no more, and once
        parse_json(f'{{"a":[[],[],{inner} this is never read'.encode())


@pytest.mark.usefixtures("reader")
@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        (b'{"a":1,"a":2}', "the field 'a' occurs more than once"),
        (b'{"a":NaN}', "the body is not JSON: NaN is not a number in JSON"),
        (b"[]", "the body is a list, must be a JSON object"),
        (b" ", "the body is empty"),
        (b'{"a":"\xff"}', "the body is not UTF-8, must be JSON in UTF-8: byte 6 is 0xff"),
    ],
)
def test_small_bodies_are_refused_with_the_same_sentence(body: bytes, sentence: str) -> None:
    with pytest.raises((InvalidRequest, MalformedBody)) as caught:
        parse_json(body)
    assert sentence in str(caught.value)


def test_as_many_values_as_fit_a_small_body_are_within_the_bound() -> None:
    assert json_body.SMALL_BYTES <= 2 * MAX_VALUES  # a value and its comma
    assert json_body.SMALL_BYTES <= json_body.MAX_NUMBER_CHARACTERS


def test_more_inputs_than_a_request_may_have_fit_the_bound() -> None:
    one = {"text": "a", "text_pair": "b"}
    assert len(parse_json(json.dumps({"inputs": [one] * 257, "seed": 1}).encode())["inputs"]) == 257
    assert json_body.MAX_VALUES > 257 * 3


def test_repeated_field_among_many_is_found_in_linear_time() -> None:
    class Name(str):
        comparisons = 0
        __slots__ = ()
        __hash__ = str.__hash__

        def __eq__(self, other: object) -> bool:
            Name.comparisons += 1
            return str.__eq__(self, other)

    pairs = [(Name(f"field{index}"), 0) for index in range(1000)]
    with pytest.raises(InvalidRequest, match="'field999' occurs more than once"):
        refuse_repeated([*pairs, (Name("field999"), 0)])
    assert Name.comparisons < 10 * len(pairs)
