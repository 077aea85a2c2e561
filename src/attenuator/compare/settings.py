"""The settings of `attenuator compare`."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from attenuator.commandline import CommandSettings, Positionals, Threads
from attenuator.ops import OPERATORS

COMMAND = "compare"
POSITIONALS = Positionals(
    "CHECKPOINT", 1, "what `attenuator export` takes: checkpoint folder, Hugging Face id, FILE.py:NAME"
)
USAGE = "CHECKPOINT --data FILE [options]"
_EXAMPLES = """  which attention, at which setting, for this model on texts like these?
    attenuator compare checkpoint --data held-out.jsonl
  a line of the file: a text, or a pair, with its label if accuracy is to be measured as well
    {"text": "A quiet, moving film.", "label": "positive"}
  two answers in five minutes: fewer methods, fewer values of each knob
    attenuator compare checkpoint --data held-out.jsonl --attention {attentions} --values 2 --max-minutes 5
  ranges of lengths of your own: up to 128 tokens, 129 to 512, above
    attenuator compare checkpoint --data held-out.jsonl --lengths 128,512
  interrupted? The same command goes on where it ended; --restart begins anew.

What happens: the checkpoint is exported once with each attention that it can have without training, in each
precision; every export runs the texts at a few values of its knobs. An answer agrees where it is the one that the
checkpoint gives with its own attention, exact and in fp32; with labels, accuracy is measured as well. Times are of one
text alone, taken in turns with the exact model: let the machine do nothing else. Attention that the checkpoint cannot
have without training is named, with the reason, and with the command that teaches it where there is one.

What comes out: a table and a sentence for each range of lengths, and in the output folder comparison.json and
comparison.svg. A setting is recommended only if the texts show, at the confidence asked for, that it keeps the
agreement asked for: 108 texts in a range can show 0.95, 552 can show 0.99. A third of them, drawn by lot, chooses the
order in which settings are tried; the others decide.

exit codes: 0 the comparison is written, 1 something failed, 2 usage error, 130 interrupted; an error is one sentence
on stderr"""

ATTENTIONS = [operator.key for operator in OPERATORS if operator.attention and not operator.asked_as]
EXAMPLES = _EXAMPLES.replace("{attentions}", ",".join(ATTENTIONS[:2]))


class CompareSettings(CommandSettings):
    """Find out which attention suits a trained classifier, at which setting of its knobs, on your texts and machine.

    Measures agreement with the checkpoint's exact answers, accuracy where the texts have labels, and time, for every
    attention that export can give the checkpoint; says for each range of lengths which to take. Needs the extra
    `export`.
    """

    data: Path
    """File of texts that the model was not trained on: JSON lines, CSV, TSV or one text a line, by its ending; label or
    labels on all of them, or on none."""
    column: str | None = None
    """Column (CSV, TSV) or field (JSON lines) that holds the text; `text` by default."""
    pair_column: str | None = None
    """Column or field with the second text of each pair."""
    label_column: str | None = None
    """Column or field with the label, a name or its place; `label`, or `labels` with a list of them, by default."""
    output: Path | None = None
    """Folder for comparison.json and comparison.svg, new, empty or of an earlier comparison; by default one in the
    current folder, named comparison- and after the checkpoint."""
    attention: str | None = None
    """Attentions to compare, separated by commas; all that the checkpoint can have by default. Exact attention is
    always measured."""
    precision: str | None = None
    """Number formats to compare, separated by commas; by default all that the device runs: fp32 and int8, on a GPU
    fp32, fp16 and bf16."""
    lengths: str | None = None
    """Where ranges of lengths end, in tokens, separated by commas; powers of 2 with texts enough by default."""
    values: Annotated[int, Field(ge=2, le=16)] = 4
    """Values of each knob beside its exact value and its default."""
    max_texts: Annotated[int, Field(ge=1)] = 2000
    """Texts to run; of more, that many evenly spread over the file."""
    max_minutes: Annotated[float, Field(gt=0, le=100_000)] = 30
    """Time to spend: fewer texts are run where all of them would take longer, the same at every setting; what is not
    reached is named."""
    min_agreement: Annotated[float, Field(gt=0, lt=1)] = 0.95
    """Agreement with the exact answers that a recommended setting must keep."""
    confidence: Annotated[float, Field(gt=0.5, lt=1)] = 0.975
    """Confidence of intervals and bounds."""
    truncate: bool = False
    """Cut texts that are longer than the model takes, instead of refusing the file."""
    keep_bundles: bool = False
    """Leave the exported bundles in the output folder, ready to be calibrated and served."""
    restart: bool = False
    """Forget what an interrupted run has measured."""
    device: Literal["cpu", "cuda", "auto"] = "cpu"
    """Where the exports run; auto uses the CUDA device if it works, else the CPU, and says why."""
    device_id: Annotated[int, Field(ge=0, le=255)] = 0
    """Which CUDA device, as the driver counts."""
    threads: Threads = None
    """Threads; as many as there are cores by default."""


SETTINGS = CompareSettings
