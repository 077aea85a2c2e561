"""The command `attenuator inspect`."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from pydantic import Field
from pydantic_settings import SettingsConfigDict
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from attenuator.bundle import MODEL, Manifest, read_manifest
from attenuator.commandline import CommandSettings, Positionals, fail, parse
from attenuator.commands.measure import measure
from attenuator.commands.report import Measured, Report, lengths_up_to, measured_verdict, report_on, values_of
from attenuator.commands.show import show
from attenuator.errors import BundleError
from attenuator.runtime.graph import read_graph
from attenuator.runtime.work import count_work

COMMAND = "inspect"
USAGE = "BUNDLE [options]"
POSITIONALS = Positionals("BUNDLE", 1, "folder of the bundle")
EXAMPLES = """  labels, knobs, operators, and what the knob can win at which length (modelled):
    attenuator inspect examples/bundles/reviews
  the same by the clock, on this machine, at lengths and knob values of your choice:
    attenuator inspect examples/bundles/reviews --measure --lengths 256,1024,4096 --values 8,16,32
  what MCA saves depends on the text, so give it some:
    attenuator inspect examples/bundles/sentiment --measure --sample review.txt
  everything as one JSON object:
    attenuator inspect examples/bundles/reviews --json

exit codes: 0 shown, 1 the bundle cannot be read or run, 2 usage error; errors are one sentence on stderr"""
LONGEST_MEASURED = 4096


class InspectSettings(CommandSettings):
    """Show what a bundle holds, and what its knob can win at which length.

    The table of what the knob can win is modelled from the model's shapes; --measure adds times taken here.
    """

    model_config = SettingsConfigDict(cli_shortcuts={"json-object": "json"})

    measure: bool = False
    """Time the bundle on this machine."""
    lengths: str | None = None
    """Lengths in tokens, separated by commas. Default: doubling up to the model's longest (timed: up to 4096)."""
    values: str | None = None
    """Values of the knob, separated by commas. Default: around the bundle's own default."""
    sample: Path | None = None
    """Text that fills the lengths when timing; random tokens by default."""
    budget_s: Annotated[float, Field(gt=0)] = 2.0
    """Seconds to spend on each length when timing; every setting runs at least three times."""
    threads: Annotated[int | None, Field(ge=1)] = None
    """Threads when timing; every core by default."""
    json_object: bool = False
    """Write one JSON object."""


def lengths_of(settings: InspectSettings, manifest: Manifest) -> list[int]:
    """The lengths asked for, or the usual ones."""
    if settings.lengths is None:
        return lengths_up_to(manifest.max_tokens)
    allowed = f"whole numbers from 1 to {manifest.max_tokens}, separated by commas"
    try:
        lengths = sorted({int(word) for word in settings.lengths.split(",")})
    except ValueError:
        fail(COMMAND, f"--lengths is '{settings.lengths}', must be {allowed}")
    if not all(1 <= tokens <= manifest.max_tokens for tokens in lengths):
        fail(COMMAND, f"--lengths is '{settings.lengths}', must be {allowed}")
    return lengths


def knob_values_of(settings: InspectSettings, manifest: Manifest) -> list[float]:
    """The knob values asked for, or the usual ones; none for a bundle without a knob."""
    if not manifest.knobs:
        if settings.values is not None:
            fail(COMMAND, f"--values is '{settings.values}', but the bundle has no knob")
        return []
    knob = manifest.knobs[0]
    if settings.values is None:
        return values_of(knob)
    number = int if knob.dtype == "int32" else float
    allowed = f"values of {knob.name} from {knob.low:g} to {knob.high:g}, separated by commas"
    try:
        values = sorted({float(number(word)) for word in settings.values.split(",")})
    except ValueError:
        fail(COMMAND, f"--values is '{settings.values}', must be {allowed}")
    if not all(knob.low <= value <= knob.high for value in values):
        fail(COMMAND, f"--values is '{settings.values}', must be {allowed}")
    return values


def timed(settings: InspectSettings, found: Report, lengths: Sequence[int], values: Sequence[float]) -> list[Measured]:
    """Times the bundle, with a bar on stderr."""
    console = Console(stderr=True)
    columns = (TextColumn("timing {task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("(loading)", total=len(lengths))
        started = False

        def step(tokens: int) -> None:
            nonlocal started
            progress.update(task, description=f"{tokens} tokens", advance=1 if started else 0)
            started = True

        return measure(
            found.folder,
            lengths,
            values,
            threads=settings.threads,
            sample=settings.sample,
            budget_s=settings.budget_s,
            progress=step,
        )


def main(arguments: Sequence[str]) -> int:
    """Shows what a bundle holds.

    Args:
        arguments: what follows `attenuator inspect`.

    Returns:
        0; a failure is raised, for `attenuator.__main__` to tell.

    Raises:
        AttenuatorError: the bundle cannot be read or run.
        SystemExit: 2 after a usage error.
    """
    settings, [word] = parse(InspectSettings, COMMAND, arguments, POSITIONALS, usage=USAGE, examples=EXAMPLES)
    folder = Path(word)
    manifest = read_manifest(folder)
    lengths, values = lengths_of(settings, manifest), knob_values_of(settings, manifest)
    try:
        work = count_work(read_graph(folder / MODEL))
    except ValueError as error:
        raise BundleError(f"bundle {folder}: {MODEL} cannot be read: {error}") from None
    found = report_on(folder, manifest, work, lengths, values)
    if settings.measure:
        chosen = lengths if settings.lengths else [tokens for tokens in lengths if tokens <= LONGEST_MEASURED]
        found.measured = timed(settings, found, chosen, values)
        found.verdict += measured_verdict(found)
    if settings.json_object:
        print(found.model_dump_json(indent=2))
    else:
        show(Console(markup=False, highlight=False), found)
    return 0
