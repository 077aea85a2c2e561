"""What the own encoder's config.json holds, and what it refuses."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, Self

from attenuator.export.encoder_attention import ATTENTIONS, attributes_of, check_knobs, check_values, sizes_of
from attenuator.export.families import OWN_ENCODER

__all__ = ["EncoderConfig"]

# YOSO's attributes and its convolution have fields of their own, from before there were others.
YOSO_FIELDS = ("hash_bits", "normalize", "norm_lift", "hash")


@dataclass
class EncoderConfig:
    """Everything that config.json holds; `id2label` is in the order of the logits.

    Attributes:
        attention: key of the operator.
        attributes: the operator's own attributes by name, those of its spec; the spec's defaults hold for the others.
        sizes: of the operator's trained weights, by name, where they do not follow from the rest; see
            `encoder_attention`.
        knobs: what it was trained with, by name; the defaults of its bundle.
        conv_size: of the convolution's kernel `[heads, conv_size]`, for operators that have one; 0 is none.
    """

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
    attributes: dict[str, int | float | str] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)
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
            f"id2label must name labels 0 to {self.num_labels - 1}": (
                sorted(self.id2label) == list(range(self.num_labels))
            ),
        }
        for sentence, holds in checks.items():
            if not holds:
                raise ValueError(sentence)
        self._check_attention()

    @property
    def has_convolution(self) -> bool:
        """Whether the attention's operator takes a convolution's kernel."""
        operator = ATTENTIONS.get(self.attention)
        return operator is not None and any(item.name == "conv_weight" for item in operator.inputs)

    def _check_attention(self) -> None:
        """Checks attributes, sizes and knobs by the operator's spec; YOSO's attributes go to their own fields."""
        values = self.attributes
        if self.attention == "yoso" and isinstance(values, dict):
            values = {name: getattr(self, name) for name in YOSO_FIELDS} | values
        check_values("attributes", attributes_of(self.attention), values)
        if self.attention == "yoso":
            for name in YOSO_FIELDS:
                setattr(self, name, values[name])
            self.attributes = {name: value for name, value in values.items() if name not in YOSO_FIELDS}
        check_values("sizes", sizes_of(self.attention), self.sizes)
        check_knobs(ATTENTIONS[self.attention].knobs, self.knobs)

    @property
    def all_attributes(self) -> dict[str, int | float | str]:
        """The operator's own attributes by name, the spec's defaults filled in."""
        filled = {name: item.default for name, item in attributes_of(self.attention).items()} | self.attributes
        if self.attention == "yoso":
            filled |= {name: getattr(self, name) for name in YOSO_FIELDS}
        return {name: value for name, value in filled.items() if value is not None}

    def size(self, name: str) -> int:
        """A size of the operator's trained weights, its default where `sizes` does not name it."""
        return int(self.sizes.get(name, sizes_of(self.attention)[name].default or 0))

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
