"""Prints what first steps were worth on lists: the cheapest that kept the exact first documents, and its share."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table

from attenuator.calibration.lists import ListCalibration, ListSetting
from attenuator.calibration.payoff import LEAST_WORTH
from attenuator.calibration.records import Proportion
from attenuator.calibration.schema import Calibration, Latency
from attenuator.commands.capacity import timed_place, times_of

GOALS = (0.99, 0.95)
EXACT_TIME = 1.0


@dataclass(frozen=True, slots=True, eq=False)
class Choice:
    """A first step and a share of the list that is scored again.

    Attributes:
        setting: of the first step.
        column: place of the share.
        share: of the list.
        time: of the first step over that of the exact setting.
        kept: lists that kept their first documents.
    """

    setting: ListSetting
    column: int
    share: float
    time: float
    kept: Proportion

    @property
    def total(self) -> float:
        """Time of both steps over that of ranking exactly, where both are by one model."""
        return self.time + self.share


def choices(calibration: Calibration, lists: ListCalibration, top: int, times: Latency | None) -> Iterator[Choice]:
    """All that were measured, for one of `lists.tops` by its place."""
    for row in lists.settings:
        time = time_share(calibration, row, times)
        for column, share in enumerate(lists.shares):
            yield Choice(row, column, share, time, row.same_top[top][column])


def time_share(calibration: Calibration, row: ListSetting, times: Latency | None) -> float:
    """Time of a setting over that of the exact one, for all texts: by the clock where both were timed or modelled."""
    texts = [bucket.texts for bucket in calibration.buckets]
    seconds = {frozenset(each.knobs.items()): each.seconds for each in times.speeds} if times else {}
    timed = [seconds.get(frozenset(each.items())) for each in (row.knobs, calibration.settings[0].knobs)]
    if times and all(timed):
        places = [timed_place(times, bucket) for bucket in calibration.buckets]
        own, exact = (
            sum(count * each[place] for count, place in zip(texts, places, strict=True)) for each in timed if each
        )
        return own / exact
    setting = calibration.setting(row.knobs)
    if setting is None or not setting.time:
        return EXACT_TIME
    return sum(count * time for count, time in zip(texts, setting.time, strict=True)) / sum(texts)


def cheapest_that_kept(
    calibration: Calibration, lists: ListCalibration, top: int, goal: float, times: Latency | None
) -> Choice | None:
    """The cheapest choice that kept the exact first documents on a share of these lists; None where none did.

    Before a larger model, whose time this bundle does not know, the smallest share comes first.
    """
    kept = [each for each in choices(calibration, lists, top, times) if each.kept.value >= goal]
    if lists.reference is not None:
        return min(kept, key=lambda each: (each.share, each.time), default=None)
    return min(kept, key=lambda each: (each.total, each.share), default=None)


def show_lists(console: Console, calibration: Calibration) -> None:
    """Prints the part `lists` of a calibration, where it has one.

    Args:
        console: where to; it must take texts as they are, without markup.
        calibration: of a bundle.
    """
    lists, times = calibration.lists, times_of(calibration)
    if lists is None:
        return
    relevant = bool(lists.settings[0].ndcg)
    own = lists.reference is None
    console.print()
    console.print(
        "Lists: the cheapest first step that kept the exact first documents, and what was scored again", style="bold"
    )
    table = Table(box=None, pad_edge=False, header_style="bold")
    speedup, measures = ["speed-up"] * own, ["nDCG@10", "MRR@10"] * relevant
    head = ("first", "of lists", ", ".join(lists.settings[0].knobs), "again", *speedup, "kept", "at least", *measures)
    for name in head:
        table.add_column(name, justify="right")
    unpaid: dict[int, float] = {}
    for place, top in enumerate(lists.tops):
        best = {goal: cheapest_that_kept(calibration, lists, place, goal, times) for goal in GOALS}
        shown: list[str] = []
        for goal, choice in best.items():
            cells = ["-"] if choice is None else _cells(choice, own, relevant)
            if cells != shown:
                table.add_row(str(top), f"{goal:g}", *cells)
            shown = cells
        if not _pays(best[GOALS[-1]], own):
            cheap = (each for each in choices(calibration, lists, place, times) if _pays(each, own))
            unpaid[top] = max((each.kept.value for each in cheap), default=0.0)
    console.print(table)
    if unpaid:
        console.print(_unpaid(lists, unpaid), style="bold")
    console.print(_about(calibration, lists, times), style="dim")


def _cells(choice: Choice, own: bool, relevant: bool) -> list[str]:
    """What a row says of a choice."""
    setting, column = choice.setting, choice.column
    first = ", ".join(f"{value:g}" for value in setting.knobs.values())
    if own and choice.total == EXACT_TIME and not choice.share:
        first = "exact"
    elif not own and choice.share == 1:
        first = "none"
    cells = [first, f"{choice.share:.0%}"]
    cells += [f"{1 / choice.total:.2f}x"] * own
    cells += [f"{choice.kept.value:.3f}", f"{choice.kept.bound:.3f}"]
    return cells + ([f"{setting.ndcg[column]:.3f}", f"{setting.mrr[column]:.3f}"] if relevant else [])


def _pays(choice: Choice | None, own: bool) -> bool:
    """Whether a choice saves anything worth having."""
    return choice is not None and (choice.total < LEAST_WORTH if own else choice.share < 1)


def _unpaid(lists: ListCalibration, most: Mapping[int, float]) -> str:
    """That no first step pays, by number of first documents, with the largest share of lists on which one kept them."""
    *others, last = (str(top) for top in most)
    names = f"{', '.join(others)} or {last}" if others else last
    documents = "document" if [*most] == [1] else f"{names} documents"
    below = (
        f"below {100 * LEAST_WORTH:g} % of the exact time"
        if lists.reference is None
        else "with less than the whole list scored again"
    )
    return (
        f"On these {lists.lists} lists no setting {below} keeps the exact first {documents} of {100 * GOALS[-1]:g} % "
        f"of the lists; the best keeps them of {', '.join(f'{value:.0%}' for value in most.values())}."
    )


def _about(calibration: Calibration, lists: ListCalibration, times: Latency | None) -> str:
    """What the figures come from."""
    exact = lists.settings[0]
    how = "modelled" if times is None else "measured"
    order = "; speed-ups, " + how + ", are over the exact order" if lists.reference is None else ""
    if lists.reference is not None:
        order = f"; the exact order is that of the bundle {lists.reference[:12]}, which scores again"
    scored = f", whose nDCG@10 is {exact.ndcg[-1]:.3f} and MRR@10 {exact.mrr[-1]:.3f}" if exact.ndcg else ""
    return (
        f"Measured on {lists.lists} lists of {lists.data}, the median one of {lists.documents} documents; "
        f"min_agreement goes by the bounds (at least), which hold together at {100 * calibration.confidence:g} % "
        f"confidence{order}{scored}."
    )
