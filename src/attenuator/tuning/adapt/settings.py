"""Flags, variables and help of `attenuator adapt`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from attenuator.bundle import TRAINED_POSITIONS
from attenuator.commandline import Positionals
from attenuator.export.longer import POSITIONS
from attenuator.export.selection import SCHEDULES
from attenuator.tuning.choices import REPLACEMENTS, with_attention_settings
from attenuator.tuning.settings import Epochs, LearningRate, Minutes, RunSettings

__all__ = ["BATCH_TEXTS", "COMMAND", "EXAMPLES", "POSITIONALS", "SETTINGS", "SYNONYMS", "USAGE", "AdaptSettings"]

COMMAND = "adapt"
BATCH_TEXTS = 32  # of a step that teaches a selection
POSITIONALS = Positionals("CHECKPOINT", 1, "folder of a classifier that was trained with softmax attention")
# As commands that read texts without labels call them.
SYNONYMS = {"--texts": "--data", "--minutes": "--max-minutes"}
USAGE = "CHECKPOINT --data FILE --output FOLDER [options]"
EXAMPLES = """  keep softmax attention, and bear that most tokens are left out; thousands of texts without labels
  are enough, which the model was not trained on:
    attenuator adapt checkpoint --keep --texts texts.txt --minutes 10 --truncate --output taught
    attenuator tune taught --texts others.txt --output bundles/taught
  learn another attention; unlabelled texts like those that callers will send are enough; 2,000 are a good number:
    attenuator adapt checkpoint --data texts.txt --output adapted --truncate
    attenuator tune adapted --texts others.txt --output bundles/adapted
  with labels the accuracy is shown as well; texts held out in a file of their own say more than a tenth of the data:
    attenuator adapt checkpoint --data train.jsonl --held-out test.jsonl --output adapted
  a table: which columns hold texts and labels
    attenuator adapt checkpoint --data reviews.csv --column review --label-column stars --output adapted
  fail where fewer than 98 % of the answers stay what they were; take an hour if need be:
    attenuator adapt checkpoint --data texts.jsonl --min-agreement 0.98 --max-minutes 60 --output adapted
  interrupted by Ctrl-C, or killed? The same command with --resume goes on:
    attenuator adapt checkpoint --data texts.jsonl --output adapted --resume
  read texts of up to 2,048 tokens with a model of 512 learned positions:
    attenuator adapt checkpoint --data long.jsonl --positions repeated --max-tokens 2048 --output adapted

which --positions? Teacher and student get the same longer table; the student's is trained with the rest
{positions}

what happens with --keep
  Where the tokens are left out is chosen on texts held out. Then the model learns its own answers, in every step at the
  smallest `keep` and at one drawn up to 0.5. Texts that it was trained on teach it badly, since its answers to them
  hardly hang on what is left out. The output is the checkpoint as it was, with the taught weights beside it: its bundle
  answers with these below the `keep` up to which they are nearer, else with the original, bit for bit.

what happens without
  1. The checkpoint as it is becomes the teacher, a copy of it the student. Of the settings of the new attention that
     are not given, those are chosen that come nearest to the teacher's attention outputs on some of the texts.
  2. The student learns the teacher's attention outputs, layer by layer, and its answers: for the first part of the
     steps exactly (at the knob's exact value, without noise), then at the knob's own value, with new hashes in each
     step, so that the weights learn to live with the noise. Every evaluation compares its answers on texts held out
     with the teacher's, and the best weights are kept.
  3. Agreement, and accuracy where there are labels, are shown before and after, over values of the knob.

The output is a checkpoint with its tokenizer, whose config says what it was trained with; tune takes it from there.
CHECKPOINT is of a family that `attenuator export` takes, or of the project's own encoder: with --keep of any whose
bundles have the knob `keep`, without it of one whose attention can be replaced, where a Longformer becomes a RoBERTa,
whose tokens all attend to one another. Nothing is fetched from a network.

exit codes: 0 the checkpoint is written, 1 it could not be, or it was but without the --min-agreement asked for, 2
usage error, 130 interrupted; an error is one sentence on stderr""".replace(
    "{positions}", "\n".join(f"  {name:13} {doc}" for name, doc in POSITIONS.items())
)

if TYPE_CHECKING:
    AttentionName = str
    PositionsName = str
    ScheduleName = str
else:
    AttentionName = Literal[REPLACEMENTS]
    ScheduleName = Literal[tuple(SCHEDULES)]
    PositionsName = Literal[tuple(POSITIONS)]


class AdaptSettings(RunSettings):
    """Turn a classifier that was trained with softmax attention into a faster one.

    It learns attention whose time grows linearly with the length, or (--keep) to bear that most tokens are left out.
    The model teaches itself, so texts without labels are enough.
    """

    keep: bool = False
    """Teach the knob `keep` in the place of another attention."""
    schedule: ScheduleName | None = None
    """With --keep: how the selection spreads over the layers, as `attenuator export --help` lists it; by default what
    takes the least work to stay as near to the exact answers."""
    attention: AttentionName = REPLACEMENTS[0]
    """The attention to learn."""
    min_agreement: Annotated[float, Field(gt=0, le=1)] | None = None
    """Fail where answers agree with the softmax model's on a smaller share of the texts held out; with --keep: where no
    `keep` that was measured reaches it."""
    max_minutes: Minutes | None = 20.0
    """Time that the command may take, measuring included; its steps are planned to fit."""
    epochs: Epochs = 8.0
    """Passes over the texts at most. With --keep 200 by default."""
    learning_rate: LearningRate = 5e-4
    """The highest one; it rises at the beginning and falls to 0 at the end. With --keep 5e-5 by default."""
    batch_tokens: Annotated[int, Field(ge=1)] = 2048
    """Tokens of a batch, padding included: memory and time of a step grow with it."""
    exact_share: Annotated[float, Field(ge=0, le=1)] = 0.4
    """Part of the steps, the first ones, that learn without noise."""
    attention_weight: Annotated[float, Field(ge=0, le=1000)] = 1.0
    """Weight of the attention outputs' relative squared error beside the divergence of the answers."""
    patience: Annotated[int, Field(ge=0)] = 0
    """Evaluations without a gain after which training ends, once it learns with noise; 0: it goes on to the end, where
    the learning rate is lowest and most is gained. With --keep 5 by default."""
    positions: PositionsName = TRAINED_POSITIONS
    """How the model reads texts longer than it has learned positions for, listed below; --max-tokens says how long."""
    max_tokens: Annotated[int, Field(ge=2)] | None = None
    """Longest text, special tokens included; what the model takes by default, and more with other --positions."""


SETTINGS = with_attention_settings(AdaptSettings, is_searched=True)
