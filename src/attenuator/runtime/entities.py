"""Token classification: from the logits of tokens to spans of the caller's text.

Tokens become entities as transformers' `TokenClassificationPipeline` groups them (`aggregation_strategy` there): labels
may begin with `B-`, which starts an entity, or `I-`, which goes on with one; what is labelled `O` is none.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from attenuator.bundle import Manifest
from attenuator.classify_request import Aggregation, EntityOptions
from attenuator.errors import InvalidRequest
from attenuator.ops.knobs import shown
from attenuator.runtime.request import check_values, wrong
from attenuator.runtime.scores import Floats
from attenuator.runtime.tokens import Encoded, Input
from attenuator.runtime.windows import LONG_TEXTS, Windows
from attenuator.runtime.words import TokenSpans

ENTITIES = tuple(EntityOptions.model_fields)
OUTSIDE, BEGIN, INSIDE = "O", "B-", "I-"
NOT_BESIDE = ("top_k", "return_logits", "explain", "escalate")  # what says something of one answer for a whole text

Entity = dict[str, Any]


class Units(NamedTuple):
    """What has a label of its own: the tokens or the words of a text, U of them.

    Attributes:
        labels: int64 `[U]`, places among the labels.
        scores: float64 `[U]`, of these labels.
        firsts: int64 `[U]`, the first token of each.
        lasts: int64 `[U]`, the last one.
    """

    labels: npt.NDArray[np.int64]
    scores: Floats
    firsts: npt.NDArray[np.int64]
    lasts: npt.NDArray[np.int64]


@dataclass(slots=True, eq=False)
class Tagging:
    """The texts of one request to a token classifier.

    Attributes:
        model: its name.
        labels: the model's.
        aggregation: how its tokens become entities.
        windows: in which the texts are read; None where each is read whole.
        texts: the rows of each text, once they are tokenized.
    """

    model: str
    labels: Sequence[str]
    aggregation: Aggregation
    windows: Windows | None = None
    texts: list[list[Encoded]] = field(default_factory=list)

    @classmethod
    def of(cls, fields: Mapping[str, Any], manifest: Manifest) -> "Tagging":
        """Checks the fields of a request, those of `ENTITIES` and others.

        Raises:
            InvalidRequest: one of them is wrong, or says something of an answer for a whole text.
        """
        own = check_values(EntityOptions, {name: fields[name] for name in ENTITIES if name in fields})
        for name in NOT_BESIDE:
            if fields.get(name) not in (None, False):
                more = f": model '{manifest.name}' answers the entities of a text, not one label for it"
                raise wrong(name, f"is {shown(fields[name])}", "left out", more)
        windows = None if fields.keys().isdisjoint(LONG_TEXTS) else Windows.of(fields, manifest)
        return cls(manifest.name, manifest.labels, own.aggregation, windows)

    def inputs(self, items: Iterable[Input]) -> Iterator[Input]:
        """The inputs, which are texts.

        Raises:
            InvalidRequest: one is a pair, or token ids.
        """
        return self._texts(items) if self.windows is None else self.windows.inputs(self._texts(items))

    def _texts(self, items: Iterable[Input]) -> Iterator[Input]:
        for item in items:
            if item.text is None or item.text_pair is not None:
                state = "is token ids" if item.text is None else "is the first text of a pair"
                raise wrong(item.param, state, "a text", f": model '{self.model}' finds entities in one")
            yield item

    def rows(self, encoded: Sequence[Encoded]) -> list[Encoded]:
        """What runs: each text, or all windows of each; errors as `Windows.rows`."""
        self.texts = [[one, *one.rest] for one in encoded]
        return list(encoded) if self.windows is None else self.windows.rows(encoded)

    def by_text(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        """An answer's fields with a number for each text; see `Windows.by_text`."""
        return dict(fields) if self.windows is None else self.windows.by_text(fields)

    def predictions(self, scores: Floats) -> Iterator[dict[str, Any]]:
        """What is answered to each text, as `api.Prediction` has it, one after the other.

        Args:
            scores: float64 `[T, labels]`, of the tokens of all rows.
        """
        ends = np.cumsum([len(row.token_ids) for rows in self.texts for row in rows])
        parts = iter(np.split(scores, ends[:-1]))
        for rows in self.texts:
            entities, sure = self._entities(rows, [next(parts) for _ in rows])
            best = max(entities, key=lambda entity: entity["score"], default=None)
            label, score = (OUTSIDE, sure) if best is None else (best["label"], best["score"])
            yield {"label": label, "score": score, "entities": entities}

    def _entities(self, rows: Sequence[Encoded], scores: Sequence[Floats]) -> tuple[list[Entity], float]:
        """The entities of a text, and the lowest score of a label in it.

        Args:
            rows: its windows, or the text itself.
            scores: float64 `[tokens, labels]` of each.
        """
        spans = []
        for row in rows:
            assert row.spans is not None  # a token classifier's encoder keeps them
            spans.append(row.spans)
        texts = [own[span.places] for own, span in zip(scores, spans, strict=True)]
        span, own = (spans[0], texts[0]) if self.windows is None else merge_windows(self.windows, spans, texts)
        if not len(own):
            return [], 1.0
        units = units_of(self.aggregation, own, span)
        return [self._entity(units, group, span) for group in self._groups(units)], float(units.scores.min())

    def _groups(self, units: Units) -> Iterator[list[int]]:
        """The units of each entity; of the many that are in none, nothing is looked at one by one."""
        inside = np.array([self._name(label) != OUTSIDE for label in self.labels])
        group: list[int] = []
        for place in np.flatnonzero(inside[units.labels]).tolist():
            label = self.labels[units.labels[place]]
            follows = group and place == group[-1] + 1 and not label.startswith(BEGIN) and self.aggregation != "none"
            if follows and tag_of(label) == tag_of(self.labels[units.labels[group[-1]]]):
                group.append(place)
                continue
            if group:
                yield group
            group = [place]
        if group:
            yield group

    def _name(self, label: str) -> str:
        """What an entity is called that begins with a label."""
        return label if self.aggregation == "none" else label.split("-", 1)[-1] or label

    def _entity(self, units: Units, group: Sequence[int], span: TokenSpans) -> Entity:
        """The entity that units are together."""
        first, last = int(units.firsts[group[0]]), int(units.lasts[group[-1]])
        return {
            "label": self._name(self.labels[units.labels[group[0]]]),
            "score": sum(units.scores[group].tolist()) / len(group),
            "start": int(span.starts[first]),
            "end": int(span.ends[last]),
            "word": span.token(first) if self.aggregation == "none" else span.word(first, last),
        }


def tag_of(label: str) -> str:
    """What a label says without its `B-` or `I-`."""
    return label[2:] if label.startswith((BEGIN, INSIDE)) else label


def units_of(aggregation: Aggregation, scores: Floats, span: TokenSpans) -> Units:
    """The tokens of a text, or its words, each with its label.

    Args:
        aggregation: tokens with `none` and `simple`. A word has the label of its `first` token, of the token with the
            highest score (`max`), or that of the highest mean score of its tokens (`average`).
        scores: float64 `[N, labels]`, N at least 1.
        span: of the N tokens.
    """
    firsts = np.arange(len(scores))
    if aggregation not in ("none", "simple"):
        firsts = np.union1d([0], np.flatnonzero(span.begins_word))
        if aggregation == "average":
            counts = np.diff(np.append(firsts, len(scores)))
            scores = np.add.reduceat(scores, firsts, axis=0) / counts[:, np.newaxis]
        elif aggregation == "max":
            highest = scores.max(axis=1)
            parts = np.split(highest, firsts[1:])
            scores = scores[firsts + [int(part.argmax()) for part in parts]]
        else:
            scores = scores[firsts]
    labels = scores.argmax(axis=1)
    lasts = np.append(firsts[1:], len(span.starts)) - 1
    return Units(labels, scores[np.arange(len(scores)), labels], firsts, lasts)


def merge_windows(windows: Windows, spans: Sequence[TokenSpans], scores: Sequence[Floats]) -> tuple[TokenSpans, Floats]:
    """The tokens of a text that was read in windows, each with the mean or the largest of its scores there.

    Args:
        windows: says how they lie, and how their scores are joined.
        spans: of the tokens of each.
        scores: float64 `[N, labels]` of each.
    """
    step = windows.stride or len(spans[0].starts)  # side by side, every window but the last is full
    places = [number * step + np.arange(len(span.starts)) for number, span in enumerate(spans)]
    total = int(places[-1][-1]) + 1 if len(places[-1]) else 0
    merged = np.zeros((total, scores[0].shape[1]))
    seen = np.zeros(total)
    for place, own in zip(places, scores, strict=True):
        merged[place] = np.maximum(merged[place], own) if windows.join == "max" else merged[place] + own
        seen[place] += 1
    if windows.join != "max":
        merged /= seen[:, np.newaxis]
    new = [place >= (places[number - 1][-1] + 1 if number else 0) for number, place in enumerate(places)]

    def whole(of_each: Iterable[npt.NDArray[Any]]) -> npt.NDArray[Any]:
        return np.concatenate([values[own] for values, own in zip(of_each, new, strict=True)])

    unknown = {
        int(place[number]): text
        for place, span in zip(places, spans, strict=True)
        for number, text in span.unknown.items()
    }
    span = TokenSpans(
        spans[0].words,
        places=whole(span.places for span in spans),
        token_ids=whole(span.token_ids for span in spans),
        starts=whole(span.starts for span in spans),
        ends=whole(span.ends for span in spans),
        begins_word=whole(span.begins_word for span in spans),
        unknown=unknown,
    )
    return span, merged


def refuse_entities(fields: Mapping[str, Any], manifest: Manifest) -> None:
    """Refuses fields about entities where a model answers one label for a text.

    Raises:
        InvalidRequest: that is so.
    """
    for name in ENTITIES:
        if name in fields and not manifest.reads_tokens:
            sentence = f"{name} is given, but model '{manifest.name}' classifies whole texts: it must be left out"
            raise InvalidRequest(sentence, param=name, allowed="left out, but of a token classifier")
