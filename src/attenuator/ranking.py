"""What a reranker answers: the documents of a list, best first, from a service and from `attenuator.load`."""

from pydantic import Field

from attenuator.api import Answer, Number, Received


class Document(Answer):
    """A document that was ranked."""

    text: str


class RankedDocument(Answer):
    """A document's place and score."""

    index: int = Field(description="its place among the documents of the request")
    relevance_score: float = Field(
        description="sigmoid of the model's output; the scores of two steps are on different scales"
    )
    step: int | None = Field(None, description="which step scored it, 1 or 2; None where the service does not say")
    document: Document | None = Field(None, description="with return_documents only")


class RankingStep(Answer):
    """One step of a ranking."""

    model: str = Field(description="name of the model that scored")
    knobs: dict[str, Number] = Field(description="value of every knob that it ran with")
    documents: int = Field(description="how many it scored")


class TokenUsage(Answer):
    """Tokens of a request."""

    total_tokens: int = Field(description="of all its pairs, special tokens included")


class Ranking(Received):
    """Answer to a query with documents."""

    model: str = Field(description="name of the model that answered")
    results: tuple[RankedDocument, ...] = Field(
        description="best first: those of the second step, then the others; of equal scores the earlier document"
    )
    steps: tuple[RankingStep, ...] = Field((), description="what ran; empty where the service does not say")
    usage: TokenUsage
    timing_ms: dict[str, float] = Field({}, description="milliseconds by stage; empty where the service does not say")
