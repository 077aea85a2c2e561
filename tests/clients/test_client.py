"""What a client does without a service of ours at the other end: checks before sending, proxies, retries, silence."""

import asyncio
import inspect
import time
from collections.abc import Callable
from email.utils import formatdate
from types import MappingProxyType
from typing import Any

import httpx
import numpy as np
import pytest
from wire import ANSWER, ONCE, Wire

from attenuator import clients, errors
from attenuator.clients import UNSET, AsyncClient, Client
from attenuator.json_body import MalformedBody
from attenuator.ops import KNOBS
from attenuator.ops.spec import SEED_HIGH
from attenuator.serve.api import errors as serve_errors
from attenuator.serve.edge.arrivals import BodyTimeout, BodyTooLarge


def blocking(wire: Wire, verb: str, *args: Any, options: dict[str, Any] = ONCE, **kwargs: Any) -> Any:
    with Client("http://service/", transport=httpx.MockTransport(wire), **options) as client:
        return getattr(client, verb)(*args, **kwargs)


def awaiting(wire: Wire, verb: str, *args: Any, options: dict[str, Any] = ONCE, **kwargs: Any) -> Any:
    async def run() -> Any:
        async with AsyncClient("http://service/", transport=httpx.MockTransport(wire), **options) as client:
            return await getattr(client, verb)(*args, **kwargs)

    return asyncio.run(run())


Ask = Callable[..., Any]


@pytest.fixture(params=[blocking, awaiting])
def ask(request: pytest.FixtureRequest) -> Ask:
    chosen: Ask = request.param
    return chosen


def test_public_names_are_what_all_says() -> None:
    assert clients.__all__ == sorted(clients.__all__, key=lambda name: (not name.isupper(), name))
    assert [name for name in clients.__all__ if not hasattr(clients, name)] == []


def test_both_clients_have_the_same_verbs_and_show_every_knob() -> None:
    for verb in ("classify", "classify_many", "models", "ready"):
        sync, awaited = inspect.signature(getattr(Client, verb)), inspect.signature(getattr(AsyncClient, verb))
        assert sync.parameters == awaited.parameters
        assert getattr(Client, verb).__doc__ == getattr(AsyncClient, verb).__doc__
        assert getattr(Client, verb).__doc__
    parameters = inspect.signature(Client.classify).parameters
    assert set(parameters) < set(inspect.signature(Client.classify_many).parameters)
    assert set(KNOBS) < set(parameters)
    assert parameters["seed"].default is UNSET
    assert parameters["inputs"].default is inspect.Parameter.empty


def test_answer_is_typed_and_newer_fields_are_passed_over(ask: Ask) -> None:
    answer = ask(Wire(), "classify", "text", num_hashes=8)
    assert answer.predictions[0].label == "good"
    assert answer.predictions[0].logits is None
    assert answer.knobs == {"num_hashes": 8}
    assert (answer.seed, answer.tokens, answer.timing_ms) == (3, (5,), {"total": 1.5})
    with pytest.raises(ValueError, match="frozen"):
        answer.seed = 4


@pytest.mark.parametrize(
    ("kwargs", "sent"),
    [
        ({}, {}),
        ({"seed": None}, {"seed": None}),
        ({"seed": 0}, {"seed": 0}),
        ({"seed": SEED_HIGH}, {"seed": SEED_HIGH}),
        ({"seed": UNSET}, {}),
        ({"num_hashes": None}, {}),
        ({"num_hashes": 0, "model": "m"}, {"num_hashes": 0, "model": "m"}),
        ({"alpha": 1}, {"alpha": 1}),
        ({"top_k": 2, "truncate": True, "return_logits": True}, {"top_k": 2, "truncate": True, "return_logits": True}),
        ({"timeout_ms": 50.0}, {"timeout_ms": 50.0}),
        ({"degradable_to": {"num_hashes": 8, "keep": None}}, {"degradable_to": {"num_hashes": 8}}),
        ({"degradable_to": {}}, {"degradable_to": {}}),
    ],
    ids=str,
)
def test_only_what_was_set_is_sent(ask: Ask, kwargs: dict[str, Any], sent: dict[str, Any]) -> None:
    wire = Wire()
    ask(wire, "classify", ["a", "b"], **kwargs)
    assert wire.bodies == [{"inputs": ["a", "b"]} | sent]


def test_a_single_mapping_becomes_a_list_and_text_is_utf8(ask: Ask) -> None:
    wire = Wire()
    ask(wire, "classify", {"text": "ça va? 你好", "text_pair": "b"})
    assert wire.bodies == [{"inputs": [{"text": "ça va? 你好", "text_pair": "b"}]}]
    assert wire.requests[0].headers["Content-Type"] == "application/json"
    assert str(wire.requests[0].url) == "http://service/v1/classify"


def test_key_travels_as_bearer_token(ask: Ask) -> None:
    wire = Wire()
    ask(wire, "classify", "a", options={"api_key": "secret"})
    assert wire.requests[0].headers["Authorization"] == "Bearer secret"


@pytest.mark.parametrize(
    ("kwargs", "kind", "param"),
    [
        ({"num_hashes": KNOBS["num_hashes"].high + 1}, errors.KnobOutOfRange, "num_hashes"),
        ({"num_hashes": -1}, errors.KnobOutOfRange, "num_hashes"),
        ({"num_hashes": 8.5}, errors.KnobOutOfRange, "num_hashes"),
        ({"num_hashes": True}, errors.KnobOutOfRange, "num_hashes"),
        ({"num_hashes": "8"}, errors.KnobOutOfRange, "num_hashes"),
        ({"alpha": KNOBS["alpha"].high + 0.1}, errors.KnobOutOfRange, "alpha"),
        ({"alpha": float("nan")}, errors.KnobOutOfRange, "alpha"),
        ({"nmu_hashes": 8}, errors.UnknownField, "nmu_hashes"),
        ({"max_steps": 8}, errors.UnknownField, "max_steps"),
        ({"degradable_to": {"num_hashes": 513}}, errors.KnobOutOfRange, "degradable_to.num_hashes"),
        ({"degradable_to": {"hashes": 8}}, errors.UnknownField, "degradable_to.hashes"),
        ({"seed": -1}, errors.InvalidRequest, "seed"),
        ({"seed": SEED_HIGH + 1}, errors.InvalidRequest, "seed"),
        ({"seed": 1.5}, errors.InvalidRequest, "seed"),
        ({"seed": True}, errors.InvalidRequest, "seed"),
        ({"timeout_ms": float("inf")}, errors.InvalidRequest, None),
    ],
    ids=str,
)
def test_wrong_arguments_are_refused_before_anything_is_sent(
    ask: Ask, kwargs: dict[str, Any], kind: type[errors.InvalidRequest], param: str | None
) -> None:
    wire = Wire()
    with pytest.raises(kind) as caught:
        ask(wire, "classify", "text", **kwargs)
    assert caught.value.param == param
    assert wire.requests == []


@pytest.mark.parametrize("inputs", ["\ud800", [float("nan")], [{"token_ids": {1, 2}}]], ids=ascii)
def test_inputs_without_a_json_form_are_refused(ask: Ask, inputs: Any) -> None:
    with pytest.raises(errors.InvalidRequest, match="cannot be written as JSON"):
        ask(Wire(), "classify", inputs)


@pytest.mark.parametrize(
    ("response", "kind"),
    [
        (httpx.Response(502, text="<html>bad\n gateway</html>"), errors.UnexpectedAnswer),
        (httpx.Response(404, text="not here"), errors.UnexpectedAnswer),
        (httpx.Response(200, text="welcome to nginx"), errors.UnexpectedAnswer),
        (httpx.Response(200, json={"predictions": []}), errors.UnexpectedAnswer),
        (httpx.Response(302, headers={"Location": "http://elsewhere/"}), errors.UnexpectedAnswer),
        (httpx.Response(401, text="who?"), errors.Unauthorized),
        (httpx.Response(429, text="slow down"), errors.Overloaded),
        (httpx.Response(503, text="no healthy upstream"), errors.NotReady),
        (httpx.Response(504, text="upstream timed out"), errors.DeadlineExceeded),
        (httpx.Response(422, json={"error": "new kind", "error_type": "not_known_here"}), errors.InvalidRequest),
        (httpx.Response(413, json={"error": "too big", "error_type": "body_too_large"}), errors.InvalidRequest),
        (httpx.Response(504, json={"error": "too late", "error_type": "deadline_exceeded"}), errors.DeadlineExceeded),
        (httpx.ConnectError("refused"), errors.ServiceUnreachable),
        (httpx.ConnectTimeout("slow"), errors.NoAnswerInTime),
        (httpx.ReadTimeout("silence"), errors.NoAnswerInTime),
        (httpx.PoolTimeout("busy"), errors.NoAnswerInTime),
        (httpx.RemoteProtocolError("cut off"), errors.ServiceUnreachable),
    ],
    ids=lambda value: f"{value.status_code}" if isinstance(value, httpx.Response) else getattr(value, "__name__", None),
)
def test_what_lies_between_becomes_one_sentence(
    ask: Ask, response: httpx.Response | Exception, kind: type[errors.AttenuatorError]
) -> None:
    with pytest.raises(errors.AttenuatorError) as caught:
        ask(Wire(response), "classify", "text")
    assert type(caught.value) is kind
    assert "\n" not in str(caught.value)


def test_kinds_that_only_the_service_has_are_wrong_requests(ask: Ask) -> None:
    for kind in (MalformedBody, BodyTooLarge, BodyTimeout):
        body = {"error": "no", "error_type": serve_errors.error_type(kind.__name__)}
        with pytest.raises(errors.AttenuatorError) as caught:
            ask(Wire(httpx.Response(serve_errors.STATUS[kind], json=body)), "classify", "text")
        assert type(caught.value) is errors.InvalidRequest


def test_without_retries_nothing_is_repeated(ask: Ask) -> None:
    wire = Wire(httpx.Response(429, headers={"Retry-After": "7"}))
    with pytest.raises(errors.Overloaded) as caught:
        ask(wire, "classify", "text")
    assert caught.value.retry_after_s == 7
    assert len(wire.requests) == 1


@pytest.mark.parametrize("status", [429, 503])
def test_retries_wait_as_long_as_retry_after_says(ask: Ask, status: int) -> None:
    wire = Wire(*(httpx.Response(status, headers={"Retry-After": "0.15"}) for _ in range(2)))
    started = time.monotonic()
    answer = ask(wire, "classify", "text", options={"max_retries": 2})
    assert answer.model == "m"
    assert len(wire.requests) == 3
    assert time.monotonic() - started >= 0.3


def test_retries_end(ask: Ask) -> None:
    wire = Wire(*(httpx.Response(503, headers={"Retry-After": "0"}) for _ in range(5)))
    with pytest.raises(errors.NotReady):
        ask(wire, "classify", "text", options={"max_retries": 3, "max_pause_s": 0.01})
    assert len(wire.requests) == 4


@pytest.mark.parametrize("form", ["seconds", "date"])
def test_a_long_pause_is_not_waited_for(ask: Ask, form: str) -> None:
    retry_after = "3600" if form == "seconds" else formatdate(time.time() + 3600, usegmt=True)
    wire = Wire(httpx.Response(429, headers={"Retry-After": retry_after}))
    with pytest.raises(errors.Overloaded) as caught:
        ask(wire, "classify", "text", options={"max_retries": 5})
    assert caught.value.retry_after_s == pytest.approx(3600, abs=60)
    assert len(wire.requests) == 1


@pytest.mark.parametrize("year", ["99999", "9" * 20, "9" * 5000], ids=lambda year: f"{len(year)} digits")
def test_a_retry_after_of_no_time_is_as_none(ask: Ask, year: str) -> None:
    wire = Wire(httpx.Response(429, headers={"Retry-After": f"Mon, 01 Jan {year} 00:00:00 GMT"}))
    with pytest.raises(errors.Overloaded) as caught:
        ask(wire, "classify", "text", options={"max_retries": 0})
    assert caught.value.retry_after_s is None


def test_a_caller_in_the_wrong_is_never_repeated(ask: Ask) -> None:
    wire = Wire(httpx.Response(422, json={"error": "alpha is 2", "error_type": "KnobOutOfRange", "param": "alpha"}))
    with pytest.raises(errors.KnobOutOfRange, match="alpha is 2"):
        ask(wire, "classify", "text", options={"max_retries": 5})
    assert len(wire.requests) == 1


@pytest.mark.parametrize(
    ("response", "ready"),
    [
        (httpx.Response(200, json={"status": "ready"}), True),
        (httpx.Response(503, json={"error": "starting", "error_type": "NotReady"}), False),
        (httpx.ConnectError("refused"), False),
    ],
    ids=["ready", "starting", "down"],
)
def test_ready_answers_instead_of_raising(ask: Ask, response: httpx.Response | Exception, ready: bool) -> None:
    assert ask(Wire(response), "ready") is ready


def test_the_clients_patience_covers_the_callers_deadline(ask: Ask) -> None:
    wire = Wire()
    ask(wire, "classify", "text", timeout_ms=60_000.0, options={"read_timeout_s": 1.0})
    assert wire.requests[0].extensions["timeout"]["read"] > 60
    ask(wire, "classify", "text", options={"read_timeout_s": 1.0, "connect_timeout_s": 0.25})
    assert wire.requests[1].extensions["timeout"]["connect"] == 0.25


class Scalar:
    """What a NumPy or torch scalar has and a Python number has not."""

    def __repr__(self) -> str:  # a test's name, the same in every process
        return "Scalar"

    def __init__(self, value: Any) -> None:
        self.value = value

    def tolist(self) -> Any:
        return self.value


@pytest.mark.parametrize(
    ("kwargs", "sent"),
    [
        ({"num_hashes": np.int64(8)}, {"num_hashes": 8}),
        ({"num_hashes": np.float32(8)}, {"num_hashes": 8}),
        ({"num_hashes": np.array(8)}, {"num_hashes": 8}),
        ({"num_hashes": 8.0}, {"num_hashes": 8}),
        ({"alpha": np.float32(0.25)}, {"alpha": 0.25}),
        ({"alpha": np.float64(0.2)}, {"alpha": 0.2}),
        ({"alpha": Scalar(0.5)}, {"alpha": 0.5}),
        ({"seed": np.uint64(SEED_HIGH)}, {"seed": SEED_HIGH}),
        ({"seed": 3.0}, {"seed": 3}),
        ({"timeout_ms": np.float32(50), "top_k": np.int8(2)}, {"timeout_ms": 50.0, "top_k": 2}),
        ({"truncate": np.True_, "return_logits": np.False_}, {"truncate": True}),
    ],
    ids=str,
)
def test_scalars_of_numpy_are_numbers(ask: Ask, kwargs: dict[str, Any], sent: dict[str, Any]) -> None:
    wire = Wire()
    ask(wire, "classify", "a", **kwargs)
    assert wire.bodies == [{"inputs": "a"} | sent]


@pytest.mark.parametrize(
    "kwargs",
    [
        {"num_hashes": np.True_},
        {"num_hashes": np.float64(8.5)},
        {"num_hashes": np.array([8])},
        {"alpha": np.float32("nan")},
        {"alpha": np.str_("0.5")},
        {"seed": np.True_},
        {"seed": np.int64(-1)},
    ],
    ids=str,
)
def test_what_is_no_number_is_none_of_numpy_either(ask: Ask, kwargs: dict[str, Any]) -> None:
    wire = Wire()
    with pytest.raises(errors.InvalidRequest, match=f"^{next(iter(kwargs))} is "):
        ask(wire, "classify", "a", **kwargs)
    assert wire.requests == []


@pytest.mark.parametrize(
    ("make", "sent"),
    [
        (lambda: (text for text in ("a", "b")), ["a", "b"]),
        (lambda: ("a", "b"), ["a", "b"]),
        (lambda: {"x": "a", "y": "b"}.values(), ["a", "b"]),
        (lambda: np.array(["a", "b"]), ["a", "b"]),
        (lambda: np.array(["a", "b"], dtype=object), ["a", "b"]),
        (lambda: [np.str_("a")], ["a"]),
        (lambda: ({"text": text} for text in "ab"), [{"text": "a"}, {"text": "b"}]),
        (lambda: {"token_ids": np.arange(2, 5)}, [{"token_ids": [2, 3, 4]}]),
        (lambda: [{"token_ids": np.arange(2, 4, dtype=np.uint8)}], [{"token_ids": [2, 3]}]),
        (lambda: [{"token_ids": (np.int32(i) for i in (2, 3))}], [{"token_ids": [2, 3]}]),
        (lambda: [{"token_ids": range(2)}], [{"token_ids": [0, 1]}]),
        (lambda: [MappingProxyType({"text": "a"})], [{"text": "a"}]),
    ],
)
def test_arrays_and_generators_are_inputs(ask: Ask, make: Callable[[], Any], sent: list[Any]) -> None:
    """Once read, a generator is empty: what is sent again must be what was sent first."""
    wire = Wire(httpx.Response(503, headers={"Retry-After": "0"}))
    ask(wire, "classify", make(), options={"max_retries": 1})
    assert wire.bodies == [{"inputs": sent}] * 2


def test_answers_and_errors_have_request_id_and_status(ask: Ask) -> None:
    headers = {"X-Request-Id": "id-7"}
    answer = ask(Wire(httpx.Response(200, json=ANSWER, headers=headers)), "classify", "a")
    assert (answer.status, answer.request_id) == (200, "id-7")
    assert "id-7" not in answer.model_dump_json()
    for response in (
        httpx.Response(422, json={"error": "alpha is 2", "error_type": "knob_out_of_range"}, headers=headers),
        httpx.Response(429, headers=headers),
        httpx.Response(502, text="bad gateway", headers=headers),
        httpx.Response(200, text="no JSON", headers=headers),
    ):
        with pytest.raises(errors.AttenuatorError) as caught:
            ask(Wire(response), "classify", "a")
        assert (caught.value.status, caught.value.request_id) == (response.status_code, "id-7")
    with pytest.raises(errors.ServiceUnreachable) as unreachable:
        ask(Wire(httpx.ConnectError("refused")), "classify", "a")
    assert (unreachable.value.status, unreachable.value.request_id) == (None, None)
