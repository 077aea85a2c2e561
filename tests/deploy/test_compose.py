"""compose.yaml keeps to its schema, opens nothing to the network by itself and holds no secret."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from attenuator.serve.settings import ServeSettings

FOLDER = Path(__file__).resolve().parents[2] / "deploy"
COMPOSE = yaml.safe_load((FOLDER / "compose.yaml").read_text(encoding="utf-8"))
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]


def test_files_keep_to_the_schema() -> None:
    files = map(str, FOLDER.glob("compose*.yaml"))
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec", *files]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("name", SERVICES)
def test_service_has_few_rights_and_is_open_to_this_machine_alone(name: str) -> None:
    service = SERVICES[name]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert all(port.startswith("127.0.0.1:") for port in service["ports"])
    assert "privileged" not in service


@pytest.mark.parametrize("name", SERVICES)
def test_what_is_mounted_is_there_and_read_only(name: str) -> None:
    for volume in SERVICES[name]["volumes"]:
        if isinstance(volume, dict):
            source, writable = volume["source"], not volume["read_only"]
        else:
            source, _, *options = volume.split(":")
            writable = "ro" not in options
        if source in COMPOSE["volumes"]:
            assert writable
        else:
            assert (FOLDER / source).exists(), source
            assert not writable, source


def test_no_secret_has_a_default() -> None:
    assert SERVICES["grafana"]["environment"]["GF_SECURITY_ADMIN_PASSWORD"].startswith("${GRAFANA_ADMIN_PASSWORD:?")
    assert not any("KEY" in name for name in SERVICES["attenuator"]["environment"])
    example = (FOLDER / "attenuator.env.example").read_text(encoding="utf-8")
    assert [line for line in example.splitlines() if "KEY" in line and not line.startswith("#")] == []


def test_models_of_the_image_and_of_the_folder_are_served() -> None:
    assert SERVICES["attenuator"]["command"] == ["attenuator", "serve", "/bundles", "/models"]


def test_what_loads_models_is_one_line_away() -> None:
    """The folder is named, and the key's line is there to be filled in."""
    assert SERVICES["attenuator"]["environment"]["ATTENUATOR_BUNDLE_ROOT"] == "/models"
    assert "\n#ATTENUATOR_ADMIN_KEY=\n" in (FOLDER / "attenuator.env.example").read_text(encoding="utf-8")


def test_settings_are_the_services() -> None:
    example = (FOLDER / "attenuator.env.example").read_text(encoding="utf-8")
    named = {*SERVICES["attenuator"]["environment"], *re.findall(r"^#?(ATTENUATOR_\w+)=", example, re.M)}
    settings = {f"ATTENUATOR_{name.upper()}" for name in ServeSettings.model_fields}
    assert {name for name in named if name.startswith("ATTENUATOR_")} - settings == set()


def test_the_service_may_end_what_it_has_accepted() -> None:
    seconds = float(SERVICES["attenuator"]["stop_grace_period"].removesuffix("s"))
    assert seconds * 1e3 > ServeSettings.model_fields["drain_timeout_ms"].default + 5_000


def test_prometheus_scrapes_the_service_and_grafana_asks_prometheus() -> None:
    scrape = yaml.safe_load((FOLDER / "monitoring/prometheus.yml").read_text(encoding="utf-8"))["scrape_configs"][0]
    port = SERVICES["attenuator"]["environment"]["ATTENUATOR_PORT"]
    assert scrape["static_configs"] == [{"targets": [f"attenuator:{port}"]}]
    source = yaml.safe_load((FOLDER / "monitoring/grafana/datasources/prometheus.yml").read_text(encoding="utf-8"))
    assert source["datasources"][0]["url"] == "http://prometheus:9090"
    provider = yaml.safe_load((FOLDER / "monitoring/grafana/dashboards/attenuator.yml").read_text(encoding="utf-8"))
    path = provider["providers"][0]["options"]["path"]
    assert any(f":{path}/" in volume for volume in SERVICES["grafana"]["volumes"])
