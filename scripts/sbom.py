"""Writes the image's bill of materials in CycloneDX: Python packages, Debian packages and the bundled models.

    python scripts/sbom.py --python PYTHON --dpkg STATUS --os-release FILE --bundles FOLDER --version VERSION

CycloneDX's own tool lists the Python packages of the environment that PYTHON belongs to; STATUS is dpkg's database.
What is written has been checked by CycloneDX's schema. The same input gives the same output.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from packageurl import PackageURL

Component = dict[str, Any]


def python_packages(python: Path) -> dict[str, Any]:
    """A bill of materials with what is installed in an environment."""
    module = [sys.executable, "-m", "cyclonedx_py", "environment"]
    command = [*module, "--output-reproducible", "--spec-version", "1.6", str(python)]
    return dict(json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout))


def paragraphs(text: str) -> Iterator[dict[str, str]]:
    """The paragraphs of a Debian control file, field by field, without the lines that continue a field."""
    for block in text.split("\n\n"):
        lines = [line for line in block.splitlines() if line and not line[0].isspace()]
        if lines:
            yield {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


def debian_packages(status: str, os_release: str) -> Iterator[Component]:
    """The packages that are installed, from dpkg's database and the system's os-release."""
    system = dict(line.replace('"', "").split("=", 1) for line in os_release.splitlines() if "=" in line)
    distro = f"{system['ID']}-{system['VERSION_ID']}"
    for package in paragraphs(status):
        if package.get("Status", "").endswith(" installed"):
            name, version = package["Package"], package["Version"]
            qualifiers = {"arch": package["Architecture"], "distro": distro}
            purl = PackageURL("deb", system["ID"], name, version, qualifiers).to_string()
            yield {"type": "library", "bom-ref": purl, "name": name, "version": version, "purl": purl}


def models(manifests: Iterable[Path]) -> Iterator[Component]:
    """The models, by the hash of their files."""
    for path in manifests:
        manifest = json.loads(path.read_text(encoding="utf-8"))
        name, revision = manifest["name"], manifest["revision"]
        yield {
            "type": "machine-learning-model",
            "bom-ref": f"bundle:{name}@{revision}",
            "name": name,
            "version": revision,
        }


def bill(python: Path, dpkg: Path, os_release: Path, bundles: Path, version: str) -> str:
    """The whole bill as JSON.

    Raises:
        ValueError: it does not keep to CycloneDX's schema.
    """
    content = python_packages(python)
    content["metadata"]["component"] = {
        "type": "container",
        "bom-ref": "image",
        "name": "attenuator",
        "version": version,
    }
    content["components"] += debian_packages(dpkg.read_text(encoding="utf-8"), os_release.read_text(encoding="utf-8"))
    content["components"] += models(sorted(bundles.glob("*/bundle.json")))
    text = json.dumps(content, indent=1, sort_keys=True) + "\n"
    from cyclonedx.schema import SchemaVersion  # their grammars take seconds
    from cyclonedx.validation.json import JsonStrictValidator

    error = JsonStrictValidator(SchemaVersion.V1_6).validate_str(text)
    if error is not None:
        raise ValueError(f"not a CycloneDX 1.6 document: {error}")
    return text


def main() -> int:
    """Runs the program."""
    parser = argparse.ArgumentParser(description="Writes a bill of materials to standard output.")
    for name in ("python", "dpkg", "os-release", "bundles"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--version", required=True)
    sys.stdout.write(bill(**vars(parser.parse_args())))
    return 0


if __name__ == "__main__":
    sys.exit(main())
