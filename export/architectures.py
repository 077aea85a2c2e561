"""How the classifiers of each family are laid out: where embeddings, layers and head sit, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from attenuator.errors import ExportError
from attenuator.export import checks, layers, positions, relative
from attenuator.export.computing import computing, computing_encoder, computing_windows
from attenuator.export.eager import (
    eager_big_bird,
    eager_encoder,
    eager_nystromformer,
    eager_transformers,
    eager_yoso,
    encoder_blocks,
    token_types,
)
from attenuator.export.families import FAMILIES, REFUSED
from attenuator.export.packed import PackedBatch
from attenuator.ops import BASELINE

__all__ = ["LAYOUTS", "Architecture", "architecture_of", "of_tokens"]


def no_preparation(model: Any) -> None:
    """Most models are traced as they are."""


def trained_landmarks(config: Any) -> dict[str, float]:
    """As many as transformers computes with: none, which is exact softmax, where it has one for each token."""
    return {"num_landmarks": 0 if config.num_landmarks == config.segment_means_seq_len else config.num_landmarks}


@dataclass(frozen=True)
class Architecture:
    """How the sequence classifiers of some families are taken apart.

    Attributes:
        embed: model, graph inputs -> `[T, C]`.
        blocks: the layers in the order of their calls, a shared one repeated.
        layer: what one layer computes.
        head: model, pooled `[B, C]` -> logits `[B, labels]`.
        tokens_head: of the family's token classifiers, in its place: model, `[T, C]` -> logits `[T, labels]`.
        norm: what follows the last layer, before pooling.
        operators: attention operators that compute what the model was trained with.
        attributes: operator attributes from the config, by operator key.
        pooling: `first` or `mean`, or `none` where every token is classified.
        max_tokens: positions the model has.
        position_offset: first position id.
        check: raises ExportError for configs that other code paths would compute.
        check_training: raises ExportError for configs that the family's own code cannot train with.
        prepare: changes to the modules before tracing.
        global_token: whether each layer attends from the first token in a node of its own; not in token classifiers.
        convolves: whether attention adds a convolution over neighbouring rows; then no rows are selected.
        knob_defaults: values by knob that the checkpoint suggests; the others have the operator's default.
        eager: the family's own forward pass at the exact value, for one sequence: model, token ids and token types
            int64 `[T]` -> logits `[labels]`, or `[T, labels]`.
        reads_tokens: whether every token is classified.
    """

    embed: Callable[[Any, dict[str, Tensor]], Tensor]
    blocks: Callable[[Any], list[Any]]
    layer: layers.Layer
    head: Callable[[Any, Tensor], Tensor]
    tokens_head: Callable[[Any, Tensor], Tensor] = lambda model, hidden: model.classifier(hidden)
    norm: Callable[[Any, Tensor], Tensor] = lambda _, hidden: hidden
    operators: Callable[[Any], tuple[str, ...]] = lambda _: computing(BASELINE.key)
    attributes: Callable[[Any], dict[str, Any]] = lambda _: {}
    pooling: Callable[[Any], str] = lambda _: "first"
    max_tokens: Callable[[Any], int] = lambda config: config.max_position_embeddings
    position_offset: Callable[[Any], int] = lambda _: 0
    check: Callable[[Any], None] = lambda _: None
    check_training: Callable[[Any], None] = lambda _: None
    prepare: Callable[[Any], None] = no_preparation
    global_token: bool = False
    convolves: Callable[[Any], bool] = lambda _: False
    knob_defaults: Callable[[Any], dict[str, float]] = lambda _: {}
    eager: Callable[[Any, Tensor, Tensor], Tensor] = eager_transformers
    reads_tokens: bool = False

    def logits(self, model: Any, batch: PackedBatch) -> Tensor:
        """Runs the family's classifier on a packed batch.

        Args:
            model: the trained model.
            batch: graph inputs and the attention operator.

        Returns:
            `[B, labels]`, or `[T, labels]` where every token is classified.
        """
        hidden = self.embed(model, batch.inputs)
        for block in self.blocks(model):
            hidden = self.layer(block, hidden, batch)
        hidden = batch.rejoin(hidden)
        if batch.only_first or self.reads_tokens:
            return self.head(model, self.norm(model, hidden))
        return self.head(model, batch.pool_tokens(self.norm(model, hidden)))


def embed_ids(model: Any, inputs: dict[str, Tensor], *, project: str | None = None) -> Tensor:
    """Embeddings of the BERT family; packed ids go in as one row."""
    base = model.base_model
    arguments = {name: inputs[name][None] for name in ("input_ids", "position_ids")}
    if token_types(model):
        # A table of one row needs no input: every token has type 0.
        types = inputs.get("token_type_ids")
        arguments["token_type_ids"] = torch.zeros_like(inputs["input_ids"])[None] if types is None else types[None]
    hidden: Tensor = base.embeddings(**arguments)[0]
    projection = getattr(base, project, None) if project else None
    return hidden if projection is None else projection(hidden)


def embed_roberta(model: Any, inputs: dict[str, Tensor]) -> Tensor:
    """RoBERTa gives the padding token no position of its own, also where a text spells that token out."""
    counted = positions.padding_skipped(inputs["input_ids"], inputs["position_ids"], model.config.pad_token_id)
    return embed_ids(model, inputs | {"position_ids": counted})


def embed_mpnet(model: Any, inputs: dict[str, Tensor]) -> Tensor:
    """MPNet counts positions as RoBERTa does; its padding token has id 1 whatever the config says."""
    padding = model.base_model.embeddings.padding_idx
    counted = positions.padding_skipped(inputs["input_ids"], inputs["position_ids"], padding)
    return embed_ids(model, inputs | {"position_ids": counted})


def embed_albert(model: Any, inputs: dict[str, Tensor]) -> Tensor:
    """ALBERT widens its factorised embeddings in the encoder."""
    projected: Tensor = model.base_model.encoder.embedding_hidden_mapping_in(embed_ids(model, inputs))
    return projected


def embed_modernbert(model: Any, inputs: dict[str, Tensor]) -> Tensor:
    """ModernBERT's positions come in through attention."""
    hidden: Tensor = model.base_model.embeddings(input_ids=inputs["input_ids"][None])[0]
    return hidden


def embed_encoder(model: Any, inputs: dict[str, Tensor]) -> Tensor:
    """The project's own encoder; see `positions` for its table."""
    table = getattr(model, positions.BUFFER)
    hidden = model.embeddings(inputs["input_ids"]) + functional.embedding(inputs["position_ids"], table)
    if "token_type_ids" in inputs:
        hidden = hidden + model.token_types(inputs["token_type_ids"])
    elif model.token_types is not None:
        hidden = hidden + model.token_types.weight[0]
    normed: Tensor = model.embedding_norm(hidden)
    return normed


def albert_blocks(model: Any) -> list[Any]:
    """ALBERT calls few layers many times."""
    config, encoder = model.config, model.base_model.encoder
    groups = config.num_hidden_groups
    calls = [int(i / (config.num_hidden_layers / groups)) for i in range(config.num_hidden_layers)]
    return [layer for group in calls for layer in encoder.albert_layer_groups[group].albert_layers]


def bert_head(model: Any, pooled: Tensor) -> Tensor:
    """BERT's pooler, then the classifier."""
    logits: Tensor = model.classifier(model.base_model.pooler(pooled[:, None]))
    return logits


def albert_head(model: Any, pooled: Tensor) -> Tensor:
    """ALBERT's pooler is a bare linear layer."""
    base = model.base_model
    logits: Tensor = model.classifier(base.pooler_activation(base.pooler(pooled)))
    return logits


def distilbert_head(model: Any, pooled: Tensor) -> Tensor:
    """Linear, ReLU, linear."""
    logits: Tensor = model.classifier(model.pre_classifier(pooled).relu())
    return logits


def sequence_head(model: Any, pooled: Tensor) -> Tensor:
    """Heads that take the first of `[B, tokens, C]` themselves: RoBERTa, ELECTRA, YOSO."""
    logits: Tensor = model.classifier(pooled[:, None])
    return logits


def deberta_head(model: Any, pooled: Tensor) -> Tensor:
    """DeBERTa's pooler belongs to the classifier."""
    logits: Tensor = model.classifier(model.pooler(pooled[:, None]))
    return logits


def modernbert_head(model: Any, pooled: Tensor) -> Tensor:
    """Dense, activation, norm, classifier."""
    logits: Tensor = model.classifier(model.head(pooled))
    return logits


def modernbert_tokens_head(model: Any, hidden: Tensor) -> Tensor:
    """The same for every token; the prediction head reads one at a time."""
    logits: Tensor = model.classifier(model.head(hidden))
    return logits


def prepare_modernbert(model: Any) -> None:
    """Gives each layer its projections one by one, and the frequencies and factor of its rotary positions."""
    base = model.base_model
    for layer in base.layers:
        layer.projections = nn.ModuleList(layers.split_linear(layer.attn.Wqkv, 3))
        kind, rotary = layer.attention_type, base.rotary_emb
        layer.rotary = getattr(rotary, f"{kind}_inv_freq"), getattr(rotary, f"{kind}_attention_scaling")


def deberta_operators(config: Any) -> tuple[str, ...]:
    """Without terms for distances a DeBERTa's attention is softmax attention like any other."""
    return computing("relative" if relative.has_terms(config) else BASELINE.key)


def big_bird_defaults(config: Any) -> dict[str, float]:
    """The random blocks that a model with sparse attention was trained with."""
    return {"num_random_blocks": config.num_random_blocks} if config.attention_type == "block_sparse" else {}


def pad_offset(config: Any) -> int:
    """RoBERTa counts positions from behind the padding index."""
    return int(config.pad_token_id) + 1


# MPNet's first position id, whatever the config says.
MPNET_OFFSET = 2

_BERT = partial(Architecture, embed=embed_ids, blocks=encoder_blocks, layer=layers.bert, check=checks.check_bert)
_DEBERTA = _BERT(
    layer=layers.deberta,
    head=deberta_head,
    check=checks.check_deberta,
    operators=deberta_operators,
    prepare=relative.prepare_deberta_v2,
)
_ROBERTA = _BERT(
    embed=embed_roberta,
    head=sequence_head,
    check=checks.check_roberta,
    position_offset=pad_offset,
    max_tokens=lambda config: config.max_position_embeddings - pad_offset(config),
)
LAYOUTS: dict[str, Architecture] = {
    "bert": _BERT(head=bert_head),
    "roberta": _ROBERTA,
    "longformer": replace(
        _ROBERTA,
        layer=layers.longformer,
        check=checks.check_longformer,
        global_token=True,
        operators=lambda _: (*computing_windows(BASELINE.key), *computing("window")),
        # The widest layer's, in tokens on either side; the config counts both sides.
        attributes=lambda config: {"trained_window": int(torch.tensor(config.attention_window).max()) // 2},
    ),
    "big_bird": _BERT(
        head=sequence_head,
        attributes=lambda config: {"block_size": config.block_size},
        check=checks.check_big_bird,
        knob_defaults=big_bird_defaults,
        eager=eager_big_bird,
    ),
    "electra": _BERT(embed=partial(embed_ids, project="embeddings_project"), head=sequence_head),
    "albert": _BERT(embed=embed_albert, blocks=albert_blocks, layer=layers.albert, head=albert_head),
    "distilbert": _BERT(
        blocks=lambda model: list(model.base_model.transformer.layer),
        layer=layers.distilbert,
        head=distilbert_head,
    ),
    "mpnet": _BERT(
        embed=embed_mpnet,
        layer=layers.mpnet,
        head=sequence_head,
        check=checks.check_mpnet,
        operators=lambda _: computing("relative"),
        prepare=relative.prepare_mpnet,
        position_offset=lambda _: MPNET_OFFSET,
        max_tokens=lambda config: config.max_position_embeddings - MPNET_OFFSET,
    ),
    "deberta": replace(_DEBERTA, prepare=relative.prepare_deberta),
    "deberta-v2": _DEBERTA,
    "modernbert": Architecture(
        embed=embed_modernbert,
        blocks=lambda model: list(model.base_model.layers),
        layer=layers.modernbert,
        head=modernbert_head,
        tokens_head=modernbert_tokens_head,
        norm=lambda model, hidden: model.base_model.final_norm(hidden),
        pooling=lambda config: {"cls": "first", "mean": "mean"}[config.classifier_pooling],
        check=checks.check_modernbert,
        operators=lambda _: computing_windows(BASELINE.key),
        prepare=prepare_modernbert,
    ),
    "yoso": _BERT(
        head=sequence_head,
        operators=lambda _: computing("yoso"),
        attributes=lambda config: {
            "hash_bits": config.hash_code_len,
            "hash": "hadamard" if config.use_fast_hash else "gaussian",
        },
        position_offset=lambda _: 2,
        check=checks.check_yoso,
        convolves=lambda config: config.conv_window is not None,
        knob_defaults=lambda config: {"num_hashes": config.num_hash},
        eager=eager_yoso,
    ),
    "nystromformer": _BERT(
        head=sequence_head,
        operators=lambda _: ("nystrom",),
        attributes=lambda _: {"divisor": "sequence"},
        position_offset=lambda _: 2,
        check=checks.check_nystromformer,
        check_training=checks.check_nystromformer_training,
        convolves=lambda config: config.conv_kernel_size is not None,
        knob_defaults=trained_landmarks,
        eager=eager_nystromformer,
    ),
    "encoder": Architecture(
        embed=embed_encoder,
        blocks=lambda model: list(model.layers),
        layer=layers.encoder,
        head=lambda model, pooled: model.classifier(pooled),
        norm=lambda model, hidden: hidden if model.final_norm is None else model.final_norm(hidden),
        operators=computing_encoder,
        attributes=lambda config: config.all_attributes,
        pooling=lambda config: config.pooling,
        max_tokens=lambda config: config.max_tokens,
        prepare=positions.add_table,
        convolves=lambda config: config.conv_size > 0,
        knob_defaults=lambda config: config.knobs,
        eager=eager_encoder,
    ),
}
_BY_MODEL_TYPE = {family.model_type: LAYOUTS[family.layout] for family in FAMILIES}


def architecture_of(model_type: str | None) -> Architecture:
    """The layout of a family's classifiers.

    Raises:
        ExportError: the family is not supported; says why, or lists those that are.
    """
    layout = _BY_MODEL_TYPE.get(model_type or "")
    if layout is None:
        if model_type in REFUSED:
            raise ExportError(f"model family '{model_type}' cannot be exported: {REFUSED[model_type]}")
        allowed = ", ".join(_BY_MODEL_TYPE)
        raise ExportError(f"model family '{model_type}' cannot be exported, must be one of: {allowed}")
    return layout


def of_tokens(architecture: Architecture) -> Architecture:
    """The layout of a family's token classifiers, in which transformers makes no token global."""
    head = architecture.tokens_head
    return replace(architecture, head=head, pooling=lambda _: "none", reads_tokens=True, global_token=False)
