"""Bad requests against the running server: the right status, a sentence that helps, and the next request is served."""

import gzip
import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
import tiny
from service import Service, dumped, request_bytes

from attenuator.errors import printable

LONG = "good " * 9000
PAIR_LIST = dumped(inputs=[{"text": "a", "text_pair": []}])
PAIR_LONG = dumped(inputs=[{"text": "good", "text_pair": LONG}])
PAIR_EMPTY = dumped(inputs=[{"text": "a", "text_pair": ""}])
IDS_TRUNCATE = dumped(inputs=[{"token_ids": [5] * 8193}], truncate=True)
ID_BEYOND = dumped(inputs=[{"token_ids": [len(tiny.VOCAB) - 1, len(tiny.VOCAB)]}])
ID_TRUE = dumped(inputs=[{"token_ids": [1, True]}])
FIELDS = {"error", "error_type", "param", "allowed"}

# id: (status, error_type, param, words of the sentence, body)
FIELD_CASES: dict[str, tuple[int, str, str | None, str, bytes]] = {
    # JSON
    "empty body": (400, "malformed_body", None, "empty", b""),
    "white space": (400, "malformed_body", None, "empty", b"  \n "),
    "not json": (400, "malformed_body", None, "not JSON", b"inputs=good"),
    "truncated json": (400, "malformed_body", None, "not JSON", dumped()[:-4]),
    "trailing comma": (400, "malformed_body", None, "not JSON", b'{"inputs": "a",}'),
    "single quotes": (400, "malformed_body", None, "not JSON", b"{'inputs': 'a'}"),
    "two values": (400, "malformed_body", None, "not JSON", b'{"inputs": "a"} {"inputs": "b"}'),
    "byte order mark": (400, "malformed_body", None, "not JSON", b"\xef\xbb\xbf" + dumped()),
    "invalid utf-8": (400, "malformed_body", None, "not UTF-8", b'{"inputs": "\xff\xfe"}'),
    "utf-16": (400, "malformed_body", None, "not UTF-8", json.dumps({"inputs": "é"}).encode("utf-16")),
    "gzip": (400, "malformed_body", None, "not UTF-8", b"\x1f\x8b\x08\x00\x00\x00\x00\x00"),
    "NaN": (400, "malformed_body", None, "NaN", b'{"inputs": "a", "alpha": NaN}'),
    "Infinity": (400, "malformed_body", None, "Infinity", b'{"inputs": "a", "num_hashes": Infinity}'),
    "minus Infinity": (400, "malformed_body", None, "-Infinity", b'{"inputs": "a", "timeout_ms": -Infinity}'),
    "deep nesting": (400, "malformed_body", None, "deep", b'{"inputs": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"),
    "deep objects": (400, "malformed_body", None, "deep", b'{"a":' * 50_000 + b"1" + b"}" * 50_000),
    "endless integer": (400, "malformed_body", None, "4300", b'{"inputs": "a", "seed": ' + b"9" * 5000 + b"}"),
    "control character": (400, "malformed_body", None, "not JSON", b'{"inputs": "a\x00b"}'),
    "a list": (422, "invalid_request", None, "must be a JSON object", b'["a"]'),
    "a string": (422, "invalid_request", None, "must be a JSON object", b'"a"'),
    "null": (422, "invalid_request", None, "must be a JSON object", b"null"),
    "a field twice": (422, "invalid_request", "seed", "more than once", b'{"inputs": "a", "seed": 1, "seed": 2}'),
    # model
    "unknown model": (404, "unknown_model", "model", "yoso, mca", dumped(model="gpt")),
    "no model among several": (422, "invalid_request", "model", "must be one of", dumped(model=...)),
    "model of wrong type": (422, "invalid_request", "model", "is 7", dumped(model=7)),
    "model half a surrogate": (404, "unknown_model", "model", "must be", b'{"model": "\\ud800", "inputs": "a"}'),
    "field half a surrogate": (422, "unknown_field", "", "unknown", dumped()[:-1] + b', "\\udfff": 1}'),
    "model null": (422, "invalid_request", "model", "null", dumped(model=None)),
    # fields
    "unknown field": (422, "unknown_field", "colour", "must be one of", dumped(colour="red")),
    "mistyped knob": (422, "unknown_field", "num_hash", "did you mean num_hashes", dumped(num_hash=8)),
    "mistyped field": (422, "unknown_field", "input", "did you mean inputs", dumped(input="a")),
    "floors no object": (422, "invalid_request", "degradable_to", "must be an object", dumped(degradable_to=[8])),
    "floors null": (422, "invalid_request", "degradable_to", "is null", dumped(degradable_to=None)),
    "floor of another model": (422, "unknown_field", "degradable_to.alpha", "num_", dumped(degradable_to={"alpha": 0})),
    "floor out of range": (
        422,
        "knob_out_of_range",
        "degradable_to.num_hashes",
        "is 513, must be a whole number from 0 to 512",
        dumped(degradable_to={"num_hashes": 513}),
    ),
    "floor above what is asked": (
        422,
        "knob_out_of_range",
        "degradable_to.num_hashes",
        "is 9, must be at most as accurate as num_hashes 8",
        dumped(num_hashes=8, degradable_to={"num_hashes": 9}),
    ),
    "explain": (422, "not_calibrated", "explain", "has none", dumped(explain=True)),
    "escalate": (422, "invalid_request", "escalate", "min_agreement", dumped(escalate=True)),
    # knobs
    "knob of another model": (422, "unknown_field", "alpha", "it has num_hashes", dumped(num_hashes=..., alpha=0.2)),
    "both knobs": (422, "unknown_field", "alpha", "no knob alpha", dumped(alpha=0.2)),
    "knob on a model without": (422, "unknown_field", "num_hashes", "it has no knobs", dumped(model="softmax")),
    "knob below": (422, "knob_out_of_range", "num_hashes", "-1, must be a whole number", dumped(num_hashes=-1)),
    "knob above": (422, "knob_out_of_range", "num_hashes", "from 0 to 512", dumped(num_hashes=513)),
    "knob far above": (422, "knob_out_of_range", "num_hashes", "18 digits", dumped(num_hashes=10**30)),
    "knob a float": (422, "knob_out_of_range", "num_hashes", "is 32.5", dumped(num_hashes=32.5)),
    "knob a string": (422, "knob_out_of_range", "num_hashes", "a text", dumped(num_hashes="32")),
    "knob a boolean": (422, "knob_out_of_range", "num_hashes", "true", dumped(num_hashes=True)),
    "knob a list": (422, "knob_out_of_range", "num_hashes", "a list", dumped(num_hashes=[8])),
    "knob null": (422, "knob_out_of_range", "num_hashes", "null", dumped(num_hashes=None)),
    "alpha above": (422, "knob_out_of_range", "alpha", "from 0 to 1", dumped(model="mca", num_hashes=..., alpha=1.01)),
    "alpha below": (422, "knob_out_of_range", "alpha", "-0.1", dumped(model="mca", num_hashes=..., alpha=-0.1)),
    "alpha a boolean": (422, "knob_out_of_range", "alpha", "false", dumped(model="mca", num_hashes=..., alpha=False)),
    "alpha overflows": (422, "knob_out_of_range", "alpha", "inf", b'{"model": "mca", "inputs": "a", "alpha": 1e999}'),
    # seed
    "seed negative": (422, "invalid_request", "seed", "-1", dumped(seed=-1)),
    "seed above": (422, "invalid_request", "seed", "9007199254740991", dumped(seed=2**53)),
    "seed a float": (422, "invalid_request", "seed", "1.5", dumped(seed=1.5)),
    "seed a string": (422, "invalid_request", "seed", "a text", dumped(seed="7")),
    "seed a boolean": (422, "invalid_request", "seed", "true", dumped(seed=True)),
    # options
    "top_k zero": (422, "invalid_request", "top_k", "is 0", dumped(top_k=0)),
    "top_k above": (422, "invalid_request", "top_k", "from 1 to 3", dumped(top_k=4)),
    "top_k far above": (422, "invalid_request", "top_k", "18 digits", dumped(top_k=10**4000)),
    "top_k a string": (422, "invalid_request", "top_k", "a text", dumped(top_k="3")),
    "top_k null": (422, "invalid_request", "top_k", "null", dumped(top_k=None)),
    "timeout zero": (422, "invalid_request", "timeout_ms", "above 0", dumped(timeout_ms=0)),
    "timeout negative": (422, "invalid_request", "timeout_ms", "-5", dumped(timeout_ms=-5)),
    "timeout a string": (422, "invalid_request", "timeout_ms", "a text", dumped(timeout_ms="500")),
    "timeout above": (422, "invalid_request", "timeout_ms", "at most 3.6e+06", dumped(timeout_ms=3_600_001)),
    "timeout overflows": (422, "invalid_request", "timeout_ms", "inf", dumped()[:-1] + b', "timeout_ms": 1e999}'),
    "truncate a number": (422, "invalid_request", "truncate", "true or false", dumped(truncate=1)),
    "truncate a string": (422, "invalid_request", "truncate", "true or false", dumped(truncate="yes")),
    "return_logits null": (422, "invalid_request", "return_logits", "null", dumped(return_logits=None)),
    # inputs
    "no inputs": (422, "invalid_request", "inputs", "missing", dumped(inputs=...)),
    "inputs a number": (422, "invalid_request", "inputs", "is 5", dumped(inputs=5)),
    "inputs null": (422, "invalid_request", "inputs", "null", dumped(inputs=None)),
    "inputs an object": (422, "invalid_request", "inputs", "an object", dumped(inputs={"text": "a"})),
    "inputs empty": (422, "invalid_request", "inputs", "0 items", dumped(inputs=[])),
    "257 inputs": (422, "invalid_request", "inputs", "257 items", dumped(inputs=["good"] * 257)),
    "empty text": (422, "invalid_request", "inputs", "empty", dumped(inputs="")),
    "white text": (422, "invalid_request", "inputs", "empty", dumped(inputs=" \n\t")),
    "empty text in a batch": (422, "invalid_request", "inputs[1]", "empty", dumped(inputs=["good", ""])),
    "a number in a batch": (422, "invalid_request", "inputs[1]", "is 3", dumped(inputs=["good", 3])),
    "null in a batch": (422, "invalid_request", "inputs[0]", "null", dumped(inputs=[None])),
    "a list in a batch": (422, "invalid_request", "inputs[0]", "a list", dumped(inputs=[["good", "bad"]])),
    "object without text": (422, "invalid_request", "inputs[0]", "has no field", dumped(inputs=[{}])),
    "pair without text": (422, "invalid_request", "inputs[0]", "has text_pair", dumped(inputs=[{"text_pair": "a"}])),
    "text and ids": (422, "invalid_request", "inputs[0]", "text and", dumped(inputs=[{"text": "a", "token_ids": []}])),
    "unknown part": (422, "unknown_field", "inputs[0].txt", "txt", dumped(inputs=[{"txt": "a"}])),
    "text a number": (422, "invalid_request", "inputs[0].text", "is 1", dumped(inputs=[{"text": 1}])),
    "pair a list": (422, "invalid_request", "inputs[0].text_pair", "a list", PAIR_LIST),
    "empty pair": (422, "invalid_request", "inputs[0].text_pair", "empty", PAIR_EMPTY),
    "lone surrogate": (422, "invalid_request", "inputs", "surrogate", b'{"model": "yoso", "inputs": "a \\ud800 b"}'),
    "too long": (422, "input_too_long", "inputs", "at most 8192, or set truncate", dumped(inputs=LONG)),
    "pair too long": (422, "input_too_long", "inputs[0]", "inputs[0] has 9004 tokens", PAIR_LONG),
    "too long in a batch": (422, "input_too_long", "inputs[1]", "9002 tokens", dumped(inputs=["good", LONG])),
    "ids a string": (422, "invalid_request", "inputs[0].token_ids", "a text", dumped(inputs=[{"token_ids": "1"}])),
    "ids empty": (422, "invalid_request", "inputs[0].token_ids", "empty", dumped(inputs=[{"token_ids": []}])),
    "id negative": (422, "invalid_request", "inputs[0].token_ids[1]", "-1", dumped(inputs=[{"token_ids": [1, -1]}])),
    "id outside": (422, "invalid_request", "inputs[0].token_ids[0]", "999", dumped(inputs=[{"token_ids": [999]}])),
    "id one too large": (422, "invalid_request", "inputs[0].token_ids[1]", "must be", ID_BEYOND),
    "id huge": (422, "invalid_request", "inputs[0].token_ids[0]", "18", dumped(inputs=[{"token_ids": [2**70]}])),
    "id a float": (422, "invalid_request", "inputs[0].token_ids[0]", "1.5", dumped(inputs=[{"token_ids": [1.5]}])),
    "id a boolean": (422, "invalid_request", "inputs[0].token_ids[1]", "true", ID_TRUE),
    "too many ids": (422, "input_too_long", "inputs[0].token_ids", "8193", dumped(inputs=[{"token_ids": [5] * 8193}])),
    "ids are not cut": (422, "input_too_long", "inputs[0].token_ids", "at most 8192", IDS_TRUNCATE),
}  # fmt: skip


def check(status: int, kind: str, param: str | None, phrase: str, actual_status: int, body: bytes) -> None:
    answer = json.loads(body)
    assert (actual_status, answer["error_type"], answer["param"]) == (status, kind, param), answer
    assert set(answer) == FIELDS
    assert phrase in answer["error"]
    assert len(answer["error"]) < 500
    assert "Traceback" not in answer["error"]


@pytest.mark.parametrize("case", FIELD_CASES.values(), ids=FIELD_CASES)
def test_bad_body_is_refused_and_the_next_request_served(
    service: Service, case: tuple[int, str, str | None, str, bytes]
) -> None:
    status, kind, param, phrase, body = case
    response = service.client.post("/v1/classify", content=body)
    check(status, kind, param, phrase, response.status_code, response.content)
    service.good()


def test_fields_in_the_address_are_refused(service: Service) -> None:
    response = service.client.post("/v1/classify?num_hashes=3", content=dumped())
    check(422, "unknown_field", "num_hashes", "in the JSON body", response.status_code, response.content)
    service.good()


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "br", "GZIP, identity", "x" * 900])
def test_compressed_body_is_refused_by_name(service: Service, encoding: str) -> None:
    for content in (gzip.compress(dumped()), dumped()):
        headers = {"Content-Encoding": encoding}
        response = service.client.post("/v1/classify", content=content, headers=headers)
        phrase = f"the body has Content-Encoding '{encoding[:40]}'"
        check(400, "malformed_body", None, phrase, response.status_code, response.content)
    response = service.client.post("/v1/classify", content=dumped(), headers={"Content-Encoding": "identity"})
    assert response.status_code == 200
    service.good()


@pytest.mark.parametrize("encodings", [("identity", "gzip"), ("gzip", "identity"), ("", "br")], ids=" then ".join)
def test_every_content_encoding_counts(service: Service, encodings: tuple[str, ...]) -> None:
    headers = [("Content-Encoding", encoding) for encoding in encodings]
    response = service.client.post("/v1/classify", content=dumped(), headers=headers)
    phrase = f"the body has Content-Encoding '{', '.join(encodings)}'"
    check(400, "malformed_body", None, phrase, response.status_code, response.content)


ROUTE_CASES = {
    "unknown route": ("GET", "/v1/classifyy", 404, "not_found"),
    "unknown version": ("POST", "/v2/classify", 404, "not_found"),
    "peer route embed": ("POST", "/embed", 404, "not_found"),
    "peer route config": ("GET", "/v2/models/yoso/config", 404, "not_found"),
    "peer route's method": ("POST", "/v2/models/yoso/ready", 405, "method_not_allowed"),
    "admin route": ("PUT", "/v1/models/yoso", 404, "not_found"),
    "trailing slash": ("POST", "/v1/classify/", 404, "not_found"),
    "wrong method get": ("GET", "/v1/classify", 405, "method_not_allowed"),
    "wrong method put": ("PUT", "/v1/classify", 405, "method_not_allowed"),
    "wrong method delete": ("DELETE", "/v1/classify", 405, "method_not_allowed"),
    "wrong method on models": ("POST", "/v1/models", 405, "method_not_allowed"),
    "wrong method on health": ("POST", "/health/ready", 405, "method_not_allowed"),
    "wrong method on the description": ("PUT", "/openapi.json", 405, "method_not_allowed"),
}


@pytest.mark.parametrize("case", ROUTE_CASES.values(), ids=ROUTE_CASES)
def test_wrong_route_or_method_has_the_same_form(service: Service, case: tuple[str, str, int, str]) -> None:
    method, path, status, kind = case
    response = service.client.request(method, path, content=dumped())
    check(status, kind, None, "is not served", response.status_code, response.content)
    if status == 405:
        assert response.headers["Allow"] == ("POST" if path == "/v1/classify" else "GET, HEAD")
        assert response.json()["allowed"] == response.headers["Allow"]
    service.good()


def chunked(body: bytes, size: int) -> bytes:
    parts = [body[at : at + size] for at in range(0, len(body), size)]
    framed = b"".join(f"{len(part):x}\r\n".encode() + part + b"\r\n" for part in parts)
    return (
        b"POST /v1/classify HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        b"Transfer-Encoding: chunked\r\n\r\n" + framed + b"0\r\n\r\n"
    )


MIB_4 = 4 * 2**20


def filled(value: bytes, before: bytes = b'{"inputs":[', after: bytes = b"]}") -> bytes:
    """A body of nearly 4 MiB of one value."""
    return before + b",".join([value] * ((MIB_4 - 100) // (len(value) + 1))) + after


IDS = b'{"model":"yoso","inputs":[{"token_ids":['
HUGE_CASES: dict[str, tuple[int, str, Callable[[], bytes]]] = {
    "lists": (422, "more than 2048 values", partial(filled, b"[]")),
    "lists of lists": (422, "more than 2048 values", partial(filled, b"[[[[[[[]]]]]]]")),
    "objects": (422, "more than 2048 values", partial(filled, b"{}")),
    "empty texts": (422, "more than 2048 values", partial(filled, b'""')),
    "one field again and again": (422, "more than 2048 values", partial(filled, b'"seed":1', b"{", b"}")),
    "many fields": (422, "more than 2048 values", lambda: json.dumps(dict.fromkeys(range(300_000), 1)).encode()),
    "numbers": (422, "inputs has 2097102 items", partial(filled, b"1", b'{"model":"yoso","inputs":[')),
    "ids": (422, "699034 tokens, must have at most", partial(filled, b"12345", IDS, b"]}]}")),
    "integers": (400, "not JSON: Exceeds the limit", partial(filled, b"9" * 5000, IDS, b"]}]}")),
    "deep": (400, "nested too deeply", lambda: b'{"inputs":' + b"[" * (MIB_4 - 100)),
    "one integer": (400, "number of more than", lambda: b'{"seed":' + b"1" * (MIB_4 - 100) + b"}"),
    "one fraction": (400, "number of more than", lambda: b'{"seed":1.' + b"1" * (MIB_4 - 100) + b"}"),
}


@pytest.mark.parametrize("case", HUGE_CASES.values(), ids=HUGE_CASES)
def test_huge_body_is_refused(service: Service, case: tuple[int, str, Callable[[], bytes]]) -> None:
    status, phrase, body = case
    response = service.client.post("/v1/classify", content=body())
    kind = {400: "malformed_body", 422: response.json()["error_type"]}[status]
    check(status, kind, response.json()["param"], phrase, response.status_code, response.content)
    service.good()


TEN_MB = dumped(inputs="good " * 2_000_000)
EXPECT = (
    b"POST /v1/classify HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    b"Content-Length: 10000000\r\nExpect: 100-continue\r\n\r\n"
)
BOTH = (
    b"POST /v1/classify HTTP/1.1\r\nHost: localhost\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
)
# id: (status, error_type, whether the client closes its half, bytes)
RAW_CASES: dict[str, tuple[int, str, bool, bytes]] = {
    "10 MB": (413, "body_too_large", False, request_bytes(TEN_MB)),
    "10 MB in chunks": (413, "body_too_large", False, chunked(TEN_MB, 65536)),
    "10 MB announced": (413, "body_too_large", False, EXPECT),
    "length a lie, closed early": (400, "malformed_request", True, request_bytes(dumped(), length=500)),
    "header closed early": (400, "malformed_request", True, request_bytes(dumped())[:40]),
    "no HTTP": (400, "malformed_request", False, b"\x16\x03\x01\x02\x00hello\r\n\r\n"),
    "no host": (400, "malformed_request", False, b"GET / HTTP/1.1\r\n\r\n"),
    "two hosts": (400, "malformed_request", False, b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n"),
    "bad length": (400, "malformed_request", False, request_bytes(b"").replace(b": 0", b": ten")),
    "two lengths": (400, "malformed_request", False, request_bytes(b"").replace(b": 0", b": 0\r\nContent-Length: 1")),
    "length and chunks": (400, "malformed_request", False, BOTH),
    "chunks in HTTP/1.0": (400, "malformed_request", False, chunked(dumped(), 7).replace(b"HTTP/1.1", b"HTTP/1.0")),
    "bad chunk": (400, "malformed_request", False, chunked(b"", 7).replace(b"0\r\n", b"zz\r\n")),
    "chunks of a byte": (400, "malformed_request", False, chunked(b" " * 5000, 1)),
    "unknown coding": (501, "unsupported_transfer_encoding", False, chunked(b"", 7).replace(b": chunked", b": gzip")),
    "endless header": (431, "header_too_large", False, b"GET / HTTP/1.1\r\nX: " + b"a" * 70_000),
    "large header": (
        431,
        "header_too_large",
        False,
        b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * 17_000 + b"\r\n\r\n",
    ),
    "nothing": (0, "", True, b""),
}


@pytest.mark.parametrize("case", RAW_CASES.values(), ids=RAW_CASES)
def test_broken_http_is_refused_in_json_and_closed(service: Service, case: tuple[int, str, bool, bytes]) -> None:
    status, kind, half_close, data = case
    actual_status, headers, body = service.raw(data, half_close=half_close)
    assert actual_status == status
    if status:
        check(status, kind, None, "4194304 bytes" if status == 413 else "", actual_status, body)
        assert headers["connection"] == "close"
        assert headers["content-type"] == "application/json"
    service.good()


def test_chunked_body_within_the_limit_is_served(service: Service) -> None:
    status, _, body = service.raw(chunked(dumped(), 7))
    assert (status, json.loads(body)["predictions"]) == (200, service.good()["predictions"])


@pytest.mark.parametrize("framed", [request_bytes, lambda body: chunked(body, 65536)], ids=["whole", "in chunks"])
def test_a_body_may_have_as_many_bytes_as_the_limit_and_no_more(
    service: Service, framed: Callable[[bytes], bytes]
) -> None:
    padded = dumped().ljust(MIB_4)
    assert service.raw(framed(padded))[0] == 200
    status, _, body = service.raw(framed(padded + b" "))
    check(413, "body_too_large", None, "4194304 bytes", status, body)


def test_many_chunks_that_are_not_tiny_are_served(service: Service) -> None:
    status, _, _ = service.raw(chunked(b" " * 2**20 + dumped(), 256))
    assert status == 200


KEY = "Sesame-sesame-7"
WRONG_KEYS = {
    "none": None,
    "empty": "Bearer",
    "no scheme": KEY,
    "another scheme": f"Basic {KEY}",
    "another key": "Bearer wrong",
    "one character": f"Bearer {KEY[0]}",
    "all but the last character": f"Bearer {KEY[:-1]}",
    "all but the first character": f"Bearer {KEY[1:]}",
    "one character more": f"Bearer {KEY}7",
    "twice": f"Bearer {KEY}{KEY}",
    "two keys": f"Bearer {KEY} {KEY}",
    "other case": f"Bearer {KEY.lower()}",
    "not ASCII": f"Bearer {KEY[:-1]}\xe9",
}


@pytest.fixture(scope="module")
def guarded(bundles: dict[str, Path]) -> Iterator[Service]:
    """A server with a key."""
    one = Service([bundles["yoso"]], "--threads", "1", "--api-key", KEY)
    yield one
    assert KEY not in one.log()
    one.stop()


@pytest.mark.parametrize("sent", WRONG_KEYS.values(), ids=WRONG_KEYS)
def test_wrong_key_is_refused(guarded: Service, sent: str | None) -> None:
    headers = {} if sent is None else {"Authorization": sent.encode("latin-1")}
    for method, path in (("POST", "/v1/classify"), ("GET", "/v1/models")):
        response = guarded.client.request(method, path, headers=headers, content=dumped())
        check(401, "unauthorized", None, "Authorization: Bearer", response.status_code, response.content)
        assert response.headers["WWW-Authenticate"] == "Bearer"
    assert guarded.client.head("/v1/models", headers=headers).status_code == 401


@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "BEARER"])
def test_right_key_is_taken(guarded: Service, scheme: str) -> None:
    key = {"Authorization": f"{scheme} {KEY}"}
    assert guarded.client.post("/v1/classify", content=dumped(), headers=key).status_code == 200
    assert guarded.client.get("/v1/models", headers=key).status_code == 200


def test_health_needs_no_key(guarded: Service) -> None:
    for path in ("/health/live", "/health/ready", "/docs", "/openapi.json"):
        assert guarded.client.get(path).status_code == 200


@pytest.mark.parametrize("name", ["\x1b[31mred", "a\nb", "a\x9bb", "a\u202eb", "a\u2028b"], ids=ascii)
def test_what_a_caller_wrote_comes_back_without_control_characters(service: Service, name: str) -> None:
    for body in (dumped(**{name: 1}), dumped(model=name), dumped(inputs=[{name: 1}])):
        answer = service.client.post("/v1/classify", content=body).json()
        assert printable(name) in answer["error"]
        assert all(text is None or text.isprintable() for text in answer.values())


def test_there_are_at_least_sixty_bad_requests() -> None:
    assert len(FIELD_CASES) + len(ROUTE_CASES) + len(RAW_CASES) >= 60
