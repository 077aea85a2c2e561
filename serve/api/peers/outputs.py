"""The output tensors of the Open Inference Protocol, made from the service's own answer."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from attenuator.bundle import Task
from attenuator.runtime import Model
from attenuator.runtime.scores import ranked
from attenuator.serve.api.answers import Answer
from attenuator.serve.api.peers.tensors import packed

Datatype = Literal["BYTES", "FP32", "BOOL"]


@dataclass(frozen=True, slots=True)
class Output:
    """An output.

    Attributes:
        datatype: of its values.
        wide: whether it has a value for each label, in the model's order; else one for each input.
        ranked: whether its best values can be asked for.
        task: the only task that has it; None for all.
        explains: whether only explained answers have it.
    """

    datatype: Datatype
    wide: bool = False
    ranked: bool = False
    task: Task | None = None
    explains: bool = False


UNKNOWN = -1.0  # of a probability or an error that is not known; JSON has no NaN
OUTPUTS = {
    "label": Output("BYTES"),
    "score": Output("FP32"),
    "probs": Output("FP32", wide=True, ranked=True),
    "logits": Output("FP32", wide=True, ranked=True),
    "predicted": Output("BOOL", wide=True, task="multi_label"),
    "agreement_probability": Output("FP32", explains=True),
    "standard_error": Output("FP32", explains=True),
}


def outputs_of(model: Model, *, explain: bool = False) -> dict[str, Output]:
    """The outputs that a model has, with those of explained answers or without."""
    return {
        name: output
        for name, output in OUTPUTS.items()
        if output.task in (None, model.manifest.task) and explain >= output.explains
    }


@dataclass(frozen=True, slots=True, eq=False)
class OutputValues:
    """Values of an output.

    Attributes:
        rows: the values of some inputs, in row-major order.
        shape: of the tensor.
        datatype: of the values.
    """

    rows: Callable[[slice], list[Any]]
    shape: tuple[int, ...]
    datatype: Datatype

    def packed(self, span: slice) -> bytes:
        """The values of some inputs as bytes."""
        return packed(self.rows(span), self.datatype)


def output_values(name: str, answer: Answer, best: int | None) -> OutputValues:
    """An output of a request.

    Args:
        name: of `OUTPUTS`.
        answer: to the request.
        best: how many of the best values are wanted, as texts `value:index:label`; None for all values.
    """
    output, manifest = OUTPUTS[name], answer.model.manifest
    values, count = _values_of(name, answer), len(answer.scores)
    if best is not None:
        width = min(best, len(manifest.labels))

        def texts(span: slice) -> list[str]:
            return [text for row in values[span].tolist() for text in _ranked(row, manifest.labels, width)]

        return OutputValues(texts, (count, width), "BYTES")
    shape = (count, len(manifest.labels)) if output.wide else (count,)
    return OutputValues(lambda span: values[span].ravel().tolist(), shape, output.datatype)


def _values_of(name: str, answer: Answer) -> npt.NDArray[Any]:
    """An output's values, `[inputs, labels]` or `[inputs]`."""
    manifest = answer.model.manifest
    if name == "label":
        return np.asarray([manifest.labels[place] for place in answer.scores.argmax(axis=-1).tolist()], object)
    if name == "score":
        return np.asarray(answer.scores.max(axis=-1))
    if name == "predicted":
        return np.asarray(answer.scores >= manifest.thresholds)
    if OUTPUTS[name].explains:
        return np.array([UNKNOWN if each[name] is None else each[name] for each in answer.more])
    return answer.logits if name == "logits" else answer.scores


def _ranked(values: Sequence[float], labels: Sequence[str], width: int) -> list[str]:
    """The best values with place and label, highest first, as Triton's classification extension writes them."""
    return [f"{values[place]:f}:{place}:{labels[place]}" for place in ranked(values)[:width]]
