"""Helpers of `<operator>/fallback.py`: an operator at its exact knob value as an ONNX function, for export only.

Each operator's file has `build(body, has)`: adds the nodes of its function to `body`; `has` names the inputs that the
nodes it stands for have, `body.outputs` their outputs. The bodies are standard ONNX operators, take O(T^2) time and
memory, and ignore knobs and seeds. They avoid `Sin`, `Cos`, `Elu`, `Log` and `Softplus`, which do not give a row the
same bits in every batch.

One zero row is appended to the packed rows as a sequence of its own, and removed at the end, because ONNX Runtime's
fused MatMul divides by zero at T = 0.
"""

from __future__ import annotations

import onnx
from onnx import TensorProto, helper

from attenuator.ops.spec import DOMAIN, Operator

__all__ = ["Body", "Rows"]


class Body:
    """Collects the nodes of one function; every method returns the name of a value."""

    def __init__(self, operator: Operator, opset: int, outputs: list[str]) -> None:
        self.operator = operator
        self.outputs = outputs
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
            node = helper.make_node("Constant", [], [output])
            self.refer(node, name, f"value_{kind}")
            self.nodes.append(node)
        return output

    def refer(self, node: onnx.NodeProto, name: str, as_name: str = "") -> None:
        """Gives a node of the body the attribute of the node that the function stands for, by another name perhaps."""
        kind = next(item.kind for item in self.operator.attributes if item.name == name)
        types = {"int": onnx.AttributeProto.INT, "float": onnx.AttributeProto.FLOAT}
        reference = node.attribute.add()
        reference.name = as_name or name
        reference.type = types.get(kind, onnx.AttributeProto.STRING)
        reference.ref_attr_name = name
        if name not in self.attributes:
            self.attributes.append(name)

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

    def function(self, has: list[str], overload: str = "") -> onnx.FunctionProto:
        """The finished function."""
        return helper.make_function(
            DOMAIN,
            self.operator.name,
            has,
            self.outputs,
            self.nodes,
            [helper.make_opsetid("", self.opset)],
            self.attributes,
            overload=overload,
        )


class Rows:
    """Which sequence and position each query row and key has, the appended zero row included.

    Attributes:
        sequence: int64 `[T + 1]`, index of the sequence of each key; B for the appended row.
        position: int64 `[T + 1]`.
        start: int64 `[T + 1]`, first row of the key's sequence.
        query_sequence, query_position: the same for the queries, `[rows + 1]`.
        place, query_place: what windows measure: `positions` where the nodes have that input, else the row's number.
        length: `[1]`, query rows without the appended one.
    """

    def __init__(self, body: Body, packed: str, query: str | None = None, positions: str | None = None) -> None:
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
        self.length = body.size(query, 0)
        if all(item.name != "queries" for item in body.operator.attributes):
            self.query_sequence, self.query_position = self.sequence, self.position
            self.place, self.query_place = self.position, self.position
            return
        # Queries are all rows, or row b for sequence b. Both index vectors are laid end to end and one is cut out.
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
        self.place, self.query_place = self.position, self.query_position
        if positions is not None:
            self.place = body.op("Pad", positions, body.const((0, 1)))
            self.query_place = body.op("Gather", self.place, self.query_position)

    def stands_for(self, body: Body) -> str:
        """Float `[T + 1]`: of how many rows each key is the mean, by `unmerged_cu_seqlens`."""
        one = body.const((1,))
        starts = [body.op("Cast", name, to=TensorProto.INT64) for name in ("cu_seqlens", "unmerged_cu_seqlens")]
        end = body.const((2**31 - 1,))
        lengths = [
            body.op(
                "Sub", body.op("Slice", name, one, end), body.op("Slice", name, body.const((0,)), body.const((-1,)))
            )
            for name in starts
        ]
        # The appended row is a sequence of its own.
        missing = body.op("Pad", body.op("Sub", lengths[1], lengths[0]), body.const((0, 1)))
        ends = body.op("Concat", body.op("Slice", starts[0], one, end), body.const((-1,)), axis=0)
        is_last = body.op("Equal", body.op("Add", self.position, body.const(1)), body.op("Gather", ends, self.sequence))
        more = body.op("Where", is_last, body.op("Gather", missing, self.sequence), body.const(0))
        return body.op("Cast", body.op("Add", more, body.const(1)), to=TensorProto.FLOAT)

    def same_sequence(self, body: Body) -> str:
        """Mask bool `[rows + 1, T + 1]`."""
        column = body.op("Unsqueeze", self.query_sequence, body.const((1,)))
        return body.op("Equal", column, self.sequence)

    def distance(self, body: Body) -> str:
        """int64 `[rows + 1, T + 1]`: the key's place minus the query's."""
        return body.op("Sub", self.place, body.op("Unsqueeze", self.query_place, body.const((1,))))

    def visible(self, body: Body) -> str:
        """Mask bool `[rows + 1, T + 1]`: same sequence, and, where the operator has a window, inside it or global."""
        names = {item.name for item in body.operator.attributes} & {"window", "trained_window"}
        if not names:
            return self.same_sequence(body)
        window = body.attribute(names.pop())
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
