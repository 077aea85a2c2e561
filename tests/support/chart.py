"""The Helm chart, rendered by helm where there is one."""

import functools
import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "deploy" / "kubernetes" / "attenuator"
FETCHED = ROOT / "build" / "tools" / "helm"
HELM = shutil.which("helm") or (str(FETCHED) if FETCHED.exists() else None)
EVERYTHING = json.dumps(
    {
        "apiKeys": {"secretName": "keys"},
        "bundles": {"inImage": False, "volume": {"persistentVolumeClaim": {"claimName": "models", "readOnly": True}}},
        "settings": {"max_body_bytes": 8388608, "shadow_share": 0.01, "no_page": True},
        "extraEnv": [{"name": "OTEL_SERVICE_NAME", "value": "attenuator"}],
        "autoscaling": {"enabled": True, "by": "keda"},
        "serviceMonitor": {"enabled": True},
        "prometheusRule": {"enabled": True},
        "dashboard": {"enabled": True},
        "networkPolicy": {"egress": [{"to": [{"podSelector": {}}], "ports": [{"port": 4318}]}]},
    }
)
VALUES = {"default": (), "cpu": ("values-cpu.yaml",), "gpu": ("values-gpu.yaml",), "everything": (EVERYTHING,)}
WITHOUT_HELM = pytest.mark.skipif(HELM is None, reason="helm is not installed; scripts/helm.sh fetches one")


def helm(*arguments: str, values: str = "", image: str = "attenuator") -> subprocess.CompletedProcess[str]:
    """Runs helm on the chart."""
    command = [str(HELM), *arguments, "--values", "-", "--set", f"image.repository={image}"]
    return subprocess.run(command, input=values or "{}", capture_output=True, text=True, check=False, cwd=CHART)


@functools.cache
def rendered(name: str) -> dict[str, Any]:
    """What a set of values makes, by kind."""
    (value,) = VALUES[name] or ("",)
    values = (CHART / value).read_text(encoding="utf-8") if value.endswith(".yaml") else value
    done = helm("template", "release", ".", "--namespace", "here", values=values)
    assert done.returncode == 0, done.stderr
    return {one["kind"]: one for one in yaml.safe_load_all(done.stdout) if one is not None}
