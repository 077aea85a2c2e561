"""What DeBERTa and MPNet add to their scores for the distance of two tokens, as tables for the attention operator.

Buckets of distances come from the families' own code, logarithms in fp32 and all, and tables hold what the layers'
projections make of the embeddings of distances: both are constants of a trained model, computed once.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["Tables", "has_terms", "prepare_deberta", "prepare_deberta_v2", "prepare_mpnet"]


class Tables(nn.Module):
    """A layer's tables as buffers, by the names of the operator's inputs; the graph holds them as constants."""

    def __init__(self, **tables: Tensor) -> None:
        super().__init__()
        for name, tensor in tables.items():
            self.register_buffer(name, tensor.detach().clone(), persistent=False)


def has_terms(config: Any) -> bool:
    """Whether a DeBERTa's scores depend on distances; without relative attention they are plain products."""
    return bool(config.relative_attention and {"c2p", "p2c"} & set(config.pos_att_type or ()))


def score_scale(attention: Any, terms: int) -> float:
    """DeBERTa's factor on the scores: 1 / sqrt(head_dim * terms), the product of queries and keys counted."""
    return 1 / math.sqrt(attention.query_proj.out_features // attention.num_attention_heads * terms)


def distances(config: Any) -> Tensor:
    """Every i - j that the model's positions allow, ascending, int64 `[2 * reach + 1]`."""
    reach = config.max_position_embeddings
    return torch.arange(-reach, reach + 1)


def prepare_mpnet(model: Any) -> None:
    """Gives each layer of MPNet the bias of every distance, which all layers share."""
    encoder = model.base_model.encoder
    with torch.no_grad():
        # Its bucket is that of j - i.
        buckets = encoder.relative_position_bucket(-distances(model.config))
    for layer in encoder.layer:
        layer.tables = Tables(buckets=buckets, bias=encoder.relative_attention_bias.weight)


def prepare_deberta_v2(model: Any) -> None:
    """Gives each layer of DeBERTa-v2 or v3 its tables and factor, and the first one the convolution behind it."""
    from transformers.models.deberta_v2.modeling_deberta_v2 import make_log_bucket_position

    config, encoder = model.config, model.base_model.encoder
    for layer in encoder.layer:
        attention, kinds = layer.attention.self, layer.attention.self.pos_att_type
        layer.score_scale = score_scale(attention, 1 + ("c2p" in kinds) + ("p2c" in kinds))
        layer.convolution = None
        if not has_terms(config):
            layer.tables = Tables()
            continue
        buckets, span = distances(config), attention.pos_ebd_size
        if attention.position_buckets > 0 and attention.max_relative_positions > 0:
            buckets = make_log_bucket_position(buckets, attention.position_buckets, attention.max_relative_positions)
        own = attention.share_att_key
        with torch.no_grad():
            embeddings = encoder.get_rel_embedding()[: 2 * span]
            tables = {"buckets": (buckets.long() + span).clamp(0, 2 * span - 1)}
            if "c2p" in kinds:
                tables["pos_key"] = (attention.key_proj if own else attention.pos_key_proj)(embeddings)
            if "p2c" in kinds:
                tables["pos_query"] = (attention.query_proj if own else attention.pos_query_proj)(embeddings)
        layer.tables = Tables(**tables)
    if encoder.conv is not None:
        encoder.layer[0].convolution = encoder.conv
        add_dense_kernel(encoder.conv)


def add_dense_kernel(convolution: Any) -> None:
    """Gives a convolution along the tokens its weights as one linear layer over the neighbours laid side by side."""
    conv = convolution.conv
    size, channels = conv.kernel_size[0], conv.in_channels
    weight = torch.zeros(conv.out_channels, size, channels)
    inputs, outputs = channels // conv.groups, conv.out_channels // conv.groups
    for group in range(conv.groups):
        rows = slice(group * outputs, (group + 1) * outputs)
        weight[rows, :, group * inputs : (group + 1) * inputs] = conv.weight.detach()[rows].transpose(1, 2)
    convolution.side_by_side = nn.Linear(size * channels, conv.out_channels)
    convolution.side_by_side.weight = nn.Parameter(weight.flatten(1), requires_grad=False)
    convolution.side_by_side.bias = conv.bias


def prepare_deberta(model: Any) -> None:
    """Gives each layer of the first DeBERTa its tables, factor and separate projections."""
    config, encoder = model.config, model.base_model.encoder
    replace_norms(model)
    for layer in encoder.layer:
        attention, kinds = layer.attention.self, layer.attention.self.pos_att_type
        split_projections(attention)
        layer.score_scale = score_scale(attention, 1 + len(kinds))
        layer.convolution = None
        if not has_terms(config):
            layer.tables = Tables()
            continue
        span = attention.max_relative_positions
        with torch.no_grad():
            embeddings = encoder.get_rel_embedding()
            tables = {"buckets": (distances(config) + span).clamp(0, 2 * span - 1)}
            if "c2p" in kinds:
                tables["pos_key"] = attention.pos_proj(embeddings)
            if "p2c" in kinds:
                tables["pos_query"] = attention.pos_q_proj(embeddings)
        layer.tables = Tables(**tables)


def split_projections(attention: Any) -> None:
    """Gives the first DeBERTa's attention the projections that later ones have; its own lie head by head in one."""
    heads, channels = attention.num_attention_heads, attention.in_proj.in_features
    weights = attention.in_proj.weight.detach().view(heads, 3, -1, channels)
    biases = {"query_proj": attention.q_bias, "key_proj": None, "value_proj": attention.v_bias}
    for index, (name, bias) in enumerate(biases.items()):
        linear = nn.Linear(channels, attention.all_head_size, bias=bias is not None)
        linear.weight = nn.Parameter(weights[:, index].reshape(-1, channels), requires_grad=False)
        if bias is not None:
            linear.bias = bias
        setattr(attention, name, linear)


def replace_norms(model: Any) -> None:
    """Puts PyTorch's layer norm in the place of the first DeBERTa's own, which computes the same in many steps."""
    for module in list(model.modules()):
        own = getattr(module, "LayerNorm", None)
        if own is not None and not isinstance(own, nn.LayerNorm):
            norm = nn.LayerNorm(len(own.weight), own.variance_epsilon)
            norm.weight, norm.bias = own.weight, own.bias
            module.LayerNorm = norm
