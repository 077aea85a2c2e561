"""How programs and people reach the service: `Client`, `AsyncClient`, and the commands `classify` and `inspect`."""

from attenuator.api import Classification, KnobInfo, LabelScore, ModelInfo, Prediction
from attenuator.clients.calls import UNSET
from attenuator.clients.client import AsyncClient, Client

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
