"""The number of replicas that a rate of requests takes, for `attenuator inspect --rate`.

    texts a second of a replica = its cores / (threads that were timed x seconds that a text adds to a full batch)
    replicas                    = rate / (texts a second x utilisation), rounded up

Seconds come from the bundle's calibration; without one they are modelled for one core, by the rates of `ops/cost.py`.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence

from pydantic import BaseModel

from attenuator.bundle import Manifest
from attenuator.calibration import Calibration, cheapest
from attenuator.calibration.schema import Bucket, Latency
from attenuator.calibration.times import LatencyTable
from attenuator.commands.cost import Setting, TimeModel
from attenuator.ops.cost import RATES_MACHINE
from attenuator.runtime.calibrated import default_knobs
from attenuator.runtime.cost import CostModel
from attenuator.runtime.device import CPU, hardware
from attenuator.runtime.request import KnobTable
from attenuator.runtime.work import Work

GOALS = (0.99, 0.95, 0.9)
HOUR_S, MILLION = 3600, 1e6
NS = 1e-9

SecondsOf = Callable[[int, Mapping[str, float]], float]


class Demand(BaseModel):
    """What a service has to carry.

    Attributes:
        rate: requests a second, of one text each.
        cores: of a replica; None for as many as the times were taken with.
        utilisation: share of its time that a replica may be busy.
        price_per_hour: of a replica, in any currency; None where none is asked for.
        min_agreement: the only goal to look at; None for the usual ones.
    """

    rate: float
    cores: int | None = None
    utilisation: float = 0.6
    price_per_hour: float | None = None
    min_agreement: float | None = None

    @property
    def goals(self) -> tuple[float, ...]:
        """The agreements whose cheapest settings are shown."""
        return GOALS if self.min_agreement is None else (self.min_agreement,)


class CapacityRow(BaseModel):
    """What one setting takes at one length.

    Attributes:
        tokens: the length.
        knobs: the setting.
        reasons: why it is shown: `exact`, `default`, a goal that chooses it, or that it was asked for.
        agreement: share of texts of this length with the exact answer, as calibrated; None where unknown.
        seconds: that a text adds to a full batch.
        per_s: texts a second that one replica answers when it does nothing else.
        replicas: that the rate takes.
        busy: share of their time that so many replicas are busy.
        price_per_hour: of all replicas; None without a price.
        price_per_million: of a million requests at this rate; None without a price.
    """

    tokens: int
    knobs: dict[str, float]
    reasons: list[str]
    agreement: float | None
    seconds: float
    per_s: float
    replicas: int
    busy: float
    price_per_hour: float | None = None
    price_per_million: float | None = None


class Capacity(BaseModel):
    """What a rate takes.

    Attributes:
        demand: what was asked.
        cores: of a replica.
        threads: that the seconds are of.
        source: where the seconds come from, in words.
        rows: by length, then from the most accurate setting on.
    """

    demand: Demand
    cores: int
    threads: int
    source: str
    rows: list[CapacityRow]


def times_of(calibration: Calibration | None, cores: int | None = None) -> Latency | None:
    """The times to reckon with: of this processor before others, with as many threads as cores before others."""
    here = hardware(CPU)
    usable = [each for each in calibration.latency if each.speeds] if calibration else []
    return max(usable, key=lambda each: (each.device == here, each.threads == cores), default=None)


def timed_place(times: Latency, bucket: Bucket) -> int:
    """Which of the lengths that were timed stands for a bucket: the one next to its geometric middle."""
    middle = math.sqrt(bucket.low * bucket.high)
    return min(range(len(times.tokens)), key=lambda place: abs(math.log(times.tokens[place] / middle)))


def _seconds(manifest: Manifest, work: Work, timed: Latency | None) -> SecondsOf:
    """Seconds that a text adds to a full batch, by length and setting."""
    if timed is None:
        model = TimeModel(work)
        return lambda tokens, knobs: NS * model.ns(tokens, Setting(knobs))
    table = LatencyTable(timed, CostModel(work).predict)
    return lambda tokens, knobs: table.row_times([tokens], knobs)[0].added_s


def _source(timed: Latency | None) -> str:
    if timed is None:
        return (
            f"modelled from the model's shapes with rates measured on {RATES_MACHINE}, one thread: `attenuator "
            "calibrate` measures them"
        )
    elsewhere = (
        "" if timed.device == hardware(CPU) else ", which is not this machine: `attenuator calibrate --only-times` here"
    )
    return f"those of the calibration, on {timed.device}, threads: {timed.threads}{elsewhere}"


def lengths_of(calibration: Calibration | None, fallback: Sequence[int]) -> list[int]:
    """The lengths to show where none are asked for: the longest of each range that was calibrated."""
    return [bucket.high for bucket in calibration.buckets] if calibration else list(fallback)


def _settings(
    manifest: Manifest,
    calibration: Calibration | None,
    demand: Demand,
    tokens: int,
    asked: Iterable[Mapping[str, float]],
) -> dict[tuple[tuple[str, float], ...], list[str]]:
    """The settings to show at a length, the most accurate first, each with the reasons for it."""
    shown: dict[tuple[tuple[str, float], ...], list[str]] = {}

    def add(knobs: Mapping[str, float], reason: str) -> None:
        shown.setdefault(tuple((knob.name, float(knobs[knob.name])) for knob in manifest.knobs), []).append(reason)

    add({knob.name: knob.exact for knob in manifest.knobs}, "exact")
    if calibration is not None:
        most = calibration.bounds(calibration.bucket(tokens))[0]
        for goal in demand.goals:
            if goal > most and demand.min_agreement is None:
                continue  # rounding alone changes more answers
            add(cheapest(calibration, tokens, goal).knobs, f"goal {goal:g}")
    add(default_knobs(KnobTable(manifest.name, manifest.knobs), calibration, tokens), "default")
    for knobs in asked:
        add(knobs, "asked for")
    return shown


def capacity(
    manifest: Manifest,
    work: Work,
    calibration: Calibration | None,
    demand: Demand,
    lengths: Sequence[int],
    asked: Sequence[Mapping[str, float]],
) -> Capacity:
    """What a rate takes, at each length and setting.

    Args:
        manifest: of the bundle.
        work: its model's work.
        calibration: its calibration; None where it has none.
        demand: what the service has to carry.
        lengths: of texts, in tokens.
        asked: settings to show besides those of goals; a value for every knob.
    """
    timed = times_of(calibration, demand.cores)
    seconds_of = _seconds(manifest, work, timed)
    threads = timed.threads if timed else 1
    cores = demand.cores or threads
    rows = []
    for tokens in lengths:
        for setting, reasons in _settings(manifest, calibration, demand, tokens, asked).items():
            knobs = dict(setting)
            seconds = seconds_of(tokens, knobs)
            per_s = cores / (threads * seconds)
            replicas = math.ceil(demand.rate / (per_s * demand.utilisation))
            price = None if demand.price_per_hour is None else replicas * demand.price_per_hour
            rows.append(
                CapacityRow(
                    tokens=tokens,
                    knobs=knobs,
                    reasons=reasons,
                    agreement=calibration.expected_agreement(knobs, tokens) if calibration else None,
                    seconds=seconds,
                    per_s=per_s,
                    replicas=replicas,
                    busy=demand.rate / (per_s * replicas),
                    price_per_hour=price,
                    price_per_million=None if price is None else price / (HOUR_S * demand.rate) * MILLION,
                )
            )
    return Capacity(demand=demand, cores=cores, threads=threads, source=_source(timed), rows=rows)
