"""The types of `POST /rerank` and `POST /score`: what requests may have, answers, errors."""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, RootModel
from pydantic.json_schema import SkipJsonSchema

from attenuator import api, ranking
from attenuator.api import WHOLE, Body, Text
from attenuator.runtime import Model
from attenuator.runtime.pairs import MAX_DOCUMENTS
from attenuator.runtime.request import wrong
from attenuator.serve.accuracy.goals import AGREEMENT, LATENCY
from attenuator.serve.api.errors import ErrorForm, Refusal
from attenuator.serve.api.peers import tei, vllm
from attenuator.serve.api.schema import TRUNCATE


class TextDocument(Body):
    """A document as an object."""

    text: Text


Texts = Annotated[list[Text], Field(min_length=1, max_length=MAX_DOCUMENTS)]
Documents = Annotated[list[Text | TextDocument], Field(min_length=1, max_length=MAX_DOCUMENTS)]


class StepOptions(Body):
    """The fields about the steps of a list."""

    rescore: Annotated[int, Field(ge=1), WHOLE] | SkipJsonSchema[None] = Field(None, description=ranking.RESCORE)
    max_cost: Annotated[float, Field(gt=0, allow_inf_nan=False)] | SkipJsonSchema[None] = Field(
        None,
        description="a number above 0: billions of predicted multiply-adds that the list may take, both steps together",
    )
    cascade: Annotated[list[str], Field(min_length=2, max_length=2)] | SkipJsonSchema[None] = Field(
        None,
        description="a list of two different names of served models: the first scores all documents, the last the best "
        "ones again, at exact knobs; knobs are the first one's",
    )


def goals() -> dict[str, tuple[Any, Any]]:
    """What the goals of a list mean, as fields of a body."""
    fields = api.Options.model_fields
    meaning = {
        AGREEMENT: "the cheapest steps are chosen whose first documents are those of the exact order, in that order, "
        "in at least this share of lists; as for texts where the model was not calibrated on lists",
        LATENCY: "as many of the best documents are scored again as are predicted to be in this time",
    }
    descriptions = {name: f"{str(fields[name].description).partition(': ')[0]}: {meaning[name]}" for name in meaning}
    return {name: (fields[name].annotation, Field(None, description=text)) for name, text in descriptions.items()}


class RerankOptions(StepOptions, vllm.PoolingOptions):
    """The fields of a request with `documents` besides these, the query, knobs and goals."""

    several: ClassVar[str] = "documents"
    tells_steps: ClassVar[bool] = True
    nullable: ClassVar[tuple[str, ...]] = (*vllm.NULLABLE, "top_n", "max_tokens_per_doc")

    top_n: Annotated[int, Field(ge=0), WHOLE] | None = Field(None, description=ranking.TOP_N)
    return_documents: bool = Field(False, description="true or false: true returns the texts too")
    truncate: bool = Field(False, description="true or false: true cuts pairs that are too long")
    max_tokens_per_doc: Annotated[int, Field(ge=1), WHOLE] | None = Field(
        None, description="a whole number, at least the model's length: pairs that are too long are cut to that length"
    )

    @property
    def raw(self) -> bool:
        """Whether scores are the model's outputs."""
        return self.use_activation is False

    @property
    def returns(self) -> bool:
        """Whether the answer has the texts."""
        return self.return_documents

    def entry(self, index: int, score: float, text: str | None) -> dict[str, Any]:
        """What the answer says of a document."""
        return {"index": index, "relevance_score": score} | ({} if text is None else {"document": {"text": text}})

    def cuts(self, model: Model) -> bool:
        """Whether pairs that are too long are cut."""
        own, most = model.manifest.max_tokens, self.max_tokens_per_doc
        tei.check_side("truncation_side", self.truncation_side, model)
        if most is not None and most < own:
            length = f", the length of '{model.manifest.name}'"
            raise wrong("max_tokens_per_doc", f"is {most}", f"a whole number of at least {own}", length)
        return vllm.truncates(self.truncate_prompt_tokens, model) or self.truncate or most is not None


class RankOptions(StepOptions, tei.PredictOptions):
    """The fields of a request with `texts` besides these, the query, knobs and goals."""

    several: ClassVar[str] = "texts"
    tells_steps: ClassVar[bool] = False  # of an answer that is a plain list, where there was one
    nullable: ClassVar[tuple[str, ...]] = (TRUNCATE,)
    top_n: ClassVar[None] = None

    return_text: bool = Field(False, description="true or false: true returns the texts too")

    @property
    def raw(self) -> bool:
        """Whether scores are the model's outputs."""
        return self.raw_scores

    @property
    def returns(self) -> bool:
        """Whether the answer has the texts."""
        return self.return_text

    def entry(self, index: int, score: float, text: str | None) -> dict[str, Any]:
        """What the answer says of a text."""
        return {"index": index, "score": score} | ({} if text is None else {"text": text})

    def cuts(self, model: Model) -> bool:
        """Whether pairs that are too long are cut."""
        tei.check_side("truncation_direction", self.truncation_direction, model)
        return bool(self.truncate)


class Tokens(api.Answer):
    """Tokens of the request, where Cohere's clients look for them."""

    input_tokens: int


class Meta(api.Answer):
    """What else Cohere's clients look for."""

    tokens: Tokens


class Ranking(ranking.Ranking):
    """Answer to a request with `documents`."""

    id: str
    usage: vllm.Usage
    meta: Meta


class Rank(api.Answer):
    """A text's place and score."""

    index: int = Field(description="its place among the texts of the request")
    score: float = Field(description="sigmoid of the model's output; with raw_scores, the output")
    text: str | SkipJsonSchema[None] = Field(None, description="with return_text only")
    step: int | SkipJsonSchema[None] = Field(
        None,
        description="where two steps ran: 1 or 2, which scored it; scores of the two are not on one scale",
    )


class Ranks(RootModel[tuple[Rank, ...]]):
    """Answer to a request with `texts`: highest score first, of equal ones the earlier text."""


class Score(api.Answer):
    """The score of one pair."""

    index: int
    object: Literal["score"] = "score"
    score: float = Field(description="sigmoid of the model's output; with use_activation false, the output")


class PairScores(api.Answer):
    """Answer of `POST /score`."""

    id: str
    object: Literal["list"] = "list"
    created: int = Field(description="seconds since 1970")
    model: str
    usage: vllm.Usage
    data: tuple[Score, ...] = Field(description="one for each pair")


class RerankError(tei.PredictError):
    """Body of an error: that of text-embeddings-inference, with the sentence where other clients look for it too."""

    message: str = Field(description="the sentence, for Cohere's clients")
    detail: str = Field(description="the sentence, for Jina's clients")
    code: str = Field(description="kind of error as POST /v1/classify has it, such as knob_out_of_range")


def error_body(refusal: Refusal) -> RerankError:
    """The body of an error."""
    sentence = refusal.sentence
    return RerankError(message=sentence, detail=sentence, code=refusal.kind, **tei.error_body(refusal).model_dump())


ERROR_FORM = ErrorForm(RerankError, error_body)
