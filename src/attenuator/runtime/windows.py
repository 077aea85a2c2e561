"""Long texts in windows: each is a row like any other, and their answers are joined label by label.

Nothing of a text is left out: windows lie side by side or overlap, and the last one ends with the text. A text that
fits into one window has the answer that it has without.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from attenuator.api import MAX_INPUTS
from attenuator.bundle import Manifest, Task
from attenuator.classify_request import Join, LongTexts
from attenuator.errors import InvalidRequest
from attenuator.ops import SEQUENCE_OUTPUTS
from attenuator.ops.knobs import shown
from attenuator.runtime.request import check_values, wrong
from attenuator.runtime.scores import SCORES, Floats, Logits, RowScores, predict
from attenuator.runtime.tokens import Encoded, Input, TextEncoder

UNLIMITED = 2**40  # windows: more than any memory has, and times a window's tokens still an index
LONG_TEXTS = tuple(LongTexts.model_fields)
JOIN, SIZE = LONG_TEXTS[:2]
APART = ("truncate", "explain", "escalate")  # fields that say something else of a text, or nothing of one in windows


@dataclass(frozen=True, slots=True)
class LongInput(Input):
    """An input that is read in windows.

    Attributes:
        window: tokens of one; `size` is that of the whole text, as of other inputs.
        stride: tokens from the beginning of one to that of the next; None where they lie side by side.
        most: windows to make.
    """

    window: int = 0
    stride: int | None = None
    most: int = 1

    def encode(self, encoder: TextEncoder, truncate: bool) -> Encoded:
        """The first window, and with it the rest; errors as `TextEncoder.windows`."""
        first, *rest = encoder.windows(
            self.text or "", self.text_pair, size=self.window, stride=self.stride, most=self.most, param=self.param
        )
        return replace(first, rest=rest, truncated=sum(len(one.token_ids) for one in rest))


@dataclass(slots=True, eq=False)
class Windows:
    """The windows of one request or call.

    Attributes:
        labels: the model's.
        task: likewise.
        thresholds: likewise.
        join: how the answers of a text's windows become one.
        size: tokens of a window.
        stride: tokens from the beginning of one to that of the next; None where they lie side by side.
        most: that a request may have; None where there is no such limit.
        counts: windows of each text, once they are made.
    """

    labels: Sequence[str]
    task: Task
    thresholds: Sequence[float]
    join: Join
    size: int
    stride: int | None
    most: int | None = MAX_INPUTS
    counts: list[int] = field(default_factory=list)

    @classmethod
    def of(cls, fields: Mapping[str, Any], manifest: Manifest) -> "Windows":
        """Checks the fields of a request, those of `LONG_TEXTS` and others.

        Raises:
            InvalidRequest: one of them is wrong.
        """
        own = check_values(LongTexts, {name: fields[name] for name in LONG_TEXTS if name in fields})
        for name in APART:
            if fields.get(name) is True:
                raise wrong(name, "is true", f"left out beside {JOIN}")
        size = own.window or manifest.max_tokens
        if size > manifest.max_tokens:
            raise wrong(SIZE, f"is {shown(size)}", f"at most {manifest.max_tokens}, the tokens that the model takes")
        return cls(manifest.labels, manifest.task, manifest.thresholds, own.join, size, own.stride)

    def inputs(self, items: Iterable[Input]) -> Iterator[Input]:
        """The inputs, which are read in windows.

        Raises:
            InvalidRequest: one is token ids.
        """
        # One more than are allowed, so that a longer text shows.
        most = 1 if self.join == "first" else UNLIMITED if self.most is None else self.most + 1
        for item in items:
            if item.text is None:
                raise wrong(item.param, "is token ids", f"a text beside {JOIN}: they are used as given")
            yield LongInput(item.param, item.text, item.text_pair, window=self.size, stride=self.stride, most=most)

    def rows(self, encoded: Sequence[Encoded]) -> list[Encoded]:
        """The windows of all texts, those of one after each other.

        Raises:
            InvalidRequest: there are more than a request may have.
        """
        self.counts = [1 + len(one.rest) for one in encoded]
        if self.most is not None and sum(self.counts) > self.most:
            allowed = f"at most {self.most} windows of {self.size} tokens in all"
            sentence = f"inputs have more than {self.most} windows, must have {allowed}"
            raise InvalidRequest(sentence, param="inputs", allowed=allowed)
        return [window for one in encoded for window in (one, *one.rest)]

    def answers(self, logits: Logits) -> tuple[Floats, Logits]:
        """Scores and logits of the texts, each joined by label.

        Args:
            logits: float32 `[windows, labels]`, finite.

        Returns:
            float64 and float32 `[texts, labels]`: the mean or the largest over the windows of a text.
        """
        return self._joined(SCORES[self.task](logits)), self._joined(logits).astype(np.float32)

    def predict(self, logits: Sequence[Logits]) -> list[RowScores]:
        """The answers to texts, from the finite logits of their windows, float32 `[labels]` each."""
        thresholds = self.thresholds if self.task == "multi_label" else None
        both = zip(*self.answers(np.array(logits)), strict=True)
        return [predict(scores, own, labels=self.labels, thresholds=thresholds) for scores, own in both]

    def by_text(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        """An answer's fields, where those that have a number for each window have one for each text.

        That is the sum of tokens, and the mean of what the model's graph says of each window.
        """
        merged: dict[str, Any] = dict(fields)
        for name in {"tokens", *SEQUENCE_OUTPUTS} & fields.keys():
            sums = np.add.reduceat(np.array(fields[name]), self._starts())
            merged[name] = (sums if name == "tokens" else sums / self.counts).tolist()
        return merged

    def _joined(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        if self.join == "max":
            return np.asarray(np.maximum.reduceat(values, self._starts(), axis=0))
        sums = np.add.reduceat(values.astype(np.float64), self._starts(), axis=0)
        return np.asarray(sums / np.array(self.counts)[:, np.newaxis])

    def _starts(self) -> npt.NDArray[np.int64]:
        return np.cumsum([0, *self.counts[:-1]])
