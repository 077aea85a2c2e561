"""Mixed requests to a service, good and bad, drawn by lot."""

import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, get_args

from attenuator.api import Priority
from attenuator.bundle import Manifest
from attenuator.load_generator import post, request_of, sized

FIXED = 24  # texts that are asked again and again
TEXT = (
    "a quiet and moving film whose plot the actors carry the agreement shall be governed by the law of either party "
    "not very good but never dull term renewal notice price service great bad slow funny warm late cold clause"
)
WORDS = TEXT.split()


@dataclass(frozen=True, slots=True)
class Ask:
    """A request and the statuses that it may get."""

    kind: str
    request: bytes
    statuses: frozenset[int]
    fixed: int | None = None


class Traffic:
    """Draws requests to some models."""

    def __init__(self, manifests: Sequence[Manifest], calibrated: Sequence[bool], seed: int) -> None:
        """Prepares the kinds of requests.

        Args:
            manifests: of the models.
            calibrated: whether each has a calibration.
            seed: of the draws.
        """
        self.random = random.Random(seed)
        self._manifests = manifests
        self._with_goals = [each for each, has in zip(manifests, calibrated, strict=True) if has]
        self._kinds: list[tuple[int, Callable[[], Ask]]] = [
            (30, self._knobs),
            (15, self._batch),
            (10, self._fixed),
            (10, self._floors),
            (6, self._other_route),
            (5, self._deadline),
            (6, self._look),
            (15, self._mistake),
        ]
        if self._with_goals:
            self._kinds += [(15, self._goal), (5, self._explained)]

    def draw(self) -> Ask:
        """One request."""
        weights, kinds = zip(*self._kinds, strict=True)
        return self.random.choices(kinds, weights)[0]()

    def text(self) -> str:
        """A text whose length is drawn from a distribution with a long tail."""
        words = min(800, int(self.random.lognormvariate(3.0, 1.0)) + 1)
        return " ".join(self.random.choices(WORDS, k=words))

    def model(self) -> Manifest:
        """One of the models."""
        return self.random.choice(self._manifests)

    def _setting(self, model: Manifest) -> dict[str, float]:
        setting: dict[str, float] = {}
        for knob in model.knobs:
            if self.random.random() < 0.8:
                whole = knob.dtype == "int32"
                low, high = knob.low, knob.high
                setting[knob.name] = (
                    self.random.randint(int(low), int(high)) if whole else self.random.uniform(low, high)
                )
        return setting

    def _ask(self, kind: str, model: Manifest, inputs: Any, *, allowed: Sequence[int] = (200,), **fields: Any) -> Ask:
        return Ask(kind, request_of(inputs, model=model.name, **fields), frozenset(allowed))

    def _knobs(self) -> Ask:
        model = self.model()
        seed = self.random.choice([None, 0, 7])
        return self._ask("knobs", model, self.text(), seed=seed, truncate=True, **self._setting(model))

    def _batch(self) -> Ask:
        inputs = [self.text() for _ in range(self.random.randint(2, 12))]
        priority = self.random.choice(get_args(Priority))
        return self._ask("batch", self.model(), inputs, truncate=True, return_logits=True, priority=priority)

    def _fixed(self) -> Ask:
        number = self.random.randrange(FIXED)
        model = self._manifests[number % len(self._manifests)]
        draw = random.Random(number)
        text = " ".join(draw.choices(WORDS, k=1 + number * number))
        request = request_of(text, model=model.name, seed=number, return_logits=True, truncate=True)
        return Ask("the same again", request, frozenset({200}), number)

    def _floors(self) -> Ask:
        model = self.model()
        floors = {knob.name: knob.default for knob in model.knobs}
        exact = {knob.name: int(knob.exact) if knob.dtype == "int32" else knob.exact for knob in model.knobs}
        floors = {name: type(exact[name])(value) for name, value in floors.items()}
        return self._ask("floors", model, self.text(), truncate=True, degradable_to=floors, **exact)

    def _explained(self) -> Ask:
        model = self.random.choice(self._with_goals)
        return self._ask("explained", model, self.text(), truncate=True, explain=True, **self._setting(model))

    def _deadline(self) -> Ask:
        timeout_ms = self.random.choice([1, 10, 100])
        return self._ask(
            "deadline", self.model(), self.text(), allowed=(200, 504), truncate=True, timeout_ms=timeout_ms
        )

    def _goal(self) -> Ask:
        model = self.random.choice(self._with_goals)
        goals: dict[str, float] = {}
        if self.random.random() < 0.6:
            goals["min_agreement"] = self.random.choice([0.5, 0.9, 0.95, 0.99, 1])
        if not goals or self.random.random() < 0.4:
            goals["max_latency_ms"] = self.random.choice([2, 20, 200, 2000])
        allowed = (200, 422, 429) if len(goals) == 2 else (200,)
        if "max_latency_ms" not in goals and self.random.random() < 0.3:
            return self._ask("escalated", model, self.text(), truncate=True, escalate=True, **goals)
        return self._ask("goal", model, self.text(), allowed=allowed, truncate=True, **goals)

    def _other_route(self) -> Ask:
        model = self.model()
        parameters = {"Attenuator-Parameters": json.dumps({"model": model.name})}
        request = post("/predict", {"inputs": self.text(), "truncate": True}, parameters)
        return Ask("other route", request, frozenset({200}))

    def _look(self) -> Ask:
        path = self.random.choice(["/metrics", "/v1/models", "/health/ready", "/health/live"])
        return Ask("look", f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode(), frozenset({200}))

    def _mistake(self) -> Ask:
        name = self.model().name
        status, request = self.random.choice(
            [
                (422, request_of("", model=name)),
                (422, request_of("text", model=name, no_such_field=1)),
                (422, request_of("text", model=name, top_k=0)),
                (422, request_of("text", model=name, seed="7")),
                (404, request_of("text", model="no such model")),
                (400, sized("/v1/classify", b'{"inputs": ')),
                (400, sized("/v1/classify", b"\xff\xfe")),
                (404, sized("/no/such/route", b"{}")),
                (405, sized("/v1/classify", b"", method="PUT")),
                (401, sized(f"/v1/models/{name}", b"{}", {"Authorization": "Bearer wrong"}, method="PUT")),
                (400, b"NOT HTTP\r\n\r\n"),
            ]
        )
        return Ask("mistake", request, frozenset({status}))
