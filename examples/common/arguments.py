"""The command line that the training scripts share."""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from attenuator.export.pipeline import export
from common.recipe import Recipe


@dataclass(frozen=True)
class Arguments:
    """Parsed command line of a training script."""

    data: Path
    output: Path
    bundle: Path | None
    recipe: Recipe


def parse(description: str | None, recipe: Recipe) -> Arguments:
    """Read the command line and fix torch's seed and thread count.

    Args:
        description: help text, the script's docstring.
        recipe: the script's recipe, of which `--epochs` is changed.
    """
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder of the data set")
    parser.add_argument("--output", type=Path, required=True, help="checkpoint folder to write")
    parser.add_argument("--epochs", type=int, default=recipe.epochs, help="passes over the data (%(default)s)")
    parser.add_argument("--threads", type=int, default=1, help="threads of torch (%(default)s)")
    parser.add_argument("--bundle", type=Path, help="bundle folder to export the trained model to")
    values = parser.parse_args()
    torch.set_num_threads(values.threads)
    torch.manual_seed(recipe.seed)
    recipe = replace(recipe, epochs=values.epochs)
    return Arguments(values.data, values.output, values.bundle, recipe)


def write_bundle(
    arguments: Arguments,
    attention: str,
    data: str,
    licence: str,
    knob_default: float | dict[str, float],
    texts: Sequence[str] = (),
) -> None:
    """Export the trained checkpoint to `--bundle`, where that was given.

    Args:
        arguments: command line of the training script.
        attention: operator of the bundle.
        data: the training data, for provenance.
        licence: licence of weights and data, for provenance.
        knob_default: the cheapest knob value measured with an agreement of 0.99, or the best compromise.
        texts: held-out texts, by which export chooses how tokens are selected.
    """
    if arguments.bundle is None:
        return
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "held_out.jsonl"
        file.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
        export(
            str(arguments.output),
            attention=attention,
            output=arguments.bundle,
            data=data,
            licence=licence,
            knob_default=knob_default,
            texts=file if texts else None,
            progress=print,
        )
