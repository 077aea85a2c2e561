"""`attenuator bench` against a real server: what is asked, what is counted, what is written."""

import asyncio
import csv
import functools
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest
from running import Run

from attenuator.api import CalibrationInfo, KnobInfo, ModelInfo
from attenuator.commands.bench import results, sweep
from attenuator.commands.bench.grid import MOST_SETTINGS, settings_of
from attenuator.commands.bench.settings import EXAMPLES
from attenuator.commands.bench.sweep import Sweep
from attenuator.load_generator import Client, Exchange, post
from attenuator.ops import KNOBS

KNOB = {"dtype": "float", "accuracy": "rises", "unit": "share", "doc": "a knob"}


def model(task: str = "single_label", frontier: Sequence[float] = (), default: int | None = None) -> ModelInfo:
    knobs = [
        KnobInfo.model_validate(KNOB | {"name": "a", "default": 0.5, "low": 0.0, "high": 1.0, "exact": 1.0}),
        KnobInfo.model_validate(
            KNOB | {"name": "b", "dtype": "int32", "default": 4, "low": 0, "high": 9, "exact": 0, "accuracy": "falls"}
        ),
    ]
    fields = {"name": "m", "revision": "0" * 64, "task": task, "labels": ("x", "y"), "max_tokens": 512, "knobs": knobs}
    calibration = None
    if frontier:
        rows = [{"knobs": {"a": value, "b": 0}, "agreement": ()} for value in frontier]
        bucket = {"low": 1, "high": 512, "texts": 9, "settings": range(len(frontier)), "default": default}
        calibration = CalibrationInfo.model_validate(
            {"confidence": 0.975, "data": "d", "texts": 9, "buckets": [bucket], "settings": rows}
        )
    return ModelInfo.model_validate(fields | {"calibration": calibration})


def sweep_of(info: ModelInfo, **fields: Any) -> Sweep:
    common: dict[str, Any] = {"url": httpx.URL("http://h:1/below/"), "texts": [{"text": "t"}] * 2, "fields": {}}
    common |= {"headers": {}, "seconds": 2.0, "target_ms": 100.0, "give_up_s": 1.0, "seed": 0}
    return Sweep(model=info, **common | fields)


def test_settings_are_every_combination_of_what_is_chosen_after_the_exact_one() -> None:
    assert settings_of(model(), {"a": [0.25, 1.0]}) == [{"a": 1, "b": 0}, {"a": 0.25, "b": 4}, {"a": 1, "b": 4}]
    assert len(settings_of(model(), {"a": [0.25, 1.0], "b": [0, 2, 3]})) == 6, "one of them is the exact one"
    assert settings_of(model(), {}) == [{"a": 1, "b": 0}, {"a": 0.5, "b": 4}]


@pytest.mark.parametrize("count", [1, 2, 5, 6, 9, 40])
def test_settings_of_a_calibration_lie_along_its_frontier(count: int) -> None:
    frontier = [1 - index / 64 for index in range(count)]
    settings = settings_of(model(frontier=frontier), {})
    assert settings[0] == {"a": 1, "b": 0}
    assert settings[-1] == {"a": 0.5, "b": 4}
    values = [setting["a"] for setting in settings[:-1]]
    assert values == sorted(values, reverse=True)
    assert values[-1] == frontier[-1]
    assert min(count, 2) <= len(values) <= MOST_SETTINGS + 1


def test_what_requests_that_set_nothing_run_at_is_among_the_settings() -> None:
    frontier = [each / 20 for each in range(20, 0, -1)]
    by_knobs, by_goal = (settings_of(model(frontier=frontier, default=place), {}) for place in (None, 3))
    assert [each for each in by_goal if each not in by_knobs] == [{"a": frontier[3], "b": 0}]
    assert [each for each in by_knobs if each not in by_goal] == [{"a": 0.5, "b": 4}]


def exchange(text: int, status: int, ms: float, label: str = "", **fields: Any) -> Exchange:
    answer = {"predictions": [{"label": label}], "chosen_by": "caller"} | fields if status == 200 else {}
    return Exchange(0.0, text, status, ms / 1000, 0.001, answer)


def test_what_is_counted() -> None:
    sweep = sweep_of(model())
    sweep._exact = ["x", "y"]
    exchanges = [
        exchange(0, 200, 10, "x"),
        exchange(0, 200, 20, "x"),
        exchange(1, 200, 30, "x"),
        exchange(1, 200, 200, "y", chosen_by="brownout"),
        exchange(0, 429, 1),
        exchange(0, 504, 50),
        exchange(0, 0, 1000),
    ]
    row = sweep.summary(3.5, {"a": 0.5, "b": 4}, exchanges)
    assert (row.requests, row.answered, row.refused, row.failed) == (7, 4, 1, 2)
    assert row.goodput_per_s == 1.5, "three answers within 100 ms in two seconds"
    assert (row.agreement, row.lowered) == (0.75, 0.25)
    assert row.p50_ms == pytest.approx(25)
    assert row.late_ms == pytest.approx(1)
    nothing = sweep.summary(3.5, {}, [exchange(0, 0, 1000)])
    assert (nothing.p99_ms, nothing.agreement, nothing.goodput_per_s) == (None, None, 0)
    beaten = sweep.summary(3.5, {}, [exchange(0, 200, 10, "y")])
    assert results.frontier([row, beaten, nothing]) == [True, False, False]
    sweep.rows = [row, sweep.summary(3.5, {"a": 1.0, "b": 0}, [exchange(0, 0, 1000)])]
    first, second = csv.DictReader(results.as_csv(sweep.rows).splitlines())
    assert (first["a"], first["b"], first["agreement"], first["frontier"]) == ("0.5", "4", "0.75", "True")
    assert (second["p99_ms"], second["failed"]) == ("", "1")


def test_requests_name_the_service_and_whole_numbers_are_whole() -> None:
    sweep = sweep_of(model(), headers={"Authorization": "Bearer k"}, fields={"truncate": True})
    head, _, body = sweep.requests({"a": 1.0, "b": 4.0})[0].decode().partition("\r\n\r\n")
    assert head.startswith("POST /below/v1/classify HTTP/1.1\r\n")
    assert {"Host: h:1", "Authorization: Bearer k"} < set(head.split("\r\n"))
    assert body == '{"inputs": [{"text": "t"}], "model": "m", "truncate": true, "a": 1.0, "b": 4}'


def test_answers_may_come_in_chunks() -> None:
    async def chunked(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"}")
        writer.write(b'HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4;x=y\r\n{"a"\r\n3\r\n:1}\r\n0\r\n\r\n')
        writer.close()

    async def asked() -> tuple[int, bytes]:
        async with await asyncio.start_server(chunked, "127.0.0.1", 0) as listening:
            client = Client(listening.sockets[0].getsockname()[1])
            answer = await client.exchange(post("/", {"a": 1}))
            client.close()
            return answer

    assert asyncio.run(asked()) == (200, b'{"a":1}')


def test_multi_label_answers_agree_by_their_sets_and_a_regression_has_no_agreement() -> None:
    multi = sweep_of(model("multi_label"))
    multi._exact = [("x", "y"), ("x",)]
    answers = [
        {"predictions": [{"label": "x", "labels": labels}], "chosen_by": "caller"} for labels in (["y", "x"], ["y"])
    ]
    exchanges = [Exchange(0.0, index, 200, 0.01, 0.0, answer) for index, answer in enumerate(answers)]
    assert multi.summary(1.0, {}, exchanges).agreement == 0.5
    score = sweep_of(model("regression"))
    score._exact = [None, None]
    assert score.summary(1.0, {}, [exchange(0, 200, 10, "score")]).agreement is None


def test_a_service_is_measured(run: Run, url: str, tmp_path: Path) -> None:
    texts = tmp_path / "texts.csv"
    texts.write_text("n,body\n" + "".join(f"{n},good film {n}\n" for n in range(8)))
    flags = ["--file", texts, "--column", "body", "--rates", "40,20", "--seconds", "0.5", "--num-hashes", "0,8"]
    files = ["--output", tmp_path / "b.json", "--plot", tmp_path / "b.svg"]
    code, output, errors = run("bench", "--url", url, "--model", "yoso", *flags, *files)
    assert (code, errors) == (0, "")
    assert "yoso on cpu: 8 texts of" in output
    assert "num_hashes" in output.splitlines()[1]
    result = json.loads((tmp_path / "b.json").read_text())
    assert result["model"] == "yoso"
    assert result["capacity_per_s"] > 0
    assert [(row["rate_per_s"], row["knobs"]["num_hashes"]) for row in result["rows"]] == [
        (20, 0),
        (20, 8),
        (40, 0),
        (40, 8),
    ]
    for row in result["rows"]:
        assert row["requests"] == row["answered"] + row["refused"] + row["failed"]
        assert row["p50_ms"] <= row["p90_ms"] <= row["p99_ms"]
    assert [row["agreement"] for row in result["rows"] if row["knobs"]["num_hashes"] == 0] == [1, 1]
    assert "<svg" in (tmp_path / "b.svg").read_text()


def test_a_run_whose_requests_all_fail_is_no_success(run: Run, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def stopping(*arguments: Any) -> list[Exchange]:
        return [exchange(0, 503, 1.0) for _ in await open_loop(*arguments)]

    open_loop = sweep.open_loop
    monkeypatch.setattr(sweep, "open_loop", stopping)
    flags = ["--rates", "20", "--seconds", "0.5", "--max-texts", "2", "--num-hashes", "8"]
    code, output, errors = run("bench", "--url", url, "--model", "yoso", *flags)
    assert (code, errors) == (1, "attenuator bench: of some runs no request was answered, neither with 200 nor 429\n")
    assert "100.0%" in output, "the table is there all the same"


@pytest.mark.parametrize(
    ("arguments", "code", "sentence"),
    [
        ([], 2, "--url is missing"),
        (["--url", "{url}"], 1, "serves several models: give --model, one of: "),
        (["--url", "{url}", "--model", "no"], 1, "serves no model 'no', must be one of: "),
        (["--url", "http://127.0.0.1:1"], 1, "cannot be reached"),
        (["--url", "{url}", "--model", "mca", "--api-key", "wrong"], 1, "key"),
        (["--url", "{url}", "--rates", "1,x"], 2, "--rates is '1,x', must be numbers above 0, separated by commas"),
        (["--url", "{url}", "--rates", "0"], 2, "--rates is '0'"),
        (["--url", "{url}", "--model", "mca", "--num-hashes", "8"], 2, "mca has no knob num_hashes; its knobs: alpha"),
        (
            ["--url", "{url}", "--model", "mca", "--alpha", "9"],
            2,
            "--alpha is '9', must be values of alpha",
        ),
        (["--url", "{url}", "--model", "yoso", "--num-hashes", "9" * 400], 2, "must be values of num_hashes from 0"),
        (["--url", "{url}", "--model", "mca", "--rates", "1,2", "--seconds", "300"], 2, "takes 1500 s at least"),
        (["--url", "{url}", "--output", "b.txt"], 2, "--output is b.txt, must end in .json or .csv"),
        (["--url", "{url}", "--plot", "/nowhere/b.svg"], 2, "in a folder that does not exist"),
        (["--url", "{url}", "--file", "/nowhere.txt"], 1, "/nowhere.txt cannot be read"),
    ],
    ids=lambda value: " ".join(value)[:50] if isinstance(value, list) else None,
)
def test_what_is_wrong_is_one_sentence(run: Run, url: str, arguments: list[str], code: int, sentence: str) -> None:
    exit_code, output, errors = run("bench", *(argument.format(url=url) for argument in arguments))
    assert (exit_code, output) == (code, "")
    assert sentence in errors
    assert len(errors.splitlines()) == 1


def test_an_interrupted_sweep_prints_what_it_has(url: str, key: str, tmp_path: Path) -> None:
    flags = ["--model", "softmax", "--rates", "10,11,12,13", "--seconds", "0.4", "--max-texts", "2"]
    program = (
        "import os, signal, sys\n"
        "from attenuator.commands.bench.sweep import Sweep\n"
        "from attenuator.__main__ import main\n"
        "run = Sweep.run\n"
        "async def stopped(self, *arguments):\n"
        "    if len(self.rows) == 2: os.kill(os.getpid(), signal.SIGINT)\n"
        "    return await run(self, *arguments)\n"
        "Sweep.run = stopped\n"
        "sys.exit(main(sys.argv[1:]))\n"
    )
    environment = os.environ | {"ATTENUATOR_API_KEY": key}
    command = [sys.executable, "-c", program, "bench", "--url", url, *flags, "--output", str(tmp_path / "b.json")]
    heeds = functools.partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False, preexec_fn=heeds)
    assert done.returncode == 130, done.stderr
    assert "softmax on cpu" in done.stdout
    assert len(json.loads((tmp_path / "b.json").read_text())["rows"]) == 2
    assert done.stderr == ""


def test_the_knob_values_in_the_examples_are_allowed() -> None:
    shown = [(name.replace("-", "_"), values) for name, values in re.findall(r"--([a-z-]+) (\S+,\S+)$", EXAMPLES, re.M)]
    assert shown
    for name, values in shown:
        knob = KNOBS[name]
        for value in map(float, values.split(",")):
            assert knob.low <= value <= knob.high, (name, value)
            assert knob.dtype != "int32" or value.is_integer(), (name, value)
