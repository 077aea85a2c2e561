"""ONNX Runtime reports nothing to its maker."""

import os
import subprocess
import sys
from pathlib import Path

REPORTING = ("ORT_DISABLE_TELEMETRY", "ORT_RUNNING_UNIT_TESTS", "CI", "XDG_CACHE_HOME")
LOAD = "import attenuator.runtime.session"


def test_loading_the_runtime_queues_no_report(tmp_path: Path) -> None:
    """Reports wait in a database in the home folder until they are sent."""
    environment = {name: value for name, value in os.environ.items() if name not in REPORTING}
    subprocess.run([sys.executable, "-c", LOAD], check=True, env=environment | {"HOME": str(tmp_path)}, timeout=60)
    assert [str(path) for path in tmp_path.rglob("*") if path.is_file()] == []
