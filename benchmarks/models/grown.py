"""A BERT that computes what a smaller one does, from which a larger one goes on to learn.

Minutes of one processor are too few for four layers of 256 channels that start from nothing. So the larger model begins
as the smaller: every channel, head and inner unit stands twice and weights that read them are halved, which changes no
output (Net2Net, Chen, Goodfellow and Shlens, 2016); further layers begin with outputs of zero, so that they only
normalise once more. A little noise, and dropout, let the twins part.
"""

from typing import Any

import torch
from transformers import BertConfig, BertForSequenceClassification

NOISE = 0.02  # of a weight's own deviation


def doubled(name: str, weight: torch.Tensor) -> torch.Tensor:
    """A weight of the wider model; a matrix reads twins, each with half of its weight.

    Args:
        name: of the parameter.
        weight: `[out]`, `[rows, channels]` of a table, or `[out, in]`.
    """
    if name.endswith("classifier.bias"):
        return weight
    if weight.ndim == 1:
        return weight.repeat(2)
    if "embeddings" in name:
        return weight.repeat(1, 2)
    return weight.repeat(1 if name.endswith("classifier.weight") else 2, 2) / 2


@torch.no_grad()
def grown(small: Any, layers: int) -> Any:
    """A model of twice the width and so many layers that computes nearly what a small one does.

    Args:
        small: a `BertForSequenceClassification`.
        layers: of the new one, at least as many.
    """
    sizes = small.config.to_dict()
    for size in ("hidden_size", "num_attention_heads", "intermediate_size"):
        sizes[size] *= 2
    large = BertForSequenceClassification(BertConfig(**{**sizes, "num_hidden_layers": layers}))
    values = large.state_dict()
    for name, weight in small.state_dict().items():
        wide = doubled(name, weight)
        spread = float(wide.std()) if wide.ndim == 2 and "embeddings" not in name else 0.0
        values[name] = wide + NOISE * spread * torch.randn_like(wide)
    for layer in range(small.config.num_hidden_layers, layers):
        for part in ("attention.output.dense", "output.dense"):
            values[f"bert.encoder.layer.{layer}.{part}.weight"].zero_()
    large.load_state_dict(values)
    return large
