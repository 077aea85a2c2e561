"""What answers `attenuator classify`: a server, or a bundle in this process. Both answer in the client's types."""

import asyncio
import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from attenuator.api import ChosenBy, Classification, LabelScore, Options, Prediction
from attenuator.calibration import cheapest, how_to_calibrate
from attenuator.clients.calls import UNSET, Unset
from attenuator.clients.client import Client
from attenuator.errors import InvalidRequest, NotCalibrated
from attenuator.ops.knobs import DEFAULT_SEED, KnobValue, check_seed
from attenuator.ops.spec import SEED_HIGH

if TYPE_CHECKING:
    from attenuator.runtime import Device, Model


@dataclass(frozen=True, slots=True)
class ClassifyOptions:
    """What is asked of every input.

    Attributes:
        knobs: value by name, those that the caller set.
        min_agreement: goal that chooses the knobs, or None.
        max_latency_ms: likewise; a server only.
        seed: `UNSET` for the default one, None for a fresh draw per call.
        top_k: scores to return, or None.
        truncate: cut inputs that are too long.
        return_logits: return the logits.
        explain: say how sure each answer is.
        escalate: run again what is not sure enough for `min_agreement`.
    """

    knobs: dict[str, int | float]
    min_agreement: float | None = None
    max_latency_ms: float | None = None
    seed: int | None | Unset = UNSET
    top_k: int | None = None
    truncate: bool = False
    return_logits: bool = False
    explain: bool = False
    escalate: bool = False

    def arguments(self) -> dict[str, Any]:
        """The keyword arguments of `Client.classify` that ask for this."""
        return {each.name: getattr(self, each.name) for each in fields(self) if each.name != "knobs"} | self.knobs


class Backend(Protocol):
    """Answers a few inputs at a time."""

    max_items: int

    def classify(self, inputs: Sequence[dict[str, Any]], options: ClassifyOptions) -> Classification:
        """One prediction per input."""

    def close(self) -> None:
        """Ends connections."""


class ServerBackend:
    """Asks a server."""

    max_items = 32

    def __init__(self, client: Client, further: Mapping[str, Any]) -> None:
        """Takes the server.

        Args:
            client: of the server.
            further: arguments of `Client.classify` that only a server takes.
        """
        self._client = client
        self._further = further

    def classify(self, inputs: Sequence[dict[str, Any]], options: ClassifyOptions) -> Classification:
        """See `Client.classify`."""
        return self._client.classify(list(inputs), **{**options.arguments(), **self._further})

    def close(self) -> None:
        """Closes the connections."""
        self._client.close()


class BundleBackend:
    """Runs a bundle in this process."""

    max_items = 8

    def __init__(self, folder: Path, *, device: "Device", threads: int | None = None) -> None:
        """Loads the bundle.

        Args:
            folder: the bundle.
            device: where it runs.
            threads: threads inside one run; every core by default.

        Raises:
            BundleError: the bundle is damaged or does not run here.
            OperatorLibraryMissing: the operators are not built, or not for the device.
            DeviceUnavailable: the device cannot be used.
        """
        from attenuator.runtime import load  # ONNX Runtime, which asking a server does not need

        self._model: Model = load(folder, device=device, threads=threads)

    def classify(self, inputs: Sequence[dict[str, Any]], options: ClassifyOptions) -> Classification:
        """Tokenizes and runs the inputs as one packed batch.

        Raises:
            InvalidRequest: an input or a knob is wrong.
        """
        from attenuator.runtime import Input, Row
        from attenuator.runtime.batch import by_output
        from attenuator.runtime.explaining import Runner, RunOutcome, answer, check_certainty

        model, manifest = self._model, self._model.manifest
        started = time.perf_counter()
        if options.top_k is not None and not 1 <= options.top_k <= len(manifest.labels):
            allowed = f"a whole number from 1 to {len(manifest.labels)}"
            raise InvalidRequest(f"top_k is {options.top_k}, must be {allowed}", param="top_k", allowed=allowed)
        seed = DEFAULT_SEED if options.seed is UNSET else options.seed
        seed = secrets.randbelow(SEED_HIGH + 1) if seed is None else seed
        check_seed(seed)
        certainty = {"explain": options.explain, "escalate": options.escalate, "min_agreement": options.min_agreement}
        asked = Options.model_validate(certainty)
        check_certainty(model, asked)
        items = [Input.of(item, f"inputs[{index}]") for index, item in enumerate(inputs)]
        encoded = [item.encode(model.encoder, options.truncate) for item in items]
        tokens = [len(item.token_ids) for item in encoded]
        knobs, chosen_by = self._knobs(options, max(tokens))
        tokenized = time.perf_counter()

        async def run(rows: list[Row]) -> RunOutcome:
            return RunOutcome(rows, model.run(rows))

        rows = [Row(item.token_ids, item.type_ids, knobs, seed) for item in encoded]
        reach = options.min_agreement if options.escalate else None
        answered = asyncio.run(answer(model, rows, Runner(run), explain=options.explain, reach=reach))
        computed = time.perf_counter()
        ran_with, expected_agreement = answered.setting(model)
        return Classification(
            model=manifest.name,
            revision=manifest.revision,
            device=str(model.device),
            predictions=tuple(
                self._prediction(result.logits, options, more)
                for result, more in zip(answered.results, answered.fields(), strict=True)
            ),
            knobs=dict(ran_with),
            requested=options.knobs,
            chosen_by=chosen_by,
            expected_agreement=expected_agreement,
            seed=seed,
            tokens=tuple(tokens),
            steps=answered.steps,
            relative_cost=answered.relative_cost,
            timing_ms={"tokenize": (tokenized - started) * 1e3, "compute": (computed - tokenized) * 1e3},
            **by_output(answered.results),
        )

    def close(self) -> None:
        """Does nothing: there are no connections."""

    def chooses_by_length(self, options: ClassifyOptions) -> bool:
        """Whether the knobs follow from the longest of the inputs that are asked together."""
        calibration = self._model.calibration
        by_default = not options.knobs and calibration is not None and calibration.default_agreement is not None
        return options.min_agreement is not None or by_default

    def _knobs(self, options: ClassifyOptions, longest: int) -> tuple[dict[str, KnobValue], ChosenBy]:
        """A value for every knob, and who chose them."""
        from attenuator.runtime.calibrated import default_knobs

        model = self._model
        if options.escalate and options.min_agreement is not None:
            start = self._start(longest, options.min_agreement)
            if start is None or options.knobs:
                start = model.knobs.check(options.knobs)
            return start, "escalation"
        if options.min_agreement is None and not options.knobs:
            return default_knobs(model.knobs, model.calibration, longest), "default"
        if options.min_agreement is None:
            return model.knobs.check(options.knobs), "caller"
        if model.calibration is None:
            raise NotCalibrated(
                f"min_agreement needs a calibration, and bundle '{model.manifest.name}' has none: "
                f"{how_to_calibrate(model.manifest)}, or set knobs",
                param="min_agreement",
            )
        return model.knobs.check(cheapest(model.calibration, longest, options.min_agreement).knobs), "goal"

    def _start(self, longest: int, goal: float) -> dict[str, KnobValue] | None:
        from attenuator.runtime.explaining import judge_of

        return judge_of(self._model).start(longest, goal, lambda knobs: True)

    def _prediction(self, logits: Any, options: ClassifyOptions, more: Mapping[str, Any]) -> Prediction:
        scored = self._model.predict(logits)
        ranking = scored.ranking[: options.top_k] if options.top_k else None
        return Prediction(
            label=scored.label,
            score=scored.score,
            labels=None if scored.labels is None else tuple(scored.labels),
            scores=ranking and tuple(LabelScore(label=label, score=score) for label, score in ranking),
            logits=tuple(scored.logits) if options.return_logits else None,
            **more,
        )
