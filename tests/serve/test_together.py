"""Requests that run together: every answer equals, bit for bit, the one the request gets alone."""

import random
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import tiny
from onnx import helper, numpy_helper
from service import Service

from attenuator import bundle


def core(answer: dict[str, Any]) -> dict[str, Any]:
    """What must not depend on the company."""
    return {name: value for name, value in answer.items() if name != "timing_ms"}


def at_once(service: Service, bodies: list[dict[str, Any]]) -> list[dict[str, Any]]:
    with ThreadPoolExecutor(len(bodies)) as pool:
        answers = list(pool.map(service.classify, bodies))
    assert {answer.status_code for answer in answers} == {200}
    return [answer.json() for answer in answers]


def bodies(model: str, count: int, seed: int) -> list[dict[str, Any]]:
    """Requests of all lengths with a different knob each."""
    draw = random.Random(seed)
    drawn = []
    for index in range(count):
        text = " ".join(draw.choices(tiny.WORDS, k=draw.choice([1, 3, 10, 60, 300, 900])))
        body = {"model": model, "inputs": text, "seed": draw.randrange(2**53), "return_logits": True}
        if model in ("yoso", "multi"):
            body["num_hashes"] = index
        elif model == "mca":
            body["alpha"] = index / count
        drawn.append(body)
    return drawn


@pytest.mark.parametrize("model", ["yoso", "mca", "multi", "softmax"])
def test_fifty_requests_with_fifty_knobs_answer_as_alone(service: Service, model: str) -> None:
    requests = bodies(model, 50, seed=5)
    alone = [core(service.classify(body).json()) for body in requests]
    for _ in range(3):
        assert [core(answer) for answer in at_once(service, requests)] == alone


def test_models_and_batches_mix(service: Service) -> None:
    requests = [body for model in ("yoso", "mca", "multi", "softmax") for body in bodies(model, 12, seed=9)]
    requests.append(
        {"model": "yoso", "inputs": [body["inputs"] for body in requests], "num_hashes": 7, "return_logits": True}
    )
    random.Random(1).shuffle(requests)
    alone = [core(service.classify(body).json()) for body in requests]
    assert [core(answer) for answer in at_once(service, requests)] == alone


def test_a_slow_request_does_not_hold_up_the_others(start: Callable[..., Service]) -> None:
    service = start()
    slow = {"model": "yoso", "inputs": [("good film " * 4000)] * 3, "num_hashes": 0}
    quick = {"model": "yoso", "inputs": "good film", "num_hashes": 4}
    with ThreadPoolExecutor(1) as pool:
        started = time.monotonic()
        long = pool.submit(service.classify, slow)
        time.sleep(0.15)
        waits = []
        while not long.done():
            before = time.monotonic()
            assert service.classify(quick).status_code == 200
            waits.append(time.monotonic() - before)
        slow_s = time.monotonic() - started
    assert long.result().status_code == 200
    assert slow_s > 0.5, "the slow request is no longer slow; make it slower"
    assert len(waits) >= 5
    assert sorted(waits)[len(waits) // 2] < slow_s / 3


def test_short_requests_are_answered_before_the_batches_of_256_that_came_first(start: Callable[..., Service]) -> None:
    """An order, not a time: every short request ends before any of the batches, and these end too."""
    service = start("--max-queue-tokens", "10000000")
    batch = {"model": "yoso", "inputs": ["good film " * 40] * 256, "num_hashes": 512}  # seconds of work
    quick = {"model": "yoso", "inputs": "good film", "num_hashes": 4}
    order: list[str] = []

    def ask(name: str, body: dict[str, Any]) -> None:
        answer = service.classify(body)
        assert answer.status_code == 200, answer.text
        order.append(name)

    with ThreadPoolExecutor(10) as pool:
        batches = [pool.submit(ask, "batch", batch) for _ in range(4)]
        time.sleep(0.1)  # they are in the queue
        shorts = [pool.submit(ask, "short", quick) for _ in range(6)]
        for request in batches + shorts:
            request.result()
    assert order == ["short"] * 6 + ["batch"] * 4


def with_trap(folder: Path) -> Path:
    """A bundle that fails on the word 'bad' (an index out of bounds) and gives NaN on the word 'very'."""
    tiny.write(folder, "yoso", name="yoso")
    model = onnx.load(folder / bundle.MODEL)
    trap = [
        helper.make_node("Equal", ["input_ids", "trap_id"], ["trap_hit"]),
        helper.make_node("Where", ["trap_hit", "trap_far", "trap_near"], ["trap_index"]),
        helper.make_node("Gather", ["trap_table", "trap_index"], ["trap_rows"]),
    ]
    first = model.graph.node[0]
    assert first.op_type == "Gather"
    embedded = first.output[0]
    first.output[0] = "embedded_plain"
    trap.append(helper.make_node("Add", ["embedded_plain", "trap_rows"], [embedded]))
    nodes = [model.graph.node[0], *trap, *model.graph.node[1:]]
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    constants = {"trap_id": tiny.VOCAB["bad"], "trap_far": 10**6, "trap_near": 0}
    for name, value in constants.items():
        model.graph.initializer.append(numpy_helper.from_array(np.array(value, dtype=np.int64), name))
    zeros = np.zeros((1, tiny.HIDDEN), dtype=np.float32)
    model.graph.initializer.append(numpy_helper.from_array(zeros, "trap_table"))
    table = next(weight for weight in model.graph.initializer if weight.name == first.input[0])
    values = numpy_helper.to_array(table).copy()
    values[tiny.VOCAB["very"]] = np.nan
    table.CopyFrom(numpy_helper.from_array(values, table.name))
    onnx.save(model, folder / bundle.MODEL)
    # The probe must not hold the words that the trap is for.
    probe = dict(np.load(folder / bundle.PROBE))
    ids = probe["input_ids"]
    ids[np.isin(ids, [tiny.VOCAB["bad"], tiny.VOCAB["very"]])] = tiny.VOCAB["good"]
    tiny.probe(folder, probe)
    tiny.sign(folder)
    return folder


@pytest.mark.parametrize(
    ("word", "inside"), [("bad", "on this batch: "), ("very", "not finite")], ids=["raises", "NaN"]
)
def test_a_broken_request_hurts_no_other(
    start_with: Callable[..., Service], tmp_path: Path, word: str, inside: str
) -> None:
    one = start_with([with_trap(tmp_path / "trap")])
    good = [body | {"inputs": body["inputs"].replace(word, "good")} for body in bodies("yoso", 12, seed=2)]
    for body in good:
        body["inputs"] = body["inputs"].replace("bad", "good").replace("very", "good")
    alone = [core(one.classify(body).json()) for body in good]
    broken = {"model": "yoso", "inputs": f"good {word} film"}
    for _ in range(4):
        with ThreadPoolExecutor(16) as pool:
            mixed = list(pool.map(one.classify, good[:6] + [broken, broken] + good[6:]))
        failed = mixed[6:8]
        assert [answer.status_code for answer in failed] == [500, 500]
        assert {answer.json()["error_type"] for answer in failed} == {"engine_error"}
        for answer in failed:  # what the engine said is for the log alone
            assert answer.json()["error"].endswith(f"says more, under id {answer.headers['X-Request-Id']}")
            assert "ONNX" not in answer.json()["error"]
            one.wait_for_log(f"[{answer.headers['X-Request-Id']}]", inside)
        assert [core(answer.json()) for answer in mixed[:6] + mixed[8:]] == alone
    assert one.good()["predictions"]
