"""Prints a comparison for people, and says in a sentence what to take."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from attenuator.calibration.records import Proportion
from attenuator.calibration.turns import FASTER
from attenuator.compare.candidates import Absent
from attenuator.compare.grid import shown
from attenuator.compare.judging import Candidate, Point, Verdict


def titled(candidate: Candidate) -> str:
    """A candidate in words: method, knobs and their values."""
    setting = shown(candidate.setting, candidate.exact)
    return f"{candidate.method.name} at {setting}" if candidate.setting else candidate.method.name


def sentence(verdict: Verdict, candidates: Sequence[Candidate], min_agreement: float) -> str:
    """What to take for one range of lengths."""
    reference, choice = candidates[0], verdict.choice
    texts = f"For texts of {verdict.range.name}: "
    exact = f"exact {reference.method.attention} attention in {reference.method.precision}"
    if choice.candidate and choice.agreement is not None:
        point, agreement = verdict.points[choice.candidate], choice.agreement
        accuracy, before = point.accuracy, verdict.points[0].accuracy
        labels = f"; accuracy {accuracy.value:.3f}, exact {before.value:.3f}" if accuracy and before else ""
        return (
            f"{texts}{titled(candidates[choice.candidate])}, {1 / point.share:.2f} times as fast as exact (at least "
            f"{1 / point.slowest:.2f}) at agreement {agreement.value:.3f} (lower bound {agreement.bound:.3f}, "
            f"{agreement.trials} texts){labels}."
        )
    if choice.nearest is None or choice.nearest_agreement is None:
        reason = f"nothing else was {FASTER:g} times as fast"
        if choice.texts_needed:
            reason += ", as far as so few texts can show"
        return f"{texts}{exact} is the better choice: {reason}."
    nearest, agreement = verdict.points[choice.nearest], choice.nearest_agreement
    found = (
        f"{titled(candidates[choice.nearest])} is {1 / nearest.share:.2f} times as fast, at agreement "
        f"{agreement.value:.3f} (lower bound {agreement.bound:.3f}, {agreement.trials} texts)"
    )
    if choice.texts_needed:
        return (
            f"{texts}{exact} is the safe choice: {found}, but {verdict.points[0].agreement.trials} texts cannot show "
            f"{min_agreement:g}, {choice.texts_needed} can."
        )
    more = "; more texts could show that it does" if agreement.value >= min_agreement else ""
    return (
        f"{texts}{exact} is the better choice: the first faster setting tried was not sure to keep an agreement of "
        f"{min_agreement:g}, and the search ends there; {found}{more}."
    )


def _share(value: Proportion | None) -> str:
    return "" if value is None else f"{value.value:.3f} [{value.low:.3f}, {value.high:.3f}]"


def _row(point: Point, candidate: Candidate, place: int, chosen: bool) -> list[str]:
    mark = "**" if chosen else "*" if point.frontier else ""
    knobs = shown(candidate.setting, candidate.exact)
    same = point.candidate > 0 and candidate.does_same_work(place) and candidate.setting
    cells = [mark, candidate.method.name, f"{knobs} (exact here)" if same else knobs]
    noise = "?" if not candidate.is_credible(place) else ""
    cells += [f"{point.ms:.2f}{noise}", f"{1 / point.share:.2f}{noise}", _share(point.agreement)]
    return cells if point.accuracy is None else [*cells, _share(point.accuracy)]


def told_together(left_out: Sequence[Absent]) -> list[str]:
    """What was not compared, a line for each reason, with all that it holds for; what can be taught by itself."""
    names: dict[tuple[str, str], list[str]] = {}
    for absent in left_out:
        names.setdefault((absent.why, absent.command), []).append(absent.name)
    return [
        f"{', '.join(rows)}: {why}" + (f"; to teach it: {command}" if command else "")
        for (why, command), rows in names.items()
    ]


def show(
    console: Console,
    verdicts: Sequence[Verdict],
    candidates: Sequence[Candidate],
    left_out: Sequence[Absent],
    sentences: Sequence[str],
) -> None:
    """Prints the tables, what was not compared, and the sentences.

    Args:
        console: where to; it must take texts as they are, without markup.
        verdicts: one for each range of lengths.
        candidates: the reference first.
        left_out: what was not compared.
        sentences: what to take, one for each range.
    """
    has_labels = candidates[0].correct is not None
    for place, verdict in enumerate(verdicts):
        console.print(
            f"\n{verdict.range.name}: {len(verdict.range.places)} texts, timed at {verdict.range.median} tokens",
            style="bold",
        )
        if verdict.attention_share is not None:
            console.print(
                f"Attention is about {verdict.attention_share:.0%} of the exact model's time there: free attention "
                f"would make it {1 / (1 - verdict.attention_share):.2f} times as fast, keep and int8 spare other work."
            )
        table = Table(box=None, pad_edge=False, header_style="bold")
        for name in ("", "method", "knobs"):
            table.add_column(name, no_wrap=True)
        for name in ("ms", "times as fast", "agreement", *(["accuracy"] if has_labels else [])):
            table.add_column(name, justify="right", no_wrap=True)
        for point in sorted(
            verdict.points, key=lambda each: (not each.frontier, -each.share if each.frontier else each.share)
        ):
            chosen = point.candidate == verdict.choice.candidate
            candidate = candidates[point.candidate]
            row = _row(point, candidate, place, chosen)
            table.add_row(*row, style=None if point.frontier or chosen else "dim")
        console.print(table)
    quality = "accuracy" if has_labels else "agreement"
    console.print(
        f"\n*: no other is faster at the same {quality} or better; **: recommended. The others are beaten in time and "
        f"{quality}. [low, high]: intervals.",
        style="dim",
    )
    if any(not one.is_credible(place) for one in candidates for place in range(len(verdicts))):
        console.print(
            "?: the machine was busy, and this time was noise twice: its turns do not agree, or it wins more than the "
            "work that the setting spares. It is not recommended; compare again when nothing else runs.",
            style="bold",
        )
    if left_out:
        console.print("\nNot compared", style="bold")
        for line in told_together(left_out):
            console.print(line, soft_wrap=True)
    console.print()
    for line in sentences:
        console.print(line, soft_wrap=True)
