"""The project's own small text encoder: trained in `examples/`, exported like a Hugging Face checkpoint.

It works on packed batches (sequences end to end, no padding). Attention is one method,
`SelfAttention.attend`, and pooling one module, `SequencePool`; the exporter puts operators in their places.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, Self

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional

from attenuator.errors import KnobOutOfRange
from attenuator.export.encoder_attention import ATTENTIONS, PackedLayout, training_mix
from attenuator.export.families import OWN_ENCODER
from attenuator.ops import part
from attenuator.ops.knobs import check_knob

__all__ = ["Encoder", "EncoderConfig", "SelfAttention", "SequencePool"]

# Wavelengths of the sinusoidal positions go from 2 pi to this many times 2 pi tokens.
POSITION_BASE = 10_000.0
INITIAL_STD = 0.02


@dataclass
class EncoderConfig:
    """Everything that config.json holds; `id2label` is in the order of the logits."""

    vocab_size: int
    hidden_size: int = 128
    num_hidden_layers: int = 2
    num_attention_heads: int = 2
    intermediate_size: int = 256
    attention: str = "yoso"
    hash_bits: int = 8
    normalize: int = 1
    norm_lift: float = 0.0
    hash: str = "gaussian"
    # What it was trained with, by name; the defaults of its bundle.
    knobs: dict[str, int | float] = field(default_factory=dict)
    conv_size: int = 0
    norm: Literal["pre", "post"] = "pre"
    pooling: Literal["first", "mean"] = "mean"
    num_labels: int = 2
    problem_type: Literal["single_label_classification", "multi_label_classification", "regression"] = (
        "single_label_classification"
    )
    id2label: dict[int, str] = field(default_factory=dict)
    max_tokens: int = 512
    type_vocab_size: int = 0
    layer_norm_eps: float = 1e-5
    dropout: float = 0.1
    model_type: str = OWN_ENCODER

    def __post_init__(self) -> None:
        """Check what would otherwise fail late, or not at all."""
        # JSON turns the integer keys into strings.
        self.id2label = {int(key): label for key, label in self.id2label.items()}
        if not self.id2label:
            self.id2label = {index: f"LABEL_{index}" for index in range(self.num_labels)}
        size, heads = self.hidden_size, self.num_attention_heads
        checks = {
            f"model_type is {self.model_type!r}, must be {OWN_ENCODER!r}": self.model_type == OWN_ENCODER,
            f"attention is {self.attention!r}, must be one of: {', '.join(ATTENTIONS)}": self.attention in ATTENTIONS,
            f"norm is {self.norm!r}, must be 'pre' or 'post'": self.norm in ("pre", "post"),
            f"pooling is {self.pooling!r}, must be 'first' or 'mean'": self.pooling in ("first", "mean"),
            f"hidden_size {size} must be even and a multiple of num_attention_heads {heads}": size % heads
            == size % 2
            == 0,
            f"conv_size is {self.conv_size}, must be 0 or odd": self.conv_size == 0 or self.conv_size % 2 == 1,
            f"conv_size needs an attention with a convolution, which {self.attention!r} has not": (
                self.conv_size == 0 or self.has_convolution
            ),
            f"knobs are {self.knobs!r}, must be values by name": isinstance(self.knobs, dict),
            f"id2label must name labels 0 to {self.num_labels - 1}": (
                sorted(self.id2label) == list(range(self.num_labels))
            ),
        }
        values = vars(self)
        for attribute in (item for operator in ATTENTIONS.values() for item in operator.attributes):
            if attribute.name in values:
                value = values[attribute.name]
                checks[f"{attribute.name} is {value!r}, must be {attribute.allowed}"] = attribute.fits(value)
        for sentence, holds in checks.items():
            if not holds:
                raise ValueError(sentence)
        self._check_knobs()

    @property
    def has_convolution(self) -> bool:
        """Whether the attention's operator takes a convolution's kernel."""
        operator = ATTENTIONS.get(self.attention)
        return operator is not None and any(item.name == "conv_weight" for item in operator.inputs)

    def _check_knobs(self) -> None:
        """Refuses what is no knob of the attention's operator, and values that it does not take."""
        knobs = {knob.name: knob for knob in ATTENTIONS[self.attention].knobs}
        for name, value in self.knobs.items():
            if name not in knobs:
                raise ValueError(f"knobs names {name!r}, must be of: {', '.join(knobs) or 'none'}")
            try:
                check_knob(knobs[name], value)
            except KnobOutOfRange as error:
                raise ValueError(str(error)) from None

    @property
    def head_dim(self) -> int:
        """Channels of one head."""
        return self.hidden_size // self.num_attention_heads

    @classmethod
    def load(cls, folder: Path | str) -> Self:
        """Read config.json of a checkpoint folder."""
        values: dict[str, Any] = json.loads((Path(folder) / "config.json").read_text(encoding="utf-8"))
        unknown = sorted(set(values) - {item.name for item in fields(cls)})
        if unknown:
            raise ValueError(f"config.json has unknown fields: {', '.join(unknown)}")
        return cls(**values)

    def save(self, folder: Path | str) -> None:
        """Write config.json into a checkpoint folder."""
        text = json.dumps(asdict(self), indent=2) + "\n"
        (Path(folder) / "config.json").write_text(text, encoding="utf-8")


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
    """Self-attention over a packed batch; `attend` is what the exporter replaces."""

    def __init__(self, config: EncoderConfig, layer: int) -> None:
        super().__init__()
        size = config.hidden_size
        self.layer = layer
        self.kind = config.attention
        self.num_heads = config.num_attention_heads
        self.head_dim = config.head_dim
        self.hash_bits = config.hash_bits
        self.normalize = config.normalize
        self.norm_lift = config.norm_lift
        self.hash = config.hash
        self.query = nn.Linear(size, size)
        self.key = nn.Linear(size, size)
        self.value = nn.Linear(size, size)
        self.output = nn.Linear(size, size)
        self.conv_weight: nn.Parameter | None = None
        if config.conv_size:
            self.conv_weight = nn.Parameter(torch.randn(self.num_heads, config.conv_size) / config.conv_size)
        # What eager forwards run with; a knob that is absent has its exact value.
        self.knobs: Mapping[str, int | float] = {}
        self.generator: torch.Generator | None = None
        # Whether to compute through the operator, in memory linear in the length, where it can be differentiated.
        self.through_operator = False

    def attend(self, query: Tensor, key: Tensor, value: Tensor, hidden: Tensor, cu_seqlens: Tensor) -> Tensor:
        """Mix the values of each sequence.

        Args:
            query: `[T, heads * head_dim]`.
            key: as query.
            value: as query.
            hidden: `[T, hidden]`, the input of the value projection, for operators that compute it.
            cu_seqlens: int32 `[B+1]`.

        Returns:
            `[T, heads * head_dim]`.
        """
        layout = PackedLayout(cu_seqlens)
        mix = training_mix(self.kind) if self.through_operator else None
        if mix is not None and (packed := mix(query, key, value, cu_seqlens, self)) is not None:
            if self.conv_weight is not None:
                around = part(self.kind, "eager").sequence_conv(layout.pad(value, self.num_heads), self.conv_weight)
                packed = packed + layout.pack(around)
            return packed
        query, key, value = (layout.pad(rows, self.num_heads) for rows in (query, key, value))
        mixed: Tensor = part(self.kind, "eager").attend(query, key, value, layout.is_token, self)
        return layout.pack(mixed)

    def forward(self, hidden: Tensor, cu_seqlens: Tensor) -> Tensor:
        """`[T, hidden]` to `[T, hidden]`."""
        mixed = self.attend(self.query(hidden), self.key(hidden), self.value(hidden), hidden, cu_seqlens)
        projected: Tensor = self.output(mixed)
        return projected


class EncoderLayer(nn.Module):
    """Attention and feed-forward, each with a residual; layer norms before (pre) or after (post) the two."""

    def __init__(self, config: EncoderConfig, layer: int) -> None:
        super().__init__()
        self.norm = config.norm
        self.attention = SelfAttention(config, layer)
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
        self.layers = nn.ModuleList(EncoderLayer(config, layer) for layer in range(config.num_hidden_layers))
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
