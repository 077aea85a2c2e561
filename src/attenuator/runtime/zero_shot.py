"""Zero-shot classification: a model of natural language inference chooses among labels that the request brings.

Each text is paired with a sentence about each label, its hypothesis, and the pairs are rows like any others. A label's
score comes from how far the model says that the text entails its hypothesis, as transformers'
`ZeroShotClassificationPipeline` computes it (Yin, Hay and Roth 2019, https://arxiv.org/abs/1909.00161).
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from attenuator.bundle import Manifest, Task
from attenuator.classify_request import MAX_PAIRS, ZeroShot
from attenuator.errors import InvalidRequest
from attenuator.ops import SEQUENCE_OUTPUTS
from attenuator.runtime.request import check_count, check_values, wrong
from attenuator.runtime.scores import Floats, Logits, RowScores, predict, sigmoid, softmax, unchanged
from attenuator.runtime.tokens import Input, check_text

ZERO_SHOT = tuple(ZeroShot.model_fields)
LABELS, TEMPLATE, MULTI_LABEL = ZERO_SHOT
ENTAILS = "entail"  # how the label begins that says so, in any case
THRESHOLD = 0.5
MAX_CHARACTERS = 16_384_000  # of all pairs of a request: each text is tokenized with every label
SHOWN_LABELS = 8
EXPLAINING = ("explain", "escalate")


@dataclass(frozen=True, slots=True)
class Candidates:
    """The labels of a request, in the place of its model's own.

    Attributes:
        labels: in the order of the request.
        task: `multi_label` where each is scored by itself, else `single_label`.
        template: the hypotheses, with `{}` in place of the label.
        entailment: place of the model's label that says so.
        contradiction: place of the one that it is weighed against where a label is scored by itself.
    """

    labels: list[str]
    task: Task
    template: str
    entailment: int
    contradiction: int

    @classmethod
    def of(cls, fields: Mapping[str, Any], manifest: Manifest) -> "Candidates":
        """Checks the fields of a request, those of `ZERO_SHOT` and others.

        Raises:
            InvalidRequest: the model is none of natural language inference, a field of `ZERO_SHOT` is wrong, or the
                request asks how sure its answers are.
        """
        entailment = entailment_of(manifest)
        labels = fields.get(LABELS)
        if isinstance(labels, list):
            check_labels(labels)
        own = check_values(ZeroShot, {name: fields[name] for name in ZERO_SHOT if name in fields})
        for name in EXPLAINING:
            if fields.get(name) is True:
                more = f": calibration says how sure the model's own labels are, not {LABELS}"
                raise wrong(name, "is true", f"left out beside {LABELS}", more)
        task: Task = "multi_label" if own.multi_label else "single_label"
        # As the pipeline has it: a model's first label contradicts, or the last where the first entails.
        return cls(own.candidate_labels, task, own.hypothesis_template, entailment, -1 if entailment == 0 else 0)

    @property
    def thresholds(self) -> list[float]:
        """The score from which on a label is right; only where each is scored by itself."""
        return [THRESHOLD] * len(self.labels)

    def check_size(self, items: Sequence[Input]) -> None:
        """Refuses with InvalidRequest what would make more pairs, or longer ones, than a request may have."""
        count = len(items) * len(self.labels)
        if count > MAX_PAIRS:
            most = MAX_PAIRS // len(items)
            state = f"has {len(self.labels)} items, which with {len(items)} inputs make {count} pairs"
            raise wrong(LABELS, state, f"at most {most} texts with so many inputs")
        size = sum(item.characters for item in items) * len(self.labels)
        if size > MAX_CHARACTERS:
            most = MAX_CHARACTERS // len(self.labels)
            state = f"has {size // len(self.labels)} characters in all"
            raise wrong("inputs", state, f"at most {most} characters", f", which are read with each of {LABELS}")

    def inputs(self, items: Iterable[Input]) -> Iterator[Input]:
        """Each text with every hypothesis, those of one text after each other.

        Raises:
            InvalidRequest: an input is a pair itself, or token ids.
        """
        before, _, after = self.template.partition("{}")
        hypotheses = [before + label + after for label in self.labels]
        for item in items:
            if item.text is None or item.text_pair is not None:
                state = "is token ids" if item.text is None else "is the first text of a pair"
                raise wrong(item.param, state, f"a text beside {LABELS}, which make the pairs")
            for place, hypothesis in enumerate(hypotheses):
                yield Input(item.param, item.text, hypothesis, pair_param=f"{LABELS}[{place}]", fixed_pair=True)

    def answers(self, logits: Logits) -> tuple[Floats, Logits]:
        """Scores and logits of the labels.

        Args:
            logits: float32 `[texts * labels, model_labels]`, finite, of the pairs.

        Returns:
            float64 and float32 `[texts, labels]`. The scores are the softmax of the logits, or the sigmoid where labels
            are scored by themselves, as one alone always is.
        """
        values = unchanged(logits).reshape(-1, len(self.labels), logits.shape[-1])
        entailed = values[..., self.entailment]
        if self.task == "single_label" and len(self.labels) > 1:
            return softmax(entailed), entailed.astype(np.float32)
        weighed = entailed - values[..., self.contradiction]
        return sigmoid(weighed), weighed.astype(np.float32)

    def predict(self, logits: Sequence[Logits]) -> list[RowScores]:
        """The answers to texts, from the finite logits of their pairs, float32 `[model_labels]` each."""
        thresholds = self.thresholds if self.task == "multi_label" else None
        both = zip(*self.answers(np.array(logits)), strict=True)
        return [predict(scores, own, labels=self.labels, thresholds=thresholds) for scores, own in both]

    def by_text(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        """An answer's fields, where those that have a number for each pair have one for each text.

        That is the sum of tokens, and the mean of what the model's graph says of each pair.
        """
        merge = {"tokens": np.sum} | dict.fromkeys(SEQUENCE_OUTPUTS, np.mean)
        merged: dict[str, Any] = dict(fields)
        for name in merge.keys() & fields.keys():
            merged[name] = merge[name](np.reshape(fields[name], (-1, len(self.labels))), axis=1).tolist()
        return merged


def entailment_of(manifest: Manifest) -> int:
    """The place of the label that says that the second text follows from the first.

    Raises:
        InvalidRequest: the model has no such label.
    """
    labels = manifest.labels
    places = [place for place, label in enumerate(labels) if label.lower().startswith(ENTAILS)]
    if manifest.reads_tokens:
        places = []  # its labels are those of tokens
    if not places or len(labels) < 2:
        named = ", ".join(labels[:SHOWN_LABELS]) + (", .." if len(labels) > SHOWN_LABELS else "")
        allowed = f"a model of natural language inference, with a label that begins with '{ENTAILS}'"
        state = f"is given, but model '{manifest.name}' has the labels {named}"
        raise InvalidRequest(f"{LABELS} {state}: it must be {allowed}", param=LABELS, allowed=allowed)
    return places[0]


def check_labels(labels: Sequence[Any]) -> None:
    """Refuses labels that are no labels, two equal ones, or too many, with InvalidRequest."""
    check_count(len(labels), LABELS, MAX_PAIRS)
    first: dict[str, int] = {}
    for place, label in enumerate(labels):
        if not isinstance(label, str):
            continue  # `ZeroShot` refuses it
        where = f"{LABELS}[{place}]"
        check_text(label, where)
        same = first.setdefault(label.strip(), place)
        if same != place:
            raise wrong(where, f"is the same as {LABELS}[{same}]", "a label that stands there once")
