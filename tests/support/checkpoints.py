"""Random checkpoints: few layers, tens of channels, weights large enough that attention is far from uniform."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

from attenuator.export.encoder import Encoder, EncoderConfig
from attenuator.export.families import OWN_ENCODER

VOCAB = 96
TEXTS = ["the quick brown fox jumps over the lazy dog", "a film so bad that it is good again", "42 tokens and spaces"]
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
SMALL: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 37,  # no multiple of a SIMD register, so that the last elements of tensors are tried too
    "max_position_embeddings": 70,
    "num_labels": 3,
}
MODERN = SMALL | {
    "local_attention": 8,
    "pad_token_id": 0,
    "cls_token_id": 2,
    "bos_token_id": 2,
    "sep_token_id": 3,
    "eos_token_id": 3,
}
DISTIL = {
    "vocab_size": VOCAB,
    "dim": 32,
    "n_layers": 2,
    "n_heads": 4,
    "hidden_dim": 37,
    "max_position_embeddings": 70,
    "num_labels": 3,
}
DEBERTA = SMALL | {"relative_attention": True, "pos_att_type": ["p2c", "c2p"], "position_biased_input": False}
ENCODER = {"vocab_size": VOCAB, "hidden_size": 32, "num_attention_heads": 2, "intermediate_size": 37, "num_labels": 3}


@dataclass
class Checkpoint:
    """What to build, which operators it is exported with, and in which dtype its weights are on disk (`stored`)."""

    config: Any
    attentions: tuple[str, ...] = ("mca",)
    stored: torch.dtype = torch.float32
    old_format: bool = False


def bert(**changes: Any) -> Any:
    return transformers.BertConfig(**SMALL | changes)


CHECKPOINTS: dict[str, Checkpoint] = {
    "bert": Checkpoint(bert(id2label={0: "down", 1: "level", 2: "up"})),
    "roberta": Checkpoint(transformers.RobertaConfig(**SMALL)),
    "xlm-roberta": Checkpoint(transformers.XLMRobertaConfig(**SMALL | {"type_vocab_size": 1})),
    "camembert": Checkpoint(transformers.CamembertConfig(**SMALL)),
    "data2vec-text": Checkpoint(transformers.Data2VecTextConfig(**SMALL)),
    "ernie": Checkpoint(transformers.ErnieConfig(**SMALL | {"use_task_id": True, "task_type_vocab_size": 3})),
    "distilbert": Checkpoint(transformers.DistilBertConfig(**DISTIL)),
    "electra": Checkpoint(transformers.ElectraConfig(**SMALL | {"embedding_size": 16})),
    "albert": Checkpoint(transformers.AlbertConfig(**SMALL | {"embedding_size": 16, "num_hidden_layers": 3})),
    "modernbert": Checkpoint(transformers.ModernBertConfig(**MODERN), ("mca", "softmax")),
    # Windows of several widths, and selection under them: tests/export/test_longformer.py.
    "longformer": Checkpoint(transformers.LongformerConfig(**SMALL | {"attention_window": [8, 16]}), ("mca", "window")),
    # Long texts and random blocks: tests/export/test_big_bird.py.
    "big_bird": Checkpoint(
        transformers.BigBirdConfig(**SMALL | {"block_size": 4, "num_random_blocks": 1}), ("bigbird", "mca")
    ),
    "yoso": Checkpoint(
        transformers.YosoConfig(**SMALL | {"hash_code_len": 6, "conv_window": 5, "num_hash": 16}), ("yoso",)
    ),
    "nystromformer": Checkpoint(  # approximated in tests/export/test_nystromformer.py, where its texts have one length
        transformers.NystromformerConfig(
            **SMALL | {"num_landmarks": 8, "segment_means_seq_len": 64, "conv_kernel_size": 5, "num_attention_heads": 2}
        ),
        ("nystrom",),
    ),
    "mpnet": Checkpoint(transformers.MPNetConfig(**SMALL), ("softmax",)),
    "deberta-v2": Checkpoint(  # as v3 is
        transformers.DebertaV2Config(
            **DEBERTA | {"num_hidden_layers": 3},
            type_vocab_size=0,
            position_buckets=16,
            norm_rel_ebd="layer_norm",
            share_att_key=True,
        ),
        ("softmax",),
    ),
    "deberta": Checkpoint(transformers.DebertaConfig(**DEBERTA, max_relative_positions=24), ("softmax",)),
    # Odd but legal configs.
    "bert-one-layer": Checkpoint(
        bert(num_hidden_layers=1, hidden_size=36, num_attention_heads=3, hidden_act="gelu_new", type_vocab_size=1),
        stored=torch.float16,
    ),
    "bert-multi-label": Checkpoint(
        bert(problem_type="multi_label_classification", num_labels=5, hidden_act="relu", num_attention_heads=1),
        ("softmax",),
        old_format=True,
    ),
    # A cross-encoder as sentence-transformers saves it, and a regressor of transformers.
    "bert-regression": Checkpoint(
        bert(
            num_labels=1,
            id2label={0: "similarity"},
            sentence_transformers={"activation_fn": "torch.nn.modules.activation.Sigmoid", "version": "5.0"},
        )
    ),
    "roberta-regression": Checkpoint(
        transformers.RobertaConfig(**SMALL | {"num_labels": 1, "problem_type": "regression", "num_hidden_layers": 1}),
        ("softmax",),
    ),
    "distilbert-sinusoidal": Checkpoint(
        transformers.DistilBertConfig(
            **DISTIL | {"sinusoidal_pos_embds": True, "n_layers": 1, "n_heads": 2, "activation": "relu"}
        )
    ),
    "electra-equal": Checkpoint(
        transformers.ElectraConfig(**SMALL | {"embedding_size": 32, "hidden_act": "silu", "num_hidden_layers": 1}),
        ("softmax",),
        stored=torch.bfloat16,
    ),
    "albert-groups": Checkpoint(
        transformers.AlbertConfig(
            **SMALL | {"embedding_size": 8, "num_hidden_layers": 4, "num_hidden_groups": 2, "inner_group_num": 2}
        )
    ),
    "modernbert-mean": Checkpoint(
        transformers.ModernBertConfig(
            **MODERN
            | {
                "num_hidden_layers": 3,
                "classifier_pooling": "mean",
                "attention_bias": True,
                "mlp_bias": True,
                "norm_bias": True,
                "classifier_bias": True,
                "global_attn_every_n_layers": 2,
                "hidden_size": 40,
                "local_attention": 5,
            }
        )
    ),
    "mpnet-long": Checkpoint(
        transformers.MPNetConfig(
            **SMALL | {"max_position_embeddings": 202, "relative_attention_num_buckets": 40, "num_hidden_layers": 1}
        ),
        ("softmax",),
    ),
    "deberta-v2-convolution": Checkpoint(  # as the first DeBERTa-v2 is
        transformers.DebertaV2Config(
            **DEBERTA
            | {
                "position_biased_input": True,
                "type_vocab_size": 2,
                "max_relative_positions": 20,
                "conv_kernel_size": 3,
                "conv_groups": 2,
                "conv_act": "gelu",
                "embedding_size": 16,
                "attention_head_size": 8,
                "pos_att_type": "c2p",
            }
        ),
        ("softmax",),
    ),
    "deberta-v2-plain": Checkpoint(
        transformers.DebertaV2Config(
            **DEBERTA | {"relative_attention": False, "conv_kernel_size": 5, "num_hidden_layers": 1}
        )
    ),
    "yoso-dense": Checkpoint(
        transformers.YosoConfig(**SMALL | {"hash_code_len": 9, "use_fast_hash": False, "use_expectation": False}),
        ("yoso",),
    ),
    "encoder-yoso": Checkpoint(
        EncoderConfig(**ENCODER, attention="yoso", conv_size=5, pooling="mean", max_tokens=500), ("yoso",)
    ),
    "encoder-yoso-first": Checkpoint(
        EncoderConfig(**ENCODER, attention="yoso", norm="post", pooling="first", type_vocab_size=2, hash_bits=7),
        ("yoso",),
    ),
    "encoder-yoso-mean": Checkpoint(EncoderConfig(**ENCODER, attention="yoso", pooling="mean"), ("yoso",)),
    "encoder-yoso-ratio": Checkpoint(
        EncoderConfig(**ENCODER, attention="yoso", pooling="first", normalize=2, norm_lift=6.0), ("yoso",)
    ),
    "encoder-softmax": Checkpoint(
        EncoderConfig(**ENCODER, attention="softmax", pooling="first", problem_type="multi_label_classification"),
        ("softmax", "mca"),
    ),
    "encoder-softmax-post": Checkpoint(
        EncoderConfig(**ENCODER | {"hidden_size": 36}, attention="softmax", norm="post", pooling="mean")
    ),
}


def word_tokenizer() -> Tokenizer:
    """A WordPiece tokenizer of at most VOCAB tokens that marks pairs as BERT does.

    Its vocabulary is listed, not trained: a trainer numbers equally frequent pieces in another order in each run, which
    gave the checkpoints other inputs each time.
    """
    words = sorted({word for text in TEXTS for word in text.split()})
    letters = sorted(set("".join(words)))
    pieces = [*SPECIAL, *dict.fromkeys(letters + words), *(f"##{letter}" for letter in letters)]
    tokenizer = Tokenizer(models.WordPiece({piece: id for id, piece in enumerate(pieces)}, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.add_special_tokens(SPECIAL)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    return tokenizer


def fast_tokenizer(**changes: Any) -> Any:
    """The same as a transformers tokenizer that gives its model token types."""
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=word_tokenizer(),
        cls_token="[CLS]",
        sep_token="[SEP]",
        pad_token="[PAD]",
        unk_token="[UNK]",
        **{"model_input_names": ["input_ids", "token_type_ids", "attention_mask"]} | changes,
    )


def randomise(model: torch.nn.Module) -> None:
    """Draws weights that let attention differ between tokens, biases and norms included."""
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in model.parameters():
            scale = 0.3 if parameter.ndim > 1 else 0.2
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * scale + (0.8 if scale == 0.2 else 0))


def save(checkpoint: Checkpoint, folder: Path) -> Path:
    """Writes weights and tokenizer as a user would."""
    if isinstance(checkpoint.config, EncoderConfig):
        model: Any = Encoder(checkpoint.config)
        randomise(model)
        model.save_pretrained(folder)
        word_tokenizer().save(str(folder / "tokenizer.json"))
        return folder
    transformers.utils.logging.disable_progress_bar()
    model = transformers.AutoModelForSequenceClassification.from_config(checkpoint.config)
    randomise(model)
    model.to(checkpoint.stored).save_pretrained(folder)
    if checkpoint.old_format:
        (folder / "model.safetensors").unlink()
        torch.save(model.state_dict(), folder / "pytorch_model.bin")
    fast_tokenizer().save_pretrained(folder)
    return folder


def load(folder: Path) -> Any:
    """The checkpoint as PyTorch runs it: fp32, in evaluation mode, every attention at its exact value."""
    if json.loads((folder / "config.json").read_text())["model_type"] == OWN_ENCODER:
        return Encoder.from_pretrained(folder)
    model = transformers.AutoModelForSequenceClassification.from_pretrained(folder, dtype=torch.float32).eval()
    for module in model.modules():
        if hasattr(module, "use_expectation"):
            module.use_expectation = True
        if hasattr(module, "num_landmarks"):
            module.num_landmarks = module.seq_len
    if isinstance(model, transformers.BigBirdForSequenceClassification):
        model.base_model.set_attention_type("original_full")
    return model


def reference(folder: Path) -> Callable[[np.ndarray, np.ndarray | None], np.ndarray]:
    """The eager model as a function of one sequence's ids and types; logits float32 `[labels]`."""
    model = load(folder)

    @torch.inference_mode()
    def run(ids: np.ndarray, types: np.ndarray | None) -> np.ndarray:
        if isinstance(model, Encoder):
            starts = torch.tensor([0, len(ids)], dtype=torch.int32)
            token_types = None if types is None else torch.from_numpy(types)
            return model(torch.from_numpy(ids), torch.arange(len(ids)), starts, token_types)[0].numpy()
        more = {} if types is None else {"token_type_ids": torch.from_numpy(types)[None]}
        return model(input_ids=torch.from_numpy(ids)[None], **more).logits[0].numpy()

    return run
