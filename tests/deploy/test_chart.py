"""The Helm chart renders what Kubernetes takes, with few rights, and with settings and routes that the service has."""

import json
from typing import Any

import pytest
import yaml
from chart import CHART, ROOT, VALUES, WITHOUT_HELM, helm, rendered

from attenuator import __version__
from attenuator.serve.api.probes import Probes
from attenuator.serve.engine import Engine
from attenuator.serve.settings import ServeSettings

OTHERS = {"ScaledObject", "ServiceMonitor", "PrometheusRule"}  # of KEDA and the Prometheus operator, not of Kubernetes
OLDEST, NEWEST = "1.27", "1.37"
pytestmark = WITHOUT_HELM


def pod(name: str) -> dict[str, Any]:
    return dict(rendered(name)["Deployment"]["spec"]["template"]["spec"])


def container(name: str) -> dict[str, Any]:
    (one,) = pod(name)["containers"]
    return dict(one)


@pytest.mark.parametrize("version", [OLDEST, NEWEST])
@pytest.mark.parametrize("name", VALUES)
def test_objects_keep_to_the_schemas_of_kubernetes(name: str, version: str) -> None:
    import kubernetes_validate  # a grammar is compiled, which every process that collects tests would wait for

    objects = rendered(name)
    assert {"Deployment", "Service", "ServiceAccount", "NetworkPolicy"} <= set(objects)
    for kind, content in objects.items():
        if kind not in OTHERS:
            kubernetes_validate.validate(content, version, strict=True)


def test_chart_is_linted_and_has_the_version_of_the_package() -> None:
    done = helm("lint", ".", "--strict")
    assert done.returncode == 0, done.stdout
    assert yaml.safe_load((CHART / "Chart.yaml").read_text(encoding="utf-8"))["appVersion"] == __version__


def test_without_an_image_the_chart_says_that_no_registry_holds_one() -> None:
    done = helm("template", "release", ".", image="")
    assert done.returncode != 0
    assert "image.repository is not set: no registry holds the image; build it from the checkout, push" in done.stderr


@pytest.mark.parametrize("name", VALUES)
def test_pod_has_few_rights(name: str) -> None:
    """What the Pod Security Standard `restricted` wants, and more."""
    spec, one = pod(name), container(name)
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert one["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert spec["automountServiceAccountToken"] is False
    assert spec["enableServiceLinks"] is False
    assert all(mount.get("readOnly") for mount in one["volumeMounts"] if mount["mountPath"] != "/var/tmp")
    user = f"USER {spec['securityContext']['runAsUser']}:{spec['securityContext']['runAsGroup']}"
    assert user in (ROOT / "Dockerfile").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", VALUES)
def test_probes_ask_routes_of_the_service(name: str) -> None:
    one = container(name)
    paths = [one[probe]["httpGet"]["path"] for probe in ("startupProbe", "livenessProbe", "readinessProbe")]
    assert paths == ["/health/startup", "/health/live", "/health/ready"]
    assert set(paths) <= {path for path, *_ in Probes(Engine(ServeSettings())).routes()}


@pytest.mark.parametrize("name", VALUES)
def test_pod_has_time_to_end_what_it_has_accepted(name: str) -> None:
    one = container(name)
    environment = {entry["name"]: entry.get("value") for entry in one["env"]}
    drain_s = float(environment["ATTENUATOR_DRAIN_TIMEOUT_MS"]) / 1e3
    before_s = float(one["lifecycle"]["preStop"]["exec"]["command"][1])
    assert pod(name)["terminationGracePeriodSeconds"] >= before_s + drain_s + 5


@pytest.mark.parametrize("name", VALUES)
def test_environment_is_what_the_service_takes(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for entry in container(name)["env"]:
        monkeypatch.setenv(entry["name"], entry.get("value", "2"))  # of a field: the number of cores
    settings = ServeSettings()
    assert (settings.host, settings.port, settings.threads) == ("0.0.0.0", 8000, 2)  # noqa: S104
    assert settings.device == ("cuda" if name == "gpu" else "cpu")
    if name == "everything":
        assert (settings.max_body_bytes, settings.shadow_share, settings.no_page) == (8388608, 0.01, True)


@pytest.mark.parametrize("name", VALUES)
def test_bundles_of_image_or_volume_are_served(name: str) -> None:
    assert container(name)["command"] == ["attenuator", "serve", "/models" if name == "everything" else "/bundles"]


def test_bundles_and_keys_come_from_volumes() -> None:
    one, volumes = container("everything"), {volume["name"]: volume for volume in pod("everything")["volumes"]}
    environment = {entry["name"]: entry.get("value") for entry in one["env"]}
    mounts = {mount["name"]: mount for mount in one["volumeMounts"]}
    assert mounts["models"]["mountPath"] == "/models"
    assert volumes["models"]["persistentVolumeClaim"]["claimName"] == "models"
    assert environment["ATTENUATOR_API_KEYS"] == f"{mounts['keys']['mountPath']}/keys.json"
    assert volumes["keys"]["secret"]["secretName"] == "keys"
    assert "subPath" not in mounts["keys"]


def test_gpu_is_asked_for() -> None:
    assert container("gpu")["resources"]["limits"]["nvidia.com/gpu"] == 1


def test_alerts_and_dashboard_are_those_of_the_repository() -> None:
    rules = yaml.safe_load((ROOT / "deploy/monitoring/rules.yml").read_text(encoding="utf-8"))
    assert rendered("everything")["PrometheusRule"]["spec"] == rules
    dashboard = (ROOT / "deploy/monitoring/dashboard.json").read_text(encoding="utf-8")
    assert rendered("everything")["ConfigMap"]["data"]["attenuator.json"] == dashboard
    assert rendered("everything")["ServiceMonitor"]["spec"]["jobLabel"] == "app.kubernetes.io/name"


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"replica": 3}, "additional properties 'replica' not allowed"),
        ({"replicas": -1}, "minimum: got -1, want 0"),
        ({"device": "gpu"}, "value must be one of 'cpu', 'cuda', 'auto'"),
        ({"settings": {"api_key": "secret"}}, "invalid propertyName 'api_key'"),
        ({"settings": {"port": 1}}, "invalid propertyName 'port'"),
        ({"autoscaling": {"busyShare": 2}}, "maximum: got 2, want 1"),
        ({"bundles": {"inImage": False}}, "There is nothing to serve"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_values_that_mean_nothing_are_refused(values: dict[str, Any], reason: str) -> None:
    done = helm("template", "release", ".", values=json.dumps(values))
    assert done.returncode != 0
    assert reason in done.stderr


def test_notes_say_that_there_are_no_keys() -> None:
    arguments = ("install", "release", ".", "--dry-run=client")
    assert "There are no API keys" in helm(*arguments).stdout
    values = json.dumps({"apiKeys": {"secretName": "keys"}})
    assert "There are no API keys" not in helm(*arguments, values=values).stdout
