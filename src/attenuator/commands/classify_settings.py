"""The settings of `attenuator classify`, and its help."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from attenuator.classify_request import Aggregation
from attenuator.commandline import Positionals
from attenuator.commands.knobflags import describe_flag, examples, with_knobs
from attenuator.commands.places import PLACE_GROUPS, PlaceSettings
from attenuator.ops import KNOBS
from attenuator.rows import Format

COMMAND = "classify"
POSITIONALS = Positionals(
    "TEXT", "*", "text to classify, after the bundle's folder; without any, and without --input, standard input is read"
)
USAGE = "(BUNDLE | --bundle BUNDLE | --url URL) [options] [TEXT ...]"
EXAMPLES = f"""  one answer without a server, at the bundle's defaults:
    attenuator classify examples/bundles/reviews "A quiet, moving film."
  at a value of the bundle's knob, and at its exact value:
{examples('    attenuator classify BUNDLE {flag} {default} "A quiet, moving film."')}
{examples('    attenuator classify BUNDLE {flag} {exact} "A quiet, moving film."')}
  the cheapest knobs that keep 99 % of a calibrated bundle's answers:
    attenuator classify examples/bundles/reviews --min-agreement 0.99 "A quiet, moving film."
  how sure is each answer? And with what is not sure enough answered again at surer knobs:
    attenuator classify examples/bundles/reviews --explain "A quiet, moving film."
    attenuator classify examples/bundles/reviews --escalate --min-agreement 0.99 "A quiet, moving film."
  ask a server; how much does the answer depend on the seed?
    attenuator classify --url http://127.0.0.1:8000 --model reviews --seed random "A quiet, moving film."
  a file with one text per line; written to a pipe, answers are tab-separated (label, score, best labels, logits, text):
    attenuator classify examples/bundles/reviews --input reviews.txt --top-k 2 --logits | sort -k 2
  the same, one JSON object per answer:
    attenuator classify examples/bundles/reviews --input reviews.txt --json > answers.jsonl
  a table, on all cores: its rows with label, score, knobs and error; given again after Ctrl-C it goes on
    attenuator classify examples/bundles/reviews --input reviews.csv --column review --output answered.csv
    attenuator classify --url http://127.0.0.1:8000 --input reviews.jsonl --column body --output answered.jsonl
    attenuator classify BUNDLE --format csv --output - < reviews.csv > answered.csv
  labels of your own, with a model of natural language inference (one of whose labels begins with "entail"):
    attenuator classify BUNDLE --candidate-labels sports,politics "They won the cup."
  the entities of a text, with a token classifier:
    attenuator classify BUNDLE --aggregation first --json "Maria Santos lives in Lisbon."
  pairs and token ids as JSON lines: {{"text": "..", "text_pair": ".."}} or {{"token_ids": [101, 7592, 102]}}, which
  may have token_type_ids
    producer | attenuator classify --url http://127.0.0.1:8000 --format jsonl

exit codes: 0 all inputs are classified, 1 something failed or a row has an error, 2 usage error; an error is one
sentence on stderr"""


class ClassifySettings(PlaceSettings):
    """Classify texts with a bundle in this process or through a server (--url).

    A knob trades accuracy for time, anew with every call; `BUNDLE --help` shows those that the bundle has.
    """

    GROUPS = {
        **PLACE_GROUPS,
        "input": "files",
        "min_agreement": "accuracy",
        "top_k": "answers",
        next(iter(KNOBS)): "knobs",
    }
    model_config = SettingsConfigDict(cli_shortcuts={"json-lines": "json"})

    input: str | None = None
    """Read inputs from INPUT, one text per line, or CSV, TSV or JSON lines by its ending; `-` is standard input."""
    format: Format | None = None
    """Format of INPUT or of standard input, where its name does not tell."""
    column: str | None = None
    """Column (CSV, TSV: by the first line) or field (JSON lines) that holds the text; `text` by default."""
    pair_column: str | None = None
    """Column or field with the second text of each pair."""
    output: str | None = None
    """Write every row of INPUT to OUTPUT (.csv, .tsv or .jsonl; `-` is standard output), with label, score, knobs and,
    where it could not be answered, an error. A run that was stopped goes on where it ended if given again."""
    output_format: Literal["csv", "tsv", "jsonl"] | None = None
    """Format of OUTPUT, where its name does not tell; on standard output that of INPUT by default."""
    resume: Path | None = None
    """Where the finished answers of an --output that is under way are; OUTPUT.partial.jsonl by default."""
    restart: bool = False
    """Forget what an earlier run with this OUTPUT has finished."""
    concurrency: Annotated[int, Field(ge=1, le=256)] = 8
    """With --url: requests under way at a time."""
    min_agreement: Annotated[float, Field(gt=0, le=1)] | None = None
    """Goal in place of knobs, for calibrated models: the cheapest ones whose answers agree with the exact ones on at
    least this share of inputs; 1 is exact."""
    max_latency_ms: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    """Goal in place of knobs, with --url: the most accurate ones that are predicted to answer within this time, in
    milliseconds."""
    explain: bool = False
    """Say how sure each answer is: the standard error of its score, and the probability that it is the exact one."""
    escalate: bool = False
    """Run again, at surer knobs, what is the exact answer with less probability than --min-agreement; knobs beside it
    say where to begin."""
    seed: int | Literal["random"] | None = None
    """Seed of the randomised operators; `random` draws one. Default: the server's own, or 0 with --bundle."""
    top_k: int | None = None
    """Show the TOP_K labels with the highest scores."""
    candidate_labels: str | None = None
    """Labels to choose from in place of the model's own, with commas between them, for a model of natural language
    inference."""
    hypothesis_template: str | None = None
    """What the model judges of each text, with a candidate label in place of {}; `This example is {}.` by default."""
    multi_label: bool = False
    """Score each candidate label by itself: several or none may be right."""
    aggregation: Aggregation | None = None
    """How the tokens of a token classifier become entities, as in transformers' pipeline: `simple` by default."""
    truncate: bool = False
    """Cut inputs that are longer than the model takes, instead of refusing them."""
    logits: bool = False
    """Show the logits, in the order of the model's labels."""
    json_lines: bool = False
    """Write one JSON object per input."""


SETTINGS = with_knobs(ClassifySettings, lambda knob: {"int32": int, "float": float}[knob.dtype], describe_flag)
