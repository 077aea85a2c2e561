"""The model families that can be exported, one row each; imports nothing heavy, so that help can list them."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["FAMILIES", "OWN_ENCODER", "REFUSED", "Family", "titles"]

# The project's own encoder, as its config.json names it.
OWN_ENCODER = "attenuator-encoder"


@dataclass(frozen=True, slots=True)
class Family:
    """One family of sequence classifiers.

    Attributes:
        model_type: as in config.json.
        title: what people call it.
        layout: key in `architectures.LAYOUTS`: how its modules are named and connected.
    """

    model_type: str
    title: str
    layout: str


FAMILIES = (
    Family("bert", "BERT", "bert"),
    Family("roberta", "RoBERTa", "roberta"),
    Family("xlm-roberta", "XLM-RoBERTa", "roberta"),
    Family("camembert", "CamemBERT", "roberta"),
    Family("data2vec-text", "Data2Vec text", "roberta"),
    Family("ernie", "ERNIE", "bert"),
    Family("distilbert", "DistilBERT", "distilbert"),
    Family("electra", "ELECTRA", "electra"),
    Family("albert", "ALBERT", "albert"),
    Family("mpnet", "MPNet", "mpnet"),
    Family("deberta-v2", "DeBERTa-v2 and v3", "deberta-v2"),
    Family("deberta", "DeBERTa", "deberta"),
    Family("modernbert", "ModernBERT", "modernbert"),
    Family("longformer", "Longformer", "longformer"),
    Family("big_bird", "BigBird", "big_bird"),
    Family("yoso", "YOSO", "yoso"),
    Family("nystromformer", "Nystromformer", "nystromformer"),
    Family(OWN_ENCODER, "the project's own encoder", "encoder"),
)

# Families that an attention of ours might lead one to expect, with what stands in the way.
REFUSED = {
    "reformer": (
        "its hashed layers draw other buckets in every run, so that there is no answer to compare with, and its local "
        "layers, axial positions and reversible residuals have no form here; the own encoder trains with this attention"
    ),
}


def titles() -> str:
    """The families for a sentence: `BERT, RoBERTa, ... or YOSO`, without the project's own encoder."""
    *others, last = (family.title for family in FAMILIES if family.model_type != OWN_ENCODER)
    return f"{', '.join(others)} or {last}"
