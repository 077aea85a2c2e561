"""A server that answers with the bytes that a test gives it, for what a well-behaved service never does."""

import contextlib
import socket
import threading
from collections.abc import Iterator

from attenuator.api import Classification

FIELDS = {"model": "m", "revision": "", "device": "cpu", "predictions": (), "knobs": {}, "chosen_by": "default"}
BODY = Classification(**FIELDS, seed=0, tokens=(), timing_ms={}).model_dump_json().encode()
WHOLE = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(BODY) + BODY


class Server:
    """Answers each request with the next of some replies; an empty one closes the connection without a word.

    Attributes:
        requests: how many were read in whole.
    """

    def __init__(self, *replies: bytes) -> None:
        self.requests = 0
        self._replies = list(replies)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while self._replies:
            connection, _ = self._listener.accept()
            with connection:
                connection.settimeout(20)
                while self._replies and self._read(connection):
                    self.requests += 1
                    reply = self._replies.pop(0)
                    connection.sendall(reply)
                    if reply != WHOLE:
                        break
        self._listener.close()

    @staticmethod
    def _read(connection: socket.socket) -> bool:
        data = b""
        while b"\r\n\r\n" not in data or not data.endswith(b"}"):
            part = connection.recv(65536)
            if not part:
                return False
            data += part
        return True

    def end(self) -> None:
        """Waits until every reply was given."""
        self._thread.join(timeout=20)
        assert not self._thread.is_alive()

    @staticmethod
    @contextlib.contextmanager
    def silent() -> Iterator[str]:
        """Address of a server that takes connections and answers nothing."""
        with socket.create_server(("127.0.0.1", 0)) as listener:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
