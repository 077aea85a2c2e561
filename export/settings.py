"""Flags, variables and help of `attenuator export`."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from attenuator.commandline import CommandSettings, Positionals
from attenuator.commandline import parse as parse_command
from attenuator.export.families import titles
from attenuator.ops import BASELINE, OPERATORS
from attenuator.ops.spec import Operator
from attenuator.precision import PrecisionName

__all__ = ["COMMAND", "ExportSettings", "parse"]

COMMAND = "export"
POSITIONALS = Positionals("SOURCE", 1, "checkpoint folder, or FILE.py:NAME; see below")
USAGE = "SOURCE --attention ATTENTION --output BUNDLE [options]"
_EXAMPLES = """\
{commands}
  attenuator export mymodel.py:load --attention {baseline} --output bundles/baseline --name baseline

SOURCE is one of
{folder}
  FILE.py:NAME  a function in a file of yours that takes nothing and returns (model, tokenizer, labels);
                labels None takes those of the model's config

which --attention?
{attentions}

which --precision?
  fp32  as trained, for CPU and CUDA
  int8  linear layers in integers, for CPUs: activations rounded to 8 bits token by token, weights to 7 bits channel by
        channel, about a quarter of their size. Pays in wide models (on a CPU with VNNI about twice as fast at 768
        hidden channels, up to 1.6 times at 256); below, rounding costs more time than the product saves, and export
        says so. A few answers in a thousand may change: the summary says how far logits move, your own data what that
        does
  fp16  weights and activations in half the bytes, for CUDA: the CPU refuses the bundle. The default choice on a GPU
  bf16  the same with the range of fp32 and 3 digits: for models whose activations leave fp16's range of 65504

Before the bundle appears, its graph is compared with the PyTorch model on random sequences of many lengths and on texts
through the bundle's own tokenizer, with the operators and without them; the differences are written to bundle.json
under provenance.parity. The tokenizer must be in the folder: where a training run saved the model alone, add it with
tokenizer.save_pretrained(folder).

A note on YOSO checkpoints of transformers: that library lets YOSO attend to padding, so its output for a padded batch
depends on the padding. Bundles have no padding; they give what transformers gives for each sequence alone.

exit codes: 0 the bundle is there, 1 the model cannot be exported, 2 usage error; errors are one sentence on stderr"""

ATTENTIONS = tuple(operator for operator in OPERATORS if operator.attention)
if TYPE_CHECKING:
    AttentionName = str
else:
    AttentionName = Literal[tuple(operator.key for operator in ATTENTIONS)]


def attention_help(operator: Operator) -> str:
    """What an operator computes, for which models, and its knobs."""
    knobs = [f"the knob {knob.name}, exact at {knob.exact:g}" for knob in operator.knobs]
    text = f"for models trained with {operator.attention} attention; {' and '.join(knobs) or 'no knob'}. {operator.doc}"
    return textwrap.fill(text, 118, initial_indent=f"  {operator.key:8} ", subsequent_indent=" " * 11)


def folder_help() -> str:
    """What a checkpoint folder holds, with the families that can be exported."""
    text = (
        "that transformers' save_pretrained wrote, weights and tokenizer in it: a sequence classifier of the family "
        f"{titles()}; or a checkpoint of the project's own encoder"
    )
    return textwrap.fill(text, 118, initial_indent="  a folder      ", subsequent_indent=" " * 16)


def command_examples() -> str:
    """One command for each of the first attentions that have a knob."""
    keys = [operator.key for operator in ATTENTIONS if operator.knobs][:2]
    return "\n".join(f"  attenuator export CHECKPOINT --attention {key} --output bundles/contracts" for key in keys)


EXAMPLES = (
    _EXAMPLES.replace("{attentions}", "\n".join(map(attention_help, ATTENTIONS)))
    .replace("{folder}", folder_help())
    .replace("{commands}", command_examples())
    .replace("{baseline}", BASELINE.key)
)


class ExportSettings(CommandSettings):
    """Turn a trained text classifier into a bundle that `attenuator serve` runs."""

    attention: AttentionName
    """Operator that computes attention; see below."""
    output: Path
    """Folder of the bundle; a bundle that is there already is replaced, anything else is left alone."""
    name: str | None = None
    """What requests call the model; the output folder's name by default."""
    max_tokens: int | None = None
    """Longest input, special tokens included; what model and tokenizer take by default."""
    estimator: Literal["sampled", "deterministic", "paper"] | None = None
    """Of an attention that has one: `sampled` (unbiased, the default), `deterministic` (its bound always holds),
    `paper` (as published)."""
    precision: PrecisionName = "fp32"
    """What the model computes in; see below."""
    knob_default: float | None = None
    """The knob's value where a request sets none; the checkpoint's or the operator's own by default."""
    data: str = ""
    """What the model was trained on, kept in bundle.json under provenance."""
    licence: str = ""
    """Licence of the weights, kept in bundle.json under provenance."""


def parse(arguments: Sequence[str]) -> tuple[str, ExportSettings]:
    """Reads the words after `attenuator export` and the environment.

    Returns:
        SOURCE and the settings.

    Raises:
        SystemExit: 0 after `--help`, 2 where a word or a variable is wrong.
    """
    settings, words = parse_command(ExportSettings, COMMAND, arguments, POSITIONALS, usage=USAGE, examples=EXAMPLES)
    return words[0], settings
