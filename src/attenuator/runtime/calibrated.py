"""A bundle's calibration, checked against the bundle: its settings must be ones that the model can run.

What requests run with where nobody limits it follows from both.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path

from attenuator.bundle import CALIBRATION, Manifest
from attenuator.calibration import Calibration, cheapest, default_setting
from attenuator.calibration.schema import REMEDY, calibration_content, parse_calibration
from attenuator.errors import BundleError, InvalidRequest
from attenuator.ops.knobs import KnobValue
from attenuator.runtime.request import KnobTable


def default_knobs(knobs: KnobTable, calibration: Calibration | None, tokens: int) -> dict[str, KnobValue]:
    """What a request that sets nothing runs with, where nobody limits it.

    Args:
        knobs: of the bundle.
        calibration: of the bundle; None where it was not calibrated.
        tokens: of its longest input.

    Returns:
        A value for every knob: by `default_setting` where the calibration has a default agreement, else the defaults.
    """
    if calibration is None or calibration.default_agreement is None:
        return knobs.defaults()
    return knobs.check(default_setting(calibration, tokens).knobs)


def knobs_of(
    knobs: KnobTable,
    calibration: Calibration | None,
    tokens: int,
    requested: Mapping[str, object],
    min_agreement: float | None = None,
) -> dict[str, KnobValue]:
    """What a request runs with, where nobody limits it.

    Args:
        knobs: of the bundle.
        calibration: of the bundle; None where it was not calibrated, and goals count for nothing.
        tokens: of its longest input.
        requested: the knobs that the caller set.
        min_agreement: its goal; None where it states none.

    Returns:
        A value for every knob: the goal's, else the caller's with the defaults of those left out, else `default_knobs`.

    Raises:
        InvalidRequest: a knob or its value is not the bundle's, or no setting reaches the goal.
    """
    if min_agreement is not None and calibration is not None:
        return knobs.check(cheapest(calibration, tokens, min_agreement).knobs)
    return knobs.check(requested) if requested else default_knobs(knobs, calibration, tokens)


def exact_by_default(knobs: KnobTable, calibration: Calibration | None) -> tuple[KnobTable, Calibration | None]:
    """The knobs and the calibration of a model whose default is the exact setting, whatever its bundle says."""
    if calibration is not None:
        calibration = calibration.model_copy(update={"default_agreement": None})
    return knobs.exact_by_default(), calibration


def open_calibration(
    files: Path, manifest: Manifest, folder: Path, *, copy_to: Path | None = None
) -> Calibration | None:
    """Reads a bundle's `calibration.json`.

    Args:
        files: where the bundle's files are.
        manifest: of the bundle.
        folder: what error sentences call the bundle.
        copy_to: a folder that gets the file, exactly as it was read and checked.

    Returns:
        The calibration; None where the bundle has none that says anything of it, see `parse_calibration`.

    Raises:
        BundleError: it is damaged, belongs to another revision, or has settings that the model cannot run.
    """
    content = calibration_content(files, folder)
    if content is None:
        return None
    calibration = parse_calibration(content, folder, manifest)
    if calibration is None:
        return None
    check_settings(calibration, KnobTable(manifest.name, manifest.knobs), f"bundle {folder}: {CALIBRATION}")
    if copy_to is not None:
        (copy_to / CALIBRATION).write_bytes(content)
    return calibration


def check_settings(calibration: Calibration, knobs: KnobTable, where: str) -> None:
    """Compares a calibration's settings with the bundle's knobs.

    Args:
        calibration: as read.
        knobs: of the bundle.
        where: what error sentences call the file.

    Raises:
        BundleError: a setting lacks a knob, has one that the bundle lacks, or a value outside its bounds; or the first
            setting is not exact.
    """
    for place, setting in _settings(calibration):
        missing = [name for name in knobs.names if name not in setting]
        if missing:
            raise BundleError(f"{where}: {place} lacks {missing[0]}, must have every knob of the bundle; {REMEDY}")
        try:
            knobs.check(setting)
        except InvalidRequest as error:
            raise BundleError(f"{where}: {place}: {error}; {REMEDY}") from None
    if calibration.settings[0].knobs != knobs.exact():
        raise BundleError(f"{where}: settings.0 is not the exact setting, which must be the first; {REMEDY}")


def _settings(calibration: Calibration) -> Iterator[tuple[str, Mapping[str, float]]]:
    """Every setting of the file, with its place."""
    for index, setting in enumerate(calibration.settings):
        yield f"settings.{index}.knobs", setting.knobs
    for index, row in enumerate(calibration.certainty.settings if calibration.certainty else ()):
        yield f"certainty.settings.{index}.knobs", row.knobs
    for index, first in enumerate(calibration.lists.settings if calibration.lists else ()):
        yield f"lists.settings.{index}.knobs", first.knobs
    for index, device in enumerate(calibration.latency):
        for number, speed in enumerate(device.speeds):
            yield f"latency.{index}.speeds.{number}.knobs", speed.knobs
