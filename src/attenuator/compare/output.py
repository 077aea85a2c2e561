"""The folder of a comparison: which may be written to, what an interrupted run in it was about."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from attenuator import __version__
from attenuator.bundle import file_sha256
from attenuator.compare.partial import NAME as PARTIAL
from attenuator.compare.settings import CompareSettings
from attenuator.errors import InvalidRequest
from attenuator.export.place import Place

RESULT, PLOT, BUNDLES = "comparison.json", "comparison.svg", "bundles"
SIGNS = {RESULT, PARTIAL}  # one of them is in the folder of every comparison; `bundles` is in many others
# What changes the figures: an interrupted run goes on with these alone.
IDENTITY = {
    "column",
    "pair_column",
    "label_column",
    "attention",
    "precision",
    "lengths",
    "values",
    "max_texts",
    "truncate",
    "device",
    "device_id",
    "threads",
    "min_agreement",
    "confidence",
}


def output_folder(settings: CompareSettings, place: Place) -> Path:
    """The folder to write to, made where it is new.

    Raises:
        InvalidRequest: it holds other files, or cannot be made.
    """
    folder = settings.output or Path(f"comparison-{place.function or Path(place.name).name}")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        found = {each.name for each in folder.iterdir()}
    except OSError as error:
        raise InvalidRequest(f"--output {folder} cannot be written: {error.strerror}") from None
    if found and not found & SIGNS:
        raise InvalidRequest(
            f"--output {folder} has files that are no comparison's, must be new, empty or of an earlier comparison"
        )
    return folder


def identity(settings: CompareSettings, source: str, path: Path) -> dict[str, Any]:
    """What is compared on what, in JSON's types.

    Args:
        settings: of the command.
        source: the checkpoint, as the user named it.
        path: where that leads.
    """
    files = [path] if path.is_file() else sorted(each for each in path.iterdir() if each.is_file())
    return {
        "attenuator": __version__,
        "checkpoint": source,
        "checkpoint_sha256": {each.name: file_sha256(each) for each in files},
        "data_sha256": file_sha256(settings.data),
        **settings.model_dump(mode="json", include=IDENTITY),
    }
