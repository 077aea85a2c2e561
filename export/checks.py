"""What no export computes, family by family: configs are refused in a sentence that names the field.

Each function takes the config of a transformers checkpoint and raises ExportError.
"""

from __future__ import annotations

from typing import Any

from attenuator.errors import ExportError
from attenuator.ops import KNOBS
from attenuator.ops.bigbird.rule import is_full
from attenuator.ops.bigbird.spec import SPEC as BIGBIRD

__all__ = [
    "check_bert",
    "check_big_bird",
    "check_deberta",
    "check_longformer",
    "check_modernbert",
    "check_mpnet",
    "check_nystromformer",
    "check_nystromformer_training",
    "check_roberta",
    "check_yoso",
]

# Buckets of distances that MPNet's code has.
MPNET_BUCKETS = 32


def check_bert(config: Any) -> None:
    """Refuses decoders, and positions that transformers no longer computes."""
    if getattr(config, "is_decoder", False) or getattr(config, "add_cross_attention", False):
        raise ExportError("the checkpoint is a decoder (is_decoder or add_cross_attention), must be an encoder")
    kind = getattr(config, "position_embedding_type", None) or "absolute"
    if kind != "absolute":
        raise ExportError(f"position_embedding_type is '{kind}', must be 'absolute'")


def check_roberta(config: Any) -> None:
    """Refuses a config whose positions have no beginning."""
    check_bert(config)
    if config.pad_token_id is None:
        raise ExportError("pad_token_id is missing from the config; this family counts positions from behind it")


def check_yoso(config: Any) -> None:
    """Refuses what the operator does not have."""
    check_bert(config)
    if not 1 <= config.hash_code_len <= 16:
        raise ExportError(f"hash_code_len is {config.hash_code_len}, must be in [1, 16]")
    if config.conv_window is not None and config.conv_window % 2 == 0:
        raise ExportError(f"conv_window is {config.conv_window}, must be odd")


def check_nystromformer(config: Any) -> None:
    """Refuses what transformers itself cannot compute, and more landmarks than the operator has."""
    check_bert(config)
    landmarks, tokens, size = config.num_landmarks, config.segment_means_seq_len, config.conv_kernel_size
    if not 1 <= landmarks <= tokens:
        raise ExportError(f"num_landmarks is {landmarks}, must be in [1, {tokens}], segment_means_seq_len")
    most = int(KNOBS["num_landmarks"].high)
    if most < landmarks < tokens:
        raise ExportError(f"num_landmarks is {landmarks}, must be at most {most}, or segment_means_seq_len, {tokens}")
    if size is not None and (size < 1 or size % 2 == 0):
        raise ExportError(f"conv_kernel_size is {size}, must be odd and at least 1")
    if config.inv_coeff_init_option:
        raise ExportError(
            f"inv_coeff_init_option is {config.inv_coeff_init_option}, must be false: transformers builds no such model"
        )


def check_big_bird(config: Any) -> None:
    """Refuses blocks that the operator does not have, and more random ones where texts are long enough for them."""
    check_bert(config)
    block_size = next(item for item in BIGBIRD.attributes if item.name == "block_size")
    if not block_size.fits(config.block_size):
        raise ExportError(f"block_size is {config.block_size}, must be {block_size.allowed}")
    most = int(KNOBS["num_random_blocks"].high)
    if config.attention_type != "block_sparse" or config.num_random_blocks <= most:
        return
    if not is_full(config.max_position_embeddings, most, config.block_size):
        raise ExportError(
            f"num_random_blocks is {config.num_random_blocks}, must be at most {most} with {config.block_size} tokens "
            f"a block and max_position_embeddings of {config.max_position_embeddings}"
        )


def check_nystromformer_training(config: Any) -> None:
    """Refuses landmarks with which transformers takes no batch of texts, since padding crashes it."""
    landmarks, tokens = config.num_landmarks, config.segment_means_seq_len
    if landmarks != tokens:
        raise ExportError(
            f"num_landmarks is {landmarks}, must be segment_means_seq_len, {tokens}, to train (exact softmax): with "
            "fewer landmarks transformers takes no padded batch"
        )


def check_modernbert(config: Any) -> None:
    """Refuses rotary positions that depend on the whole batch."""
    for layer_type in set(config.layer_types):
        kind = (config.rope_parameters[layer_type] or {}).get("rope_type", "default")
        if kind in ("dynamic", "longrope"):
            raise ExportError(f"rope_type is '{kind}', which depends on the batch; must be a fixed one, like 'default'")
    if "sliding_attention" in config.layer_types and config.local_attention < 2:
        raise ExportError(f"local_attention is {config.local_attention}, must be at least 2")


def check_mpnet(config: Any) -> None:
    """Refuses a config whose table of distances is shorter than what transformers reads of it."""
    check_bert(config)
    if config.relative_attention_num_buckets < MPNET_BUCKETS:
        raise ExportError(
            f"relative_attention_num_buckets is {config.relative_attention_num_buckets}, must be at least "
            f"{MPNET_BUCKETS}: transformers reads that many whatever the config says"
        )


def check_deberta(config: Any) -> None:
    """Refuses what no DeBERTa of transformers computes, and heads that see one another."""
    check_bert(config)
    if getattr(config, "talking_head", False):
        raise ExportError("talking_head is true, must be false: its heads read one another's scores")
    size = getattr(config, "conv_kernel_size", 0)
    if size > 0 and size % 2 == 0:
        raise ExportError(f"conv_kernel_size is {size}, must be odd")


def check_longformer(config: Any) -> None:
    """Refuses windows that transformers itself cannot compute."""
    check_roberta(config)
    windows = config.attention_window
    if isinstance(windows, int):
        windows = [windows] * config.num_hidden_layers
    if len(windows) != config.num_hidden_layers:
        raise ExportError(
            f"attention_window has {len(windows)} windows, must be one number or as many as num_hidden_layers, "
            f"{config.num_hidden_layers}"
        )
    for layer, window in enumerate(windows):
        if window < 4 or window % 2:  # with 2 a slice in transformers is empty where it should not be
            raise ExportError(f"attention_window is {window} in layer {layer}, must be even and at least 4")
        if max(windows) % window:
            raise ExportError(
                f"attention_window is {window} in layer {layer}, must divide the largest one, {max(windows)}: "
                "transformers pads every text to a multiple of that"
            )
