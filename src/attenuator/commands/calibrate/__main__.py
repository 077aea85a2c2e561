"""The command `attenuator calibrate`."""

import math
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from rich.console import Console

from attenuator.bundle import CALIBRATION, Manifest, read_manifest
from attenuator.calibration.grid import grid
from attenuator.calibration.proportions import fewest_texts
from attenuator.calibration.schema import Calibration, read_calibration
from attenuator.commandline import INTERRUPTED, note, parse
from attenuator.commands.calibrate.list_file import has_lists
from attenuator.commands.calibrate.ordering import together
from attenuator.commands.calibrate.pipeline import calibrate, lists_again, time_again
from attenuator.commands.calibrate.references import References, references_of
from attenuator.commands.calibrate.settings import (
    COMMAND,
    EXAMPLES,
    POSITIONALS,
    SETTINGS,
    USAGE,
    CalibrateSettings,
)
from attenuator.commands.calibrate.texts import Texts, read_texts, with_larger
from attenuator.commands.calibrated import show_calibration
from attenuator.commands.calibrated_lists import GOALS
from attenuator.errors import BundleError, InvalidRequest
from attenuator.runtime import load
from attenuator.runtime.device import chosen_for
from attenuator.texts import refuse_pipe

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


def checked(settings: CalibrateSettings, folder: Path, manifest: Manifest) -> tuple[Calibration | None, References]:
    """The calibration that a bundle has, and the other bundles that are to run; refuses what does not go together."""
    if not manifest.knobs:
        raise BundleError(f"bundle {folder} has no knob, must have one to be calibrated: its answers are always exact")
    if manifest.reads_tokens:
        raise BundleError(f"bundle {folder} classifies tokens, must classify whole texts to be calibrated")
    before = existing(folder, manifest)
    if settings.only_times and settings.keep_times:
        raise InvalidRequest("--only-times and --keep-times are both given, must be one of them")
    for flag, is_set in (("--only-times", settings.only_times), ("--keep-times", settings.keep_times)):
        if is_set and before is None:
            raise InvalidRequest(f"bundle {folder} has no calibration, must have one for {flag}: leave that flag out")
    if settings.only_times:
        return before, References()
    refuse_pipe(settings.data)
    references = references_of(settings.reference, folder, manifest, lists=has_lists(settings.data))
    if references.larger and manifest.rounded and before is None:
        raise InvalidRequest(
            f"bundle {folder} is {manifest.precision} and has no calibration, must have one before lists of a larger "
            "model are added to it: calibrate it with its checkpoint in fp32 as --reference first"
        )
    return before, references


def run(settings: CalibrateSettings, folder: Path) -> Calibration:
    """Calibrates a bundle; raises an AttenuatorError where that cannot be done."""
    manifest = read_manifest(folder)
    before, (checkpoint, larger) = checked(settings, folder, manifest)
    device = chosen_for(settings.device, settings.device_id, say)
    loaded = partial(load, device=device, threads=settings.threads)
    model = loaded(folder)
    texts = read_texts(
        settings.data,
        model,
        min_agreement=settings.min_agreement,
        confidence=settings.confidence,
        truncate=settings.truncate,
    )
    if settings.only_times and before is not None:
        return time_again(model, folder, settings, texts, before)
    if larger is not None:
        texts = with_larger(texts, settings.data, larger, loaded(larger), truncate=settings.truncate)
        if manifest.rounded and before is not None:
            note_few_lists(texts, before.confidence, len(grid(manifest.knobs)))
            return lists_again(model, folder, settings, texts, before)
    note_few_lists(texts, settings.confidence, len(grid(manifest.knobs)))
    reference = None if checkpoint is None else loaded(checkpoint)
    times, lists = before if settings.keep_times else None, before.lists if before else None
    calibration = calibrate(model, folder, settings, texts, times, reference, lists=lists).calibration
    note_unseen_lengths(texts, manifest.max_tokens)
    return calibration


def note_few_lists(texts: Texts, confidence: float, settings: int) -> None:
    """Says how many lists each goal takes that so few cannot show; `settings` are those of the grid."""
    count, each = len(texts.lists.sizes) if texts.lists else math.inf, together(confidence, settings)
    needed = {goal: fewest_texts(goal, each) for goal in sorted(GOALS)}
    above = " and ".join(f"{goal:g} takes {lists}" for goal, lists in needed.items() if lists > count)
    if above:
        say(f"{texts.name} has {count} lists: a min_agreement of {above}, even if every list keeps its order")


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
