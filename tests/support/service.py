"""A real server in a process of its own, and ways to talk to it that a good client does not have."""

import json
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import httpx
from forked import Forked, serve

from attenuator.serve.edge.server import address

READY = re.compile(r"ready on http://(?:\[([\da-f:]+)\]|([\d.]+)):(\d+)")
JSON = "Content-Type: application/json"
GOOD = {"model": "yoso", "inputs": "good film", "num_hashes": 8}


class Service:
    """`attenuator serve` on a free port of 127.0.0.1.

    Attributes:
        program: Python's arguments; where there are none, the process is forked from one that has imported the service.
    """

    program: tuple[str, ...] = ()
    process: Forked | subprocess.Popen[str]

    def __init__(self, folders: Iterable[Path], *flags: str) -> None:
        arguments = [*map(str, folders), "--port", "0", *flags]
        self._lines: list[str] = []
        if self.program:
            command = [sys.executable, *self.program, *arguments]
            self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        else:
            self.process = Forked(serve, arguments)
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self._lines.append(line)
            ready = READY.search(line)
            if ready:
                break
        else:
            self.process.wait()
            raise AssertionError(f"the server did not start:\n{self.log()}")
        self.host, self.port = ready[1] or ready[2], int(ready[3])
        self._reader = threading.Thread(target=self._keep_reading, daemon=True)
        self._reader.start()
        base_url, headers = f"http://{address(self.host, self.port)}", dict([JSON.split(": ")])
        self.client = httpx.Client(base_url=base_url, headers=headers, timeout=60)

    def _keep_reading(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self._lines.append(line)

    def log(self) -> str:
        """What the server wrote to standard error."""
        return "".join(self._lines)

    def wait_for_log(self, *parts: str, within_s: float = 20) -> str:
        """The log, once one of its lines holds all of the parts: a line comes after the answer that it is about."""
        end = time.monotonic() + within_s
        while not any(all(part in line for part in parts) for line in self.log().splitlines()):
            assert time.monotonic() < end, f"{parts} is not in the log:\n{self.log()}"
            time.sleep(0.01)
        return self.log()

    def classify(self, body: dict[str, Any]) -> httpx.Response:
        """One request."""
        return self.client.post("/v1/classify", json=body)

    def good(self) -> dict[str, Any]:
        """A request that must be served, and its answer."""
        response = self.classify(GOOD)
        assert response.status_code == 200, response.text
        return dict(response.json())

    def raw(self, data: bytes, *, half_close: bool = False) -> tuple[int, dict[str, str], bytes]:
        """Sends bytes as they are; returns status, headers and body."""
        with socket.create_connection((self.host, self.port), timeout=30) as connection:
            connection.sendall(data)
            if half_close:
                connection.shutdown(socket.SHUT_WR)
            answer = read_answer(connection)
        if not answer:
            return 0, {}, b""
        head, _, body = answer.partition(b"\r\n\r\n")
        lines = head.decode().split("\r\n")
        headers = dict(line.lower().split(": ", 1) for line in lines[1:])
        return int(lines[0].split()[1]), headers, body

    def stop(self) -> int:
        """Asks it to stop and returns its exit code."""
        self.client.close()
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(timeout=60)
        self._reader.join(timeout=10)
        assert self.process.stderr is not None
        self.process.stderr.close()
        return code


class Started(Service):
    """The command as a user starts it."""

    program = ("-m", "attenuator", "serve")


def read_answer(connection: socket.socket) -> bytes:
    """One answer, whose head and body may come apart; less where the server closes before its end."""
    answer = b""
    while part := connection.recv(65536):
        answer += part
        head, complete, body = answer.partition(b"\r\n\r\n")
        length = re.search(rb"content-length: (\d+)", head, re.IGNORECASE)
        if complete and length and len(body) >= int(length[1]):
            break
    return answer


def request_bytes(body: bytes, *, path: str = "/v1/classify", method: str = "POST", length: int | None = None) -> bytes:
    """A request with a body, whose Content-Length may lie."""
    size = len(body) if length is None else length
    head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\n{JSON}\r\nContent-Length: {size}\r\n\r\n"
    return head.encode() + body


def dumped(**fields: Any) -> bytes:
    """A good request's body with some fields changed; `...` removes one."""
    body = {name: value for name, value in {**GOOD, **fields}.items() if value is not ...}
    return json.dumps(body).encode()
