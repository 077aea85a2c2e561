"""The settings of `attenuator tune`."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from attenuator.commandline import CommandSettings, Positionals, Threads

COMMAND = "tune"
POSITIONALS = Positionals("CHECKPOINT", 1, "checkpoint, as `attenuator export` takes it")
USAGE = "CHECKPOINT [--texts FILE] [options]"
EXAMPLES = """  a bundle that keeps 99 % of the checkpoint's answers, as fast as your texts allow:
    attenuator tune path/to/checkpoint --texts texts.txt --output bundles/mine
    attenuator serve bundles/mine
  a line of the file: a text; in JSON lines a text or a pair, with its label if accuracy is to be shown as well
    {"text": "A quiet, moving film.", "label": "positive"}
  95 % are enough, no int8, at most half an hour:
    attenuator tune path/to/checkpoint --texts texts.csv --min-agreement 0.95 --precision fp32 --minutes 30
  interrupted? The same command goes on where it ended; --restart begins anew.

What happens: two fifths of the texts, drawn by lot, choose how tokens are left out (schedule, merged or dropped), and
by how many an answer does not change. The others run at every setting, in fp32 and in int8: what they say of agreement
and time goes into the bundle as its calibration. Requests that set nothing then run at the cheapest setting that is
estimated to keep --min-agreement; a request with `keep` 1 has every token computed, one with `min_agreement` gets what
the texts can promise. Where the default is less than three times as fast, the model is taught to bear a smaller `keep`,
as `attenuator adapt --keep` does, from all texts that do not judge. The bundle's report.html shows all of it, and
twenty texts whose answers changed: delete it before you hand the bundle to people who may not read your texts.

How many texts? Use texts that the model was not trained on. 1,000 or more measure an agreement of 0.99 well. If no
answer changes, 613 promise 0.99 at 97.5 % confidence, and 120 promise 0.95; fewer than 81 leave a default of 0.99
exact. Teaching takes 1,000 that do not judge, and gains with thousands. No labels are needed.

exit codes: 0 the bundle is written, 1 something failed, 2 usage error, 130 interrupted; an error is one sentence on
stderr"""


class TuneSettings(CommandSettings):
    """Turn a trained classifier into a bundle that is as fast as your texts allow at an agreement that you choose.

    One command in place of `export`, `calibrate` and a comparison of their options: it tries what can pay, measures it
    on texts that did not choose it, and writes one bundle with a default goal and a report. Needs the extra `export`.
    """

    texts: Path | None = None
    """File of texts such as callers will send: one a line, CSV, TSV or JSON lines by its ending, `label` or `labels` on
    all of them or on none; longer ones than the model takes are cut. Without it the bundle is exact."""
    output: Path | None = None
    """Folder of the bundle; an older bundle there is replaced. By default bundles/ and the checkpoint's name."""
    min_agreement: Annotated[float, Field(gt=0, lt=1)] = 0.99
    """Share of answers that are estimated to stay the checkpoint's own where a request sets nothing."""
    precision: Literal["best", "fp32", "int8"] = "best"
    """Number format: best takes int8 where it is faster and keeps the agreement."""
    minutes: Annotated[float, Field(gt=0, le=100_000)] = 10
    """Time to spend, about: where all texts would take longer, fewer are run, drawn by lot. Nearly half is kept for
    teaching where that fits in and there are texts enough."""
    column: str | None = None
    """Column (CSV, TSV) or field (JSON lines) that holds the text; `text` by default."""
    pair_column: str | None = None
    """Column or field with the second text of each pair."""
    label_column: str | None = None
    """Column or field with the label; `label`, or `labels` with a list of them, by default."""
    name: str | None = None
    """Name of the model in requests; the output folder's name by default."""
    max_tokens: int | None = None
    """Tokens of the longest input; by default as many as model and tokenizer allow."""
    restart: bool = False
    """Forget what an interrupted run has done."""
    threads: Threads = None
    """Threads; as many as there are cores by default. Times of the report are of one."""


SETTINGS = TuneSettings
