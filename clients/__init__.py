"""How programs and people reach the service: `Client`, `AsyncClient`, and the commands `classify` and `inspect`."""

from attenuator.clients.calls import UNSET
from attenuator.clients.client import AsyncClient, Client
from attenuator.clients.results import Classification, KnobInfo, LabelScore, ModelInfo, Prediction

__all__ = [
    "UNSET",
    "AsyncClient",
    "Classification",
    "Client",
    "KnobInfo",
    "LabelScore",
    "ModelInfo",
    "Prediction",
]
