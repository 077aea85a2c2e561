"""Answers of `attenuator classify`: a table on a terminal, tab-separated in a pipe, JSON lines on request."""

import json
import sys
from typing import Any, Protocol

from rich.console import Console
from rich.table import Table

from attenuator.api import Classification, Prediction
from attenuator.calibration.schema import shown
from attenuator.errors import printable
from attenuator.ops import SEQUENCE_OUTPUTS
from attenuator.texts import Item

LINE_CHARACTERS = 200
SHORTEST_EXCERPT = 20
SETTINGS_SHOWN = 3  # below a table; more are counted


class Output(Protocol):
    """Shows answers as they arrive, each with one prediction."""

    def show(self, item: Item, answer: Classification) -> None:
        """Takes the answer to an input."""

    def close(self) -> None:
        """Called after the last answer."""


def cut(text: str, characters: int) -> str:
    """The beginning of a text, without characters that would steer a terminal."""
    line = printable(text, max(1, len(text)))
    return line if len(line) <= characters else line[: characters - 3] + "..."


def labels_of(prediction: Prediction) -> str:
    """The label, or, multi-label, all labels at or above their threshold."""
    if prediction.labels is None:
        return prediction.label
    return ", ".join(prediction.labels) or "(none)"


def best_of(prediction: Prediction) -> str:
    """The entities, or the scores that `--top-k` asked for, best first; empty without either."""
    if prediction.entities is not None:
        return (
            ", ".join(f"{each.label} {cut(each.word, 40)} {each.score:.3f}" for each in prediction.entities) or "(none)"
        )
    return " ".join(f"{each.label} {each.score:.3f}" for each in prediction.scores or ())


def logits_of(prediction: Prediction) -> str:
    """The logits in label order; empty without `--logits`."""
    return " ".join(f"{value:.4f}" for value in prediction.logits or ())


def sureness_of(prediction: Prediction) -> tuple[str, str]:
    """Standard error and probability of agreement; empty where they were not asked for or are unknown."""
    error, probability = prediction.standard_error, prediction.agreement_probability
    return "" if error is None else f"{error:.2g}", "" if probability is None else f"{probability:.4f}"


def outputs_of(answer: Classification) -> dict[str, tuple[float, ...]]:
    """The graph's further outputs in an answer, by name: one value per input."""
    values = {name: getattr(answer, name, None) for name in SEQUENCE_OUTPUTS}
    return {name: value for name, value in values.items() if value is not None}


class JsonLines:
    """One JSON object per input."""

    def show(self, item: Item, answer: Classification) -> None:
        """Writes the answer at once, so that a reader at the other end of a pipe can start."""
        [prediction], [tokens] = answer.predictions, answer.tokens
        record: dict[str, Any] = {"input": item.where, **prediction.model_dump(mode="json", exclude_none=True)}
        record["tokens"] = tokens
        record |= {name: value for name, [value] in outputs_of(answer).items()}
        record |= {"knobs": prediction.knobs or answer.knobs, "chosen_by": answer.chosen_by, "seed": answer.seed}
        optional = ("expected_agreement", "steps", "relative_cost")
        record |= {name: value for name in optional if (value := getattr(answer, name)) is not None}
        record |= {"model": answer.model, "revision": answer.revision, "device": answer.device}
        print(json.dumps(record, ensure_ascii=False), flush=True)

    def close(self) -> None:
        """Nothing is kept."""


class TabSeparated:
    """Label, score, whatever else the flags ask for, and the beginning of the text, for `cut`, `sort` and `awk`."""

    def show(self, item: Item, answer: Classification) -> None:
        """Writes a line."""
        [prediction] = answer.predictions
        further = (best_of(prediction), logits_of(prediction), *sureness_of(prediction))
        optional = [cell for cell in further if cell]
        cells = [labels_of(prediction), f"{prediction.score:.4f}", *optional, cut(item.excerpt, LINE_CHARACTERS)]
        print("\t".join(cells), flush=True)

    def close(self) -> None:
        """Nothing is kept."""


class TextTable:
    """A table for people."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._rows: list[tuple[Item, Classification]] = []

    def show(self, item: Item, answer: Classification) -> None:
        """Keeps the answer for the table."""
        self._rows.append((item, answer))

    def close(self) -> None:
        """Prints the table and, below it, what it ran with."""
        if not self._rows:
            return
        header, rows = self._cells()
        used = sum(max(len(row[i]) for row in [header, *rows]) + 2 for i in range(len(header)))
        room = max(SHORTEST_EXCERPT, self._console.width - used)
        table = Table(box=None, pad_edge=False)
        for name in header:
            number = name in ("score", "tokens", "error", "sure", *SEQUENCE_OUTPUTS)
            table.add_column(name, justify="right" if number else "left", no_wrap=number)
        table.add_column("input", no_wrap=True, min_width=SHORTEST_EXCERPT)
        for (item, _), cells in zip(self._rows, rows, strict=True):
            table.add_row(*cells, cut(item.excerpt, room))
        self._console.print(table)
        last = self._rows[-1][1]
        settings = dict.fromkeys(_setting_of(answer) for _, answer in self._rows)
        seed = f"seed {last.seed}" if len({answer.seed for _, answer in self._rows}) == 1 else "a seed for each"
        ran = "; ".join(settings) if len(settings) <= SETTINGS_SHOWN else f"{len(settings)} settings"
        self._console.print(f"{last.model} on {last.device}: {ran}, {seed}", style="dim")

    def _cells(self) -> tuple[list[str], list[list[str]]]:
        """Header and rows without the inputs themselves; columns that would be empty are left out."""
        predictions = [answer.predictions[0] for _, answer in self._rows]
        knobs = [shown(answer.knobs) for _, answer in self._rows]
        outputs = [outputs_of(answer) for _, answer in self._rows]
        columns: dict[str, list[str]] = {
            "label": [labels_of(prediction) for prediction in predictions],
            "score": [f"{prediction.score:.4f}" for prediction in predictions],
            "error": [sureness_of(prediction)[0] for prediction in predictions],
            "sure": [sureness_of(prediction)[1] for prediction in predictions],
            "best": [best_of(prediction) for prediction in predictions],
            "logits": [logits_of(prediction) for prediction in predictions],
            "tokens": [str(answer.tokens[0]) for _, answer in self._rows],
            **{name: [f"{each[name][0]:.3g}" if name in each else "" for each in outputs] for name in SEQUENCE_OUTPUTS},
            "knobs": knobs if len(set(knobs)) > 1 else [],
        }
        shown_columns = {name: cells for name, cells in columns.items() if any(cells)}
        return list(shown_columns), [list(row) for row in zip(*shown_columns.values(), strict=True)]


def _setting_of(answer: Classification) -> str:
    """What an answer ran with, and who chose it."""
    expected = answer.expected_agreement
    agreement = "" if expected is None else f", expected agreement {expected:.3f}"
    return f"{shown(answer.knobs) or 'no knob'} (chosen by {answer.chosen_by}{agreement})"


def output_for(*, json_lines: bool) -> Output:
    """The output that suits where stdout leads."""
    if json_lines:
        return JsonLines()
    return TextTable(Console(markup=False, highlight=False)) if sys.stdout.isatty() else TabSeparated()
