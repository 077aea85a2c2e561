"""The settings of `attenuator rerank`, and its help."""

from typing import Annotated, Literal

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from attenuator.commandline import Positionals
from attenuator.commands.knobflags import describe_flag, examples, with_knobs
from attenuator.commands.places import PLACE_GROUPS, PlaceSettings
from attenuator.ops import KNOBS
from attenuator.rows import Format

COMMAND = "rerank"
POSITIONALS = Positionals(
    "BUNDLE_OR_URL",
    "*",
    "folder of a bundle with one output, or address of a server; documents may follow. Without any, and without "
    "--input, standard input is read",
)
USAGE = "BUNDLE_OR_URL --query QUERY [options] [DOCUMENT ...]"
EXAMPLES = f"""  the best three of a file with one document per line, at the bundle's defaults:
    attenuator rerank BUNDLE --query "Who wrote the book?" --input documents.txt --top-n 3
  at a value of the bundle's knob, and with the ten best of that scored again, exactly:
{examples('    attenuator rerank BUNDLE --query "Who wrote it?" --input documents.txt {flag} {default} --rescore 10')}
  through a server, within a budget for the whole list; with a small model in front of a large one:
    attenuator rerank http://127.0.0.1:8000 --query "Who wrote it?" --input documents.txt --model base --max-cost 50
    attenuator rerank http://127.0.0.1:8000 --query "Who wrote it?" --input texts.txt --cascade mini,base --rescore 10
  documents as words, as a column of a table, as JSON lines with a field, from a program:
    attenuator rerank BUNDLE --query "Who wrote it?" "By Ann." "In May."
    attenuator rerank BUNDLE --query "Who wrote it?" --input documents.csv --column body
    attenuator rerank BUNDLE --query "Who wrote it?" --input documents.jsonl --column body
    producer | attenuator rerank BUNDLE --query "Who wrote it?" --input - | jq '.results[0].document.text'
  many queries, each with documents of its own, as JSON lines: {{"query": "..", "documents": ["..", ".."]}}
    attenuator rerank BUNDLE --input lists.jsonl > ranked.jsonl

On a terminal the answer is a table; written to a pipe or a file, or with --json, it is one JSON object for each query:
its results, best first, as POST /v1/rerank has them.

exit codes: 0 all queries are answered, 1 something failed, 2 usage error; an error is one sentence on stderr"""


class RerankSettings(PlaceSettings):
    """Rank documents by how well they answer a query, with a reranker's bundle in this process or through a server.

    A knob trades accuracy for time, anew with every call; `BUNDLE --help` shows those that the bundle has.
    """

    GROUPS = {
        **PLACE_GROUPS,
        "query": "texts",
        "rescore": "accuracy",
        "top_n": "answers",
        next(iter(KNOBS)): "knobs",
    }
    model_config = SettingsConfigDict(cli_shortcuts={"json-lines": "json"})

    query: str | None = None
    """What the documents are ranked for; without it INPUT has a query and its documents in each JSON line."""
    input: str | None = None
    """Read documents from INPUT, one per line, or CSV, TSV or JSON lines by its ending; `-` is standard input."""
    format: Format | None = None
    """Format of INPUT or of standard input, where its name does not tell."""
    column: str | None = None
    """Column (CSV, TSV: by the first line) or field (JSON lines) that holds the document; `text` by default."""
    rescore: Annotated[int, Field(ge=1)] | None = None
    """Score so many of the best again, exactly, in a second step; the knobs are those of the first."""
    cascade: str | None = None
    """With a server, two of its models, FIRST,LAST: the first scores all documents, the last the best ones again."""
    max_cost: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    """With a server, a budget for a list, both steps together, in billions of multiply-adds."""
    max_latency_ms: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    """With a server, a budget of time for a list, in milliseconds."""
    min_agreement: Annotated[float, Field(gt=0, le=1)] | None = None
    """With a server, a goal in place of knobs: the top of a list is the exact one at least this often."""
    seed: int | Literal["random"] | None = None
    """Seed of the randomised operators; `random` draws one. Default: the server's own, or 0 with a bundle."""
    top_n: Annotated[int, Field(ge=1)] | None = None
    """Show the TOP_N best documents of a query; all by default."""
    truncate: bool = False
    """Cut pairs that are longer than the model takes, instead of refusing them."""
    json_lines: bool = False
    """Write one JSON object per query, also to a terminal."""


SETTINGS = with_knobs(RerankSettings, lambda knob: {"int32": int, "float": float}[knob.dtype], describe_flag)
