"""The command `attenuator inspect`."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

from pydantic import Field
from pydantic_settings import SettingsConfigDict
from rich.console import Console
from rich.progress import MofNCompleteColumn, TimeElapsedColumn

from attenuator.bundle import MODEL, Manifest, read_manifest
from attenuator.calibration import Calibration
from attenuator.clients.progress import progress_bar
from attenuator.commandline import CommandSettings, Positionals, fail, listed_numbers, parse
from attenuator.commands.capacity import Demand, capacity
from attenuator.commands.capacity import lengths_of as capacity_lengths
from attenuator.commands.knobflags import examples, flag, listed_settings, with_knobs
from attenuator.commands.measure import measure
from attenuator.commands.report import Measured, lengths_up_to, measured_verdict, report_on, values_of
from attenuator.commands.show import show
from attenuator.errors import BundleError
from attenuator.runtime.graph import read_graph
from attenuator.runtime.work import count_work

COMMAND = "inspect"
USAGE = "BUNDLE [options]"
POSITIONALS = Positionals("BUNDLE", 1, "folder of the bundle")
EXAMPLES = f"""  labels, knobs, operators, and what each knob can win at which length (modelled):
    attenuator inspect BUNDLE
  the same by the clock, on this machine, at lengths and knob values of your choice:
{examples("    attenuator inspect BUNDLE --measure --lengths 256,1024 {flag} {low},{default}")}
  what some operators save depends on the text, so give them some:
    attenuator inspect BUNDLE --measure --sample review.txt
  how many replicas 200 requests a second take, for texts of 300 tokens, at the goal 0.95 and exactly, and their price:
    attenuator inspect BUNDLE --rate 200 --lengths 300 --min-agreement 0.95 --cores 4 --price-per-hour 0.2
  everything as one JSON object:
    attenuator inspect BUNDLE --json

exit codes: 0 success, 1 the bundle cannot be read or run, 2 usage error; an error is one sentence on stderr"""
LONGEST_MEASURED = 4096

Settings = list[Mapping[str, float]]


class InspectSettings(CommandSettings):
    """Show what a bundle holds, and what its knobs can win at which length.

    The tables of what a knob can win are modelled from the model's shapes; --measure adds times taken here. Each knob
    varies alone, while the others have the bundle's defaults.
    """

    model_config = SettingsConfigDict(cli_shortcuts={"json-object": "json"})

    measure: bool = False
    """Also time the bundle on this machine."""
    lengths: str | None = None
    """Lengths in tokens, separated by commas. Default: doubling up to the model's longest (to 4096 when timing)."""
    sample: Path | None = None
    """Text that fills the lengths when timing; random tokens by default."""
    budget_s: Annotated[float, Field(gt=0)] = 2.0
    """Seconds to spend on each length when timing; every setting runs at least three times."""
    threads: Annotated[int | None, Field(ge=1)] = None
    """Threads when timing; as many as there are cores by default."""
    rate: Annotated[float | None, Field(gt=0, le=1e9)] = None
    """Requests a second, of one text each, to say how many replicas they take at each of the lengths; by default the
    longest of each calibrated range."""
    min_agreement: Annotated[float | None, Field(gt=0, le=1)] = None
    """With --rate: the goal whose cheapest setting is shown beside the exact one; several by default."""
    cores: Annotated[int | None, Field(ge=1, le=4096)] = None
    """With --rate: cores of a replica; by default as many as the calibration was timed with, else 1."""
    utilisation: Annotated[float, Field(gt=0, le=1)] = 0.6
    """With --rate: share of its time that a replica may be busy; the rest is room for peaks."""
    price_per_hour: Annotated[float | None, Field(ge=0, le=1e6)] = None
    """With --rate: price of a replica, to say what the rate costs."""
    json_object: bool = False
    """Write everything as one JSON object."""


SETTINGS = with_knobs(
    InspectSettings,
    lambda knob: str,
    lambda knob: (
        f"Values of {knob.name} to show, {knob.low:g} to {knob.high:g}, separated by commas. Default: around "
        "the bundle's own default."
    ),
)


def lengths_of(settings: InspectSettings, manifest: Manifest) -> list[int]:
    """The lengths asked for, or the usual ones."""
    if settings.lengths is None:
        return lengths_up_to(manifest.max_tokens)
    longest = manifest.max_tokens
    allowed = f"whole numbers from 1 to {longest}"
    return listed_numbers(COMMAND, "--lengths", settings.lengths, int, lambda tokens: 1 <= tokens <= longest, allowed)


def knob_values_of(settings: InspectSettings, manifest: Manifest) -> dict[str, list[float]]:
    """The values to look at by knob of the bundle: those asked for, or the usual ones."""
    requested = listed_settings(COMMAND, settings, manifest.knobs, "the bundle")
    return {knob.name: requested.get(knob.name) or values_of(knob) for knob in manifest.knobs}


def timed(
    settings: InspectSettings, folder: Path, lengths: Sequence[int], values: Mapping[str, Sequence[float]]
) -> list[Measured]:
    """Times the bundle, with a bar on stderr."""
    with progress_bar(MofNCompleteColumn(), TimeElapsedColumn()) as progress:
        task = progress.add_task("timing (loading)", total=len(lengths))
        started = False

        def step(tokens: int) -> None:
            nonlocal started
            progress.update(task, description=f"timing {tokens} tokens", advance=1 if started else 0)
            started = True

        return measure(
            folder,
            lengths,
            values,
            threads=settings.threads,
            sample=settings.sample,
            budget_s=settings.budget_s,
            progress=step,
        )


def demand_of(settings: InspectSettings, calibration: Calibration | None) -> Demand | None:
    """What the service has to carry; None where no rate is asked for."""
    names = [name for name in Demand.model_fields if name in settings.model_fields_set]
    if settings.rate is None:
        for name in names:
            fail(COMMAND, f"{flag(name)} is set without --rate, the requests a second that it is about: give both")
        return None
    if settings.min_agreement is not None and calibration is None:
        fail(COMMAND, "--min-agreement needs a calibration, and the bundle has none: run 'attenuator calibrate' on it")
    return Demand(
        rate=settings.rate,
        cores=settings.cores,
        utilisation=settings.utilisation,
        price_per_hour=settings.price_per_hour,
        min_agreement=settings.min_agreement,
    )


def asked_settings(settings: InspectSettings, manifest: Manifest, values: Mapping[str, Sequence[float]]) -> Settings:
    """The settings that knob flags ask for, each knob alone while the others have their defaults."""
    defaults = {knob.name: knob.default for knob in manifest.knobs}
    return [
        defaults | {name: value} for name in values if getattr(settings, name) is not None for value in values[name]
    ]


def main(arguments: Sequence[str]) -> int:
    """Shows what a bundle holds.

    Args:
        arguments: what follows `attenuator inspect`.

    Returns:
        0; a failure is raised, and `attenuator.__main__` prints it.

    Raises:
        AttenuatorError: the bundle cannot be read or run.
        SystemExit: 2 after a usage error.
    """
    settings, [word] = parse(SETTINGS, COMMAND, arguments, POSITIONALS, usage=USAGE, examples=EXAMPLES)
    folder = Path(word)
    manifest = read_manifest(folder)
    lengths, values = lengths_of(settings, manifest), knob_values_of(settings, manifest)
    try:
        work = count_work(read_graph(folder / MODEL))
    except ValueError as error:
        raise BundleError(f"bundle {folder}: {MODEL} cannot be read: {error}") from None
    report = report_on(folder, manifest, work, lengths, values)
    demand = demand_of(settings, report.calibration)
    if demand is not None:
        usual = lengths if settings.lengths else capacity_lengths(report.calibration, lengths)
        settings_asked = asked_settings(settings, manifest, values)
        report.capacity = capacity(manifest, work, report.calibration, demand, usual, settings_asked)
    if settings.measure:
        chosen = lengths if settings.lengths else [tokens for tokens in lengths if tokens <= LONGEST_MEASURED]
        report.measured = timed(settings, folder, chosen, values)
        report.verdict += measured_verdict(report, work)
    if settings.json_object:
        print(report.model_dump_json(indent=2))
    else:
        show(Console(markup=False, highlight=False), report)
    return 0
