"""Uses an installed attenuator as a newcomer would: operators, page, classification in process, server, client.

    python scripts/try_installed.py BUNDLE

Runs by the interpreter of the environment to try, from any folder, and imports nothing of a source tree. Prints what it
ran with, in one line.
"""

import os
import platform
import re
import signal
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

TEXT = "A warm, funny and deeply moving film."
LABEL = "positive"
READY = re.compile(r"ready on (http://\S+)")


def served(command: Path, bundle: str) -> str:
    """The label that a server of the bundle gives."""
    from attenuator.clients import Client

    server = subprocess.Popen(
        [command, "serve", bundle, "--port", "0"], stderr=subprocess.PIPE, text=True, errors="replace"
    )
    assert server.stderr is not None
    try:
        lines = []
        for line in server.stderr:
            lines.append(line)
            if ready := READY.search(line):
                break
        else:
            raise SystemExit(f"the server did not start:\n{''.join(lines)}")
        with Client(ready[1]) as client:
            label: str = client.classify(TEXT).predictions[0].label
    finally:
        server.send_signal(signal.SIGTERM)
        server.communicate(timeout=60)
    if server.returncode != 0:
        raise SystemExit(f"the server ended with {server.returncode}")
    return label


def main() -> int:
    """Runs the program."""
    import attenuator
    import attenuator.serve.app
    from attenuator import ops
    from attenuator.serve.page import INDEX, read_assets

    bundle = str(Path(sys.argv[1]).resolve())
    command = Path(sys.executable).with_name("attenuator")
    inside = Path(attenuator.__file__).resolve().is_relative_to(Path(sys.prefix).resolve())
    assert inside, f"{attenuator.__file__} is not the installed package"
    assert ops.library_path().is_relative_to(sys.prefix), ops.library_path()
    assert {INDEX, "main.js", "style.css", "examples/contract.json"} <= read_assets().keys(), "the page is incomplete"
    assert "torch" not in sys.modules
    classified = subprocess.run([command, "classify", bundle, TEXT], capture_output=True, text=True, check=False)
    assert classified.returncode == 0, classified.stderr
    assert LABEL in classified.stdout, classified.stdout
    label = served(command, bundle)
    assert label == LABEL, label
    packages = ", ".join(f"{name} {version(name)}" for name in ("onnxruntime", "numpy", "tokenizers", "pydantic"))
    libc = " ".join(platform.libc_ver()) or os.confstr("CS_GNU_LIBC_VERSION")
    print(f"Python {platform.python_version()}, {libc}, {packages}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
