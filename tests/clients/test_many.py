"""`classify_many` of both clients: order, bounds, errors of single inputs, and going on from a file."""

import asyncio
import json
import resource
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from string import ascii_lowercase
from typing import Any

import httpx
import pytest
from wire import ANSWER

from attenuator import errors
from attenuator.clients import AsyncClient, Client, Outcome
from attenuator.clients.senders import LOOKAHEAD

REFUSAL = {"error": "inputs[0] is empty", "error_type": "invalid_request", "param": "inputs[0]", "allowed": "a text"}

MODEL = {
    "name": "m",
    "revision": ANSWER["revision"],
    "task": "single_label",
    "labels": [],
    "max_tokens": 9,
    "knobs": [],
}
CALIBRATION = {"confidence": 0.95, "data": "texts.csv", "texts": 9, "buckets": [], "settings": []}


class Echo:
    """Answers each text with itself as label; later ones sooner, so that order is work."""

    def __init__(self, total: int = 0) -> None:
        self.asked: list[str] = []
        self.under_way = self.most = 0
        self.revision = ANSWER["revision"]
        self.models: list[dict[str, Any]] = [MODEL]
        self.answers: dict[str, httpx.Response | Exception] = {}
        self._total = total
        self._lock = threading.Lock()

    def _begin(self, request: httpx.Request) -> str:
        text = str(json.loads(request.content)["inputs"][0])
        with self._lock:
            self.asked.append(text)
            self.under_way += 1
            self.most = max(self.most, self.under_way)
        return text

    def _end(self, text: str) -> httpx.Response:
        with self._lock:
            self.under_way -= 1
        answer = self.answers.get(text)
        if isinstance(answer, Exception):
            raise answer
        if answer is not None:
            return httpx.Response(answer.status_code, headers=answer.headers, content=answer.content)
        prediction = {"label": text, "score": 1.0}
        return httpx.Response(200, json=ANSWER | {"predictions": [prediction], "revision": self.revision})

    def _pause_s(self, text: str) -> float:
        return 0.002 * max(0, self._total - int(text)) if text.isdigit() else 0.0

    def blocking(self, request: httpx.Request) -> httpx.Response:
        if request.method == "GET":
            return httpx.Response(200, json={"models": self.models})
        text = self._begin(request)
        time.sleep(self._pause_s(text))
        return self._end(text)

    async def awaiting(self, request: httpx.Request) -> httpx.Response:
        if request.method == "GET":
            return httpx.Response(200, json={"models": self.models})
        text = self._begin(request)
        await asyncio.sleep(self._pause_s(text))
        return self._end(text)


Many = Callable[..., list[Outcome]]


def blocking(echo: Echo, inputs: Iterable[Any], *, take: int | None = None, **options: Any) -> list[Outcome]:
    with Client("http://service", transport=httpx.MockTransport(echo.blocking), max_retries=0) as client:
        outcomes = client.classify_many(inputs, **options)
        taken = [outcome for _, outcome in zip(range(10**9 if take is None else take), outcomes, strict=False)]
        del outcomes
        return taken


def awaiting(echo: Echo, inputs: Iterable[Any], *, take: int | None = None, **options: Any) -> list[Outcome]:
    async def run() -> list[Outcome]:
        transport = httpx.MockTransport(echo.awaiting)
        async with AsyncClient("http://service", transport=transport, max_retries=0) as client:
            taken: list[Outcome] = []
            async for outcome in client.classify_many(inputs, **options):
                taken.append(outcome)
                if len(taken) == take:
                    break
            return taken

    return asyncio.run(run())


@pytest.fixture(params=[blocking, awaiting])
def many(request: pytest.FixtureRequest) -> Many:
    chosen: Many = request.param
    return chosen


def labels(outcomes: Iterable[Outcome]) -> list[str]:
    return [outcome.result().predictions[0].label for outcome in outcomes]


def test_order_is_kept_and_concurrency_bounded(many: Many) -> None:
    texts = [str(number) for number in range(20)]
    echo = Echo(total=20)
    outcomes = many(echo, texts, concurrency=5)
    assert labels(outcomes) == texts
    assert [(outcome.index, outcome.input) for outcome in outcomes] == list(enumerate(texts))
    assert echo.most == 5
    assert sorted(echo.asked, key=int) == texts


def test_inputs_are_read_as_they_are_needed(many: Many) -> None:
    read = []

    def endless() -> Iterator[str]:
        while True:
            read.append(len(read))
            yield f"{len(read)}"

    assert len(many(Echo(), endless(), concurrency=2, take=3)) == 3
    assert len(read) <= 3 + 2 * LOOKAHEAD


def test_errors_of_one_input_are_values(many: Many) -> None:
    echo = Echo()
    echo.answers["b"] = httpx.Response(422, json=REFUSAL)
    echo.answers["c"] = httpx.Response(504, json={"error": "late", "error_type": "deadline_exceeded"})
    echo.answers["d"] = httpx.Response(500, json={"error": "failed", "error_type": "engine_error"})
    echo.answers["e"] = httpx.ReadTimeout("silence")
    outcomes = many(echo, ["a", "b", "c", "d", "e", float("nan"), "f"], concurrency=2)
    assert [type(outcome.error) for outcome in outcomes] == [
        type(None),
        errors.InvalidRequest,
        errors.DeadlineExceeded,
        errors.EngineError,
        errors.NoAnswerInTime,
        errors.InvalidRequest,
        type(None),
    ]
    assert [outcome.index for outcome in outcomes if isinstance(outcome.error, TimeoutError)] == [2, 4]
    with pytest.raises(errors.InvalidRequest, match="is empty"):
        outcomes[1].result()


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (httpx.Response(401), errors.Unauthorized),
        (httpx.Response(429), errors.Overloaded),
        (httpx.ConnectError("refused"), errors.ServiceUnreachable),
        (httpx.Response(404, json={"error": "no model", "error_type": "unknown_model"}), errors.UnknownModel),
        (httpx.Response(422, json=REFUSAL | {"param": "top_k"}), errors.InvalidRequest),
    ],
    ids=["key", "overload", "no service", "model", "option"],
)
def test_errors_that_others_would_meet_end_it(
    many: Many, answer: httpx.Response | Exception, kind: type[errors.AttenuatorError]
) -> None:
    echo = Echo()
    echo.answers = dict.fromkeys(ascii_lowercase[1:], answer)
    with pytest.raises(kind):
        many(echo, list(ascii_lowercase), concurrency=2)
    assert len(echo.asked) <= 4


@pytest.mark.parametrize(
    ("inputs", "options", "sentence"),
    [
        ("a text", {}, "inputs is one input"),
        ({"text": "a"}, {}, "inputs is one input"),
        (["a"], {"concurrency": 0}, "concurrency is 0"),
        (["a"], {"seed": -1}, "seed is -1"),
    ],
)
def test_wrong_options_are_refused_before_anything_is_sent(
    many: Many, inputs: Any, options: dict[str, Any], sentence: str
) -> None:
    echo = Echo()
    with pytest.raises(errors.InvalidRequest, match=sentence):
        many(echo, inputs, **options)
    assert echo.asked == []


def test_a_run_goes_on_where_one_ended(many: Many, tmp_path: Path) -> None:
    texts = [str(number) for number in range(30)]
    file = tmp_path / "answers.jsonl"
    first, second, third = Echo(), Echo(), Echo()
    first.answers["1"] = httpx.Response(422, json=REFUSAL)
    first.answers["20"] = httpx.Response(401)
    with pytest.raises(errors.Unauthorized):
        many(first, texts, concurrency=1, resume=file, top_k=1)
    with file.open("ab") as stream:
        stream.write(b'{"index": 29, "inp')  # as a process that was killed leaves it
    outcomes = many(second, texts, concurrency=3, resume=file, top_k=1, timeout_ms=50, priority="batch")
    assert sorted(second.asked, key=int) == texts[20:]
    assert str(outcomes[1].error) == REFUSAL["error"]
    assert getattr(outcomes[1].error, "param", None) == "inputs[0]"
    assert labels(outcomes[:1] + outcomes[2:]) == texts[:1] + texts[2:]
    again = many(third, texts, resume=file, top_k=1)
    assert third.asked == []
    assert [outcome.answer for outcome in again] == [outcome.answer for outcome in outcomes]


def test_a_full_disk_ends_it_and_what_was_written_is_kept(many: Many, tmp_path: Path) -> None:
    """A limit on the size of files stands for the end of the disk."""
    file = tmp_path / "file"
    many(Echo(), ["a"], resume=file)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (file.stat().st_size + 20, hard))
    try:
        with pytest.raises(errors.AttenuatorError, match="file cannot be written to its end: File too large"):
            many(Echo(), ["a", "b"], resume=file)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    echo = Echo()
    assert labels(many(echo, ["a", "b"], resume=file)) == ["a", "b"]
    assert echo.asked == ["b"]


def test_what_took_too_long_is_asked_again(many: Many, tmp_path: Path) -> None:
    late, quick = Echo(), Echo()
    late.answers["b"] = httpx.ReadTimeout("silence")
    assert isinstance(many(late, ["a", "b"], resume=tmp_path / "file")[1].error, TimeoutError)
    assert labels(many(quick, ["a", "b"], resume=tmp_path / "file")) == ["a", "b"]
    assert quick.asked == ["b"]


def test_a_file_of_another_run_is_refused(many: Many, tmp_path: Path) -> None:
    file = tmp_path / "answers.jsonl"
    many(Echo(), ["a", "b"], resume=file, top_k=1)
    content = file.read_bytes()
    newer = Echo()
    newer.revision = "1" * 64
    calibrated = Echo()
    calibrated.models = [MODEL | {"calibration": CALIBRATION}]
    for echo, inputs, options, sentence in (
        (Echo(), ["a", "b"], {"top_k": 2}, "holds answers to a call with other options"),
        (Echo(), ["a", "c"], {"top_k": 1}, "holds an answer to another input than input 2"),
        (calibrated, ["a", "b"], {"top_k": 1}, "or by another calibration"),
        (newer, ["a", "b", "c"], {"top_k": 1}, "holds answers of the model's revision 000"),
    ):
        with pytest.raises(errors.InvalidRequest, match=sentence):
            many(echo, inputs, resume=file, **options)
        assert file.read_bytes() == content
    file.write_bytes(content.replace(b'"answer"', b'"odd"'))
    with pytest.raises(errors.InvalidRequest, match="is damaged: give the options of that call, or another file"):
        many(Echo(), ["a", "b"], resume=file, top_k=1)


def test_a_calibration_is_nothing_to_a_run_whose_caller_chose_the_knobs(many: Many, tmp_path: Path) -> None:
    file = tmp_path / "answers.jsonl"
    many(Echo(), ["a"], resume=file, keep=0.5)
    calibrated = Echo()
    calibrated.models = [MODEL | {"calibration": CALIBRATION}]
    assert labels(many(calibrated, ["a", "b"], resume=file, keep=0.5)) == ["a", "b"]
    many(Echo(), ["a"], resume=tmp_path / "judged", keep=0.5, explain=True)
    with pytest.raises(errors.InvalidRequest, match="or by another calibration"):
        many(calibrated, ["a", "b"], resume=tmp_path / "judged", keep=0.5, explain=True)


@pytest.mark.parametrize("content", [b"a note", b'{"note": 1}\nanother', b'{"note": 1}'], ids=["text", "lines", "line"])
def test_a_file_of_another_kind_keeps_its_last_line(many: Many, tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "file"
    file.write_bytes(content)
    with pytest.raises(errors.InvalidRequest, match="is another kind of file"):
        many(Echo(), ["a"], resume=file)
    assert file.read_bytes() == content


@pytest.mark.parametrize("kept", [0, 5])
def test_a_file_that_was_cut_off_in_its_first_line_is_begun_anew(tmp_path: Path, kept: int) -> None:
    file = tmp_path / "file"
    with Client("http://service", transport=httpx.MockTransport(Echo().blocking)) as client:
        list(client.classify_many(["a"], resume=file))
        whole = file.read_bytes()
        file.write_bytes(whole[:kept])
        assert labels(client.classify_many(["a"], resume=file)) == ["a"]
    assert file.read_bytes() == whole


def test_a_file_in_use_is_refused(tmp_path: Path) -> None:
    with Client("http://service", transport=httpx.MockTransport(Echo().blocking)) as client:
        first = client.classify_many(["a", "b"], resume=tmp_path / "file")
        next(first)
        with pytest.raises(errors.InvalidRequest, match="is in use by another run"):
            next(client.classify_many(["a", "b"], resume=tmp_path / "file"))
        assert labels(first) == ["b"]
        assert labels(client.classify_many(["a", "b"], resume=tmp_path / "file")) == ["a", "b"]
