"""Lists of documents that a reranker orders in this process: what a call may ask, and its steps as one answer."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import Field

from attenuator.api import WHOLE, Body, Classification
from attenuator.ops import KNOBS
from attenuator.ranking import RESCORE, TOP_N, Document, RankedDocument, Ranking, RankingStep, TokenUsage
from attenuator.runtime.model import Model
from attenuator.runtime.pairs import check_reranker, paired, texts_of
from attenuator.runtime.python_calls import OF_SERVICES
from attenuator.runtime.python_inputs import scalar
from attenuator.runtime.request import check_values, refuse_of_services, unknown_field
from attenuator.runtime.scores import ranked, sigmoid
from attenuator.runtime.tokens import Input

# What a service takes of a list besides: it needs its other models, its queue or its prices.
OF_LISTS = (*OF_SERVICES, "cascade", "escalate", "max_cost", "min_agreement")


class Asked(Body):
    """What a call says besides texts, knobs, seed and truncation."""

    top_n: Annotated[int, Field(ge=0), WHOLE] | None = Field(None, description=TOP_N)
    return_documents: bool = Field(False, description="true or false")
    rescore: Annotated[int, Field(ge=1), WHOLE] | None = Field(None, description=RESCORE)


@dataclass(frozen=True, slots=True)
class Step:
    """One step.

    Attributes:
        places: of the documents that it scored.
        answer: what it says of each of them, with logits.
    """

    places: Sequence[int]
    answer: Classification

    @property
    def outputs(self) -> dict[int, float]:
        """The model's output for each of its documents, by place."""
        logits = [prediction.logits[0] for prediction in self.answer.predictions if prediction.logits]
        return dict(zip(self.places, logits, strict=True))


def check(model: Model, /, **fields: Any) -> Asked:
    """What a call says besides its texts.

    Raises:
        InvalidRequest: the model does not rank, or a field is unknown, a service's, or has a wrong value. Knobs are
            checked by who runs them.
    """
    check_reranker(model.manifest, "call classify")
    own = {name: scalar(value) for name, value in fields.items() if name in Asked.model_fields and value is not None}
    known = [*Asked.model_fields, "seed", "truncate", *model.knobs.names]
    for name in (each for each in fields if each not in Asked.model_fields and each not in KNOBS):
        refuse_of_services(name, OF_LISTS, known)
        raise unknown_field(name, known)
    return check_values(Asked, own)


def pairs_of(query: Any, documents: list[Any]) -> tuple[list[str], list[Input]]:
    """The documents' texts, and the pairs to score.

    Raises:
        InvalidRequest: the query or a document is no text.
    """
    fields = {"query": query, "documents": documents}
    texts = texts_of(fields, "documents", len(documents))
    return list(texts.values()), list(paired(texts_of(fields, "query"), texts))


def ranking(steps: Sequence[Step], texts: Sequence[str], asked: Asked) -> Ranking:
    """The answer: documents of the last step first, then the others by the step before.

    Args:
        steps: in order; the first scored all documents.
        texts: of the documents.
        asked: says how many are returned, and whether with their texts.
    """
    again = steps[1].outputs if len(steps) > 1 else {}
    outputs = list((steps[0].outputs | again).values())
    scores = sigmoid(outputs).tolist()

    def result(place: int) -> RankedDocument:
        document = Document(text=texts[place]) if asked.return_documents else None
        return RankedDocument(index=place, relevance_score=scores[place], step=1 + (place in again), document=document)

    answers = [step.answer for step in steps]
    times = {name: round(sum(each.timing_ms[name] for each in answers), 3) for name in answers[0].timing_ms}
    return Ranking(
        model=answers[0].model,
        results=tuple(map(result, ranked(outputs, again)[: asked.top_n or None])),
        steps=tuple(
            RankingStep(model=each.model, knobs=each.knobs, documents=len(each.predictions)) for each in answers
        ),
        usage=TokenUsage(total_tokens=sum(sum(each.tokens) for each in answers)),
        timing_ms=times,
    )
