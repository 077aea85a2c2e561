"""The project's own small text encoder: trained in `examples/`, exported like a Hugging Face checkpoint.

It works on packed batches (sequences end to end, no padding). Attention is one method,
`SelfAttention.attend`, and pooling one module, `SequencePool`; the exporter puts operators in their places.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Literal, Self

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional

from attenuator.export.encoder_attention import PackedLayout, drawn_weights, has_keys, training_mix
from attenuator.export.encoder_config import EncoderConfig
from attenuator.ops import part

__all__ = ["Encoder", "EncoderConfig", "SelfAttention", "SequencePool"]

# Wavelengths of the sinusoidal positions go from 2 pi to this many times 2 pi tokens.
POSITION_BASE = 10_000.0
INITIAL_STD = 0.02


class SinusoidalPositions(nn.Module):
    """Positions of "Attention Is All You Need" (section 3.5) computed from `position_ids`, so no length is built in."""

    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        steps = torch.arange(0, hidden_size, 2, dtype=torch.float32)
        self.frequencies: Tensor
        self.register_buffer("frequencies", torch.exp(-math.log(POSITION_BASE) * steps / hidden_size), persistent=False)
        # Token embeddings are small at the start; a learned factor keeps positions from drowning them.
        self.scale = nn.Parameter(torch.tensor(INITIAL_STD))

    def forward(self, position_ids: Tensor) -> Tensor:
        """`[T]` to `[T, hidden]`."""
        angles = position_ids[:, None].to(self.frequencies.dtype) * self.frequencies
        return self.scale * torch.cat([angles.sin(), angles.cos()], dim=-1)


class SelfAttention(nn.Module):
    """Self-attention over a packed batch; `attend` is what the exporter replaces.

    Args:
        config: the architecture.
        layer: its index.
        first: the first layer's, which owns the weights that all layers share; None where this is it.

    Attributes:
        attributes: the operator's own, by name.
        knobs: what eager forwards run with; a knob that is absent has its exact value.
        generator: what random numbers are drawn from; PyTorch's own where it is None.
        through_operator: whether to compute through the operator, in memory linear in the length, where it can be
            differentiated.
    """

    def __init__(self, config: EncoderConfig, layer: int, first: SelfAttention | None = None) -> None:
        super().__init__()
        size = config.hidden_size
        self.layer = layer
        self.kind = config.attention
        self.num_heads = config.num_attention_heads
        self.head_dim = config.head_dim
        self.attributes = config.all_attributes
        self.query = nn.Linear(size, size)
        # An operator without such an input has keys that are its queries.
        self.key = nn.Linear(size, size) if has_keys(config.attention) else None
        self.value = nn.Linear(size, size)
        self.output = nn.Linear(size, size)
        own = drawn_weights(config, "parameters") | ({} if first else drawn_weights(config, "shared_parameters"))
        for name, parameter in own.items():
            self.register_parameter(name, parameter)
        self.own_weights = tuple(own)
        # Inside a tuple, where the first layer is no submodule of the others.
        self.first = (first,)
        self.knobs: Mapping[str, int | float] = {}
        self.generator: torch.Generator | None = None
        self.through_operator = False

    @property
    def weights(self) -> dict[str, Tensor]:
        """The operator's own trained weights by input name, those that all layers share among them."""
        [first] = self.first
        shared = {} if first is None else first.weights
        own = {name: getattr(self, name) for name in self.own_weights}
        return shared | {name: weight for name, weight in own.items() if weight is not None}

    def attend(self, query: Tensor, key: Tensor, value: Tensor, hidden: Tensor, cu_seqlens: Tensor) -> Tensor:
        """Mix the values of each sequence.

        Args:
            query: `[T, heads * head_dim]`.
            key: as query; the queries themselves where the operator has no keys of their own.
            value: as query.
            hidden: `[T, hidden]`, the input of the value projection, for operators that compute it.
            cu_seqlens: int32 `[B+1]`.

        Returns:
            `[T, heads * head_dim]`.
        """
        layout = PackedLayout(cu_seqlens)
        mix = training_mix(self.kind) if self.through_operator else None
        if mix is not None:
            packed = mix(query, key, value, cu_seqlens, self)
            if "conv_weight" in (weights := self.weights):
                convolve = part(self.kind, "eager").sequence_conv
                packed = packed + layout.pack(convolve(layout.pad(value, self.num_heads), weights["conv_weight"]))
            return packed
        query, key, value = (layout.pad(rows, self.num_heads) for rows in (query, key, value))
        mixed: Tensor = part(self.kind, "eager").attend(query, key, value, layout.is_token, self)
        return layout.pack(mixed)

    def forward(self, hidden: Tensor, cu_seqlens: Tensor) -> Tensor:
        """`[T, hidden]` to `[T, hidden]`."""
        query = self.query(hidden)
        key = query if self.key is None else self.key(hidden)
        mixed = self.attend(query, key, self.value(hidden), hidden, cu_seqlens)
        projected: Tensor = self.output(mixed)
        return projected


class EncoderLayer(nn.Module):
    """Attention and feed-forward, each with a residual; layer norms before (pre) or after (post) the two."""

    def __init__(self, config: EncoderConfig, layer: int, first: SelfAttention | None = None) -> None:
        super().__init__()
        self.norm = config.norm
        self.attention = SelfAttention(config, layer, first)
        self.attention_norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.intermediate = nn.Linear(config.hidden_size, config.intermediate_size)
        self.output = nn.Linear(config.intermediate_size, config.hidden_size)
        self.output_norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.dropout = nn.Dropout(config.dropout)

    def feed_forward(self, hidden: Tensor) -> Tensor:
        """`[T, hidden]` to `[T, hidden]`, exact GELU."""
        projected: Tensor = self.output(functional.gelu(self.intermediate(hidden)))
        return projected

    def forward(self, hidden: Tensor, cu_seqlens: Tensor) -> Tensor:
        """`[T, hidden]` to `[T, hidden]`."""
        if self.norm == "pre":
            hidden = hidden + self.dropout(self.attention(self.attention_norm(hidden), cu_seqlens))
            return hidden + self.dropout(self.feed_forward(self.output_norm(hidden)))
        hidden = self.attention_norm(hidden + self.dropout(self.attention(hidden, cu_seqlens)))
        normed: Tensor = self.output_norm(hidden + self.dropout(self.feed_forward(hidden)))
        return normed


class SequencePool(nn.Module):
    """One vector a sequence; the exporter puts the operator of the same name in its place."""

    def __init__(self, mode: Literal["first", "mean"]) -> None:
        super().__init__()
        self.mode = mode

    def forward(self, hidden: Tensor, cu_seqlens: Tensor) -> Tensor:
        """`[T, hidden]` to `[B, hidden]`; zeros for an empty sequence."""
        starts = cu_seqlens.long()
        lengths = torch.diff(starts)
        if self.mode == "first":
            pooled = hidden.new_zeros(lengths.numel(), hidden.shape[1])
            present = (lengths > 0).nonzero()[:, 0]
            return pooled.index_copy(0, present, hidden[starts[:-1][present]])
        rows = torch.arange(lengths.numel(), device=hidden.device).repeat_interleave(lengths)
        sums = hidden.new_zeros(lengths.numel(), hidden.shape[1]).index_add(0, rows, hidden)
        return sums / lengths.clamp(min=1)[:, None]


class Encoder(nn.Module):
    """A transformer text classifier on packed batches.

    Args:
        config: the architecture.
    """

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.config = config
        self.embeddings = nn.Embedding(config.vocab_size, config.hidden_size)
        self.token_types = nn.Embedding(config.type_vocab_size, config.hidden_size) if config.type_vocab_size else None
        self.positions = SinusoidalPositions(config.hidden_size)
        self.embedding_norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.layers = nn.ModuleList()
        first: SelfAttention | None = None
        for index in range(config.num_hidden_layers):
            layer = EncoderLayer(config, index, first)
            first = first or layer.attention
            self.layers.append(layer)
        # A post-norm layer ends in its own layer norm already.
        self.final_norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps) if config.norm == "pre" else None
        self.pool = SequencePool(config.pooling)
        self.classifier = nn.Linear(config.hidden_size, config.num_labels)
        self.dropout = nn.Dropout(config.dropout)
        self.apply(_initialise)

    def encode(
        self, input_ids: Tensor, position_ids: Tensor, cu_seqlens: Tensor, token_type_ids: Tensor | None = None
    ) -> Tensor:
        """Pooled representation `[B, hidden]`; arguments as in `forward`."""
        hidden = self.embeddings(input_ids) + self.positions(position_ids)
        if self.token_types is not None:
            types = torch.zeros_like(input_ids) if token_type_ids is None else token_type_ids
            hidden = hidden + self.token_types(types)
        hidden = self.dropout(self.embedding_norm(hidden))
        for layer in self.layers:
            hidden = layer(hidden, cu_seqlens)
        if self.final_norm is not None:
            hidden = self.final_norm(hidden)
        pooled: Tensor = self.pool(hidden, cu_seqlens)
        return pooled

    def forward(
        self, input_ids: Tensor, position_ids: Tensor, cu_seqlens: Tensor, token_type_ids: Tensor | None = None
    ) -> Tensor:
        """Classify a packed batch.

        Args:
            input_ids: int64 `[T]`.
            position_ids: int64 `[T]`, counted from 0 in each sequence.
            cu_seqlens: int32 `[B+1]`, starts of the sequences and, last, T.
            token_type_ids: int64 `[T]`, where the config has token types.

        Returns:
            logits `[B, num_labels]`.
        """
        logits: Tensor = self.classifier(self.dropout(self.encode(input_ids, position_ids, cu_seqlens, token_type_ids)))
        return logits

    def set_knobs(self, knobs: Mapping[str, int | float], seed: int | None = None) -> None:
        """Let eager forwards run with these knobs; a knob that is absent has its exact value.

        For training and for checks without the operators: the random streams are not those of the operators.
        """
        generator = None if seed is None else torch.Generator().manual_seed(seed)
        for module in self.modules():
            if isinstance(module, SelfAttention):
                module.knobs, module.generator = knobs, generator

    def compute_through_operator(self, enabled: bool = True) -> None:
        """Let training compute attention as it is served, in memory linear in the length, where that has gradients.

        Other forward passes stay what graphs are compared with at export: PyTorch alone.
        """
        for module in self.modules():
            if isinstance(module, SelfAttention):
                module.through_operator = enabled

    def save_pretrained(self, folder: Path | str) -> None:
        """Write config.json and model.safetensors; the tokenizer is saved next to them by its owner."""
        path = Path(folder)
        path.mkdir(parents=True, exist_ok=True)
        self.config.save(path)
        save_file({name: tensor.contiguous() for name, tensor in self.state_dict().items()}, path / "model.safetensors")

    @classmethod
    def from_pretrained(cls, folder: Path | str) -> Self:
        """Load a checkpoint folder, in evaluation mode."""
        model = cls(EncoderConfig.load(folder))
        model.load_state_dict(load_file(Path(folder) / "model.safetensors"))
        return model.eval()


def _initialise(module: nn.Module) -> None:
    """Normal(0, 0.02) weights and zero biases, as BERT."""
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=INITIAL_STD)
    if isinstance(module, nn.Linear):
        nn.init.zeros_(module.bias)
