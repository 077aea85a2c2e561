"""The settings of `attenuator calibrate`."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from attenuator.commandline import CommandSettings, Positionals, Threads

COMMAND = "calibrate"
POSITIONALS = Positionals("BUNDLE", 1, "folder of the bundle; calibration.json is written there")
USAGE = "BUNDLE --data FILE.jsonl [options]"
EXAMPLES = """  what the settings of a bundle are worth on your texts; writes BUNDLE/calibration.json and a plot of it:
    attenuator calibrate BUNDLE --data held-out.jsonl
  a line of the file: a text, or a pair, with its label if accuracy is to be measured as well
    {"text": "A quiet, moving film.", "label": "positive"}
    {"text": "..", "text_pair": "..", "labels": ["Non-Compete", "Audit Rights"]}
  a reranker, with lists: how much of a list must be scored again after a cheap first step; or again by the model BASE
    {"query": "..", "documents": ["..", ".."], "relevant": [1]}
    attenuator calibrate BUNDLE --data lists.jsonl
    attenuator calibrate BUNDLE --data lists.jsonl --reference BASE
  few texts show a low agreement only: 72 do for 0.95, 368 for 0.99, 3,688 for 0.999 in each range of lengths
    attenuator calibrate BUNDLE --data few.jsonl --min-agreement 0.95
  measured elsewhere, served here? Add the times of this device to what calibration.json says:
    attenuator calibrate BUNDLE --data held-out.jsonl --only-times
  a bundle in int8, fp16 or bf16? Its answers are compared with the checkpoint's in fp32, so export that as EXACT
    attenuator calibrate BUNDLE --data held-out.jsonl --reference EXACT
  interrupted? The same command goes on where it ended; --restart begins anew.

Use texts that the model was not trained on and that resemble what callers will send, in length as well.

exit codes: 0 calibration.json is written, 1 something failed, 2 usage error, 130 interrupted; an error is one sentence
on stderr"""


class CalibrateSettings(CommandSettings):
    """Measure what each setting of a bundle's knobs is worth: agreement with the exact answers, accuracy, time.

    The service needs it to serve goals (min_agreement, max_latency_ms). Every text runs at every setting of a grid,
    each text or list with a seed of its own; agreement is measured for each range of lengths, with intervals, and time
    on this device. Times are taken at the end: let the machine do nothing else then.
    """

    data: Path
    """File of JSON lines, each with text, with text and text_pair, or with token_ids; label or labels on all lines or
    on none. Or, of a bundle with one output, each a list: query, documents and, on all lines or on none, relevant, the
    places of the relevant documents from 0 on. A calibration of texts keeps what an earlier one said of lists."""
    reference: Path | None = None
    """For a bundle that is not fp32: a bundle of the same checkpoint in fp32, whose exact answers agreement is with.
    With lists: a larger model with one output that scores the best documents again, and whose order counts."""
    min_agreement: Annotated[float, Field(gt=0, lt=1)] = 0.99
    """Agreement that the data must be able to show: decides how many texts are needed, and how lengths are divided. It
    is also the default goal: requests that set nothing run at the cheapest setting that is estimated to keep it."""
    confidence: Annotated[float, Field(gt=0.5, lt=1)] = 0.975
    """Confidence of intervals, and of the bounds that callers' min_agreement is compared with."""
    truncate: bool = False
    """Cut texts that are longer than the model takes, instead of refusing the file."""
    only_times: bool = False
    """Only time the settings of the bundle's calibration.json, here and now; its other figures stay, and so do times of
    other devices."""
    keep_times: bool = False
    """Measure everything but times, which stay as the bundle's calibration.json has them: for a busy machine. The
    default goal stays too, unless --min-agreement is set."""
    restart: bool = False
    """Forget what an interrupted run has measured."""
    device: Literal["cpu", "cuda", "auto"] = "cpu"
    """Where to run; auto uses the CUDA device if it works, else the CPU, and says why."""
    device_id: Annotated[int, Field(ge=0, le=255)] = 0
    """Which CUDA device, as the driver counts."""
    threads: Threads = None
    """Threads; as many as there are cores by default."""


SETTINGS = CalibrateSettings
