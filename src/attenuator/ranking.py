"""What a reranker answers: the documents of a list, best first, from a service and from `attenuator.load`."""

from pydantic import Field
from pydantic.json_schema import SkipJsonSchema

from attenuator.api import Answer, Number, Received

# What the fields of a request about a list may be, over HTTP and in process.
TOP_N = "a whole number of at least 0: so many of the best are returned; all at 0, null or more"
RESCORE = "a whole number of at least 1: so many of the best documents are scored again, at exact knobs"


class Document(Answer):
    """A document that was ranked."""

    text: str


class RankedDocument(Answer):
    """A document's place and score."""

    index: int = Field(description="its place among the documents of the request")
    relevance_score: float = Field(description="sigmoid of the model's output; with use_activation false, the output")
    document: Document | SkipJsonSchema[None] = Field(None, description="with return_documents only")
    step: int = Field(description="1 or 2: which step scored it; scores of the two are not on one scale")


class RankingStep(Answer):
    """One step of a ranking."""

    model: str = Field(description="name of the model that scored")
    knobs: dict[str, Number] = Field(description="value of every knob that it ran with")
    documents: int = Field(description="how many it scored")


class TokenUsage(Answer):
    """Tokens of the request."""

    total_tokens: int


class Ranking(Received):
    """Answer to a request with `documents`."""

    model: str = Field(description="name of the model that answered")
    results: tuple[RankedDocument, ...] = Field(
        description="highest score first, of equal ones the earlier document; those of a second step before all others"
    )
    steps: tuple[RankingStep, ...] = Field(description="the steps that ran, the first one over all documents")
    usage: TokenUsage
    timing_ms: dict[str, float] = Field(description="milliseconds by stage: tokenize, queue, compute, total")
