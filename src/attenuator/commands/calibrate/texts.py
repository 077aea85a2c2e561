"""The texts of a calibration, with their labels where the file has them, or the pairs of its lists."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from attenuator.bundle import Manifest, file_sha256
from attenuator.calibration.frontier import texts_needed
from attenuator.calibration.proportions import fewest_texts
from attenuator.commands.calibrate.list_file import Larger, Lists, has_lists, is_list, read_lists, refuse_mixed
from attenuator.errors import InvalidRequest
from attenuator.ops.knobs import shown
from attenuator.runtime import Encoded, Input, Model
from attenuator.runtime.scores import SCORES
from attenuator.texts import Item, item_of, label_places, label_text, records_of, refuse_pipe

LABELS_SHOWN = 8
LOWER_GOALS = (0.95, 0.9, 0.8)


@dataclass(frozen=True, slots=True, eq=False)
class Texts:
    """Encoded texts.

    Attributes:
        name: of the file, without its folder.
        sha256: of its content.
        encoded: the texts, in the order of the file.
        truth: bool `[texts, labels]`, which labels a text has; None where the file has no labels.
        lists: which texts, pairs of a query and a document, belong together; None where the file has no lists.
    """

    name: str
    sha256: str
    encoded: list[Encoded]
    truth: npt.NDArray[np.bool_] | None
    lists: Lists | None = None

    @property
    def seeds(self) -> Sequence[int]:
        """Those with which a text is answered as in a request of its own: of each text, or of each list."""
        return range(len(self.encoded)) if self.lists is None else self.lists.seeds()

    @property
    def tokens(self) -> npt.NDArray[np.int64]:
        """Their lengths, int64 `[texts]`."""
        return np.array([len(one.token_ids) for one in self.encoded], dtype=np.int64)


def read_texts(path: Path, model: Model, *, min_agreement: float, confidence: float, truncate: bool) -> Texts:
    """Reads, checks and tokenizes a file of JSON lines.

    Args:
        path: each line an input as the HTTP API takes it and, on every line or on none, `label` or `labels`; or each
            line a list, see `read_lists`.
        model: the bundle.
        min_agreement: the goal that the texts must be able to show.
        confidence: at which they must show it.
        truncate: cuts texts that are too long instead of refusing the file.

    Raises:
        InvalidRequest: the file cannot be read, has too few texts, or a line is not as described.
    """
    refuse_pipe(path)
    few = partial(
        refuse_too_few, path, min_agreement=min_agreement, confidence=confidence, knobs=len(model.knobs.names)
    )
    truth = lists = None
    with advising():
        if has_lists(path):
            lists, encoded = read_lists(path, model, truncate=truncate)
            few(len(encoded), kind="pair")
        else:
            items = list(items_of(path))
            few(len(items))
            truth = truth_of(items, model.manifest)
            encoded = [Input.of(item.content, item.where).encode(model.encoder, truncate=truncate) for item in items]
    return Texts(path.name, file_sha256(path), encoded, truth, lists)


def with_larger(texts: Texts, path: Path, folder: Path, larger: Model, *, truncate: bool) -> Texts:
    """The same lists, to be scored again by a larger model.

    Args:
        texts: of a file of lists.
        path: of that file.
        folder: where the larger model lies.
        larger: with one output.
        truncate: cuts pairs that are too long for it instead of refusing the file.

    Raises:
        InvalidRequest: a pair is too long for it.
    """
    assert texts.lists is not None
    with advising():
        _, encoded = read_lists(path, larger, truncate=truncate)
    return replace(texts, lists=replace(texts.lists, larger=Larger(larger, folder, encoded)))


@contextmanager
def advising() -> Iterator[None]:
    """Errors of texts that are too long name the command's flag rather than the API's field."""
    try:
        yield
    except InvalidRequest as error:
        sentence = str(error).replace("set truncate", "give --truncate")
        raise type(error)(sentence, param=error.param, allowed=error.allowed) from None


def items_of(path: Path) -> Iterator[Item]:
    """The texts of a file whose first line is no list.

    Raises:
        InvalidRequest: a line holds a list, or no text.
    """
    for where, record in records_of(str(path)):
        if is_list(record):
            raise refuse_mixed(where, "a list", "texts")
        yield item_of(record, where)


def refuse_too_few(
    path: Path, texts: int, *, min_agreement: float, confidence: float, knobs: int, kind: str = "text"
) -> None:
    """Refuses data that can say nothing about the goal, and says how much is needed; `kind` is what the texts are.

    Raises:
        InvalidRequest: there are too few texts.
    """
    needed = texts_needed(min_agreement, confidence, knobs)
    if texts >= needed:
        return
    lower = [goal for goal in LOWER_GOALS if goal < min_agreement]
    fewer = ", ".join(f"{goal:g} takes {texts_needed(goal, confidence, knobs)}" for goal in lower)
    chosen = f" ({needed - fewest_texts(min_agreement, confidence)} of them to choose settings by)" if knobs > 1 else ""
    has = f"{texts} {kind}" if texts == 1 else f"{texts} {kind}s"
    raise InvalidRequest(
        f"{path} has {has}, must have at least {needed}{chosen}: with fewer, even if no answer changed, an "
        f"agreement of {min_agreement:g} could not be shown with {100 * confidence:g} % confidence"
        + (f"; a lower --min-agreement needs fewer: {fewer}" if fewer else "")
    )


def truth_of(items: Sequence[Item], manifest: Manifest) -> npt.NDArray[np.bool_] | None:
    """Which text has which label.

    Args:
        items: the lines.
        manifest: of the bundle.

    Returns:
        bool `[texts, labels]`; None where no line has labels.

    Raises:
        InvalidRequest: only some lines have labels, or one has labels that the bundle cannot give.
    """
    fields = [(item, *_field_of(item)) for item in items]
    with_labels = next((item for item, field, _ in fields if field), None)
    if with_labels is None:
        return None
    without = next((item for item, field, _ in fields if not field), None)
    if without is not None:
        raise InvalidRequest(
            f"{without.where} has no label, but {with_labels.where} has one: every line must have one, or none"
        )
    if manifest.task == "regression":
        raise InvalidRequest(
            f"{with_labels.where} has a label, must have none: the bundle's task is regression, whose scores are "
            "compared with the exact ones alone"
        )
    named = [(item, _names(item, field, value, manifest)) for item, field, value in fields]
    places = label_places((name for _, names in named for name in names), manifest.labels)
    truth = np.zeros((len(items), len(manifest.labels)), dtype=bool)
    for row, (item, names) in zip(truth, named, strict=True):
        for name in names:
            if name not in places:
                raise InvalidRequest(f"{item.where} has the label {ascii(name)[:80]}, must be {_allowed(manifest)}")
            row[places[name]] = True
    return truth


def _allowed(manifest: Manifest) -> str:
    """The labels that a file may have, for a sentence."""
    names = ", ".join(manifest.labels[:LABELS_SHOWN]) + (", ..." if len(manifest.labels) > LABELS_SHOWN else "")
    return f"one of: {names}; or, on every line, its place from 0 to {len(manifest.labels) - 1}"


def _field_of(item: Item) -> tuple[str, Any]:
    """The field with a line's labels, and its value; an empty name where it has none."""
    if item.label is not None and item.labels is not None:
        raise InvalidRequest(f"{item.where} has both label and labels, must have one of them")
    if item.label is not None:
        return "label", item.label
    return ("labels", item.labels) if item.labels is not None else ("", None)


def _names(item: Item, field: str, value: Any, manifest: Manifest) -> list[str]:
    """The labels of one line, as text."""
    names = [label_text(one) for one in (value if isinstance(value, list) else [value])]
    single = manifest.task != "multi_label"
    if isinstance(value, list) != (field == "labels") or None in names or (single and len(names) != 1):
        allowed = "one label" if single else "a label" if field == "label" else "a list, which may be empty, of labels"
        raise InvalidRequest(f"{item.where}: {field} is {shown(value)}, must be {allowed} of the bundle")
    return [name for name in names if name is not None]


def correct(logits: npt.NDArray[np.float32], truth: npt.NDArray[np.bool_], manifest: Manifest) -> npt.NDArray[np.bool_]:
    """Which answers are the labels given: the first of the highest scores, or all labels at or above their threshold.

    Args:
        logits: `[texts, labels]`.
        truth: bool `[texts, labels]`.
        manifest: of the bundle.
    """
    if manifest.task == "single_label":
        return np.asarray(truth[np.arange(len(truth)), logits.argmax(axis=1)])
    scores = SCORES[manifest.task](logits)
    return np.asarray(((scores >= np.asarray(manifest.thresholds)) == truth).all(axis=1))
