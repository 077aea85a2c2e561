"""How programs reach the service: `Client` blocks, `AsyncClient` awaits."""

from attenuator.api import Classification, KnobInfo, LabelScore, ModelInfo, Prediction
from attenuator.clients.calls import UNSET
from attenuator.clients.client import AsyncClient, Client
from attenuator.clients.outcomes import Outcome
from attenuator.ranking import RankedDocument, Ranking

__all__ = [
    "UNSET",
    "AsyncClient",
    "Classification",
    "Client",
    "KnobInfo",
    "LabelScore",
    "ModelInfo",
    "Outcome",
    "Prediction",
    "RankedDocument",
    "Ranking",
]
