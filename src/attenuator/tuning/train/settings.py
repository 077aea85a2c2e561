"""The settings of `attenuator train`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from attenuator.commandline import Positionals
from attenuator.ops import BASELINE
from attenuator.tuning.choices import CHOICES, REPLACEMENTS, with_attention_settings
from attenuator.tuning.settings import LearningRate, RunSettings

__all__ = ["COMMAND", "EXAMPLES", "POSITIONALS", "SETTINGS", "USAGE", "TrainSettings"]

COMMAND = "train"
POSITIONALS = Positionals(
    "CHECKPOINT|CONFIG",
    1,
    "folder of a checkpoint, trained as a classifier or not; or a config.json beside a tokenizer",
)
USAGE = "(CHECKPOINT | CONFIG) --data FILE --output CHECKPOINT [options]"
EXAMPLES = f"""  fine-tune a checkpoint that you have on disk, and serve the result:
    attenuator train bert-small --data reviews.jsonl --output tuned
    attenuator tune tuned --texts texts.txt --output bundles/tuned
    attenuator serve bundles/tuned
  a line of reviews.jsonl; several labels a text make a model of several labels
    {{"text": "A quiet, moving film.", "label": "positive"}}
    {{"text": "..", "text_pair": "..", "labels": ["Non-Compete", "Audit Rights"]}}
  a table: which columns hold texts and labels
    attenuator train bert-small --data reviews.csv --column review --label-column stars --output tuned
  a number in place of a label: the model then has one score
    attenuator train bert-small --data reviews.csv --column review --label-column stars --regression --output tuned
  with an attention whose time grows linearly with the length, in place of {BASELINE.key}; weights that were trained
  with another one have to learn it, which takes more texts or epochs (attenuator adapt teaches it without labels)
    attenuator train bert-small --attention {REPLACEMENTS[0]} --data reviews.jsonl --output tuned
    attenuator tune tuned --texts texts.txt --output bundles/tuned
  no longer than half an hour, and no longer than it gets better:
    attenuator train bert-small --data reviews.jsonl --output tuned --epochs 10 --max-minutes 30 --patience 3
  interrupted by Ctrl-C, or killed? The same command with --resume goes on, to the same result:
    attenuator train bert-small --data reviews.jsonl --output tuned --resume
  all weights anew, in the shape of a config:
    attenuator train small/config.json --data reviews.jsonl --output trained --learning-rate 5e-4 --epochs 10

what happens
  1. A tenth of the texts is held out, or --held-out says which. Equal texts are never on both sides.
  2. A few batches are timed, and the time of the whole is said before the first step; --max-minutes cuts the steps to
     what fits, so that the learning rate still falls to 0.
  3. The model is evaluated on the texts held out --evaluations times an epoch, and the best weights are kept. So their
     accuracy is a little too good; measure what matters with `attenuator tune` on labelled texts of neither part.

Labels that the checkpoint has keep their places; whole numbers are places of its labels. Others give it a classifier
of new weights, which is said. The output is a checkpoint with its tokenizer, whose config says what it was trained
with; `attenuator tune` takes it from there. CHECKPOINT is of a family that export takes, or the project's own
encoder. Nothing is fetched from a network.

exit codes: 0 the checkpoint is written, 1 something failed, 2 usage error, 130 interrupted; an error is one sentence
on stderr"""

if TYPE_CHECKING:
    AttentionName = str
else:
    AttentionName = Literal[CHOICES]


class TrainSettings(RunSettings):
    """Train a text classifier on labelled texts, with transformers' Trainer.

    Needs the extra 'train'.
    """

    attention: AttentionName | None = None
    """The attention to train with; the checkpoint's own by default."""
    learning_rate: LearningRate = 5e-5
    """The highest one: it rises at the beginning and falls to 0 at the end. 5e-5 suits pretrained weights, 5e-4 those
    that are drawn anew."""
    regression: bool = False
    """Learn a number a text, such as its stars, in place of a label."""
    evaluations: Annotated[int, Field(ge=1)] = 1
    """How often the model is evaluated in each epoch."""


SETTINGS = with_attention_settings(TrainSettings, is_searched=False)
