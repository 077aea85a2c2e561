"""The wall clock jumps by days in both directions while a server works: nothing that it does depends on it."""

import json
import os
import re
import socket
import struct
import subprocess
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from service import GOOD, Service, Started, read_answer, request_bytes

SOURCE = Path(__file__).with_name("wall_clock.cc")
DAY_S = 86_400
LONG = {"inputs": ["good film " * 1500] * 2, "num_hashes": 0, "timeout_ms": 60_000}


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    built = tmp_path_factory.mktemp("wall_clock") / "wall_clock.so"
    compiler = os.environ.get("CXX", "c++")
    subprocess.run([compiler, "-std=c++17", "-O1", "-shared", "-fPIC", str(SOURCE), "-o", str(built)], check=True)
    return built


@pytest.fixture
def jump(library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Moves the wall clock of the servers that a test starts, in days from the true time."""
    file = tmp_path / "shift"

    def move(days: int) -> None:
        with file.open("r+b") as opened:  # in place: the server has it mapped
            opened.write(struct.pack("=q", days * DAY_S))

    file.write_bytes(bytes(8))
    monkeypatch.setenv("LD_PRELOAD", str(library))
    monkeypatch.setenv("WALL_CLOCK_SHIFT", str(file))
    return move


def test_nothing_depends_on_the_wall_clock(
    jump: Callable[[int], None], start_with: Callable[..., Service], bundles: dict[str, Path], tmp_path: Path
) -> None:
    keys = tmp_path / "keys.json"
    keys.write_text(json.dumps([{"name": "one", "key": "sesame", "requests_per_s": 1000, "burst": 1000}]))
    flags = ("--threads", "1", "--api-keys", str(keys), "--log-format", "json", "--log-level", "debug")
    one = start_with([bundles["yoso"]], *flags, "--shadow-share", "0.5", service_class=Started)
    one.client.headers["Authorization"] = "Bearer sesame"
    before = one.good()

    def ask(index: int) -> dict[str, Any]:
        answer = one.classify(LONG if index % 10 == 0 else GOOD | {"timeout_ms": 60_000})
        assert answer.status_code == 200, answer.text
        return dict(answer.json())

    with socket.create_connection((one.host, one.port), timeout=60) as kept, ThreadPoolExecutor(4) as threads:
        kept.sendall(request_bytes(b"", method="GET", path="/health/ready"))
        assert read_answer(kept).startswith(b"HTTP/1.1 200")
        answers = [threads.submit(ask, index) for index in range(40)]
        for days in (1, -1, 400, -400, 0, -2):
            jump(days)
            time.sleep(0.05)
            assert one.client.get("/health/ready").status_code == 200
        for answer in answers:
            timing_ms = answer.result()["timing_ms"]
            assert all(0 <= value < 120_000 for value in timing_ms.values()), timing_ms
        kept.sendall(request_bytes(b"", method="GET", path="/health/ready"))
        assert read_answer(kept).startswith(b"HTTP/1.1 200"), "it was not idle for days"

        jump(3)
        late = one.classify(LONG | {"timeout_ms": 1})
        assert (late.status_code, late.json()["error_type"]) == (504, "deadline_exceeded")
        metrics = one.client.get("/metrics").text
        assert "attenuator_brownout_level 0.0" in metrics
        assert all(float(value) >= 0 for value in re.findall(r"_seconds_sum\{.*\} (\S+)", metrics))
        assert one.good()["predictions"] == before["predictions"]

        last = threads.submit(
            httpx.post, f"{one.client.base_url}/v1/classify", json=LONG, headers=dict(one.client.headers), timeout=60
        )
        while "attenuator_requests_in_progress 1.0" not in one.client.get("/metrics").text:
            assert not last.done()
        jump(-5)
        stamps = {json.loads(line)["time"][:10] for line in one.log().splitlines() if line.startswith("{")}
        assert len(stamps) > 3, "the jumps of this test reached the server"
        assert one.stop() == 0
        assert last.result().status_code == 200, "it was waited for"
