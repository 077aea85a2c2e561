"""JSON decoder for bodies that works in short steps, so that the thread that reads one never keeps others waiting.

Neither `json.loads` nor the faster parsers release the interpreter's lock before the whole body is read, and a body of
4 MiB may hold a million lists: half a second. Here the standard library's decoder runs in its Python form, which
another thread can interrupt between any two values. The bulk of a request, texts and runs of numbers, is read in C, a
bounded piece at a time. A body with more other values than any request needs is refused at once.
"""

import contextlib
import json
import re
from collections import Counter
from collections.abc import Callable
from json.decoder import WHITESPACE, JSONArray, JSONObject, scanstring  # type: ignore[attr-defined]
from json.scanner import py_make_scanner  # type: ignore[attr-defined]
from typing import Any, NoReturn

from attenuator.errors import AttenuatorError, InvalidRequest
from attenuator.ops.knobs import shown

MAX_VALUES = 2048  # texts, lists, objects, single numbers: 256 inputs with all their fields have 1,290
MAX_DEPTH = 32
MAX_NUMBER_CHARACTERS = 4300  # as many digits as Python reads of an integer
SMALL_BYTES = 4096  # no more, for then no number is too long and no more values than `MAX_VALUES` fit
PIECE_CHARACTERS = 32_768
PIECE_UNITS = 4096

# Quantifiers are possessive (`}+`): the patterns never backtrack.
LONG_NUMBER = re.compile(rf"[-+.0-9eE]{{{MAX_NUMBER_CHARACTERS + 1}}}+")
NUMBERS = re.compile(rf"[-+.0-9eE \t\n\r,]{{1,{PIECE_CHARACTERS}}}+")
# A unit is an escape or a stretch without escapes. A piece never ends between the halves of a surrogate pair.
TEXT = re.compile(rf'(?>[^"\\]{{1,256}}+|\\(?:u[dD][89aAbB]..\\)?+(?>u....|.)){{{PIECE_UNITS}}}+', re.DOTALL)

Scan = Callable[[str, int], tuple[Any, int]]


class MalformedBody(AttenuatorError):
    """The body is not JSON."""


class _Decoder(json.JSONDecoder):
    """Decodes one text.

    Attributes:
        values: how many more there may be.
        depth: lists and objects that are open.
    """

    def __init__(self) -> None:
        super().__init__(parse_constant=refuse_constant, object_pairs_hook=refuse_repeated)
        self.values = MAX_VALUES
        self.depth = 0
        self.parse_string = read_string
        self.parse_array = self.read_array
        self.parse_object = self.read_object
        scan: Scan = py_make_scanner(self)
        self.scan_once = self.scan_counted
        self._scan = scan

    def scan_counted(self, text: str, at: int) -> tuple[Any, int]:
        self.values -= 1
        if self.values < 0:
            raise InvalidRequest(
                f"the body has more than {MAX_VALUES} values, token ids not counted; must have at most as many",
                allowed=f"at most {MAX_VALUES} values, token ids not counted",
            )
        if LONG_NUMBER.match(text, at):
            raise MalformedBody(f"the body has a number of more than {MAX_NUMBER_CHARACTERS} digits, must have fewer")
        return self._scan(text, at)

    def read_array(self, text_and_start: tuple[str, int], scan_once: Scan) -> tuple[list[Any], int]:
        text, at = text_and_start
        numbers, at = read_numbers(text, at)
        self.open()
        rest, end = JSONArray((text, at), self.scan_counted)
        self.depth -= 1
        return numbers + rest if numbers else rest, end

    def read_object(
        self, text_and_start: tuple[str, int], strict: bool, scan_once: Scan, *hooks: Any
    ) -> tuple[dict[str, Any], int]:
        self.open()
        fields_and_end: tuple[dict[str, Any], int] = JSONObject(text_and_start, strict, self.scan_counted, *hooks)
        self.depth -= 1
        return fields_and_end

    def open(self) -> None:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise MalformedBody(f"the body is nested too deeply, must have at most {MAX_DEPTH} levels")


def read_numbers(text: str, at: int) -> tuple[list[Any], int]:
    """Decodes the numbers at a list's start, except the last one: the decoder reads it with the rest of the list."""
    numbers: list[Any] = []
    while (run := NUMBERS.match(text, at)) and (length := run[0].rfind(",")) > 0:
        try:
            numbers += json.loads(f"[{text[at : at + length]}]")
        except json.JSONDecodeError as error:
            raise json.JSONDecodeError(error.msg, text, at + error.pos - 1) from None
        at += length + 1
    if numbers and WHITESPACE.match(text, at).end() == text.find("]", at):
        raise json.JSONDecodeError("Expecting value", text, at)
    return numbers, at


def read_string(text: str, at: int, strict: bool) -> tuple[str, int]:
    """Decodes a text that starts after its opening quote, a bounded piece at a time."""
    pieces = []
    while len(text) > PIECE_CHARACTERS and (piece := TEXT.match(text, at)):
        try:
            pieces.append(scanstring(piece[0] + '"', 0, strict)[0])
        except json.JSONDecodeError as error:
            raise json.JSONDecodeError(error.msg, text, at + error.pos) from None
        at = piece.end()
    last, end = scanstring(text, at, strict)
    return "".join([*pieces, last]) if pieces else last, end


def refuse_constant(name: str) -> NoReturn:
    """Refuses NaN and Infinity, which Python's decoder accepts but JSON does not allow.

    Raises:
        ValueError: always, as the decoder itself does.
    """
    raise ValueError(f"{name} is not a number in JSON")


def refuse_repeated(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object's fields.

    Raises:
        InvalidRequest: names the field that occurs more than once.
    """
    fields = dict(pairs)
    if len(fields) != len(pairs):
        counts = Counter(name for name, _ in pairs)
        repeated = next(name for name, count in counts.items() if count > 1)[:60]
        raise InvalidRequest(
            f"the field '{repeated}' occurs more than once, must occur once", param=repeated, allowed="each field once"
        )
    return fields


_SMALL = json.JSONDecoder(parse_constant=refuse_constant, object_pairs_hook=refuse_repeated)


def parse_json(body: bytes, allowed: str = '{"inputs": ..}') -> dict[str, Any]:
    """Reads a body; `allowed` is what it must look like, for errors.

    Raises:
        MalformedBody: not UTF-8, not JSON, NaN or Infinity, or nested too deeply.
        InvalidRequest: not an object, a field that occurs more than once, or too many values.
    """
    raw = None
    if len(body) <= SMALL_BYTES and body.count(b"[") + body.count(b"{") <= MAX_DEPTH:
        with contextlib.suppress(ValueError, AttenuatorError):  # the decoder above says more
            raw = _SMALL.decode(body.decode("utf-8"))  # in C, in a tenth of the time
    try:
        raw = _Decoder().decode(body.decode("utf-8")) if raw is None else raw
    except UnicodeDecodeError as error:
        raise MalformedBody(
            f"the body is not UTF-8, must be JSON in UTF-8: byte {error.start} is {body[error.start]:#04x}"
        ) from None
    except json.JSONDecodeError as error:
        place = f"{error.msg} at line {error.lineno}, column {error.colno}"
        reason = f"not JSON: {place}" if body.strip() else "empty, must be a JSON object"
        raise MalformedBody(f"the body is {reason}") from None
    except ValueError as error:  # an integer with thousands of digits, NaN
        raise MalformedBody(f"the body is not JSON: {error}") from None
    if not isinstance(raw, dict):
        raise InvalidRequest(f"the body is {shown(raw)}, must be a JSON object", allowed=allowed)
    return raw
