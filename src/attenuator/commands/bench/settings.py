"""The settings of `attenuator bench`, and its help."""

from pathlib import Path
from typing import Annotated

from pydantic import Field, SecretStr

from attenuator.commandline import CommandSettings
from attenuator.commands.knobflags import examples, with_knobs
from attenuator.rows import Format

COMMAND = "bench"
USAGE = "--url URL [options]"
EXAMPLES = f"""  the frontier on your own texts, at settings of the calibration and rates around what it can do exactly:
    attenuator bench --url http://127.0.0.1:8000 --model reviews --file texts.txt
  rates, in requests a second, and knob values of your choice; knobs that are not named stay at their defaults:
{examples("    attenuator bench --url http://127.0.0.1:8000 --rates 20,50 {flag} {low},{default},{exact}")}
  which share of the answers comes within 50 ms? Everything to a file, and a plot:
    attenuator bench --url http://127.0.0.1:8000 --target-ms 50 --output bench.json --plot bench.svg
  a table's column; a service that wants a key:
    ATTENUATOR_API_KEY=... attenuator bench --url https://models.example --file reviews.csv --column review

Requests leave at times that are drawn before (a Poisson process), whatever the service does, and latency counts from
the time at which a request was to leave: a service that falls behind cannot slow down those who ask it. Run it from
another machine, or on cores that the service does not use, and against nothing that others depend on.

exit codes: 0 measured, 1 something failed, 2 usage error, 130 interrupted, after the table of what was measured"""


class BenchSettings(CommandSettings):
    """Measure a running service under load: latency, goodput, refusals and agreement over rates and knob values.

    First every text is asked for once at the exact knobs, which also tells how many a second the service can answer.
    Then each combination of rate and knob values runs for some seconds.
    """

    url: str
    """Address of the service, such as http://127.0.0.1:8000."""
    model: str | None = None
    """Name of the served model; may be left out where there is only one."""
    api_key: SecretStr | None = None
    """Key for a service that requires one; safer as the variable ATTENUATOR_API_KEY than on the command line."""
    rates: str | None = None
    """Requests a second, separated by commas. Default: 0.5, 0.8, 1 and 1.5 times what it can answer exactly."""
    seconds: Annotated[float, Field(gt=0)] = 5.0
    """How long each combination of rate and knob values runs."""
    budget_s: Annotated[float, Field(gt=0)] = 600.0
    """Longest time for everything; more combinations than fit are refused."""
    target_ms: Annotated[float, Field(gt=0)] = 100.0
    """Goodput is the answers within this time, a second."""
    timeout_ms: Annotated[float, Field(gt=0)] | None = None
    """Deadline that each request gives the service; what it drops counts as failed."""
    give_up_s: Annotated[float, Field(gt=0)] = 10.0
    """After which a request without an answer counts as failed."""
    file: str | None = None
    """Texts to ask about: one a line, or CSV, TSV or JSON lines by its ending. Default: built-in texts of many lengths,
    on which agreement says little."""
    format: Format | None = None
    """Format of FILE, where its name does not tell."""
    column: str | None = None
    """Column or field of FILE that holds the text; `text` by default."""
    max_texts: Annotated[int, Field(ge=1)] = 200
    """How many texts to ask about: the first of FILE."""
    seed: Annotated[int, Field(ge=0)] = 0
    """Of the arrivals and of the text of each; equal seeds ask the same at the same times."""
    output: Path | None = None
    """Write the results to OUTPUT, .json or .csv."""
    plot: Path | None = None
    """Draw the results to PLOT, .svg, .png or .pdf; needs the extra `plots`."""


SETTINGS = with_knobs(
    BenchSettings,
    lambda knob: str,
    lambda knob: (
        f"Values of {knob.name} to run at, {knob.low:g} to {knob.high:g}, separated by commas; with several such "
        "flags, every combination."
    ),
)
