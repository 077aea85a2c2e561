"""The container's files, as far as they can be told without building the image: `make container` does that."""

import configparser
import re
import subprocess
import sys
from fnmatch import fnmatch
from pathlib import Path

import pytest

from attenuator import __version__

ROOT = Path(__file__).resolve().parent.parent.parent
DOCKERFILE = (ROOT / "Dockerfile").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", ["PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "BASE", "DEVICE"])
def test_build_argument_is_taken(name: str) -> None:
    assert re.search(rf"^ARG {name}\b", DOCKERFILE, re.M)


def stages_of_the_image() -> str:
    """The stages that the last one is made of."""
    stages = re.split(r"^(?=FROM )", DOCKERFILE, flags=re.M)
    return "".join(stage for stage in stages if re.match(r"FROM (\S+ AS runtime|runtime)", stage))


def test_image_is_for_a_user_without_rights_and_says_when_it_is_ready() -> None:
    last = stages_of_the_image()
    assert re.search(r"^USER (?!root|0)", last, re.M)
    assert "/health/ready" in last
    assert "EXPOSE 8000" in last
    assert not re.search(r"pip install|g\+\+|torch", last)


def test_version_and_commit_of_an_image_come_from_one_place() -> None:
    done = subprocess.run([str(ROOT / "scripts/image_args.sh")], capture_output=True, text=True, check=True)
    assert re.fullmatch(rf"--build-arg VERSION={__version__} --build-arg REVISION=\S+\n", done.stdout)
    last = stages_of_the_image()
    for name in ("VERSION", "REVISION"):
        assert re.search(rf"^ARG {name}$", last, re.M)
        assert f'org.opencontainers.image.{name.lower()}="${{{name}}}"' in last


def test_no_address_stands_in_the_files() -> None:
    for file in ("Dockerfile", ".ci/container.sh", ".ci/pip_settings.py"):
        addresses = re.findall(r"\w+://[\w.]+\.\w+", (ROOT / file).read_text(encoding="utf-8"))
        assert [address for address in addresses if "127.0.0.1" not in address] == [], file


def test_build_context_holds_what_the_build_reads() -> None:
    """What git tracks of the folders that the wheel is made of, and nothing that is not on the list."""
    rules = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line and not line.startswith("#")]
    assert rules[0] == "*"
    kept = [rule[1:] for rule in rules if rule.startswith("!")]
    assert [name for name in kept if not (ROOT / name).exists()] == []
    assert {"src", "ops", "export", "serve", "clients", "scripts", "examples/bundles"} <= set(kept)
    assert {"pyproject.toml", "CMakeLists.txt", "README.md", "LICENSE"} <= set(kept)
    assert not any(fnmatch(name, "tests*") or name == ".git" for name in kept)


def test_pip_settings_are_collected_and_mounted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    index, wheels = tmp_path / "mirror" / "simple", tmp_path / "wheels"
    for folder in (index, wheels):
        folder.mkdir(parents=True)
    (tmp_path / "ca.crt").write_text("certificates")
    (tmp_path / "pip.conf").write_text(
        f"[global]\nindex-url = file://{index}\nfind-links = {wheels}\n  /not/there\ncert = {tmp_path / 'ca.crt'}\n"
    )
    for name in ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_FIND_LINKS", "PIP_CERT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", str(tmp_path / "pip.conf"))
    monkeypatch.setenv("PIP_TRUSTED_HOST", "mirror")
    output = tmp_path / "output"
    output.mkdir()
    command = [sys.executable, str(ROOT / ".ci" / "pip_settings.py"), str(output), "/mnt/pip"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    settings = configparser.ConfigParser(interpolation=None)
    settings.read(output / "pip.conf")
    options = dict(settings["global"])
    assert options["index-url"] == f"file://{index}"
    assert options["find-links"].split() == [str(wheels), "/not/there"]
    assert options["cert"] == "/mnt/pip/certificates.crt"
    assert options["trusted-host"] == "mirror"
    assert (output / "certificates.crt").read_text() == "certificates"
    assert set(done.stdout.splitlines()) >= {
        f"--volume={output}:/mnt/pip:ro",
        f"--volume={index.parent}:{index.parent}:ro",
        f"--volume={wheels}:{wheels}:ro",
    }
