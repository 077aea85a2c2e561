"""Collects pip's settings of this machine for a container build that has none of its own.

    python3 .ci/pip_settings.py FOLDER MOUNTED_AT

Writes FOLDER/pip.conf with the index settings of every pip.conf and PIP_* variable, and a copy of the certificates.
Prints arguments for `buildah build`, one per line, that mount FOLDER and the local folders which the settings point to.
"""

import ast
import shutil
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import url2pathname

SETTINGS = ("index-url", "extra-index-url", "find-links", "no-index", "trusted-host", "proxy", "cert", "timeout")


def settings() -> dict[str, str]:
    """Setting by name, as pip itself reads them; later sources win, environment variables last."""
    command = [sys.executable, "-m", "pip", "config", "list"]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    options: dict[str, str] = {}
    for environment in (False, True):
        for line in lines:
            name, _, value = line.partition("=")
            section, _, key = name.rpartition(".")
            if (section == ":env:") is environment and key.removeprefix("default-") in SETTINGS:
                options[key.removeprefix("default-")] = str(ast.literal_eval(value))
    return options


def local(word: str) -> Path | None:
    """The folder that a path or file: address names, if it is there."""
    parts = urlsplit(word)
    path = Path(url2pathname(parts.path)) if parts.scheme == "file" else Path(word)
    return path if path.is_absolute() and path.exists() else None


def main() -> int:
    """Runs the program."""
    folder, mounted_at = Path(sys.argv[1]), sys.argv[2]
    options = settings()
    if "cert" in options:
        # A copy elsewhere: the image's own package of certificates writes to the usual place.
        shutil.copy(options["cert"], folder / "certificates.crt")
        options["cert"] = f"{mounted_at}/certificates.crt"
    lines = "".join(f"{key} = {' '.join(value.split())}\n" for key, value in options.items())
    (folder / "pip.conf").write_text(f"[global]\n{lines}", encoding="utf-8")
    mounts = {str(folder): mounted_at}
    for key in ("index-url", "extra-index-url", "find-links"):
        for path in filter(None, map(local, options.get(key, "").split())):
            # An index links to files beside it.
            root = path.parent if path.name == "simple" else path
            mounts[str(root)] = str(root)
    for source, target in mounts.items():
        print(f"--volume={source}:{target}:ro")
    return 0


if __name__ == "__main__":
    sys.exit(main())
