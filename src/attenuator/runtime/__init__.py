"""Runs a bundle: ONNX Runtime session, tokenizer, packed batches, scores.

The only code that creates ONNX Runtime sessions; it imports neither torch nor transformers.

    model = load(folder)                                    # checked in a child process first
    encoded = model.encode("a text")
    row = Row(encoded.token_ids, encoded.type_ids, model.knobs.check({}), seed=0)
    [result] = model.run([row])
    model.predict(result.logits).label
"""

from attenuator.runtime.batch import Row, RowResult
from attenuator.runtime.device import CPU, Choice, Device, choose
from attenuator.runtime.model import Cancellation, Model, load
from attenuator.runtime.request import KnobTable
from attenuator.runtime.scores import RowScores
from attenuator.runtime.session import create
from attenuator.runtime.tokens import Encoded, Input

__all__ = [
    "CPU",
    "Cancellation",
    "Choice",
    "Device",
    "Encoded",
    "Input",
    "KnobTable",
    "Model",
    "RowScores",
    "Row",
    "RowResult",
    "choose",
    "create",
    "load",
]
