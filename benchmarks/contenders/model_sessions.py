"""Sessions of one encoder with every attention, and what they are checked against."""

import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch

from attenuator.export.encoder import Encoder, SelfAttention
from attenuator.runtime import create
from benchmarks.contenders.attention import CONV_SIZE
from benchmarks.contenders.graphs import SWAPS, Shape, int8, padded_graph, swapped, traced, with_attribute
from benchmarks.contenders.model_batches import Batch
from benchmarks.contenders.nodes import bound

YOSO, ALPHA = "num_hashes", "alpha"
# Length at which the YOSO graphs' exact value is compared with PyTorch.
PARITY_LENGTH = 200


class Graphs:
    """One shape's graphs, which sessions of any number of threads share.

    Args:
        shape: of the encoder.
        knob: `num_hashes` for YOSO and YOSO-C beside exact attention, `alpha` for MCA.
    """

    def __init__(self, shape: Shape, knob: str) -> None:
        self.shape = shape
        self.encoders: dict[str, Encoder] = {"yoso": shape.model()}
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "model.onnx"
            yoso = traced(self.encoders["yoso"], path)
            if knob == ALPHA:
                self.graphs = {"mca": traced(shape.model("softmax"), path, "mca")}
            else:
                self.encoders["yoso-c"] = shape.model(conv_size=CONV_SIZE)
                self.graphs = {"yoso": yoso, "yoso-c": traced(self.encoders["yoso-c"], path)}
        self.graphs |= {name: swapped(yoso, swap) for name, swap in SWAPS.items()}
        self.graphs["padded"] = padded_graph(yoso)


class Models:
    """One shape's sessions, created once for all lengths.

    Args:
        graphs: of the shape.
        threads: intra-op threads.
    """

    def __init__(self, graphs: Graphs, threads: int) -> None:
        self.shape = graphs.shape
        self.threads = threads
        self.encoders = dict(graphs.encoders)
        self.sessions: dict[str, Any] = {}
        self.graphs: dict[str, onnx.ModelProto] = {}
        for name, graph in graphs.graphs.items():
            self.add(name, graph)

    def add(self, name: str, graph: onnx.ModelProto) -> None:
        """Creates a session."""
        self.graphs[name] = graph
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "model.onnx"
            onnx.save(graph, path)
            self.sessions[name] = create(path, threads=self.threads)

    def with_hash_bits(self, hash_bits: int) -> str:
        """The YOSO graph with other hashes, as another graph; its name."""
        name = f"yoso, {hash_bits} bits"
        if name not in self.sessions:
            self.add(name, with_attribute(self.graphs["yoso"], "hash_bits", hash_bits))
            self.encoders[name] = self.encoders["yoso"]
        return name

    def int8(self, name: str) -> str:
        """A graph with its linear layers in int8, as another graph; its name."""
        other = f"int8 {name}"
        if other not in self.sessions:
            self.add(other, int8(self.graphs[name]))
        return other

    def inputs(self, name: str, batch: Batch, **knobs: float) -> dict[str, Any]:
        """What this graph takes."""
        feeds = batch.padded(self.shape.hidden) if name == "padded" else batch.packed(**knobs)
        input_names = {value.name for value in self.sessions[name].get_inputs()}
        return {key: value for key, value in feeds.items() if key in input_names}

    def logits(self, name: str, batch: Batch, **knobs: float) -> Any:
        """One run; float32 `[B, labels]`."""
        logits = self.sessions[name].run(["logits"], self.inputs(name, batch, **knobs))[0]
        return logits[::2] if name == "padded" else logits

    def parity(self, name: str, hash_bits: int | None = None) -> float:
        """Difference of a YOSO graph at the exact value to PyTorch's expectation."""
        batch = Batch((PARITY_LENGTH,))
        encoder = self.encoders[name]
        layers = [module for module in encoder.modules() if isinstance(module, SelfAttention)]
        usual = layers[0].attributes["hash_bits"]
        for layer in layers:
            layer.attributes["hash_bits"] = hash_bits or usual
        feeds = batch.packed()
        tensors = [torch.from_numpy(feeds[key]) for key in ("input_ids", "position_ids", "cu_seqlens")]
        with torch.inference_mode():
            eager = encoder(*tensors).numpy()
        for layer in layers:
            layer.attributes["hash_bits"] = usual
        return relative(self.logits(name, batch, num_hashes=0), eager)

    def runner(self, name: str, batch: Batch, **knobs: float) -> Callable[[], None]:
        """What runs a graph over bound memory."""
        return bound_run(self.sessions[name], self.inputs(name, batch, **knobs))


def bound_run(session: Any, feeds: Mapping[str, Any]) -> Callable[[], None]:
    """What runs a session over bound memory.

    Args:
        session: of a whole model.
        feeds: graph inputs by name; those that the session does not take are left out.
    """
    taken = {value.name: feeds[value.name] for value in session.get_inputs()}
    names = [value.name for value in session.get_outputs()]
    results = session.run(names, taken)
    outputs = {name: (result.shape, result.dtype) for name, result in zip(names, results, strict=True)}
    return bound(session, taken, outputs)[0]


def relative(actual: Any, truth: Any) -> float:
    """Largest difference relative to the largest value."""
    return float(np.abs(actual - truth).max() / np.abs(truth).max())
