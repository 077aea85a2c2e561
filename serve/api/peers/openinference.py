"""The Open Inference Protocol (KServe's V2, Triton): `POST /v2/models/{model}/infer` and what describes a model.

https://github.com/kserve/open-inference-protocol, with Triton's extensions for binary tensors and classification.
Knobs, goals and options are in the request's `parameters`.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from fastapi import Request
from pydantic_core import to_json
from starlette.responses import Response

from attenuator.api import Body
from attenuator.errors import InvalidRequest, UnknownModel
from attenuator.json_body import parse_json
from attenuator.ops.knobs import shown
from attenuator.runtime import Input, Model
from attenuator.runtime.request import check_count, check_values, wrong
from attenuator.serve.api.answers import Answer, Write
from attenuator.serve.api.errors import OWN_FORM
from attenuator.serve.api.peers import forms, tensors
from attenuator.serve.api.peers import openinference_types as types
from attenuator.serve.api.schema import TIMEOUT, TRUNCATE, ParsedRequest, assemble, single_header
from attenuator.serve.edge.arrivals import BINARY_TYPE, JSON

VERSION_DIGITS = 12
TEXTS = ("text", "text_pair")
NUMBERS = ("token_ids", "token_type_ids")
MICROSECONDS = 1e-3  # in milliseconds
FIRST_BATCH_PRIORITY = 2  # Triton's highest priority is 1
ERROR_FORM = replace(OWN_FORM, statuses={422: 400})

Described = TypeVar("Described", bound=Body)


def version_of(model: Model) -> str:
    """The version of a model: the beginning of its revision."""
    return model.manifest.revision[:VERSION_DIGITS]


def check_version(model: Model, request: Request) -> None:
    """Refuses a path with another version than the one that is served; without one it is that."""
    own, version = version_of(model), request.path_params.get("version")
    if version not in (None, own, model.manifest.revision):
        sentence = f"version '{str(version)[:80]}' of model '{model.manifest.name}' is not served, must be {own}"
        raise UnknownModel(sentence, param="version", allowed=own)


def metadata(model: Model) -> types.ModelMetadata:
    """What the protocol says about a model."""
    labels = len(model.manifest.labels)
    return types.ModelMetadata(
        name=model.manifest.name,
        versions=(version_of(model),),
        inputs=(
            *(types.TensorMetadata(name=name, datatype="BYTES", shape=(-1,)) for name in TEXTS),
            *(types.TensorMetadata(name=name, datatype="INT64", shape=(-1, -1)) for name in NUMBERS),
        ),
        outputs=tuple(
            types.TensorMetadata(name=name, datatype=output.datatype, shape=(-1, labels) if output.wide else (-1,))
            for name, output in tensors.outputs_of(model).items()
        ),
    )


class Infer(forms.PeerForm):
    """One `infer` of a model, which the path names."""

    _tail = b""

    def __init__(self, request: Request, model: str) -> None:
        super().__init__(request)
        self._model = model
        # Triton's client sends JSON without a type. Browsers would too, but never without saying whose page it is.
        untyped = [] if "origin" in request.headers else [""]
        self.types = [*untyped, BINARY_TYPE] if tensors.JSON_BYTES in request.headers else untyped

    def parse(self, body: bytes) -> dict[str, Any]:
        """The JSON, and the model of the path; what follows the JSON is kept for its tensors."""
        content, self._tail = tensors.split_body(body, single_header(self._request, tensors.JSON_BYTES))
        fields = parse_json(content)
        forms.check_names(fields, list(types.InferOptions.model_fields))
        return fields | {"model": self._model}

    def request(self, fields: Mapping[str, Any], model: Model) -> ParsedRequest:
        """To the request that the service answers."""
        check_version(model, self._request)
        body = check_values(types.InferOptions, forms.selected(fields, types.InferOptions.model_fields))
        self._id = body.id
        header = forms.header_fields(self._request, forms.shared_names())
        parameters = body.parameters or {}
        forms.check_names(parameters, [*types.InferParameters.model_fields, *forms.shared_names()], "parameters.")
        special = forms.selected(parameters, types.InferParameters.model_fields)
        options = check_values(types.InferParameters, special, prefix="parameters.")
        places = {
            "parameters": {name: parameters[name] for name in parameters if name not in special}
            | forms.class_of(options.priority, FIRST_BATCH_PRIORITY),
            "the parameter timeout": {TIMEOUT: options.timeout * MICROSECONDS} if options.timeout else {},
            forms.IN_HEADER: header,
        }
        called = {name: f"parameters.{name}" for name in (TRUNCATE, forms.EXPLAIN)}
        timeout = {TIMEOUT: "parameters.timeout"} if options.timeout else {}
        own = self.gathered(places)
        self.own_names = {**timeout, **self.own_names, **called}
        self._binary_output = options.binary_data_output
        self._outputs = requested_outputs(body.outputs, model, explain=options.explain)
        if options.explain:
            own["explain"] = True
        own["truncate"] = options.truncate
        tail, self._tail = tensors.Tail(self._tail), b""  # megabytes are not kept while the request waits
        return assemble(own, model, read_inputs(body.inputs, tail))

    async def response(self, answer: Answer, headers: dict[str, str], write: Write) -> Response:
        """Tensors as JSON, or as bytes where they are asked for so."""
        name, version = answer.fields["model"], version_of(answer.model)
        head = types.Inference(
            model_name=name, model_version=version, id=self._id, parameters=_parameters_of(answer), outputs=()
        )
        inputs, written, tail = len(answer.scores), [], b""
        asked = [(output, output.parameters or types.OutputParameters()) for output in self._outputs]
        outputs = [tensors.OutputValues(output.name, answer, options.classification) for output, options in asked]
        width = sum(math.prod(values.shape[1:]) for values in outputs)
        for values, (output, options) in zip(outputs, asked, strict=True):
            tensor: dict[str, Any] = {"name": output.name, "shape": values.shape, "datatype": values.datatype}
            if self._binary_output if options.binary_data is None else options.binary_data:
                packed = await write(values.packed, inputs, width, b"")
                tail += packed
                written.append(to_json(tensor | {"parameters": {tensors.SIZE_PARAMETER: len(packed)}}))
            else:
                data = await write(values.as_json, inputs, width, b",")
                written.append(b'%b,"data":[%b]}' % (to_json(tensor)[:-1], data))
        json = head.model_dump_json(exclude_none=True).encode().removesuffix(b"]}") + b",".join(written) + b"]}"
        headers = headers | forms.result_header(answer)
        if not tail:
            return Response(json, 200, headers, JSON)
        headers[tensors.JSON_BYTES] = str(len(json))
        return Response(json + tail, 200, headers, BINARY_TYPE)


def read_inputs(raw: Sequence[Any], tail: tensors.Tail) -> Iterator[Input]:
    """The inputs of tensors: row i of each, which sentences call by its tensor, such as `text[3]`."""
    columns: dict[str, list[Any]] = {}
    for place, fields in enumerate(raw):
        name, rows = read_input(fields, f"inputs[{place}]", tail)
        if name in columns:
            raise InvalidRequest(f"inputs has {name} twice, must have it once", param="inputs", allowed="each once")
        columns[name] = rows
    tail.check_empty()
    if not any(set(columns) in ({group[0]}, set(group)) for group in (TEXTS, NUMBERS)):
        allowed = "text, text and text_pair, token_ids, or token_ids and token_type_ids"
        has = " and ".join(columns) or "no tensor"
        raise InvalidRequest(f"inputs has {has}, must have {allowed}", param="inputs", allowed=allowed)
    first, *others = columns
    count = len(columns[first])
    for name in others:
        if len(columns[name]) != count:
            sentence = f"{name} has {len(columns[name])} rows, must have {count}, as {first} has"
            raise InvalidRequest(sentence, param=name, allowed=f"{count} rows")
    main = TEXTS[0] if TEXTS[0] in columns else NUMBERS[0]
    for row in range(count):
        yield Input(f"{main}[{row}]", **{name: rows[row] for name, rows in columns.items()})


def read_input(raw: Any, where: str, tail: tensors.Tail) -> tuple[str, list[Any]]:
    """Name and rows of an input tensor."""
    tensor = read_object(raw, types.InputTensor, types.TensorParameters, where)
    is_text = tensor.name in TEXTS
    if (tensor.datatype == "BYTES") != is_text:
        allowed = "BYTES" if is_text else " or ".join(tensors.INTEGERS)
        raise wrong(f"{where}.datatype", f"is {tensor.datatype}", allowed, f" for {tensor.name}")
    if is_text and tensor.shape[1:] not in ([], [1]) or not is_text and len(tensor.shape) != 2:
        allowed = "[inputs] or [inputs, 1]" if is_text else "[inputs, tokens]"
        raise wrong(f"{where}.shape", f"is {tensor.shape}", allowed, f" for {tensor.name}")
    check_count(tensor.shape[0], f"{where}.shape")
    return tensor.name, tensors.read_tensor(raw, tensor.shape, tensor.datatype, tail, where)


def requested_outputs(raw: Sequence[Any] | None, model: Model, *, explain: bool = False) -> list[types.OutputTensor]:
    """The outputs that a request asks for: all that the model has where it leaves that open."""
    outputs: list[types.OutputTensor] = []
    names = list(tensors.outputs_of(model, explain=explain))
    allowed = ", ".join(names)
    if not raw:
        return [types.OutputTensor.model_validate({"name": name}) for name in names]
    for place, fields in enumerate(raw):
        where = f"outputs[{place}]"
        output = read_object(fields, types.OutputTensor, types.OutputParameters, where)
        if tensors.OUTPUTS[output.name].explains and not explain:
            sentence = (
                f"{where}.name is {output.name}, which explained answers alone have: set explain in parameters, or ask "
                f"for one of: {allowed}"
            )
            raise InvalidRequest(sentence, param=f"{where}.name", allowed=allowed)
        if output.name not in names or output.name in [other.name for other in outputs]:
            sentence = f"{where}.name is {output.name}, must be another of: {allowed}"
            raise InvalidRequest(sentence, param=f"{where}.name", allowed=allowed)
        ranked = output.parameters is not None and output.parameters.classification is not None
        if ranked and not tensors.OUTPUTS[output.name].ranked:
            those = " or ".join(name for name in names if tensors.OUTPUTS[name].ranked)
            sentence = f"{where}.parameters.classification is set for {output.name}, must be for {those}"
            raise InvalidRequest(sentence, param=f"{where}.parameters.classification", allowed=those)
        outputs.append(output)
    return outputs


def read_object(raw: Any, kind: type[Described], parameters: type[Body], where: str) -> Described:
    """Checks a tensor's description and its parameters; error sentences call it `where`."""
    if not isinstance(raw, dict):
        raise wrong(where, f"is {shown(raw)}", "an object")
    forms.check_names(raw, list(kind.model_fields), f"{where}.")
    if isinstance(raw.get("parameters"), dict):
        inner = f"{where}.parameters."
        forms.check_names(raw["parameters"], list(parameters.model_fields), inner)
        check_values(parameters, raw["parameters"], prefix=inner)
    return check_values(kind, raw, prefix=f"{where}.")


def _parameters_of(answer: Answer) -> dict[str, Any]:
    """How a request was answered, as the protocol's flat parameters."""
    names = ("seed", "chosen_by", "expected_agreement", "steps", "relative_cost")
    return {**answer.fields["knobs"], **{name: answer.fields[name] for name in names if name in answer.fields}}
