"""`attenuator.load`: a bundle in this process gives the service's answers, errors and types, from any thread."""

import asyncio
import re
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, get_args

import calibrations
import httpx
import numpy as np
import pytest
import tiny
from annotated_types import Le
from pydantic.fields import FieldInfo
from service import Service

import attenuator
from attenuator import commandline
from attenuator.api import Classification
from attenuator.clients import Client
from attenuator.errors import BundleError, InvalidRequest, KnobOutOfRange, NotCalibrated, UnknownField
from attenuator.local import BATCH_ROWS, MAX_THREADS, LocalModel

RANDOM = np.random.default_rng(5)
TEXTS = [" ".join(RANDOM.choice(tiny.WORDS, int(count))) for count in RANDOM.integers(1, 60, 200)]
LONG = " ".join(tiny.WORDS * 25)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A calibrated bundle with a default goal."""
    return calibrations.promising(tiny.write(tmp_path_factory.mktemp("calibrated") / "calibrated", "yoso"))


@pytest.fixture(scope="module")
def here(folder: Path) -> Iterator[LocalModel]:
    with attenuator.load(folder, threads=2) as model:
        yield model


@pytest.fixture(scope="module")
def there(folder: Path) -> Iterator[Client]:
    service = Service([folder])
    with Client(f"http://{service.host}:{service.port}") as client:
        yield client
    assert service.stop() == 0, service.log()


def content(answer: Classification) -> dict[str, Any]:
    """All of an answer but its times."""
    return answer.model_dump(exclude={"timing_ms"})


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"num_hashes": 8, "seed": 7, "return_logits": True, "top_k": 2},
        {"num_hashes": 0},
        {"min_agreement": 0.97},
        {"explain": True, "num_hashes": 16},
        {"escalate": True, "min_agreement": 0.9},
        {"escalate": True, "min_agreement": 0.9, "num_hashes": 4, "explain": True},
    ],
    ids=str,
)
@pytest.mark.parametrize(
    "inputs",
    [
        TEXTS[0],
        TEXTS[:40],
        [LONG, "good"],
        [{"text": "good", "text_pair": "bad film"}, "plot", {"token_ids": [2, 5, 6, 3]}],
    ],
    ids=["text", "list", "long", "mixed"],
)
def test_answers_are_those_of_the_service(here: LocalModel, there: Client, inputs: Any, fields: dict[str, Any]) -> None:
    assert content(here.classify(inputs, **fields)) == content(there.classify(inputs, **fields))


def test_each_input_alone_has_the_answer_of_a_request_of_its_own(here: LocalModel, there: Client) -> None:
    inputs = ["good film", LONG, " ", {"text": "good", "text_pair": "bad"}, {"token_ids": [99_999]}, "plot"]
    for fields in ({}, {"min_agreement": 0.97}, {"explain": True}, {"num_hashes": 8, "return_logits": True}):
        for value, answer in zip(inputs, here.classify_each(inputs, **fields), strict=True):
            if isinstance(answer, InvalidRequest):
                with pytest.raises(type(answer), match=re.escape(str(answer))):
                    there.classify([value], **fields)
            else:
                assert content(answer) == content(there.classify([value], **fields))


def test_a_seed_of_none_is_drawn_and_said(here: LocalModel) -> None:
    drawn = here.classify(TEXTS, seed=None, num_hashes=4)
    assert drawn.seed > 0
    assert content(here.classify(TEXTS, seed=drawn.seed, num_hashes=4)) == content(drawn)


def test_any_number_of_inputs_in_any_order_have_the_answers_that_they_have_alone(here: LocalModel) -> None:
    texts = [*TEXTS, LONG, *TEXTS[::-1]]
    assert len(texts) > 8 * BATCH_ROWS
    together = here.classify(texts, num_hashes=8, return_logits=True)
    alone = [here.classify(text, num_hashes=8, return_logits=True).predictions[0] for text in texts]
    assert list(together.predictions) == alone


def test_threads_that_share_a_model_get_the_same_bits(here: LocalModel) -> None:
    expected = content(here.classify(TEXTS[:60], num_hashes=8, return_logits=True))
    each = [content(here.classify(text, num_hashes=8, return_logits=True)) for text in TEXTS[:60]]

    def work(number: int) -> bool:
        if number % 2:
            return content(here.classify(TEXTS[:60], num_hashes=8, return_logits=True)) == expected
        shown = [content(here.classify(text, num_hashes=8, return_logits=True)) for text in TEXTS[:60]]
        return shown == each

    with ThreadPoolExecutor(6) as pool:
        assert all(pool.map(work, range(12)))


def test_the_number_of_threads_changes_no_bit(folder: Path, here: LocalModel) -> None:
    with attenuator.load(folder, threads=1, check=False) as single:
        assert content(single.classify(TEXTS, num_hashes=8)) == content(here.classify(TEXTS, num_hashes=8))


def test_inside_a_running_event_loop(here: LocalModel) -> None:
    """As in a notebook; escalation is written with coroutines."""

    async def ask() -> Classification:
        return here.classify(TEXTS[:20], escalate=True, min_agreement=0.9)

    assert content(asyncio.run(ask())) == content(here.classify(TEXTS[:20], escalate=True, min_agreement=0.9))


def test_arrays_series_iterators_and_pairs_come_in(here: LocalModel) -> None:
    class Series:
        """What pandas and others hand over."""

        def tolist(self) -> list[str]:
            return TEXTS[:3]

    expected = content(here.classify(TEXTS[:3]))
    for inputs in (np.array(TEXTS[:3]), np.array(TEXTS[:3], dtype=object), Series(), iter(TEXTS[:3]), tuple(TEXTS[:3])):
        assert content(here.classify(inputs)) == expected
    pairs = [("good film", "bad plot"), ("a", "b c")]
    objects = [{"text": first, "text_pair": second} for first, second in pairs]
    for inputs in (pairs, [list(pair) for pair in pairs], np.array(pairs)):
        assert content(here.classify(inputs)) == content(here.classify(objects))
    ids = here.classify([{"token_ids": [2, 5, 3]}])
    assert content(here.classify({"token_ids": np.array([2, 5, 3])})) == content(ids)
    assert here.classify("good", num_hashes=np.int32(8), seed=np.int64(7)).knobs == {"num_hashes": 8}


def test_columns_go_out(here: LocalModel) -> None:
    answer = here.classify(TEXTS, return_logits=True, num_hashes=8)
    columns = answer.columns()
    assert list(columns) == ["label", "score", "logits", "tokens"]
    assert np.array(columns["logits"]).shape == (len(TEXTS), len(here.labels))
    assert columns["label"] == [prediction.label for prediction in answer.predictions]


def test_pandas_in_and_out(here: LocalModel) -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"text": TEXTS}, index=range(7, 7 + len(TEXTS)))
    answered = frame.join(pandas.DataFrame(here.classify(frame["text"]).columns(), index=frame.index))
    assert list(answered.columns) == ["text", "label", "score", "tokens"]
    assert content(here.classify(frame["text"])) == content(here.classify(TEXTS))
    with pytest.raises(InvalidRequest, match="inputs is of type DataFrame, must be a text, or a list"):
        here.classify(frame)
    with pytest.raises(InvalidRequest, match=r"inputs\[0\] is nan, must be a pair|inputs\[0\] is nan, must be a text"):
        here.classify(pandas.Series([float("nan"), "a"], dtype=object))


@pytest.mark.parametrize(
    ("inputs", "fields"),
    [
        (["good", " "], {}),
        ([], {}),
        ([3], {}),
        (3, {}),
        ([{"txt": "a"}], {}),
        ([{"text": "a", "token_ids": [2]}], {}),
        ([{"token_ids": [2, 99_999]}], {}),
        ([{"token_ids": []}], {}),
        (["good " * 9000], {}),
        ("good", {"num_hashes": 513}),
        ("good", {"num_hashes": True}),
        ("good", {"alpha": 0.5}),
        ("good", {"min_agreement": 1.5}),
        ("good", {"min_agreement": 0.9, "num_hashes": 8}),
        ("good", {"escalate": True}),
        ("good", {"top_k": 9}),
        ("good", {"seed": -1}),
        ("good", {"truncate": 1}),
    ],
    ids=str,
)
def test_what_is_refused_is_refused_as_over_http(
    here: LocalModel, there: Client, inputs: Any, fields: dict[str, Any]
) -> None:
    """The body is sent as it is: the client checks knobs before it sends them."""
    with pytest.raises(InvalidRequest) as refused:
        here.classify(inputs, **fields)
    body = {"inputs": inputs, **fields}
    answer = httpx.post(there.base_url + "/v1/classify", json=body).json()
    name = type(refused.value).__name__.lower()
    assert answer["error_type"].replace("_", "") == name
    assert answer["param"] == refused.value.param
    if "1 to 256" not in answer["error"]:  # here nothing limits how many there are
        assert answer["error"] == str(refused.value)


def test_a_wrong_type_is_named_with_all_that_there_may_be(here: LocalModel) -> None:
    with pytest.raises(InvalidRequest) as refused:
        here.classify(b"good")
    assert str(refused.value).startswith(
        "inputs is of type bytes, must be a text, or a list, array or iterator of one or more, each a text, a tuple of "
        'two texts, {"text": ..}, '
    )


ODD_INPUTS: list[Any] = [
    *(bytearray(b"a"), memoryview(b"a"), {"good"}, 3, 2.5, None, True, object(), str, np.array(3.0), np.array([[1]])),
    *([None], [b"a"], [{"a"}], [object()], [["a", "b", "c"]], [[["a"]]], [["a"]], [np.array([2, 3])]),
    *({}, {1: "a"}, {None: 1}, {"text_pair": "a"}, {"text": b"a"}, {"text": None}, {"text": ["a"]}, {"text": {"a"}}),
    *(
        {"token_ids": each}
        for each in ("23", [[2]], [{}], [None], [2.5], [object()], {2}, np.array(3), np.ones((1, 2)))
    ),
    {"token_ids": [2], "token_type_ids": 3},
]
ODD_FIELDS: list[dict[str, Any]] = [
    *({"seed": each} for each in (object(), "7", [7], float("inf"), -1, np.array([1, 2]))),
    *({"num_hashes": each} for each in ([8], {}, {8}, object(), b"8", float("nan"), 10**30, np.array([1, 2]))),
    *({"top_k": [1]}, {"explain": object()}, {"explain": np.array([True, False])}, {"min_agreement": "a"}),
]


@pytest.mark.parametrize("inputs", ODD_INPUTS)
def test_odd_inputs_are_one_sentence(here: LocalModel, inputs: Any) -> None:
    with pytest.raises(InvalidRequest, match=r"^inputs.*, must be .+[^.]$"):
        here.classify(inputs)


@pytest.mark.parametrize("fields", ODD_FIELDS)
def test_odd_fields_are_one_sentence(here: LocalModel, fields: dict[str, Any]) -> None:
    [name] = fields
    with pytest.raises(InvalidRequest, match=f"^{name} .*must be .+[^.]$") as refused:
        here.classify("good", **fields)
    assert name != "seed" or "or null to have one drawn" in str(refused.value)


def test_an_array_of_no_axes_is_one_text(here: LocalModel) -> None:
    assert content(here.classify(np.array("good film"))) == content(here.classify("good film"))


def test_what_only_a_service_can_do_is_refused(here: LocalModel, bundles: dict[str, Path]) -> None:
    for name, value in {"max_latency_ms": 5.0, "timeout_ms": 5.0, "priority": "batch", "degradable_to": {}}.items():
        with pytest.raises(
            UnknownField, match=f"{name} is a field of a service's requests; here the fields are num_hashes, "
        ):
            here.classify("good", **{name: value})  # type: ignore[arg-type]
    with pytest.raises(UnknownField, match="the field 'num_hash' is unknown; did you mean num_hashes"):
        here.classify("good", num_hash=4)
    with pytest.raises(KnobOutOfRange, match="num_hashes is 0.5"):
        here.classify("good", num_hashes=0.5)
    with (
        attenuator.load(bundles["mca"], check=False) as plain,
        pytest.raises(NotCalibrated, match="min_agreement needs a calibration, and model 'mca' has none"),
    ):
        plain.classify("good", min_agreement=0.9)


def test_the_name_is_there_and_costs_nothing_until_it_is_used() -> None:
    program = (
        "import sys, attenuator; before = 'attenuator.local' in sys.modules; attenuator.load; "
        "print(before, 'attenuator.local' in sys.modules, hasattr(attenuator, 'unload'))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "True", "False"]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"device": "gpu"}, "device is 'gpu', must be cpu or cuda or auto"),
        ({"device_id": -3}, "device_id is -3, must be a whole number from 0 to 255"),
        ({"device_id": True}, "device_id is true, must be a whole number from 0 to 255"),
        ({"threads": -1}, "threads is -1, must be a whole number from 1 to 1024, or None"),
        ({"threads": "2"}, "threads is a text, must be a whole number"),
        ({"threads": 10**6}, "threads is 1000000, must be a whole number from 1 to 1024"),
    ],
)
def test_load_names_a_wrong_argument(bundles: dict[str, Path], arguments: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InvalidRequest, match=sentence):
        attenuator.load(bundles["yoso"], check=False, **arguments)


@pytest.mark.parametrize("name", ["x" * 5000, "a\0b"])
def test_a_bundles_name_that_no_file_can_have_is_refused(name: str) -> None:
    with pytest.raises(BundleError):
        attenuator.load(name)


def test_as_many_threads_as_on_the_command_line() -> None:
    [limits] = [each for each in get_args(commandline.Threads) if isinstance(each, FieldInfo)]
    assert Le(MAX_THREADS) in limits.metadata
