"""The end: requests in progress are finished or told so in JSON, in one line of log, within the time limit."""

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from service import Service, Started, dumped, request_bytes

from attenuator.serve.settings import ServeSettings

SLOW = request_bytes(dumped(model=..., inputs=["good film " * 4000] * 4, num_hashes=0))

LONG = "good film " * 4000
TENSOR = {"name": "text", "shape": [4], "datatype": "BYTES", "data": [LONG] * 4}
PEERS = {
    "/predict": {"inputs": [[LONG]] * 4, "num_hashes": 0},
    "/classify": {"input": [LONG] * 4, "num_hashes": 0},
    "/v2/models/yoso/infer": {"inputs": [TENSOR], "parameters": {"num_hashes": 0}},
}
REQUESTS = [SLOW] * 3 + [request_bytes(json.dumps(body).encode(), path=path) for path, body in PEERS.items()]
HANGS = """
import sys, time
from attenuator.runtime import Model
from attenuator.serve.__main__ import main
from attenuator.serve.scheduling import lanes

run, lanes.INLINE_S = Model.run, 1e9

def hang(model, rows, *more):
    time.sleep(1e6 * any(row.seed == 13 for row in rows))
    return run(model, rows, *more)

Model.run = hang
sys.exit(main(sys.argv[1:]))
"""


def read_all(connection: socket.socket) -> bytes:
    """Everything until the server closes."""
    return b"".join(iter(lambda: connection.recv(65536), b""))


@pytest.mark.parametrize("hurry", ["time limit", "second signal"])
def test_unfinished_requests_get_503_in_json_and_one_line(start: Callable[..., Service], hurry: str) -> None:
    one = start(*(("--drain-timeout-ms", "300") if hurry == "time limit" else ()), service_class=Started)
    with contextlib.ExitStack() as stack:
        connections = [
            stack.enter_context(socket.create_connection((one.host, one.port), timeout=30)) for _ in REQUESTS
        ]
        for connection, request in zip(connections, REQUESTS, strict=True):
            connection.sendall(request)
        time.sleep(0.5)
        one.process.send_signal(signal.SIGTERM)
        if hurry == "second signal":
            time.sleep(0.2)
            one.process.send_signal(signal.SIGTERM)
        answers = [read_all(connection) for connection in connections]
    bodies = []
    for answer in answers:
        head, _, body = answer.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 503"), head
        assert b"application/json" in head.lower()
        bodies.append(json.loads(body))
    *own, predict, classify, infer = bodies
    for body in (*own, predict, infer):
        assert set(body) == {"error", "error_type", "param", "allowed"}
    assert {body["error_type"] for body in (*own, infer)} == {"not_ready"}
    assert (predict["error_type"], classify["error"]["code"]) == ("Unhealthy", 503)
    assert one.process.wait(timeout=30) == 0
    one._reader.join(timeout=10)
    log = one.log()
    assert "Traceback" not in log
    assert "ERROR" not in log
    assert log.count("answered with 503") == 1
    assert log.count("POST /v1/classify 503") == 3
    assert len(re.findall(r"POST /\S+ 503 ", log)) == 6


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGINT, signal.SIGTERM])
def test_signals_drain(start: Callable[..., Service], number: signal.Signals) -> None:
    one = start(service_class=Started)
    with socket.create_connection((one.host, one.port), timeout=60) as connection:
        connection.sendall(request_bytes(dumped(model=..., inputs="good film " * 3000, num_hashes=0)))
        time.sleep(0.3)
        one.process.send_signal(number)
        assert connection.recv(65536).startswith(b"HTTP/1.1 200")
    assert one.process.wait(timeout=30) == 0


def test_a_signal_while_bundles_load_leaves_no_copy(bundles: dict[str, Path], tmp_path: Path) -> None:
    command = [sys.executable, "-m", "attenuator", "serve", str(bundles["yoso"]), "--port", "0"]
    with subprocess.Popen(command, env=os.environ | {"TMPDIR": str(tmp_path)}, stderr=subprocess.DEVNULL) as process:
        while not any(tmp_path.iterdir()):
            assert process.poll() is None
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=60) == 0
    assert not list(tmp_path.iterdir())


class Hanging(Service):
    """Runs every request on the event loop, where one with seed 13 never ends."""

    program = ("-c", HANGS)


def test_a_signal_ends_a_service_whose_event_loop_hangs(bundles: dict[str, Path]) -> None:
    one = Hanging([bundles["yoso"]], "--drain-timeout-ms", "100")
    assert one.good()
    with socket.create_connection((one.host, one.port), timeout=60) as connection:
        connection.sendall(request_bytes(dumped(seed=13)))
        time.sleep(0.5)
        one.process.send_signal(signal.SIGTERM)
        assert one.process.wait(timeout=60) == 1
    one.stop()
    assert "the event loop has not ended within 8.1 s of a signal" in one.log()
    assert "draining" not in one.log()


def test_default_ends_before_kubernetes_does() -> None:
    assert ServeSettings.model_fields["drain_timeout_ms"].default <= 25_000
