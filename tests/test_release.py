"""What `make release-check` says of a release before it builds one, and its checksums."""

import hashlib
import shutil
import subprocess
from pathlib import Path

import pytest
from scripts import release_check
from scripts.release_check import Failed

HEAD = "# Changelog\n\n## [Unreleased]\n\n"
needs_ssh = pytest.mark.skipif(
    shutil.which("ssh-keygen") is None, reason="ssh-keygen is not installed: apt-get install openssh-client"
)


@pytest.fixture
def sums(tmp_path: Path) -> Path:
    folder = tmp_path / "dist"
    folder.mkdir()
    (folder / "attenuator-1.whl").write_bytes(b"a wheel")
    (folder / "attenuator-1.tar.gz").write_bytes(b"sources")
    (folder / "SHA256SUMS.sig").write_bytes(b"of an earlier run")
    return release_check.write_sums(folder)


def test_a_version_needs_an_entry_with_a_date_and_later_changes_are_said() -> None:
    row = release_check.changelog("1.2.3", HEAD + "## [1.2.3] - 2026-01-31\n\n- New.\n")
    assert row.result == "has an entry for 1.2.3"
    row = release_check.changelog("1.2.3", HEAD + "- A.\n- B.\n\n## [1.2.3] - 2026-01-31\n")
    assert "2 changes stand under Unreleased" in row.result
    for text in ("## [1.2.30] - 2026-01-31", "## [1.2.3]", "## [1x2.3] - 2026-01-31"):
        with pytest.raises(Failed, match=r"no entry '## \[1\.2\.3\]"):
            release_check.changelog("1.2.3", f"{HEAD}{text}\n")


def test_checksums_are_those_that_sha256sum_checks(sums: Path) -> None:
    assert [line.split()[1] for line in sums.read_text().splitlines()] == ["attenuator-1.tar.gz", "attenuator-1.whl"]
    assert hashlib.sha256(b"a wheel").hexdigest() in sums.read_text()
    subprocess.run(["sha256sum", "--check", "--strict", "--quiet", sums.name], cwd=sums.parent, check=True)


@needs_ssh
def test_a_signature_holds_for_these_checksums_alone(sums: Path, tmp_path: Path) -> None:
    key = tmp_path / "key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key], check=True)
    sums.with_name("SHA256SUMS.sig").unlink()
    assert release_check.sign(sums, str(key)).tried
    sums.write_text(sums.read_text().replace("a", "b"))
    with pytest.raises(Failed, match="is no signature"):
        release_check.check_ssh(sums)


def test_without_a_key_nothing_is_signed_and_that_is_said(sums: Path) -> None:
    row = release_check.sign(sums, None)
    assert (row.tried, "NOT SIGNED" in row.result) == (False, True)


def test_a_folder_of_anything_else_is_left_alone(sums: Path) -> None:
    (sums.parent / "thesis.tex").write_text("years of work")
    with pytest.raises(Failed, match=r"holds thesis\.tex"):
        release_check.emptied(sums.parent)
    (sums.parent / "thesis.tex").unlink()
    assert list(release_check.emptied(sums.parent).iterdir()) == []
