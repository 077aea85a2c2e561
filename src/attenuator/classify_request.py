"""The body of `POST /v1/classify`: the fields of `api.Options`, the knobs, and what makes several rows of a text."""

from typing import Annotated, Any, Literal

from pydantic import Field, create_model
from pydantic.json_schema import SkipJsonSchema

from attenuator.api import INPUT_KINDS, MAX_INPUTS, WHOLE, Body, Options, Text, TextInput, TokenInput
from attenuator.ops import KNOBS
from attenuator.ops.spec import Knob

MAX_PAIRS = 1000  # of a text and a candidate label in a request
Hypothetical = Annotated[str, Field(min_length=1, max_length=1000)]  # it stands in many pairs, all of them tokenized
Join = Literal["mean", "max", "first"]
Aggregation = Literal["none", "simple", "first", "max", "average"]


class ZeroShot(Body):
    """The fields of a request that brings its own labels, for a model of natural language inference."""

    candidate_labels: list[Hypothetical] = Field(
        min_length=1,
        max_length=MAX_PAIRS,
        description=f"a list of 1 to {MAX_PAIRS} different texts of at most 1000 characters: labels to choose from. "
        f"A label of the model must begin with entail, inputs be texts, and texts times labels {MAX_PAIRS} at most",
    )
    hypothesis_template: Hypothetical = Field(  # as in transformers' pipeline
        "This example is {}.",
        pattern=r"^[^{}]*\{\}[^{}]*$",
        description="a text of at most 1000 characters with one {} and no other brace: a label goes there",
    )
    multi_label: bool = Field(False, description="true or false: true scores each of candidate_labels by itself")


class LongTexts(Body):
    """The fields of a request whose texts are read in windows."""

    join: Join = Field(
        description='"mean", "max" or "first": texts are read in windows, and an answer has the mean or the largest of '
        "each label's scores and logits over them, or is that of the first window",
    )
    window: Annotated[int, Field(ge=1), WHOLE] | SkipJsonSchema[None] = Field(
        None,
        description="a whole number of at least 1: tokens of a window, special tokens included; the model's most "
        "by default",
    )
    stride: Annotated[int, Field(ge=1), WHOLE] | SkipJsonSchema[None] = Field(
        None,
        description="a whole number of at least 1: tokens from the beginning of a window to that of the next; "
        "by default windows lie side by side",
    )


class EntityOptions(Body):
    """The fields of a request to a token classifier."""

    aggregation: Aggregation = Field(
        "simple",
        description='"none", "simple", "first", "max" or "average": how tokens become the entities that a token '
        "classifier answers, as in transformers' pipeline: each by itself; neighbours of one label together; or with "
        "the label of a word's first token, of its surest one, or of their mean",
    )


def _request() -> type[Body]:
    fields: dict[str, Any] = {
        "inputs": (
            Text | Annotated[list[Text | TextInput | TokenInput], Field(min_length=1, max_length=MAX_INPUTS)],
            Field(..., description=f"a text, or 1 to {MAX_INPUTS} of: {INPUT_KINDS}"),
        )
    }
    values = {name: _value_type(knob) for name, knob in KNOBS.items()}
    for name, knob in KNOBS.items():
        note = f"{knob.doc} The model's own bounds and default are in GET /v1/models."
        if name in LongTexts.model_fields:
            note += f" Beside join: {LongTexts.model_fields[name].description}."
        fields[name] = (values[name], Field(None, description=note))
    floor_fields: dict[str, Any] = {name: (value, None) for name, value in values.items()}
    floors: Any = create_model(
        "Floors", __base__=Body, __doc__="The least accurate value by knob; others stay.", **floor_fields
    )
    degradable_to, labels = Options.model_fields["degradable_to"], ZeroShot.model_fields["candidate_labels"]
    fields["degradable_to"] = (floors, Field(None, description=degradable_to.description))
    several = Field(None, min_length=1, max_length=MAX_PAIRS, description=labels.description)
    fields["candidate_labels"] = (list[Hypothetical], several)
    fields["join"] = (Join, Field(None, description=LongTexts.model_fields["join"].description))
    return create_model(
        "ClassifyRequest",
        __base__=(EntityOptions, LongTexts, ZeroShot, Options),
        __doc__="Body of POST /v1/classify.",
        **fields,
    )


def _value_type(knob: Knob) -> Any:
    """The type of a knob's values, with their bounds."""
    if knob.dtype == "int32":
        return Annotated[int, Field(ge=int(knob.low), le=int(knob.high)), WHOLE]
    return Annotated[float, Field(ge=knob.low, le=knob.high)]


ClassifyRequest = _request()
