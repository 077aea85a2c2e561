"""The output tensors of the Open Inference Protocol, made from the service's own answer."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from attenuator.api import Classification, Prediction
from attenuator.bundle import Task
from attenuator.runtime import Model
from attenuator.serve.peers.tensors import packed

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


@dataclass(frozen=True, slots=True)
class OutputValues:
    """Values of an output.

    Attributes:
        values: in row-major order.
        shape: of the tensor.
        datatype: of the values.
    """

    values: Sequence[Any]
    shape: tuple[int, ...]
    datatype: Datatype

    def packed(self) -> bytes:
        """The values as bytes."""
        return packed(self.values, self.datatype)


def output_values(name: str, model: Model, answer: Classification, best: int | None) -> OutputValues:
    """An output of a request.

    Args:
        name: of `OUTPUTS`.
        model: which answered.
        answer: with every score and logit.
        best: how many of the best values are wanted, as texts `value:index:label`; None for all values.
    """
    output, labels = OUTPUTS[name], model.manifest.labels
    rows = [values_of(name, labels, prediction) for prediction in answer.predictions]
    if best is not None:
        width = min(best, len(labels))
        rows = [ranked(row, labels)[:width] for row in rows]
        return OutputValues([text for row in rows for text in row], (len(rows), width), "BYTES")
    shape = (len(rows), len(labels)) if output.wide else (len(rows),)
    return OutputValues([value for row in rows for value in row], shape, output.datatype)


def values_of(name: str, labels: Sequence[str], prediction: Prediction) -> list[Any]:
    """An output's values for one input."""
    if name in ("label", "score"):
        return [getattr(prediction, name)]
    if OUTPUTS[name].explains:
        value = getattr(prediction, name)
        return [UNKNOWN if value is None else value]
    if name == "logits":
        return list(prediction.logits or ())
    if name == "predicted":
        return [label in (prediction.labels or ()) for label in labels]
    scores = {each.label: each.score for each in prediction.scores or ()}
    return [scores[label] for label in labels]


def ranked(values: Sequence[float], labels: Sequence[str]) -> list[str]:
    """Values with place and label, highest first, as Triton's classification extension writes them."""
    order = sorted(range(len(values)), key=lambda place: -values[place])
    return [f"{values[place]:f}:{place}:{labels[place]}" for place in order]
