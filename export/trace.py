"""From a trained model to an ONNX graph with one node of the domain `attenuator` in each layer."""

from __future__ import annotations

import inspect
import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import onnx
import onnx_ir as ir
import onnxscript
import torch
from torch import Tensor, nn

from attenuator.errors import ExportError
from attenuator.export import positions
from attenuator.export.architectures import Architecture
from attenuator.export.eager import token_types
from attenuator.export.packed import OPERATOR_BY_KEY, PackedBatch
from attenuator.export.selection import DEFAULT, DROPPED, LENGTHS, NONE, Selection, selection_of
from attenuator.ops import DOMAIN, OPERATORS, SEQUENCE_OUTPUTS
from attenuator.ops.spec import UNMERGED_CU_SEQLENS, Operator, merge_knobs
from attenuator.ops.spec import Tensor as TensorSpec
from attenuator.ops.torch_op import PYTHON_TYPES, TORCH_DTYPES, overload

__all__ = ["OPSET", "PackedClassifier", "op_schema", "trace"]

OPSET = 20
# Two sequences of unequal length, so that the exporter takes neither T nor B for a constant, nor one for the other.
EXAMPLE_LENGTHS = (3, 4)
ATTRIBUTE_TYPES = {
    "int": onnx.defs.OpSchema.AttrType.INT,
    "float": onnx.defs.OpSchema.AttrType.FLOAT,
    "string": onnx.defs.OpSchema.AttrType.STRING,
}
# Data types of the operators: all three on CUDA, only the first on the CPU.
DATA_TYPES = ["tensor(float)", "tensor(float16)", "tensor(bfloat16)"]


class PackedClassifier(nn.Module):
    """A trained model as a function of packed graph inputs.

    Args:
        architecture: the model's family.
        model: the trained model, in evaluation mode; its modules are used as they are.
        operator: key of the attention operator.
        attributes: attributes of its nodes that the model does not fix, such as `estimator`.
        has_token_types: whether the graph takes `token_type_ids`.
        schedule: how the selection of tokens spreads over the layers; see `selection`.
        merge: what becomes of the tokens that it leaves out, a key of `selection.MERGES`.

    Attributes:
        num_layers: layers of the model, repeated calls of a shared layer counted.
        global_nodes: attention nodes beside one a layer, for the rows of global tokens.
        selection: which layers select tokens; another schedule may be set before tracing, but not none or from none.
        operators: that have the graph's knobs.
        inputs: graph inputs in order.
        outputs: graph outputs in order.
        form: what computes an operator; see `PackedBatch`.
    """

    form: Callable[[Operator], Any] = staticmethod(overload)

    def __init__(
        self,
        architecture: Architecture,
        model: nn.Module,
        operator: str,
        attributes: dict[str, Any],
        has_token_types: bool | None = None,
        schedule: str = DEFAULT,
        merge: str = DROPPED,
    ) -> None:
        super().__init__()
        self.merge = merge
        self.model = model
        self.architecture = architecture
        self.operator = OPERATOR_BY_KEY[operator]
        self.attributes = architecture.attributes(model.config) | attributes
        self.num_layers = len(architecture.blocks(model))
        self.pooling = architecture.pooling(model.config)
        # A last layer that computes the first tokens alone has no other node.
        self.global_nodes = self.num_layers - (self.pooling == "first") if architecture.global_token else 0
        if has_token_types is None:
            has_token_types = token_types(model) > 1
        self.selection = Selection()
        self.choose(schedule)
        self.operators = [*([LENGTHS] if self.selection.layers else []), self.operator]
        # What sequences were before rows were merged says `cu_seqlens` itself.
        given = [item for operator in self.operators for item in operator.inputs if item != UNMERGED_CU_SEQLENS]
        host = [item.name for item in given if item.host]
        types = ["token_type_ids"] if has_token_types else []
        self.inputs = ["input_ids", "position_ids", *types, *dict.fromkeys(["cu_seqlens", *host])]
        self.outputs = ["logits", *(item.name for item in self.operator.outputs if item.name in SEQUENCE_OUTPUTS)]
        architecture.prepare(model)

    def choose(self, schedule: str) -> None:
        """Sets which layers select, by the name of a schedule; none do where every row is needed."""
        if self.needs_every_row:
            schedule = NONE
        self.selection = selection_of(self.operator, schedule, self.num_layers, self.pooling, self.merge)

    @property
    def needs_every_row(self) -> bool:
        """Whether a convolution, or an answer about each token, needs all of them."""
        return self.architecture.reads_tokens or self.architecture.convolves(self.model.config)

    def forward(self, *tensors: Tensor) -> Tensor | tuple[Tensor, ...]:
        """Graph inputs in the order of `inputs` to graph outputs in the order of `outputs`."""
        batch = PackedBatch(
            operator=self.operator,
            attributes=self.attributes,
            num_layers=self.num_layers,
            only_first=self.pooling == "first",
            inputs=dict(zip(self.inputs, tensors, strict=True)),
            global_token=self.architecture.global_token,
            selection=self.selection,
            form=self.form,
        )
        logits = self.architecture.logits(self.model, batch).float()
        value_flops = batch.mean_value_flops()
        return logits if value_flops is None else (logits, value_flops)

    def example(self) -> tuple[Tensor, ...]:
        """A small ragged batch."""
        total, batch = sum(EXAMPLE_LENGTHS), len(EXAMPLE_LENGTHS)
        offset = self.architecture.position_offset(self.model.config)
        values = {
            "input_ids": torch.ones(total, dtype=torch.int64),
            "position_ids": torch.cat([torch.arange(length) + offset for length in EXAMPLE_LENGTHS]),
            "token_type_ids": torch.zeros(total, dtype=torch.int64),
            "cu_seqlens": torch.tensor([0, *EXAMPLE_LENGTHS], dtype=torch.int32).cumsum(0, dtype=torch.int32),
            "seed": torch.zeros(batch, dtype=torch.int64),
        }
        for knob in merge_knobs(self.operators).values():
            values[knob.name] = torch.full((batch,), knob.exact, dtype=TORCH_DTYPES[knob.dtype])
        return tuple(values[name] for name in self.inputs)


def op_schema(operator: Operator) -> Any:
    """The ONNX schema that the spec describes."""
    parameter = onnx.defs.OpSchema.FormalParameter
    option = onnx.defs.OpSchema.FormalParameterOption
    return onnx.defs.OpSchema(
        operator.name,
        DOMAIN,
        operator.version,
        operator.doc,
        inputs=[
            parameter(
                item.name,
                type_of(item),
                item.doc,
                param_option=option.Optional if item.optional else option.Single,
            )
            for item in operator.inputs
        ],
        outputs=[
            parameter(
                item.name,
                type_of(item),
                item.doc,
                param_option=option.Optional if item.optional else option.Single,
            )
            for item in operator.outputs
        ],
        type_constraints=[("T", DATA_TYPES, "the operator's data type")],
        attributes=[
            onnx.defs.OpSchema.Attribute(item.name, ATTRIBUTE_TYPES[item.kind], item.doc, required=False)
            for item in operator.attributes
        ],
    )


def type_of(tensor: TensorSpec) -> str:
    """A tensor's type in the ONNX schema; data tensors share one."""
    return "T" if tensor.data else f"tensor({tensor.dtype})"


def translation(operator: Operator) -> Callable[..., Any]:
    """A function that the exporter calls for `torch.ops.attenuator.<operator>`; it emits one node.

    The exporter reads inputs and attributes off the function's signature, which is therefore built from the spec.
    """
    opset = onnxscript.values.Opset(DOMAIN, operator.version)
    node = onnxscript.values.Op(opset, operator.name, op_schema(operator))
    names = [item.name for item in operator.inputs]

    def translate(*args: Any, **kwargs: Any) -> Any:
        arguments = dict(zip(names, args, strict=False)) | kwargs
        inputs = [arguments.pop(name, None) for name in names]
        while inputs and inputs[-1] is None:
            inputs.pop()
        # PyTorch drops arguments that equal their default; nodes carry every attribute, which the fallback relies on.
        return node(*inputs, **({item.name: item.default for item in operator.attributes} | arguments))

    either = inspect.Parameter.POSITIONAL_OR_KEYWORD
    parameters = [
        inspect.Parameter(item.name, either, default=None if item.optional else inspect.Parameter.empty)
        for item in operator.inputs
    ]
    parameters += [
        inspect.Parameter(
            item.name, inspect.Parameter.KEYWORD_ONLY, default=item.default or 0, annotation=PYTHON_TYPES[item.kind]
        )
        for item in operator.attributes
    ]
    translate.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    translate.__annotations__ = {item.name: PYTHON_TYPES[item.kind] for item in operator.attributes}
    translate.__name__ = operator.name
    return translate


@contextmanager
def quiet() -> Iterator[None]:
    """Keeps the exporter's own log lines and warnings off the terminal; its result is checked afterwards."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "onnxscript", "onnx_ir")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def trace(classifier: PackedClassifier) -> ir.Model:
    """Traces the classifier with symbolic T and B.

    Args:
        classifier: the model on packed batches, in evaluation mode.

    Returns:
        The graph, opset 20 and domain `attenuator`, without functions.

    Raises:
        ExportError: the model's code does not trace.
    """
    tokens, batch = torch.export.Dim("T"), torch.export.Dim("B")
    axes = {"input_ids": tokens, "position_ids": tokens, "token_type_ids": tokens, "cu_seqlens": batch + 1}
    if axes.keys() >= set(classifier.inputs):  # no input has B itself
        axes["cu_seqlens"] = torch.export.Dim("starts")
    try:
        with torch.no_grad(), quiet():
            program: Any = torch.onnx.export(
                classifier,
                classifier.example(),
                dynamo=True,
                opset_version=OPSET,
                optimize=True,
                verbose=False,
                input_names=classifier.inputs,
                output_names=classifier.outputs,
                dynamic_shapes={"tensors": tuple({0: axes.get(name, batch)} for name in classifier.inputs)},
                custom_translation_table={overload(operator): translation(operator) for operator in OPERATORS},
            )
    except Exception as error:  # the exporter wraps whatever the model's own code raises
        reason = " ".join(str(error.__cause__ or error).split())[:300]
        raise ExportError(f"the model cannot be traced: {reason}") from error
    leave_out_unused(program.model.graph)
    positions.write_as_formula(program.model.graph, classifier.model)
    forget_origin(program.model)
    return program.model


def leave_out_unused(graph: ir.Graph) -> None:
    """Removes the operators' last outputs where they are optional and nothing reads them.

    A PyTorch operator returns all outputs, those that its attributes leave out too.
    """
    by_name = {operator.name: operator for operator in OPERATORS}
    for node in graph:
        if node.domain != DOMAIN:
            continue
        optional = [item.optional for item in by_name[node.op_type].outputs]
        count = len(node.outputs)
        while (
            optional[count - 1] and not node.outputs[count - 1].uses() and not node.outputs[count - 1].is_graph_output()
        ):
            count -= 1
        node.resize_outputs(count)


def forget_origin(model: ir.Model) -> None:
    """Removes what the exporter records about every node: call stacks with paths of this machine."""
    graph = model.graph
    values = [*graph.inputs, *graph.outputs, *graph.initializers.values()]
    for node in graph.all_nodes():
        node.doc_string = None
        node.metadata_props.clear()
        values += node.outputs
    for item in (model, graph, *values):
        item.metadata_props.clear()
