"""Predicted cost of a request, read off its body by the front: with a replica's own predictions.

Predictions choose a replica and never refuse: what is wrong with a request the replica says.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from attenuator.bundle import BundleKnob
from attenuator.calibration import Calibration
from attenuator.errors import AttenuatorError
from attenuator.ops.knobs import KnobValue
from attenuator.runtime import Input, Model
from attenuator.runtime.calibrated import knobs_of
from attenuator.runtime.request import KnobTable, parse_inputs
from attenuator.runtime.zero_shot import LABELS
from attenuator.serve.accuracy.goals import AGREEMENT
from attenuator.serve.engine import Engine
from attenuator.serve.models.tokenizing import TokenEstimate
from attenuator.serve.scheduling.times import LatencyModel

UNKNOWN_S = 0.01  # a request of which nothing can be predicted
INPUT_FIELDS = ("inputs", "input")  # as this service and others call them


@dataclass(frozen=True, slots=True)
class Price:
    """What the rows of one model cost.

    Attributes:
        knobs: of its bundle, with the defaults that the replica serves.
        max_tokens: of an input.
        latency: predicted times, as a replica has learned them.
        estimate: tokens to expect of a text.
        calibration: by which a goal, the default one too, chooses knobs; None where there is none.
    """

    knobs: list[BundleKnob]
    max_tokens: int
    latency: LatencyModel
    estimate: TokenEstimate
    calibration: Calibration | None

    def seconds(self, fields: Mapping[str, Any]) -> float:
        """Predicted seconds that a request adds to the work of a replica.

        What `explain` and `escalate` draw besides the inputs is not counted.

        Raises:
            AttenuatorError: the request will be refused.
        """
        inputs = next((fields[name] for name in INPUT_FIELDS if name in fields), None)
        tokens = [self.estimate.tokens(item, self.max_tokens) for item in parse_inputs({"inputs": inputs})]
        times = self.latency.row_times(tokens, self._setting(fields, max(tokens)))
        labels = fields.get(LABELS)
        return sum(self.latency.added_s(times)) * (max(1, len(labels)) if isinstance(labels, list) else 1)

    def of_size(self, size: int) -> float:
        """Predicted seconds of a body of which only the size is known."""
        tokens = self.estimate.tokens(Input("inputs", text="x" * min(size, 8 * self.max_tokens)), self.max_tokens)
        return sum(self.latency.added_s(self.latency.row_times([tokens], self._setting({}, tokens))))

    def _setting(self, fields: Mapping[str, Any], tokens: int) -> Mapping[str, KnobValue]:
        table = KnobTable("", self.knobs)
        requested = {name: fields[name] for name in table.names if name in fields}
        goal = fields.get(AGREEMENT)
        return knobs_of(table, self.calibration, tokens, requested, goal if isinstance(goal, int | float) else None)


@dataclass(frozen=True, slots=True)
class Prices:
    """Of every model that a replica serves.

    Attributes:
        models: by name.
    """

    models: dict[str, Price] = field(default_factory=dict)

    def seconds(self, fields: Mapping[str, Any], size: int) -> float:
        """Predicted seconds of a request.

        Args:
            fields: of its body; empty where it is in another form.
            size: bytes of its body.
        """
        name = fields.get("model")
        only = next(iter(self.models.values())) if len(self.models) == 1 else None
        price = self.models.get(name, only) if isinstance(name, str) else only
        if price is None:
            return max((each.of_size(size) for each in self.models.values()), default=UNKNOWN_S)
        try:
            return price.seconds(fields)
        except AttenuatorError:
            return price.of_size(size)


def prices_of(engine: Engine) -> Prices:
    """The prices of the models that an engine gives to new requests."""
    catalog = engine.catalog

    def price(model: Model) -> Price:
        manifest = model.manifest
        return Price(
            list(model.knobs.rows.values()),
            manifest.max_tokens,
            engine.latencies[model],
            catalog.estimates[model],
            model.calibration,
        )

    return Prices({name: price(model) for name, model in engine.models.items()})
