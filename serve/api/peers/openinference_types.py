"""The types of the Open Inference Protocol: what requests and answers consist of, as OpenAPI describes them."""

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field
from pydantic.json_schema import SkipJsonSchema

from attenuator.api import WHOLE, Answer, Body, Priority

MAX_TIMEOUT_US = 3_600_000_000
MAX_DIMENSION = 2**31 - 1


def _unicode(text: str) -> str:
    """Refuses half of a surrogate pair, which JSON can spell and UTF-8 cannot: the answer could not hold it."""
    text.encode("utf-8")  # a UnicodeEncodeError is a ValueError
    return text


class TensorParameters(Body):
    """Parameters of an input."""

    binary_data_size: Annotated[int, Field(ge=0), WHOLE] | SkipJsonSchema[None] = Field(
        None, description="a number of bytes: the tensor's, after the JSON"
    )
    content_type: Literal["str"] | SkipJsonSchema[None] = Field(None, description="str")


class InputTensor(Body):
    """An input: texts, pairs' second texts, or token ids."""

    name: Literal["text", "text_pair", "token_ids", "token_type_ids"] = Field(
        description="text, text_pair, token_ids or token_type_ids"
    )
    shape: list[Annotated[int, Field(ge=1, le=MAX_DIMENSION), WHOLE]] = Field(
        min_length=1,
        max_length=2,
        description=f"one or two whole numbers from 1 to {MAX_DIMENSION}: [inputs] or [inputs, 1] for texts, "
        "[inputs, tokens] for token ids, all of one length",
    )
    datatype: Literal["BYTES", "INT32", "INT64", "UINT32", "UINT64"] = Field(
        description="BYTES for texts, INT64, INT32, UINT64 or UINT32 for token ids"
    )
    data: list[Any] | SkipJsonSchema[None] = Field(
        None, description="a list of the values, flat or nested: without it they follow the JSON as bytes"
    )
    parameters: TensorParameters | SkipJsonSchema[None] = Field(None, description="an object")


class OutputParameters(Body):
    """Parameters of an output."""

    binary_data: bool | SkipJsonSchema[None] = Field(None, description="true or false: as bytes after the JSON")
    classification: Annotated[int, Field(ge=1), WHOLE] | SkipJsonSchema[None] = Field(
        None, description="a whole number above 0: that many of the best values, as texts 'value:index:label'"
    )


class OutputTensor(Body):
    """An output that is asked for."""

    name: Literal["label", "score", "probs", "logits", "predicted", "agreement_probability", "standard_error"] = Field(
        description="label, score, probs or logits: or predicted, of a multi-label model, or agreement_probability or "
        "standard_error, with the parameter explain"
    )
    parameters: OutputParameters | SkipJsonSchema[None] = Field(None, description="an object")


class InferParameters(Body):
    """Parameters of a request besides knobs, goals and other fields of `POST /v1/classify`."""

    truncate: bool = Field(False, description="true or false: cut inputs that are too long")
    timeout: Annotated[int, Field(ge=0, le=MAX_TIMEOUT_US), WHOLE] | SkipJsonSchema[None] = Field(
        None, description=f"a whole number of microseconds up to {MAX_TIMEOUT_US}: 0 for no deadline"
    )
    priority: Priority | Annotated[int, Field(ge=0), WHOLE] | SkipJsonSchema[None] = Field(
        None, description="interactive or batch, or a whole number: 0 leaves it open, 1 is interactive, higher is batch"
    )
    explain: bool = Field(
        False, description="true or false: the outputs agreement_probability and standard_error say how sure it is"
    )
    binary_data_output: bool = Field(False, description="true or false: every output as bytes after the JSON")


class InferOptions(Body):
    """The fields of a request."""

    id: Annotated[str, AfterValidator(_unicode)] | SkipJsonSchema[None] = Field(
        None, description="Unicode text: comes back in the answer"
    )
    parameters: dict[str, Any] | SkipJsonSchema[None] = Field(None, description="an object")
    inputs: list[Any] = Field(description="a list of tensors")
    outputs: list[Any] | SkipJsonSchema[None] = Field(
        None, description="a list of the outputs that are wanted: without it all of them"
    )


class Tensor(Answer):
    """A tensor of an answer, its values in row-major order, or as bytes after the JSON."""

    name: str
    shape: tuple[int, ...]
    datatype: str
    parameters: dict[str, int] | SkipJsonSchema[None] = None
    data: tuple[str | bool | float, ...] | SkipJsonSchema[None] = None


class Inference(Answer):
    """Answer of `infer`."""

    model_name: str
    model_version: str
    id: str | SkipJsonSchema[None] = None
    parameters: dict[str, str | int | float] = Field(
        description="every knob with its value, seed, chosen_by, and expected_agreement where it is known; with "
        "escalate steps and relative_cost"
    )
    outputs: tuple[Tensor, ...]


class ServerMetadata(Answer):
    """Answer of `GET /v2`."""

    name: str
    version: str
    extensions: tuple[str, ...] = ("binary_tensor_data", "classification")


class TensorMetadata(Answer):
    """What a tensor must be or will be; -1 for any number."""

    name: str
    datatype: str
    shape: tuple[int, ...]


class ModelMetadata(Answer):
    """Answer of `GET /v2/models/{model}`."""

    name: str
    versions: tuple[str, ...] = Field(description="the served revision")
    platform: str = "onnxruntime_onnx"
    inputs: tuple[TensorMetadata, ...] = Field(description="text and, for pairs, text_pair; or token_ids")
    outputs: tuple[TensorMetadata, ...]


class ModelReady(Answer):
    """Answer of `GET /v2/models/{model}/ready`."""

    name: str
    ready: bool
