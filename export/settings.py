"""Flags, variables and help of `attenuator export`."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import AfterValidator

from attenuator.bundle import TRAINED_POSITIONS
from attenuator.commandline import CommandSettings, Positionals
from attenuator.commandline import parse as parse_command
from attenuator.export.attributes import ESTIMATORS, RANDOM_BLOCKS, TABLE_PRECISIONS
from attenuator.export.families import titles
from attenuator.export.knobs import read_defaults
from attenuator.export.longer import POSITIONS
from attenuator.export.selection import DEFAULT, LENGTHS, MERGES, NONE, SCHEDULES, can_select
from attenuator.ops import BASELINE, OPERATORS
from attenuator.ops.spec import Operator
from attenuator.precision import PrecisionName

__all__ = ["COMMAND", "ExportSettings", "parse"]

COMMAND = "export"
POSITIONALS = Positionals("SOURCE", 1, "checkpoint folder, Hugging Face id, or FILE.py:NAME; see below")
USAGE = "SOURCE --output BUNDLE [options]"
_EXAMPLES = """\
{commands}
  attenuator export mymodel.py:load --attention {baseline} --output bundles/baseline --name baseline

SOURCE is one of
{folder}
  ORG/NAME      a checkpoint of the Hugging Face hub, ORG/NAME@REVISION for a branch, tag or commit: downloaded into the
                hub's cache, with HF_TOKEN where that is set; HF_HUB_OFFLINE=1 takes what the cache has
  FILE.py:NAME  a function in a file of yours, without arguments, that returns (model, tokenizer, labels);
                if labels is None, those of the model's config are used

which --attention?
{attentions}

which --schedule?
{schedules}

which --positions? A model that looks positions up in a learned table (not one with rotary positions) can read longer
texts than it was trained with; how well, your own long texts tell:
{positions}

which --precision?
  fp32  as trained, for CPU and CUDA
  int8  linear layers in integers, for CPUs: activations are rounded to 8 bits per token, weights to 7 bits per channel
        and stored in about a quarter of the bytes. Wide models gain: on a CPU with VNNI 2.3 times as fast at 768
        hidden channels, up to 1.6 times at 256. Narrower ones may get slower; export measures it and says so. There
        softmax attention over 48 tokens or more multiplies in 8 bits too. A few answers in a thousand may change:
        export shows how far logits move; measure the accuracy on your own data
  fp16  weights and activations in 16 bits, for CUDA only: the CPU refuses the bundle. The first choice on a GPU
  bf16  like fp16, with the range of fp32 but only 3 digits: for models whose activations exceed fp16's largest, 65504

Before the bundle appears, its graph is compared with the PyTorch model, with the operators and without them: on random
sequences of many lengths, and on texts through the bundle's own tokenizer. The differences are written to bundle.json
under provenance.parity. The tokenizer must be in the folder: if a training run saved only the model, add it with
tokenizer.save_pretrained(folder).

A note on YOSO checkpoints of transformers: that library lets YOSO attend to padding, so its output for a padded batch
depends on the padding. Bundles have no padding; they give what transformers gives for each sequence alone.

exit codes: 0 bundle written, 1 the model cannot be exported, 2 usage error; an error is one sentence on stderr"""

ATTENTIONS = tuple(operator for operator in OPERATORS if operator.attention and not operator.asked_as)
_KEY_WIDTH = max(len(operator.key) for operator in ATTENTIONS)
if TYPE_CHECKING:
    AttentionName = str
    ScheduleName = str
    MergeName = str
    PositionsName = str
    EstimatorName = str
    TablePrecisionName = str
    RandomBlocksName = str
else:
    AttentionName = Literal[tuple(operator.key for operator in ATTENTIONS)]
    ScheduleName = Literal[(*SCHEDULES, NONE)]
    MergeName = Literal[tuple(MERGES)]
    PositionsName = Literal[tuple(POSITIONS)]
    EstimatorName = Literal[tuple(dict.fromkeys(chain(*ESTIMATORS.values())))]
    TablePrecisionName = Literal[tuple(dict.fromkeys(chain(*TABLE_PRECISIONS.values())))]
    RandomBlocksName = Literal[tuple(dict.fromkeys(chain(*RANDOM_BLOCKS.values())))]


def checked_defaults(text: str) -> str:
    """Refuses what `read_defaults` cannot read."""
    read_defaults(text)
    return text


KnobDefaults = Annotated[str, AfterValidator(checked_defaults)]


def attention_help(operator: Operator) -> str:
    """What an operator computes, for which models, and its knobs."""
    owners = [LENGTHS, operator] if can_select(operator) else [operator]
    knobs = [f"the knob {knob.name}, exact at {knob.exact:g}" for owner in owners for knob in owner.knobs]
    text = f"for models trained with {operator.attention} attention; {' and '.join(knobs) or 'no knob'}. {operator.doc}"
    for other in OPERATORS:
        if other.asked_as == operator.key:
            text += f" For models trained with {other.attention} attention: {other.doc}"
    return textwrap.fill(
        text, 118, initial_indent=f"  {operator.key:{_KEY_WIDTH}} ", subsequent_indent=" " * (_KEY_WIDTH + 3)
    )


def folder_help() -> str:
    """What a checkpoint folder holds, with the families that can be exported."""
    text = (
        "that transformers' save_pretrained wrote, weights and tokenizer in it: a classifier of texts or tokens, a "
        f"regressor or cross-encoder of the family {titles()}; or a checkpoint of the project's own encoder"
    )
    return textwrap.fill(text, 118, initial_indent="  a folder      ", subsequent_indent=" " * 16)


def schedule_help() -> str:
    """What selects tokens, and how that may spread over the layers."""
    [knob] = LENGTHS.knobs
    keys = " or ".join(operator.key for operator in ATTENTIONS if can_select(operator))
    text = f"With {keys} attention a bundle has the knob {knob.name}. {knob.doc} Where the others are left out:"
    rows = [(name, schedule.doc) for name, schedule in SCHEDULES.items()]
    rows += [(NONE, f"nowhere; the bundle has no knob {knob.name}")]
    lines = [f"  {name:10} {doc}{' (default)' * (name == DEFAULT)}" for name, doc in rows]
    return "\n".join([textwrap.fill(text, 118, initial_indent="  ", subsequent_indent="  "), *lines])


def command_examples() -> str:
    """One command for each of the first attentions that have a knob."""
    keys = [operator.key for operator in ATTENTIONS if operator.knobs][:2]
    return "\n".join(f"  attenuator export CHECKPOINT --attention {key} --output bundles/contracts" for key in keys)


EXAMPLES = (
    _EXAMPLES.replace("{attentions}", "\n".join(map(attention_help, ATTENTIONS)))
    .replace("{schedules}", schedule_help())
    .replace("{folder}", folder_help())
    .replace("{positions}", "\n".join(f"  {name:13} {doc}" for name, doc in POSITIONS.items()))
    .replace("{commands}", command_examples())
    .replace("{baseline}", BASELINE.key)
)


class ExportSettings(CommandSettings):
    """Turn a trained text classifier into a bundle that `attenuator serve` runs."""

    attention: AttentionName = BASELINE.key
    """Operator that computes attention, listed below."""
    output: Path
    """Folder to write the bundle to; an older bundle there is replaced, a folder with other files is refused."""
    name: str | None = None
    """Name of the model in requests; the output folder's name by default."""
    max_tokens: int | None = None
    """Tokens of the longest input, special tokens included; by default as many as model and tokenizer allow."""
    positions: PositionsName = TRAINED_POSITIONS
    """How the model reads texts longer than it was trained with, listed below; --max-tokens says how long."""
    estimator: EstimatorName | None = None
    """How an attention with sampled values chooses them: `sampled` (unbiased; the default of models that average their
    tokens), `deterministic` (the error bound always holds; the default of those that classify by the first token) or
    `paper` (as published)."""
    table_precision: TablePrecisionName | None = None
    """How an attention with hash tables keeps their sums on the CPU: `float32` (the default), or `int16`, values
    rounded to 8 bits: attention to long texts takes a tenth to a quarter less time with AVX-512, at far less change
    than sampling itself brings."""
    random_blocks: RandomBlocksName | None = None
    """Which blocks of a text an attention with random blocks sees by chance: `drawn` by the seed (the default), or
    `first`, the first block once more for each of them, as transformers evaluates its BigBird."""
    precision: PrecisionName = "fp32"
    """Number format that the model computes in, listed below."""
    schedule: ScheduleName | None = None
    """How the selection of tokens spreads over the layers, listed below; `none` leaves it out, and its knob."""
    merge: MergeName | None = None
    """What becomes of the tokens that selection leaves out: `none`, they are dropped (where a model averages its
    tokens, they rejoin as they are), or `mean`, they become one row more, their mean, which later layers attend to as
    often as it stands for tokens. With --texts the better of both by default, else `none`."""
    texts: Path | None = None
    """File of a few hundred texts or more such as the model will get, one a line, or JSON lines with `text` (and
    `text_pair`) where it ends in .jsonl: by them schedule, merge and the default of the selection's knob are chosen."""
    knob_default: KnobDefaults | None = None
    """A knob's value for requests that set none: a number where there is one knob, else by name, such as `keep=0.5`,
    several separated by commas; by default that of the checkpoint or the operator."""
    thresholds: str | None = None
    """Multi-label models: the score from which a label is given, one for each label, between commas; or a file named
    *.json with a list of them or an object of thresholds by label, which may leave labels out. Default: 0.5."""
    fit_thresholds: Path | None = None
    """Multi-label models: JSON lines with text and labels (a list of names) on which the threshold of each label is
    chosen that has the largest F1; labels that fewer than 10 of the texts have, or lack, keep 0.5."""
    data: str = ""
    """Data that the model was trained on, recorded in bundle.json under provenance."""
    licence: str = ""
    """Licence of the weights, recorded in bundle.json under provenance."""


def parse(arguments: Sequence[str]) -> tuple[str, ExportSettings]:
    """Reads the arguments after `attenuator export` and the environment.

    Returns:
        SOURCE and the settings.

    Raises:
        SystemExit: 0 after `--help`, 2 where an argument or a variable is wrong.
    """
    settings, positionals = parse_command(
        ExportSettings, COMMAND, arguments, POSITIONALS, usage=USAGE, examples=EXAMPLES
    )
    return positionals[0], settings
