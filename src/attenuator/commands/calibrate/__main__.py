"""The command `attenuator calibrate`."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from rich.console import Console

from attenuator.bundle import CALIBRATION, Manifest, read_manifest
from attenuator.calibration.schema import Calibration, read_calibration
from attenuator.commandline import INTERRUPTED, note, parse
from attenuator.commands.calibrate.pipeline import calibrate, time_again
from attenuator.commands.calibrate.settings import (
    COMMAND,
    EXAMPLES,
    POSITIONALS,
    SETTINGS,
    USAGE,
    CalibrateSettings,
)
from attenuator.commands.calibrate.texts import Texts, read_texts
from attenuator.commands.calibrated import show_calibration
from attenuator.errors import BundleError, InvalidRequest
from attenuator.runtime import choose, load

say = partial(note, COMMAND)


def existing(folder: Path, manifest: Manifest) -> Calibration | None:
    """The calibration that the bundle has.

    One that does not belong to the bundle is removed: no service would load the bundle with it.
    """
    try:
        return read_calibration(folder, manifest)
    except BundleError as error:
        path = folder / CALIBRATION
        if not path.is_file():
            raise
        path.unlink()
        say(f"{error}; that file is removed")
        return None


def check_reference(reference: Path | None, folder: Path, manifest: Manifest) -> None:
    """Refuses what cannot be the reference of a bundle: the same checkpoint in fp32.

    Args:
        reference: a bundle, None where none was given.
        folder: of the bundle to calibrate.
        manifest: its manifest.

    Raises:
        InvalidRequest: it is missing, not fp32, or of another checkpoint.
        BundleError: it cannot be read.
    """
    if reference is None:
        if manifest.rounded:
            raise InvalidRequest(
                f"bundle {folder} is {manifest.precision}, and agreement is with the checkpoint's exact answers in "
                "fp32: export the checkpoint in fp32 as well, and give that bundle as --reference"
            )
        return
    if not manifest.rounded:
        raise InvalidRequest(f"bundle {folder} is fp32, its own exact answers are the reference: leave --reference out")
    other = read_manifest(reference)
    if other.rounded:
        raise InvalidRequest(f"--reference {reference} is {other.precision}, must be a bundle in fp32")
    for place, each in ((folder, manifest), (reference, other)):
        if not each.provenance.weights:
            raise InvalidRequest(f"bundle {place} does not say which checkpoint it holds: export it again")
    if other.provenance.weights != manifest.provenance.weights or other.labels != manifest.labels:
        raise InvalidRequest(
            f"--reference {reference} holds other weights or labels than {folder}: export "
            f"'{manifest.provenance.source}', which that one was made of, in fp32 with the same --positions"
        )
    if other.max_tokens < manifest.max_tokens:
        raise InvalidRequest(
            f"--reference {reference} takes {other.max_tokens} tokens, must take {manifest.max_tokens} as {folder} does"
        )


def run(settings: CalibrateSettings, folder: Path) -> Calibration:
    """Calibrates a bundle; raises an AttenuatorError where that cannot be done."""
    manifest = read_manifest(folder)
    if not manifest.knobs:
        raise BundleError(f"bundle {folder} has no knob, must have one to be calibrated: its answers are always exact")
    before = existing(folder, manifest)
    if settings.only_times and settings.keep_times:
        raise InvalidRequest("--only-times and --keep-times are both given, must be one of them")
    for flag, is_set in (("--only-times", settings.only_times), ("--keep-times", settings.keep_times)):
        if is_set and before is None:
            raise InvalidRequest(f"bundle {folder} has no calibration, must have one for {flag}: leave that flag out")
    if not settings.only_times:
        check_reference(settings.reference, folder, manifest)
    choice = choose(settings.device, settings.device_id)
    if settings.device == "auto" and choice.device.kind == "cpu":
        say(f"running on {choice.device}: {choice.reason}")
    model = load(folder, device=choice.device, threads=settings.threads)
    texts = read_texts(
        settings.data,
        model,
        min_agreement=settings.min_agreement,
        confidence=settings.confidence,
        truncate=settings.truncate,
    )
    if settings.only_times and before is not None:
        return time_again(model, folder, settings, texts, before)
    reference = None
    if settings.reference is not None:
        reference = load(settings.reference, device=choice.device, threads=settings.threads)
    before = before if settings.keep_times else None
    calibration = calibrate(model, folder, settings, texts, before, reference).calibration
    note_unseen_lengths(texts, manifest.max_tokens)
    return calibration


def note_unseen_lengths(texts: Texts, max_tokens: int) -> None:
    """Says which lengths the bundle takes and the data does not have."""
    longest = int(texts.tokens.max())
    if 2 * longest < max_tokens:
        say(
            f"the longest text has {longest} tokens, the bundle takes {max_tokens}: for texts between, goals rely on "
            "what was measured on shorter ones"
        )


def main(arguments: Sequence[str]) -> int:
    """Calibrates a bundle.

    Args:
        arguments: what follows `attenuator calibrate`.

    Returns:
        0, or 130 where it was interrupted; a failure is raised, and `attenuator.__main__` prints it.

    Raises:
        AttenuatorError: the bundle or the data is at fault.
        SystemExit: 2 after a usage error.
    """
    settings, [word] = parse(SETTINGS, COMMAND, arguments, POSITIONALS, usage=USAGE, examples=EXAMPLES)
    try:
        calibration = run(settings, Path(word))
    except KeyboardInterrupt:
        say("interrupted; the same command goes on where it ended")
        return INTERRUPTED
    show_calibration(Console(markup=False, highlight=False), calibration)
    return 0
