"""How `attenuator classify` shows answers: a table on a terminal, tab-separated in a pipe, JSON lines on request."""

import json
import sys
from collections.abc import Sequence
from typing import Any, Protocol

from rich.console import Console
from rich.table import Table

from attenuator.api import Classification, Prediction
from attenuator.calibration.schema import shown
from attenuator.ops import SEQUENCE_OUTPUTS
from attenuator.texts import Item

LINE_CHARACTERS = 200
SHORTEST_EXCERPT = 20


class Output(Protocol):
    """Shows answers as they arrive."""

    def show(self, items: Sequence[Item], answer: Classification) -> None:
        """Takes the answer to some inputs."""

    def close(self) -> None:
        """Called after the last answer."""


def cut(text: str, characters: int) -> str:
    """The beginning of a text."""
    return text if len(text) <= characters else text[: characters - 3] + "..."


def labels_of(prediction: Prediction) -> str:
    """The label, or, multi-label, all labels at or above their threshold."""
    if prediction.labels is None:
        return prediction.label
    return ", ".join(prediction.labels) or "(none)"


def best_of(prediction: Prediction) -> str:
    """The scores that `--top-k` asked for, best first; empty without it."""
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

    def show(self, items: Sequence[Item], answer: Classification) -> None:
        """Writes the answers at once, so that a reader at the other end of a pipe can start."""
        for index, (item, prediction) in enumerate(zip(items, answer.predictions, strict=True)):
            record: dict[str, Any] = {"input": item.where, **prediction.model_dump(mode="json", exclude_none=True)}
            record["tokens"] = answer.tokens[index]
            record |= {name: values[index] for name, values in outputs_of(answer).items()}
            record |= {"knobs": prediction.knobs or answer.knobs, "chosen_by": answer.chosen_by, "seed": answer.seed}
            optional = ("expected_agreement", "steps", "relative_cost")
            record |= {name: value for name in optional if (value := getattr(answer, name)) is not None}
            record |= {"model": answer.model, "revision": answer.revision, "device": answer.device}
            print(json.dumps(record, ensure_ascii=False))
        sys.stdout.flush()

    def close(self) -> None:
        """Nothing is kept."""


class TabSeparated:
    """Label, score, whatever else the flags ask for, and the beginning of the text, for `cut`, `sort` and `awk`."""

    def show(self, items: Sequence[Item], answer: Classification) -> None:
        """Writes one line per input."""
        for item, prediction in zip(items, answer.predictions, strict=True):
            further = (best_of(prediction), logits_of(prediction), *sureness_of(prediction))
            optional = [cell for cell in further if cell]
            cells = [labels_of(prediction), f"{prediction.score:.4f}", *optional, cut(item.excerpt, LINE_CHARACTERS)]
            print("\t".join(cells))
        sys.stdout.flush()

    def close(self) -> None:
        """Nothing is kept."""


class TextTable:
    """A table for people."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._rows: list[tuple[Item, Prediction, int]] = []
        self._outputs: dict[str, list[str]] = {}
        self._last: Classification | None = None
        self._compute_ms = 0.0

    def show(self, items: Sequence[Item], answer: Classification) -> None:
        """Keeps the answers for the table."""
        self._rows += zip(items, answer.predictions, answer.tokens, strict=True)
        for name, values in outputs_of(answer).items():
            self._outputs.setdefault(name, []).extend(f"{value:.3g}" for value in values)
        self._last = answer
        self._compute_ms += answer.timing_ms.get("compute", 0.0)

    def close(self) -> None:
        """Prints the table and, below it, what it ran with."""
        if self._last is None:
            return
        header, rows = self._cells()
        used = sum(max(len(row[i]) for row in [header, *rows]) + 2 for i in range(len(header)))
        room = max(SHORTEST_EXCERPT, self._console.width - used)
        table = Table(box=None, pad_edge=False)
        for name in header:
            number = name in ("score", "tokens", "error", "sure", *self._outputs)
            table.add_column(name, justify="right" if number else "left", no_wrap=number)
        table.add_column("input", no_wrap=True, min_width=SHORTEST_EXCERPT)
        for (item, _, _), cells in zip(self._rows, rows, strict=True):
            table.add_row(*cells, cut(item.excerpt, room))
        self._console.print(table)
        last = self._last
        knobs = shown(last.knobs) or "no knob"
        expected = last.expected_agreement
        agreement = "" if expected is None else f", expected agreement {expected:.3f}"
        self._console.print(
            f"{last.model} on {last.device}: {knobs} (chosen by {last.chosen_by}{agreement}), seed {last.seed}, "
            f"{self._compute_ms:.1f} ms computing",
            style="dim",
        )

    def _cells(self) -> tuple[list[str], list[list[str]]]:
        """Header and rows without the inputs themselves; columns that would be empty are left out."""
        columns: dict[str, list[str]] = {
            "label": [labels_of(prediction) for _, prediction, _ in self._rows],
            "score": [f"{prediction.score:.4f}" for _, prediction, _ in self._rows],
            "error": [sureness_of(prediction)[0] for _, prediction, _ in self._rows],
            "sure": [sureness_of(prediction)[1] for _, prediction, _ in self._rows],
            "best": [best_of(prediction) for _, prediction, _ in self._rows],
            "logits": [logits_of(prediction) for _, prediction, _ in self._rows],
            "tokens": [str(tokens) for _, _, tokens in self._rows],
            **self._outputs,
        }
        shown = {name: cells for name, cells in columns.items() if any(cells)}
        return list(shown), [list(row) for row in zip(*shown.values(), strict=True)]


def output_for(*, json_lines: bool) -> Output:
    """The output that suits where stdout leads."""
    if json_lines:
        return JsonLines()
    return TextTable(Console(markup=False, highlight=False)) if sys.stdout.isatty() else TabSeparated()
