"""The command `attenuator bench`."""

import asyncio
import importlib.util
import math
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import httpx
from rich.console import Console
from rich.progress import Progress

from attenuator.api import ModelInfo
from attenuator.clients.client import Client
from attenuator.clients.progress import progress_bar
from attenuator.commandline import INTERRUPTED, fail, listed_numbers, parse
from attenuator.commands.bench import results
from attenuator.commands.bench.grid import RATES_OF_CAPACITY, Setting, planned_s, settings_of
from attenuator.commands.bench.settings import COMMAND, EXAMPLES, SETTINGS, USAGE, BenchSettings
from attenuator.commands.bench.sweep import Sweep, ticking
from attenuator.commands.bench.texts import read_texts
from attenuator.commands.knobflags import listed_settings
from attenuator.errors import InvalidRequest, ServiceUnreachable, UnknownModel
from attenuator.load_generator import Client as LoadClient

PIPE_CHARACTERS = 200  # of a line where nobody's window says how many it has
OUTPUTS, PLOTS = (".json", ".csv"), (".svg", ".png", ".pdf")


def key_of(settings: BenchSettings) -> str | None:
    """The API key."""
    return settings.api_key.get_secret_value() if settings.api_key else None


def model_of(settings: BenchSettings) -> ModelInfo:
    """The served model that is asked.

    Raises:
        UnknownModel: it is not served, or there are several and none is named.
        AttenuatorError: the service does not answer, or wants another key.
    """
    with Client(settings.url, api_key=key_of(settings)) as client:
        models = {model.name: model for model in client.models()}
    allowed = ", ".join(models) or "none"
    if settings.model is None and len(models) == 1:
        return next(iter(models.values()))
    if settings.model is None:
        raise UnknownModel(f"{settings.url} serves several models: give --model, one of: {allowed}")
    if settings.model not in models:
        raise UnknownModel(f"{settings.url} serves no model '{settings.model}', must be one of: {allowed}")
    return models[settings.model]


def rates_of(settings: BenchSettings) -> list[float] | None:
    """The rates asked for, in order; None where they follow from the capacity."""
    if settings.rates is None:
        return None
    return listed_numbers(
        COMMAND, "--rates", settings.rates, float, lambda rate: 0 < rate < math.inf, "numbers above 0"
    )


def chosen_of(settings: BenchSettings, model: ModelInfo) -> list[Setting]:
    """The settings to run at; ends the command with a usage error where a value is wrong."""
    return settings_of(model, listed_settings(COMMAND, settings, model.knobs, model.name))


def check_files(settings: BenchSettings) -> None:
    """Ends the command with a usage error where a file is of no kind that can be written."""
    for name, path, endings in (("--output", settings.output, OUTPUTS), ("--plot", settings.plot, PLOTS)):
        if path is None:
            continue
        if path.suffix not in endings:
            fail(COMMAND, f"{name} is {path}, must end in {' or '.join(endings)}")
        if not path.absolute().parent.is_dir():
            fail(COMMAND, f"{name} is {path}, in a folder that does not exist")
    if settings.plot is not None and importlib.util.find_spec("matplotlib") is None:
        fail(COMMAND, "--plot needs the Python package 'matplotlib': pip install '.[plots]' in a checkout")


async def measure(sweep: Sweep, settings: BenchSettings, rates: Sequence[float] | None, grid: list[Setting]) -> None:
    """Runs the sweep, with a bar on standard error.

    Raises:
        InvalidRequest: the exact answers alone took all the time that there is.
        ServiceUnreachable: the service does not take connections.
    """
    client = sweep.client()
    end_s = time.monotonic() + settings.budget_s
    count = len(rates or RATES_OF_CAPACITY) * len(grid)
    with progress_bar() as bar:
        try:
            await _exact(sweep, client, bar, settings)
            rates = rates or [share * sweep.capacity_per_s for share in RATES_OF_CAPACITY]
            task = bar.add_task("", total=round(count * settings.seconds))
            for rate in rates:
                for knobs in grid:
                    if time.monotonic() + settings.seconds > end_s:
                        done = f"{len(sweep.rows)} of {count} runs are done: the rest does not fit into --budget-s"
                        print(f"attenuator {COMMAND}: {done}", file=sys.stderr)
                        return
                    bar.update(task, description=f"{rate:.3g} a second at {results.shown(knobs)}")
                    async with ticking(lambda seconds: bar.advance(task, seconds), settings.seconds):
                        await sweep.run(client, rate, knobs)
        except OSError as error:
            raise ServiceUnreachable(f"{settings.url} cannot be reached: {error}") from None
        finally:
            client.close()


async def _exact(sweep: Sweep, client: LoadClient, bar: Progress, settings: BenchSettings) -> None:
    task = bar.add_task("exact answers", total=None)
    try:
        async with asyncio.timeout(settings.budget_s):
            await sweep.ask_exact(client)
    except TimeoutError:
        raise InvalidRequest(
            f"the exact answers to {len(sweep.texts)} texts take longer than --budget-s, {settings.budget_s:g} s: give "
            "fewer --max-texts, or more time"
        ) from None
    bar.remove_task(task)


def main(arguments: Sequence[str]) -> int:
    """Measures a service.

    Args:
        arguments: what follows `attenuator bench`.

    Returns:
        0, 1 where every request of a run failed, or 130 where it was interrupted; another failure is raised, and
        `attenuator.__main__` prints it.

    Raises:
        AttenuatorError: the service or a text is at fault.
        SystemExit: 2 after a usage error.
    """
    settings, _ = parse(SETTINGS, COMMAND, arguments, None, usage=USAGE, examples=EXAMPLES)
    check_files(settings)
    rates = rates_of(settings)
    texts = read_texts(settings.file, settings.format, settings.column, settings.max_texts)
    model = model_of(settings)
    grid = chosen_of(settings, model)
    least_s = planned_s(settings.seconds, len(rates or RATES_OF_CAPACITY), len(grid))
    if least_s > settings.budget_s:
        fail(COMMAND, f"this takes {least_s:g} s at least, --budget-s is {settings.budget_s:g}: give fewer --rates or "
             "knob values, fewer --seconds, or more time")  # fmt: skip
    key = key_of(settings)
    sweep = Sweep(
        url=httpx.URL(settings.url),
        model=model,
        texts=texts,
        fields={"truncate": True} | ({} if settings.timeout_ms is None else {"timeout_ms": settings.timeout_ms}),
        headers={"Authorization": f"Bearer {key}"} if key else {},
        seconds=settings.seconds,
        target_ms=settings.target_ms,
        give_up_s=settings.give_up_s,
        seed=settings.seed,
    )
    code = 0
    try:
        asyncio.run(measure(sweep, settings, rates, grid))
    except KeyboardInterrupt:
        code = INTERRUPTED
    if sweep.rows:
        report(sweep, settings.output, settings.plot)
    if any(row.failed == row.requests > 0 for row in sweep.rows):
        print(f"attenuator {COMMAND}: of some runs no request was answered, neither with 200 nor 429", file=sys.stderr)
        code = code or 1
    return code


def report(sweep: Sweep, output: Path | None, plot: Path | None) -> None:
    """Prints the table and writes the files."""
    width = None if sys.stdout.isatty() else PIPE_CHARACTERS
    results.show(Console(markup=False, highlight=False, width=width), sweep)
    if output is not None:
        results.write(sweep, output)
    if plot is not None:
        results.plot(sweep, plot)
