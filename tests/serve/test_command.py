"""The command `attenuator serve`: flags, environment, exit codes, log."""

import json
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from service import Service, Started

from attenuator import bundle
from attenuator.__main__ import main
from attenuator.runtime.model import Model
from attenuator.serve.__main__ import warn_of_idle_floors
from attenuator.serve.edge.server import fastest_loop, listen
from attenuator.serve.settings import ServeSettings

ROOT = Path(__file__).resolve().parents[2]


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """What `attenuator serve` says of wrong arguments, all that it does with them: one sentence, and exit code 2."""
    with pytest.raises(SystemExit) as ended:
        main(["serve", *arguments])
    said = capsys.readouterr().err
    assert ended.value.code == 2
    assert len(said.strip().splitlines()) == 1
    return said


def command(*arguments: object) -> subprocess.CompletedProcess[str]:
    program = [sys.executable, "-m", "attenuator", "serve", *map(str, arguments)]
    return subprocess.run(program, capture_output=True, text=True, timeout=120, check=False)


def test_help_names_every_flag() -> None:
    done = command("--help")
    assert done.returncode == 0
    for name, field in ServeSettings.model_fields.items():
        assert f"--{name.replace('_', '-')}" in done.stdout
        assert field.description
    assert "curl" in done.stdout


WRONG = {
    "no bundle": ((), "BUNDLE"),
    "unknown flag": (("b", "--colour", "red"), "--colour"),
    "port a word": (("b", "--port", "http"), "--port"),
    "port too large": (("b", "--port", "70000"), "--port"),
    "device a word": (("b", "--device", "gpu"), "--device"),
    "negative device": (("b", "--device-id", "-1"), "--device-id"),
    "negative cost": (("b", "--max-cost", "-1"), "--max-cost"),
    "no knob in the policy": (("b", "--brownout-to", "colour=1"), "--brownout-to"),
    "policy out of range": (("b", "--brownout-to", "keep=2"), "keep is 2.0, must be a number from 0.05 to 1"),
}
# In a process of its own, whose exit code and standard error a script reads.
ENDS = {
    "usage error": (("b", "--port", "http"), 2, "--port"),
    "no such folder": (("nowhere", "--port", "0"), 1, "bundle nowhere is not a folder"),
    "no such host": (("b", "--host", "300.1.1.1"), 1, "cannot listen on 300.1.1.1"),
}


@pytest.mark.parametrize("case", WRONG.values(), ids=WRONG)
def test_usage_errors_are_one_sentence(case: tuple[tuple[str, ...], str], capsys: pytest.CaptureFixture[str]) -> None:
    arguments, sentence = case
    assert sentence in refused(capsys, *arguments)


@pytest.mark.parametrize("case", ENDS.values(), ids=ENDS)
def test_the_process_ends_with_one_sentence_and_a_code(case: tuple[tuple[str, ...], int, str]) -> None:
    arguments, code, sentence = case
    done = command(*arguments)
    assert done.returncode == code
    assert sentence in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("key", ["", " ", "two words", "cl\u00e9", "line\nbreak"])
def test_key_that_no_header_carries_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], key: str
) -> None:
    """An empty one, as of a variable that is not set, would leave the service open."""
    monkeypatch.setenv("ATTENUATOR_API_KEY", key)
    said = refused(capsys, "b")
    assert "ATTENUATOR_API_KEY) is refused: a key must have one or more" in said
    assert not key.strip() or key not in said


def test_damaged_bundle_among_good_ones_stops_the_start(bundles: dict[str, Path], tmp_path: Path) -> None:
    bad = Path(shutil.copytree(bundles["mca"], tmp_path / "bad"))
    with (bad / bundle.MODEL).open("r+b") as file:
        file.seek(5000)
        file.write(b"\x00\x01\x02\x03")
    done = command(bundles["yoso"], bad, "--port", "0", "--log-level", "warning")
    assert done.returncode == 1
    assert f"bundle {bad}: model.onnx is damaged" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_two_bundles_of_one_name(bundles: dict[str, Path]) -> None:
    done = command(bundles["yoso"], bundles["yoso"], "--port", "0", "--log-level", "warning")
    assert done.returncode == 1
    assert "name is 'yoso', must differ" in done.stderr


def test_taken_port(bundles: dict[str, Path]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        done = command(bundles["yoso"], "--port", taken.getsockname()[1])
    assert done.returncode == 1
    assert "cannot listen on 127.0.0.1" in done.stderr
    assert "in use, choose another --port" in done.stderr


def test_the_demo_says_how_to_choose_another_port() -> None:
    venv = Path(sys.executable).parent.parent
    with socket.create_server(("127.0.0.1", 0)) as taken:
        made = ["make", "-o", f"{venv}/.demo", "demo", f"VENV={venv}", f"PORT={taken.getsockname()[1]}"]
        done = subprocess.run(made, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 2
    assert "if the port is taken: make demo PORT=8001" in done.stderr


def test_small_answers_are_sent_at_once() -> None:
    """Asyncio turns Nagle's delay (40 ms an answer) off only on sockets that name their protocol."""
    with listen("127.0.0.1", 0) as bound:
        assert bound.proto == socket.IPPROTO_TCP


def test_environment_sets_what_flags_do(start: Callable[..., Service], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATTENUATOR_SEED", "17")
    monkeypatch.setenv("ATTENUATOR_API_KEY", "k")
    monkeypatch.setenv("ATTENUATOR_LOG_FORMAT", "json")
    one = start(service_class=Started)
    assert one.classify({"inputs": "good"}).status_code == 401
    headers = {"Authorization": "Bearer k"}
    answer = one.client.post("/v1/classify", json={"inputs": "a secret text"}, headers=headers).json()
    assert answer["seed"] == 17
    lines = [json.loads(line) for line in one.log().splitlines()]
    assert any("loaded yoso" in line["message"] for line in lines)
    assert any("requests need an API key" in line["message"] for line in lines)
    assert "secret" not in one.log()


def test_cuda_that_cannot_be_used_stops_the_start(bundles: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setenv("ATTENUATOR_DEVICE", "cuda")
    done = command(bundles["yoso"], "--port", "0", "--device-id", "1", "--log-level", "warning")
    assert done.returncode == 1
    assert done.stderr.startswith("attenuator serve: CUDA device 1 cannot be used: ")
    assert len(done.stderr.strip().splitlines()) == 1


def test_auto_goes_on_without_cuda_and_says_why(start: Callable[..., Service], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    one = start("--device", "auto", "--log-level", "warning", service_class=Started)
    assert "running on cpu: CUDA device 0 cannot be used: " in one.log()
    assert one.good()["device"] == "cpu"


@pytest.mark.parametrize("key", [None, "sesame"])
def test_open_service_on_the_network_is_warned_of(
    start: Callable[..., Service], monkeypatch: pytest.MonkeyPatch, key: str | None
) -> None:
    if key:
        monkeypatch.setenv("ATTENUATOR_API_KEY", key)
    one = start("--host", "0.0.0.0", "--log-level", "warning")
    assert ("everyone who can reach 0.0.0.0:" in one.log()) == (key is None)
    assert ("no API key is required" in one.log()) == (key is None)
    assert "sesame" not in one.log()


def test_more_connections_than_the_descriptor_limit_allows_are_refused(bundles: dict[str, Path]) -> None:
    done = command(bundles["yoso"], "--port", "0", "--max-connections", 10**9)
    assert done.returncode == 1
    assert re.search(
        r"--max-connections is 1000000000, must be at most \d+: the process may open \d+ files", done.stderr
    )


@pytest.mark.parametrize("origins", ["app.example", "https://a.example/path", "https://a.example,x", "null"])
def test_what_is_no_origin_is_refused(capsys: pytest.CaptureFixture[str], origins: str) -> None:
    assert "must be an origin such as https://app.example:8443" in refused(capsys, "b", "--cors-origins", origins)


def test_variable_that_kubernetes_sets_is_explained(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ATTENUATOR_PORT", "tcp://10.0.0.1:8000")
    assert "set enableServiceLinks to false" in refused(capsys, "b")


def test_floors_of_knobs_that_no_model_has_are_named_in_the_log(
    models: dict[str, Model], caplog: pytest.LogCaptureFixture
) -> None:
    warn_of_idle_floors(["num_hashes"], models)
    assert not caplog.text
    warn_of_idle_floors(["num_hashes", "alpha"], {"yoso": models["yoso"]})
    assert "--brownout-to names alpha, a knob of no served model; their knobs: " in caplog.text
    assert "num_hashes" not in caplog.text.partition("; their knobs")[0]


def test_the_event_loop_is_that_of_asyncio_where_uvloop_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "uvloop", None)
    assert fastest_loop() is None
