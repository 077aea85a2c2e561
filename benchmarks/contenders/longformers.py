"""A Longformer made of a BERT, as its authors made theirs of RoBERTa (Beltagy et al. 2020, section 5)."""

from typing import Any

from transformers import LongformerConfig, LongformerForSequenceClassification

from attenuator.export.longer import longer

SHARED = (
    "vocab_size", "type_vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size",
    "hidden_act", "hidden_dropout_prob", "attention_probs_dropout_prob", "layer_norm_eps", "id2label", "label2id",
)  # fmt: skip
POSITION_TABLE = "embeddings.position_embeddings.weight"
HEAD = {"bert.pooler.dense": "classifier.dense", "classifier": "classifier.out_proj"}


def longformer_of(bert: Any, positions: int, window: int) -> Any:
    """A Longformer classifier with the weights of a BERT classifier.

    Its table of positions are BERT's rows again and again; the global token's projections begin as those of all tokens.

    Args:
        bert: a `BertForSequenceClassification`, padded with the token 0.
        positions: tokens that it shall read.
        window: tokens that a token sees, half of them on either side; even.
    """
    stored = bert.config.to_dict()
    config = LongformerConfig(
        **{name: stored[name] for name in SHARED},
        pad_token_id=0,
        max_position_embeddings=positions + 1,  # the first row is that of padding
        attention_window=[window] * bert.config.num_hidden_layers,
    )
    model = LongformerForSequenceClassification(config)
    weights = model.state_dict()
    for name, value in bert.state_dict().items():
        module, _, kind = name.rpartition(".")
        target = f"{HEAD.get(module, module)}.{kind}".replace("bert.", "longformer.", 1)
        if target.endswith(POSITION_TABLE):
            weights[target][1:] = longer(value, "repeated", positions)
        elif target in weights:
            weights[target] = value
    for name in weights:
        if "_global." in name:
            weights[name] = weights[name.replace("_global.", ".")]
    model.load_state_dict(weights)
    return model
