"""Real bundles and a real server in a process of its own, for tests of what calls them."""

import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from attenuator.clients import Client
from attenuator.export import export

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "export"))

from checkpoints import CHECKPOINTS, save  # noqa: E402

START_S = 120
KEY = "a key for tests"
MODELS = {
    "long": ("encoder-yoso", "yoso"),
    "mca": ("bert", "mca"),
    "many": ("bert-multi-label", "mca"),
    "exact": ("distilbert", "softmax"),
}


def export_bundles(root: Path) -> dict[str, Path]:
    """Saves small random checkpoints and exports them; bundle folder by model name."""
    bundles = {}
    for name, (checkpoint, attention) in MODELS.items():
        source = save(CHECKPOINTS[checkpoint], root / f"{name}-checkpoint")
        bundles[name] = root / name
        export(str(source), attention=attention, output=bundles[name])
    return bundles


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def serving(folders: Sequence[Path], *words: str) -> Iterator[str]:
    """The address of `attenuator serve` with those bundles, ready; its process ends with the context."""
    port = free_port()
    command = [sys.executable, "-m", "attenuator", "serve", *map(str, folders), "--port", str(port), *words]
    environment = os.environ | {"ATTENUATOR_API_KEY": KEY, "OMP_NUM_THREADS": "1"}
    url = f"http://127.0.0.1:{port}"
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(command, env=environment, stderr=log)
        try:
            with Client(url) as client:
                deadline = time.monotonic() + START_S
                while not client.ready():
                    log.seek(0)
                    assert process.poll() is None, log.read()
                    assert time.monotonic() < deadline, f"not ready within {START_S} s: {log.read()}"
                    time.sleep(0.1)
            yield url
        finally:
            process.terminate()
            try:
                process.wait(timeout=60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
