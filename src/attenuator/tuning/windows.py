"""Models with attention within windows, as they are where every token attends to all."""

from __future__ import annotations

from typing import Any

import transformers

__all__ = ["without_windows"]

LONGFORMER, ROBERTA = "longformer", "roberta"
# Projections that a Longformer has for its global token alone.
OF_THE_GLOBAL_TOKEN = ("query_global", "key_global", "value_global")
# What says what a config is, not how its model is built.
OF_THE_CONFIG = ("model_type", "architectures", "transformers_version")


def without_windows(model: Any) -> Any:
    """A Longformer as the RoBERTa that such models are made from; other models as they are.

    Embeddings, as many positions, layers and classifier stay. Its windows go, and so do the projections of the global
    token, which then attends by those of all tokens: what is lost has to be learnt again.

    Args:
        model: a sequence classifier of transformers.
    """
    if model.config.model_type != LONGFORMER:
        return model
    shared = transformers.RobertaConfig().to_dict().keys() - set(OF_THE_CONFIG)
    stored = model.config.to_dict()
    config = transformers.RobertaConfig(**{name: stored[name] for name in sorted(shared & stored.keys())})
    weights = {
        name.replace(f"{LONGFORMER}.", f"{ROBERTA}.", 1): value
        for name, value in model.state_dict().items()
        if not any(f".{part}." in name for part in OF_THE_GLOBAL_TOKEN)
    }
    other = transformers.RobertaForSequenceClassification(config)
    other.load_state_dict(weights)
    return other
