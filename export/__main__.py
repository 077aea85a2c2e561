"""The command `attenuator export`."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from rich.console import Console

from attenuator.bundle import MODEL, ChosenSelection, Manifest
from attenuator.commandline import fail
from attenuator.errors import AttenuatorError, ExportError
from attenuator.export.knobs import read_defaults
from attenuator.export.place import place_of
from attenuator.export.selection import LENGTHS
from attenuator.export.settings import COMMAND, ExportSettings, parse
from attenuator.export.steps import Steps
from attenuator.export.thresholds import read, refuse_two_ways
from attenuator.texts import lines

__all__ = ["main"]


def summary(manifest: Manifest, settings: ExportSettings) -> str:
    """What was written, in a few lines."""
    attention, parity = manifest.attention, manifest.provenance.parity
    knobs = "; ".join(
        f"{knob.name} {knob.low:g} to {knob.high:g}, default {knob.default:g}, exact value {knob.exact:g}"
        for knob in manifest.knobs
    )
    lines = [
        f"{settings.output}: model '{manifest.name}', revision {manifest.revision[:12]}",
        f"  {answers(manifest)}, up to {manifest.max_tokens} tokens",
        f"  attention: {attention.operator} in {attention.layers} layers; "
        f"knob{'s' * (len(manifest.knobs) > 1)}: {knobs or 'none'}",
        f"  largest difference to PyTorch: {parity['library']:.1e} with the operators, "
        f"{parity['fallback']:.1e} without (largest logit {parity['largest_logit']:.2g})",
    ]
    if manifest.provenance.selection is not None:
        lines.append(selected(manifest.provenance.selection))
    if manifest.taught is not None:
        lines.append(
            f"  taught weights answer below {manifest.taught.knob} {manifest.taught.below:g}, the original's above; "
            f"largest difference to the taught PyTorch model: {parity['taught_library']:.1e}"
        )
    if manifest.precision != "fp32":
        lines += rounding(manifest, settings)
    activation = manifest.provenance.activation
    if activation:
        lines.append(
            f"  note: sentence-transformers applies {activation} to the score; answers hold the score before it"
        )
    if parity["packing"]:
        lines.append(
            f"  note: a sequence's logits move by up to {parity['packing']:.1e} with its neighbours in a batch"
        )
    return "\n".join(lines)


def selected(chosen: ChosenSelection) -> str:
    """How tokens are selected where a request says nothing."""
    [knob] = LENGTHS.knobs
    merged = f", merge {chosen.merge}" if chosen.merge else ""
    setting = f"  selection: schedule {chosen.schedule}, {knob.name} {chosen.share:g}{merged}"
    if chosen.agreement is None:
        return f"{setting}; --texts FILE would choose them"
    ends = f"95 % interval {chosen.agreement_low:.1%} to {chosen.agreement_high:.1%}"
    timed = (
        ""
        if chosen.gain is None
        else f", {chosen.gain:.2f} times as fast as with every token [{chosen.gain_low:.2f}, {chosen.gain_high:.2f}]"
    )
    return (
        f"{setting}, chosen by {chosen.texts} texts: at the defaults {chosen.agreement:.1%} of the answers agree with "
        f"the exact ones ({ends}){timed}"
    )


def answers(manifest: Manifest) -> str:
    """What the model answers with."""
    if manifest.task == "regression":
        return f"one score, '{manifest.labels[0]}' (regression)"
    return f"{len(manifest.labels)} labels ({manifest.task})"


def rounding(manifest: Manifest, settings: ExportSettings) -> list[str]:
    """What the precision costs and wins, where that could be found out."""
    parity, precision = manifest.provenance.parity, manifest.precision
    size = sum((settings.output / name).stat().st_size for name in manifest.files if name.startswith(MODEL))
    kept = (
        f"{parity['agreement']:.1%} of the compared inputs keep their {kept_part(manifest)}; "
        f"{size / 1e6:.1f} MB instead of {parity['fp32_bytes'] / 1e6:.1f}"
    )
    if precision != "int8":
        lines = [f"  {precision}: rounded weights move logits by up to {parity['rounded_weights']:.1e}; {kept}"]
        return [*lines, "  note: runs on CUDA only; its graph was compared here as fp32, with rounded weights"]
    speed = parity["times_as_fast_as_fp32"]
    lines = [f"  int8: {kept}; {speed:.2f} times as fast as fp32 on one thread of this machine"]
    if speed < 1:
        lines.append("  note: int8 is slower than fp32 for this model on this machine; export it as fp32")
    return lines


def kept_part(manifest: Manifest) -> str:
    """What agreement compares, for a sentence."""
    from attenuator.runtime.scores import AGREEING_DEVIATIONS  # ONNX Runtime, which --help does not need

    if manifest.task == "regression":
        return f"score within {AGREEING_DEVIATIONS:g} standard deviations"
    return "labels"


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command.

    Args:
        arguments: the words after `attenuator export`; those of the process by default.

    Returns:
        0 where the bundle was written, 1 where it was not.
    """
    source, settings = parse(sys.argv[1:] if arguments is None else arguments)
    console = Console(stderr=True)
    notes: list[str] = []
    try:
        thresholds = None if settings.thresholds is None else read(settings.thresholds)
    except ExportError as error:
        fail(COMMAND, str(error))
    try:
        refuse_two_ways(thresholds, settings.fit_thresholds)
        place_of(source)
        for path in filter(None, (settings.texts, settings.fit_thresholds)):
            next(lines(str(path)), None)  # refuses what cannot be read
        with Steps(console) as steps:
            steps("import PyTorch")
            from attenuator.export.pipeline import export  # seconds of imports, after --help was answered

            defaults = None if settings.knob_default is None else read_defaults(settings.knob_default)
            options = {"progress": steps, "note": notes.append, "thresholds": thresholds, "knob_default": defaults}
            manifest = export(source, **dict(settings) | options)
            steps("")
    except AttenuatorError as error:
        print(f"attenuator {COMMAND}: {error}", file=sys.stderr)
        return 1
    print("\n".join([summary(manifest, settings), *(f"  note: {sentence}" for sentence in notes)]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
