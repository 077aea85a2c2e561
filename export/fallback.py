"""ONNX functions named like the operators: what a runtime without the operator library computes.

Each body is the operator's exact value in standard ONNX operators, O(T^2) in time and memory and blind to knobs and
seeds. With the library registered ONNX Runtime uses its kernels and drops the functions. They are attached last of all,
since every tool that rewrites a graph inlines them.

One zero row is appended to the packed rows, a sequence of its own, and cut off at the end: with T = 0 ONNX Runtime's
fused MatMul divides by zero.
"""

from __future__ import annotations

import math

import onnx
import onnx_ir as ir
from onnx import TensorProto, helper

from attenuator.export.packed import OPERATOR_BY_KEY
from attenuator.ops import DOMAIN
from attenuator.ops.spec import Operator

__all__ = ["attach", "function"]

NORM_FLOOR = 1e-12
MASKED = -1e30


class Body:
    """Collects the nodes of one function; every method returns the name of a value."""

    def __init__(self, operator: Operator, opset: int) -> None:
        self.operator = operator
        self.opset = opset
        self.nodes: list[onnx.NodeProto] = []
        self.attributes: list[str] = []

    def op(self, op_type: str, *inputs: str, out: str | None = None, **attributes: object) -> str:
        """One node with one output."""
        name = out or f"{op_type.lower()}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(op_type, list(inputs), [name], **attributes))
        return name

    def const(self, value: object, dtype: int = TensorProto.INT64) -> str:
        """A constant of rank 0 or 1."""
        values = list(value) if isinstance(value, tuple) else [value]
        shape = (len(values),) if isinstance(value, tuple) else ()
        return self.op("Constant", value=helper.make_tensor("value", dtype, shape, values))

    def real(self, value: float) -> str:
        """A float constant."""
        return self.const(value, TensorProto.FLOAT)

    def attribute(self, name: str) -> str:
        """The node's attribute as a scalar tensor."""
        kind = next(item.kind for item in self.operator.attributes if item.name == name)
        output = f"attribute_{name}"
        if name not in self.attributes:
            self.attributes.append(name)
            node = helper.make_node("Constant", [], [output])
            types = {"int": onnx.AttributeProto.INT, "float": onnx.AttributeProto.FLOAT}
            reference = node.attribute.add()
            reference.name = f"value_{kind}"
            reference.type = types.get(kind, onnx.AttributeProto.STRING)
            reference.ref_attr_name = name
            self.nodes.append(node)
        return output

    def is_choice(self, name: str, choice: str) -> str:
        """Whether a string attribute has this value, as a bool scalar."""
        return self.op("Equal", self.attribute(name), self.op("Constant", value_string=choice))

    def size(self, tensor: str, axis: int) -> str:
        """Length of an axis, `[1]`."""
        return self.op("Shape", tensor, start=axis, end=axis + 1)

    def padded(self, tensor: str) -> str:
        """`[rows, C]` with one zero row appended."""
        return self.op("Pad", tensor, self.const((0, 0, 1, 0)))

    def heads(self, tensor: str) -> str:
        """`[rows + 1, H * D]` to `[H, rows + 1, D]`."""
        num_heads = self.op("Unsqueeze", self.attribute("num_heads"), self.const((0,)))
        shape = self.op("Concat", self.const((0,)), num_heads, self.const((-1,)), axis=0)
        return self.op("Transpose", self.op("Reshape", tensor, shape), perm=[1, 0, 2])

    def function(self, has: list[str]) -> onnx.FunctionProto:
        """The finished function."""
        return helper.make_function(
            DOMAIN,
            self.operator.name,
            has,
            [item.name for item in self.operator.outputs],
            self.nodes,
            [helper.make_opsetid("", self.opset)],
            self.attributes,
        )


class Rows:
    """Which sequence and position each query row and key has, the appended zero row included.

    Attributes:
        sequence: int64 `[T + 1]`, index of the sequence of each key; B for the appended row.
        position: int64 `[T + 1]`.
        start: int64 `[T + 1]`, first row of the key's sequence.
        query_sequence, query_position: the same for the queries, `[rows + 1]`.
        length: `[1]`, query rows without the appended one.
    """

    def __init__(self, body: Body, packed: str, query: str | None = None) -> None:
        zero, one = body.const(0), body.const(1)
        starts = body.op("Cast", "cu_seqlens", to=TensorProto.INT64)
        total = body.op("Squeeze", body.size(packed, 0), body.const((0,)))
        self.position = body.op("Range", zero, body.op("Add", total, one), one)
        column = body.op("Unsqueeze", self.position, body.const((1,)))
        reached = body.op("Cast", body.op("GreaterOrEqual", column, starts), to=TensorProto.INT64)
        count = body.op("ReduceSum", reached, body.const((1,)), keepdims=0)
        self.sequence = body.op("Sub", count, one)
        self.start = body.op("Gather", starts, self.sequence)
        if query is None:
            return
        # Queries are all rows, or row b for sequence b. Both index vectors are laid end to end and one is cut out.
        self.length = body.size(query, 0)
        first = body.op("Unsqueeze", body.is_choice("queries", "first"), body.const((0,)))
        batch = body.op("Range", zero, body.op("Squeeze", body.size("cu_seqlens", 0), body.const((0,))), one)
        begin = body.op("Where", first, body.const((0,)), body.size("cu_seqlens", 0))
        end = body.op("Add", begin, body.op("Add", self.length, body.const((1,))))
        both = {
            "query_sequence": body.op("Concat", batch, self.sequence, axis=0),
            "query_position": body.op("Concat", starts, self.position, axis=0),
        }
        self.query_sequence = body.op("Slice", both["query_sequence"], begin, end, body.const((0,)))
        self.query_position = body.op("Slice", both["query_position"], begin, end, body.const((0,)))

    def same_sequence(self, body: Body) -> str:
        """Mask bool `[rows + 1, T + 1]`."""
        column = body.op("Unsqueeze", self.query_sequence, body.const((1,)))
        return body.op("Equal", column, self.sequence)

    def distance(self, body: Body) -> str:
        """int64 `[rows + 1, T + 1]`: key position minus query position."""
        return body.op("Sub", self.position, body.op("Unsqueeze", self.query_position, body.const((1,))))

    def visible(self, body: Body) -> str:
        """Mask bool `[rows + 1, T + 1]`: same sequence, and inside the window or global."""
        window = body.attribute("window")
        near = body.op("LessOrEqual", body.op("Abs", self.distance(body)), window)
        full = body.op("Equal", window, body.const(0))
        has_global = body.op("Equal", body.attribute("global_tokens"), body.const(1))
        first_key = body.op("Equal", self.position, self.start)
        own_start = body.op("Gather", self.start, self.query_position)
        first_query = body.op("Unsqueeze", body.op("Equal", self.query_position, own_start), body.const((1,)))
        special = body.op("And", has_global, body.op("Or", first_key, first_query))
        inside = body.op("Or", body.op("Or", near, full), special)
        return body.op("And", self.same_sequence(body), inside)

    def cut(self, body: Body, mixed: str, out: str | None = None) -> str:
        """`[H, rows + 1, D]` to `[rows, H * D]`."""
        flat = body.op("Reshape", body.op("Transpose", mixed, perm=[1, 0, 2]), body.const((0, -1)))
        return body.op("Slice", flat, body.const((0,)), self.length, body.const((0,)), out=out)


def softmax_rows(body: Body, value: str) -> None:
    """Exact softmax attention over `value` `[T + 1, H * D]`, written to `output`."""
    rows = Rows(body, "key", "query")
    query, key = body.heads(body.padded("query")), body.heads(body.padded("key"))
    width = body.op("Cast", body.size(query, 2), to=TensorProto.FLOAT)
    given = body.attribute("scale")
    own = body.op("Reciprocal", body.op("Sqrt", width))
    scale = body.op("Where", body.op("Equal", given, body.real(0.0)), own, given)
    scores = body.op("MatMul", body.op("Mul", query, scale), body.op("Transpose", key, perm=[0, 2, 1]))
    visible = rows.visible(body)
    weights = body.op("Softmax", body.op("Where", visible, scores, body.real(MASKED)), axis=-1)
    # A row that sees nothing (queries = first of an empty sequence) is zero.
    weights = body.op("Where", visible, weights, body.real(0.0))
    rows.cut(body, body.op("MatMul", weights, body.heads(value)), out="output")


def softmax(body: Body, has: list[str]) -> None:
    """`SoftmaxAttention`."""
    softmax_rows(body, body.padded("value"))


def mca(body: Body, has: list[str]) -> None:
    """`McaAttention` at alpha 0: the value projection is computed wholly, so all its multiply-adds are spent."""
    value = body.op("Add", body.op("MatMul", body.padded("hidden"), "value_weight"), "value_bias")
    softmax_rows(body, value)
    shape = body.size("alpha", 0)
    one = helper.make_tensor("value", TensorProto.FLOAT, (1,), [1.0])
    body.op("ConstantOfShape", shape, value=one, out="value_flops")


def unit_rows(body: Body, tensor: str) -> str:
    """Rows scaled to length 1, zero rows left at zero."""
    norm = body.op("ReduceL2", tensor, body.const((-1,)), keepdims=1)
    return body.op("Div", tensor, body.op("Max", norm, body.real(NORM_FLOOR)))


def yoso(body: Body, has: list[str]) -> None:
    """`YosoAttention` at num_hashes 0: the expectation E_ij = (1 - arccos(q_i . k_j) / pi)^tau."""
    rows = Rows(body, "key", "query")
    query, key = (unit_rows(body, body.heads(body.padded(name))) for name in ("query", "key"))
    value = body.heads(body.padded("value"))
    cosine = body.op("MatMul", query, body.op("Transpose", key, perm=[0, 2, 1]))
    angle = body.op("Acos", body.op("Clip", cosine, body.real(-1.0), body.real(1.0)))
    closeness = body.op("Sub", body.real(1.0), body.op("Div", angle, body.real(math.pi)))
    power = body.op("Cast", body.attribute("hash_bits"), to=TensorProto.FLOAT)
    same = rows.same_sequence(body)
    weights = body.op("Where", same, body.op("Pow", closeness, power), body.real(0.0))
    mixed = body.op("MatMul", weights, value)
    scaled = body.op("Equal", body.attribute("normalize"), body.const(1))
    mixed = body.op("Where", scaled, unit_rows(body, mixed), mixed)
    if "conv_weight" in has:
        mixed = body.op("Add", mixed, convolution(body, rows, same, value))
    rows.cut(body, mixed, out="output")


def convolution(body: Body, rows: Rows, same: str, value: str) -> str:
    """YOSO-C: sum over taps k of w_k value_{i + k - c // 2} inside the sequence, as a banded matrix `[H, rows, T]`."""
    taps = body.size("conv_weight", 1)
    tap = body.op("Add", rows.distance(body), body.op("Div", taps, body.const((2,))))
    inside = body.op("And", body.op("GreaterOrEqual", tap, body.const(0)), body.op("Less", tap, taps))
    index = body.op("Where", inside, tap, body.const(0))
    band = body.op("Gather", "conv_weight", index, axis=1)
    band = body.op("Where", body.op("And", inside, same), band, body.real(0.0))
    return body.op("MatMul", band, value)


def pool(body: Body, has: list[str]) -> None:
    """`SequencePool`."""
    rows = Rows(body, "hidden")
    padded = body.padded("hidden")
    starts = body.op("Cast", "cu_seqlens", to=TensorProto.INT64)
    batch = body.op("Sub", body.size(starts, 0), body.const((1,)))
    begin = body.op("Slice", starts, body.const((0,)), batch, body.const((0,)))
    end = body.op("Slice", starts, body.const((1,)), body.op("Add", batch, body.const((1,))), body.const((0,)))
    length = body.op("Sub", end, begin)
    # The appended zero row stands in for the first row of an empty sequence.
    empty = body.op("Equal", length, body.const(0))
    first = body.op("Gather", padded, body.op("Where", empty, body.size("hidden", 0), begin))
    index = body.op("Range", body.const(0), body.op("Squeeze", batch, body.const((0,))), body.const(1))
    member = body.op("Equal", body.op("Unsqueeze", index, body.const((1,))), rows.sequence)
    sums = body.op("MatMul", body.op("Cast", member, to=TensorProto.FLOAT), padded)
    count = body.op("Cast", body.op("Max", length, body.const(1)), to=TensorProto.FLOAT)
    mean = body.op("Div", sums, body.op("Unsqueeze", count, body.const((1,))))
    body.op("Where", body.is_choice("mode", "first"), first, mean, out="output")


BUILDERS = {"softmax": softmax, "mca": mca, "yoso": yoso, "pool": pool}


def function(key: str, inputs: list[str], opset: int, dtype: int = TensorProto.FLOAT) -> onnx.FunctionProto:
    """The function that stands in for one operator.

    Args:
        key: the operator's key.
        inputs: names of the inputs that the model's nodes have: a function has no optional ones.
        opset: the model's opset, which the body shares.
        dtype: ONNX type of the data tensors; the body computes in fp32 whatever it is.

    Returns:
        A function of the operator's domain, name and inputs.
    """
    body = Body(OPERATOR_BY_KEY[key], opset)
    BUILDERS[key](body, inputs)
    if dtype != TensorProto.FLOAT:
        compute_in_fp32(body, inputs, dtype)
    return body.function(inputs)


def compute_in_fp32(body: Body, inputs: list[str], dtype: int) -> None:
    """Casts the data tensors of a finished body on their way in and out."""
    operator = body.operator
    data = {item.name for item in (*operator.inputs, *operator.outputs) if item.data}
    for node in body.nodes:
        for names in (node.input, node.output):
            for index, name in enumerate(names):
                names[index] = f"{name}_fp32" if name in data else name
    taken = [name for name in inputs if name in data]
    cast = [helper.make_node("Cast", [name], [f"{name}_fp32"], to=TensorProto.FLOAT) for name in taken]
    given = [item.name for item in operator.outputs if item.data]
    back = [helper.make_node("Cast", [f"{name}_fp32"], [name], to=dtype) for name in given]
    body.nodes = [*cast, *body.nodes, *back]


def attach(model: ir.Model) -> None:
    """Attaches to a finished model one function for each operator of the domain that it uses."""
    by_name = {operator.name: key for key, operator in OPERATOR_BY_KEY.items()}
    for node in list(model.graph):
        key = by_name.get(node.op_type) if node.domain == DOMAIN else None
        if key is None:
            continue
        names = [item.name for item in OPERATOR_BY_KEY[key].inputs][: len(node.inputs)]
        dtype = int(node.outputs[0].dtype or ir.DataType.FLOAT)
        built = ir.serde.deserialize_function(function(key, names, model.opset_imports[""], dtype))
        model.functions[built.identifier()] = built
