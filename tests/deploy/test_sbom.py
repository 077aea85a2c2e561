"""The image's bill of materials: what it says of Debian's packages and of models; `make container` checks the whole."""

from pathlib import Path

from scripts import sbom

BUNDLES = Path(__file__).resolve().parents[2] / "examples" / "bundles"
OS_RELEASE = 'NAME="Debian"\nID=debian\nVERSION_ID="12"\n'
STATUS = """Package: libc6
Status: install ok installed
Architecture: amd64
Version: 2.36-9+deb12u10
Description: GNU C Library
 Status: deinstall ok config-files

Package: gone
Status: deinstall ok config-files
Architecture: all
Version: 1.0
"""


def test_installed_packages_are_listed_by_their_urls() -> None:
    (package,) = sbom.debian_packages(STATUS, OS_RELEASE)
    assert package["purl"] == "pkg:deb/debian/libc6@2.36-9%2Bdeb12u10?arch=amd64&distro=debian-12"
    assert (package["name"], package["version"]) == ("libc6", "2.36-9+deb12u10")


def test_models_are_listed_by_the_hash_of_their_files() -> None:
    listed = {one["name"]: one["version"] for one in sbom.models(BUNDLES.glob("*/bundle.json"))}
    assert set(listed) == {path.parent.name for path in BUNDLES.glob("*/bundle.json")}
    assert all(len(revision) == 64 for revision in listed.values())
