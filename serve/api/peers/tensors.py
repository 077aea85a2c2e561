"""Tensors of the Open Inference Protocol, read and written: as lists in the JSON, or as bytes after it.

The binary form is Triton's extension: the header `Inference-Header-Content-Length` says where the JSON ends; then come
the tensors that have the parameter `binary_data_size`, in the order of the JSON. Numbers are little-endian; a text is
its length in 4 bytes and UTF-8.
"""

import math
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from attenuator.bundle import Task
from attenuator.errors import InvalidRequest
from attenuator.json_body import MalformedBody
from attenuator.ops.knobs import shown, whole_number
from attenuator.runtime import Model
from attenuator.runtime.request import wrong
from attenuator.runtime.scores import ranked
from attenuator.serve.api.answers import Answer, elements

JSON_BYTES = "Inference-Header-Content-Length"
SIZE_PARAMETER = "binary_data_size"
LENGTH_BYTES = 4
Datatype = Literal["BYTES", "FP32", "BOOL"]
INTEGERS = {"INT32": "<i4", "INT64": "<i8", "UINT32": "<u4", "UINT64": "<u8"}


def split_body(body: bytes, json_bytes: str | None) -> tuple[bytes, bytes]:
    """JSON and tensors of a body, whose header `JSON_BYTES` says where the JSON ends; None where all is JSON.

    Raises:
        MalformedBody: the header is not a number, or larger than the body.
    """
    if json_bytes is None:
        return body, b""
    size = int(json_bytes) if json_bytes.isdecimal() and len(json_bytes) < 16 else -1
    if not 0 <= size <= len(body):
        allowed = f"a number of bytes, at most the {len(body)} of the body"
        raise MalformedBody(f"the header {JSON_BYTES} is '{json_bytes[:20]}', must be {allowed}")
    return body[:size], body[size:]


class Tail:
    """The bytes after the JSON, which tensors take in order."""

    def __init__(self, content: bytes) -> None:
        self._content = content
        self._at = 0

    def take(self, size: Any, where: str) -> bytes:
        """The next bytes."""
        param = f"{where}.parameters.{SIZE_PARAMETER}"
        remaining = len(self._content) - self._at
        number = whole_number(size)
        if number is None or not 0 <= number <= remaining:
            allowed = f"a number of bytes, at most the {remaining} that follow the JSON"
            raise wrong(param, f"is {shown(size)}", allowed)
        self._at += number
        return self._content[self._at - number : self._at]

    def check_empty(self) -> None:
        """Refuses with MalformedBody bytes that belong to no tensor."""
        remaining = len(self._content) - self._at
        if remaining:
            raise MalformedBody(
                f"the body has {remaining} bytes after its last tensor, must end with it: {SIZE_PARAMETER} of each "
                "input says how many bytes are its own"
            )


def read_tensor(raw: Mapping[str, Any], shape: Sequence[int], datatype: str, tail: Tail, where: str) -> list[Any]:
    """Reads an input's data: texts, or numbers `[rows, columns]` as lists; error sentences call it `where`."""
    size = (raw.get("parameters") or {}).get(SIZE_PARAMETER)
    if ("data" in raw) == (size is not None):
        allowed = f"data, or {SIZE_PARAMETER} in its parameters"
        has = "both" if size is not None else "neither"
        raise InvalidRequest(f"{where} has {has}, must have {allowed}", param=where, allowed=allowed)
    count = math.prod(shape)
    values: list[Any]
    if size is not None:
        content = tail.take(size, where)
        if datatype == "BYTES":
            values = list(islice(texts_in(content, where), count + 1))  # a million empty ones fit into a body
        else:
            values = numbers_in(content, datatype, where)
    else:
        values = flat(raw["data"], f"{where}.data")
    if len(values) != count:
        number = f"more than {count}" if len(values) > count else len(values)
        sentence = f"{where} has {number} values, must have {count}: its shape is {list(shape)}"
        raise InvalidRequest(sentence, param=where, allowed=f"{count} values")
    if datatype == "BYTES":
        for index, value in enumerate(values):
            if not isinstance(value, str):
                raise wrong(f"{where}.data[{index}]", f"is {shown(value)}", "a text")
        return values
    columns = shape[-1]
    return [values[first : first + columns] for first in range(0, count, columns)]


def flat(data: Any, param: str) -> list[Any]:
    """Values in order, whether the lists are nested as the shape is or not."""
    if not isinstance(data, list):
        raise InvalidRequest(f"{param} is {shown(data)}, must be a list of values", param=param, allowed="a list")
    if not data or not isinstance(data[0], list):  # the others are not looked at: there may be two million numbers
        return data
    values: list[Any] = []
    for row in data:
        values += row if isinstance(row, list) else [row]
    return values


def texts_in(content: bytes, where: str) -> Iterator[str]:
    """The texts of a binary tensor."""
    at, count = 0, 0
    while at < len(content):
        start = at + LENGTH_BYTES
        end = start + int.from_bytes(content[at:start], "little")
        param = f"{where}[{count}]"
        if end > len(content) or start > len(content):
            raise InvalidRequest(
                f"{param} ends after the {len(content)} bytes of its tensor: each text must be its length in "
                f"{LENGTH_BYTES} bytes, then UTF-8",
                param=param,
                allowed="a length in 4 bytes and as many bytes of UTF-8",
            )
        try:
            yield content[start:end].decode("utf-8")
        except UnicodeDecodeError:
            raise InvalidRequest(f"{param} is not UTF-8, must be a text", param=param, allowed="UTF-8") from None
        at, count = end, count + 1


def numbers_in(content: bytes, datatype: str, where: str) -> list[int]:
    """The numbers of a binary tensor."""
    dtype = np.dtype(INTEGERS[datatype])
    if len(content) % dtype.itemsize:
        allowed = f"{dtype.itemsize} bytes for each value of {datatype}"
        raise InvalidRequest(f"{where} has {len(content)} bytes, must have {allowed}", param=where, allowed=allowed)
    return list(np.frombuffer(content, dtype).tolist())


@dataclass(frozen=True, slots=True)
class Output:
    """An output.

    Attributes:
        datatype: of its values.
        values: takes them from an answer: `[inputs, labels]`, in the model's order, or `[inputs]`.
        wide: which of the two.
        ranked: whether its best values can be asked for.
        task: the only task that has it; None for all.
        explains: whether only explained answers have it.
    """

    datatype: Datatype
    values: Callable[[Answer], npt.NDArray[Any]]
    wide: bool = False
    ranked: bool = False
    task: Task | None = None
    explains: bool = False


def _labels(answer: Answer) -> npt.NDArray[Any]:
    labels = answer.model.manifest.labels
    return np.asarray([labels[place] for place in answer.scores.argmax(axis=-1).tolist()], object)


def _explained(name: str, answer: Answer) -> npt.NDArray[Any]:
    return np.array([UNKNOWN if each[name] is None else each[name] for each in answer.more])


UNKNOWN = -1.0  # of a probability or an error that is not known; JSON has no NaN
OUTPUTS = {
    "label": Output("BYTES", _labels),
    "score": Output("FP32", lambda answer: np.asarray(answer.scores.max(axis=-1))),
    "probs": Output("FP32", lambda answer: answer.scores, wide=True, ranked=True),
    "logits": Output("FP32", lambda answer: answer.logits, wide=True, ranked=True),
    "predicted": Output(
        "BOOL",
        lambda answer: np.asarray(answer.scores >= answer.model.manifest.thresholds),
        wide=True,
        task="multi_label",
    ),
    **{
        name: Output("FP32", partial(_explained, name), explains=True)
        for name in ("agreement_probability", "standard_error")
    },
}


def outputs_of(model: Model, *, explain: bool = False) -> dict[str, Output]:
    """The outputs that a model has, with those of explained answers or without."""
    return {
        name: output
        for name, output in OUTPUTS.items()
        if output.task in (None, model.manifest.task) and explain >= output.explains
    }


class OutputValues:
    """Values of an output, with the tensor's shape and the values' datatype."""

    def __init__(self, name: str, answer: Answer, best: int | None) -> None:
        """Takes them from an answer: all of them, or so many of the best as texts `value:index:label`."""
        self._values, self._best, self._labels = OUTPUTS[name].values(answer), best, answer.model.manifest.labels
        inputs, *labels = self._values.shape
        self.shape = (inputs, *(count if best is None else min(best, count) for count in labels))
        self.datatype: Datatype = OUTPUTS[name].datatype if best is None else "BYTES"

    def rows(self, span: slice) -> list[Any]:
        """The values of some inputs in row-major order."""
        values = self._values[span]
        if self._best is None:
            return list(values.ravel().tolist())
        return [f"{row[i]:f}:{i}:{self._labels[i]}" for row in values.tolist() for i in ranked(row)[: self._best]]

    def packed(self, span: slice) -> bytes:
        """The values of some inputs as bytes."""
        if self.datatype == "BYTES":
            texts = [str(value).encode() for value in self.rows(span)]
            return b"".join(struct.pack("<I", len(text)) + text for text in texts)
        return np.array(self.rows(span), {"FP32": "<f4", "BOOL": "?"}[self.datatype]).tobytes()

    def as_json(self, span: slice) -> bytes:
        """The same as elements of a JSON array."""
        return elements(self.rows(span))
