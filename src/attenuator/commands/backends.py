"""Backends of `attenuator classify`: a server, or a bundle in this process. Both answer in the client's types."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from attenuator.api import Classification
from attenuator.classify_request import Aggregation
from attenuator.clients.calls import UNSET, Unset
from attenuator.clients.client import Client
from attenuator.errors import AttenuatorError, InvalidRequest

if TYPE_CHECKING:
    from attenuator.calibration import Calibration
    from attenuator.runtime import Device


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
        candidate_labels: labels to choose from, or None for the model's own.
        hypothesis_template: what the model judges of each text, or None for the usual sentence.
        multi_label: score each of `candidate_labels` by itself.
        aggregation: how tokens become entities, or None for the usual way.
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
    candidate_labels: list[str] | None = None
    hypothesis_template: str | None = None
    multi_label: bool = False
    aggregation: Aggregation | None = None

    def arguments(self) -> dict[str, Any]:
        """The keyword arguments of `Client.classify` that ask for this."""
        return {each.name: getattr(self, each.name) for each in fields(self) if each.name != "knobs"} | self.knobs

    def here(self) -> dict[str, Any]:
        """The keyword arguments of `LocalModel.classify` that ask for this."""
        arguments = self.arguments()
        if self.max_latency_ms is None:
            del arguments["max_latency_ms"]
        if self.seed is UNSET:
            del arguments["seed"]
        return arguments


class Backend(Protocol):
    """Answers a few inputs at a time, each as a request of its own: its neighbours do not choose its knobs."""

    def classify_each(
        self, inputs: Sequence[dict[str, Any]], options: ClassifyOptions
    ) -> Sequence[Classification | AttenuatorError]:
        """An answer for each input, or why it has none."""

    def close(self) -> None:
        """Ends connections."""


class ServerBackend:
    """Asks a server."""

    def __init__(self, client: Client, further: Mapping[str, Any]) -> None:
        """Takes the server.

        Args:
            client: of the server.
            further: arguments of `Client.classify_many` that only a server takes.
        """
        self._client = client
        self._further = further

    def classify_each(
        self, inputs: Sequence[dict[str, Any]], options: ClassifyOptions
    ) -> list[Classification | AttenuatorError]:
        """See `Client.classify_many`."""
        outcomes = self._client.classify_many(list(inputs), **{**options.arguments(), **self._further})
        return [outcome.error or outcome.result() for outcome in outcomes]

    def close(self) -> None:
        """Closes the connections."""
        self._client.close()


class BundleBackend:
    """Runs a bundle in this process."""

    def __init__(self, folder: Path, *, device: "Device", threads: int | None = None) -> None:
        """Loads the bundle.

        Args:
            folder: the bundle.
            device: where it runs.
            threads: of the CPU; every core by default.

        Raises:
            BundleError: the bundle is damaged or does not run here.
            OperatorLibraryMissing: the operators are not built, or not for the device.
            DeviceUnavailable: the device cannot be used.
        """
        from attenuator.local import on_device  # ONNX Runtime, which asking a server does not need

        self._model = on_device(folder, device, threads=threads)

    @property
    def calibration(self) -> "Calibration | None":
        """What its settings are worth; None where that was not measured."""
        return self._model.model.calibration

    def classify_each(
        self, inputs: Sequence[dict[str, Any]], options: ClassifyOptions
    ) -> list[Classification | InvalidRequest]:
        """See `LocalModel.classify_each`."""
        return self._model.classify_each(inputs, **options.here())

    def close(self) -> None:
        """Ends its threads."""
        self._model.close()
