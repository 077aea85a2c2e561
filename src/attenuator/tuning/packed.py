"""The project's own encoder as a model of transformers is called: padded batches, loss beside logits."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers.modeling_outputs import SequenceClassifierOutput

from attenuator.export.encoder import Encoder

__all__ = ["PackedClassifier", "cu_seqlens_of"]


def cu_seqlens_of(is_token: Tensor) -> Tensor:
    """Where the texts of a padded batch begin once padding is taken out, int32 `[batch + 1]`.

    Args:
        is_token: bool `[batch, tokens]`.
    """
    return functional.pad(is_token.sum(dim=1).cumsum(0), (1, 0)).to(torch.int32)


class PackedClassifier(nn.Module):
    """Takes padding out before the encoder, so that it costs nothing.

    Args:
        encoder: what is trained, in place.
    """

    def __init__(self, encoder: Encoder) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor,
        token_type_ids: Tensor | None = None,
        labels: Tensor | None = None,
    ) -> SequenceClassifierOutput:
        """Classify a padded batch.

        Args:
            input_ids: int64 `[batch, tokens]`.
            attention_mask: `[batch, tokens]`, 0 on padding, which follows the tokens.
            token_type_ids: int64 `[batch, tokens]`, where the encoder has token types.
            labels: int64 `[batch]`, or float32 `[batch, labels]` for several labels or a score; None for no loss.

        Returns:
            Logits `[batch, labels]` and the mean loss.
        """
        is_token = attention_mask.bool()
        starts = cu_seqlens_of(is_token)
        positions = torch.arange(input_ids.shape[1], device=input_ids.device).expand_as(input_ids)
        types = None if token_type_ids is None else token_type_ids[is_token]
        logits = self.encoder(input_ids[is_token], positions[is_token], starts, types)
        return SequenceClassifierOutput(loss=None if labels is None else self.loss(logits, labels), logits=logits)

    def loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Mean loss of the encoder's task; arguments as in `forward`."""
        match self.encoder.config.problem_type:
            case "multi_label_classification":
                return functional.binary_cross_entropy_with_logits(logits, labels)
            case "regression":
                return functional.mse_loss(logits, labels)
            case _:
                return functional.cross_entropy(logits, labels)
