"""A call in the process of its program: its fields, checked as those of a request, and what each input is answered."""

import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from attenuator.api import LabelScore, Options, Prediction
from attenuator.ops import KNOBS
from attenuator.ops.knobs import DEFAULT_SEED, KnobValue
from attenuator.ops.spec import SEED_HIGH
from attenuator.runtime.batch import by_output
from attenuator.runtime.entities import Tagging
from attenuator.runtime.explaining import Answered, check_certainty
from attenuator.runtime.grouping import GROUPING, Grouped, split_fields
from attenuator.runtime.model import Model
from attenuator.runtime.python_inputs import scalar
from attenuator.runtime.request import (
    OPTIONS,
    check_goals,
    check_top_k,
    check_values,
    refuse_of_services,
    unknown_field,
)
from attenuator.runtime.scores import RowScores
from attenuator.runtime.tokens import Encoded, Input
from attenuator.runtime.windows import Windows
from attenuator.runtime.zero_shot import LABELS, MULTI_LABEL, Candidates

# Fields of a request that say how a service is to treat it among others.
OF_SERVICES = ("model", "timeout_ms", "max_latency_ms", "priority", "degradable_to")


@dataclass(frozen=True, slots=True)
class Call:
    """What a call asks of each of its inputs, checked against the model.

    Attributes:
        requested: the knobs that it set.
        options: its other fields.
        has_seed: whether a seed is among them; None draws one, and without one it is `DEFAULT_SEED`.
        grouped: how inputs become several rows each; None where each is one.
    """

    requested: dict[str, KnobValue]
    options: Options
    has_seed: bool
    grouped: Grouped | None = None

    @classmethod
    def of(cls, model: Model, fields: Mapping[str, Any]) -> "Call":
        """Checks what a call says besides its inputs.

        Raises:
            InvalidRequest: names the field, what it is and what is allowed.
        """
        values = {name: scalar(value) for name, value in fields.items()}
        check_names(model, values)
        stated = {name: value for name, value in values.items() if value is not None or name == "seed"}
        if isinstance(stated.get(LABELS), tuple):
            stated[LABELS] = list(stated[LABELS])
        if stated.get(MULTI_LABEL) is False:
            del stated[MULTI_LABEL]
        grouped, stated = split_fields(stated, model.knobs.rows, model.manifest)
        windows = grouped.windows if isinstance(grouped, Tagging) else grouped
        if isinstance(windows, Windows):
            windows.most = None
        requested = {name: value for name, value in stated.items() if name in KNOBS}
        knobs = model.knobs.check(requested)
        options = check_values(
            Options, {name: stated[name] for name in stated.keys() - KNOBS.keys()}, nullable=("seed",)
        )
        if options.min_agreement is not None:
            beside = [] if options.escalate else list(requested)
            check_goals(model.manifest, model.calibration, {"min_agreement": options.min_agreement}, beside)
        check_certainty(model, options)
        check_top_k(len((grouped or model.manifest).labels), options)
        return cls({name: knobs[name] for name in requested}, options, "seed" in stated, grouped)

    def asked_about(self, items: Iterable[Input]) -> Iterable[Input]:
        """What the model answers: the inputs, or what they are made of."""
        return items if self.grouped is None else self.grouped.inputs(items)

    def apart(self) -> "Call":
        """The same for one of several inputs that are answered apart."""
        match self.grouped:
            case Windows():
                return replace(self, grouped=replace(self.grouped))
            case Tagging(windows=windows):
                own = windows and replace(windows)
                return replace(self, grouped=replace(self.grouped, windows=own))
        return self

    def rows(self, encoded: list[Encoded]) -> list[Encoded]:
        """What runs: the inputs, or all windows of each."""
        return self.grouped.rows(encoded) if isinstance(self.grouped, Windows | Tagging) else encoded

    def seed(self) -> int:
        """The seed of one request."""
        seed = self.options.seed if self.has_seed else DEFAULT_SEED
        return secrets.randbelow(SEED_HIGH + 1) if seed is None else seed

    def each(self, model: Model, answered: Answered) -> dict[str, Any]:
        """The fields of an answer that say something of each input.

        Raises:
            EngineError: a logit is not finite.
        """
        logits = [result.logits for result in answered.results]
        fields = {"tokens": [len(row.token_ids) for row in answered.rows]} | by_output(answered.results)
        if self.grouped is None:
            both = zip(map(model.predict, logits), answered.fields(), strict=True)
            return fields | {"predictions": tuple(self._prediction(scored, more) for scored, more in both)}
        scores = model.scores(np.vstack(logits))  # refuses what is not finite
        if isinstance(self.grouped, Tagging):
            found = self.grouped.predictions(scores)
            return self.grouped.by_text(fields) | {"predictions": tuple(map(Prediction.model_validate, found))}
        predictions = tuple(self._prediction(scored, {}) for scored in self.grouped.predict(logits))
        return self.grouped.by_text(fields) | {"predictions": predictions}

    def _prediction(self, scored: RowScores, more: Mapping[str, Any]) -> Prediction:
        """What is answered to one input; `more` has what `explain` and `escalate` add."""
        options = self.options
        has_ranking = options.top_k or isinstance(self.grouped, Candidates)
        ranking = scored.ranking[: options.top_k] if has_ranking else None
        return Prediction(
            label=scored.label,
            score=scored.score,
            labels=None if scored.labels is None else tuple(scored.labels),
            scores=ranking and tuple(LabelScore(label=label, score=score) for label, score in ranking),
            logits=tuple(scored.logits) if options.return_logits else None,
            **more,
        )


def check_names(model: Model, names: Iterable[str]) -> None:
    """Refuses, with UnknownField, fields that a call in this process cannot have."""
    known = [*dict.fromkeys([*model.knobs.names, *(name for name in OPTIONS if name not in OF_SERVICES), *GROUPING])]
    for name in names:
        refuse_of_services(name, OF_SERVICES, known)
        if name not in OPTIONS and name not in KNOBS and name not in GROUPING:
            raise unknown_field(name, known)
