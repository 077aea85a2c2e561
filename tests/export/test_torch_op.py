"""The PyTorch operators: shapes for the tracer, the library's kernels for eager runs."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from harness import open_session

from attenuator.errors import EngineError
from attenuator.export.trace import OPSET, leave_out_unused, quiet, translation
from attenuator.ops import OPERATORS
from attenuator.ops.softmax.reference import attention_importance, softmax_attention
from attenuator.ops.spec import Operator
from attenuator.ops.torch_op import TORCH_DTYPES, op_name, overload
from attenuator.ops.yoso.reference import yoso_attention

HEADS, WIDTH = 2, 16
BY_KEY = {operator.key: operator for operator in OPERATORS}
STARTS = torch.tensor([0, 3, 3, 10], dtype=torch.int32)


def tensors(operator: Operator) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    sizes = {"T": 10, "T or B": 10, "B": 3, "C": 12, "c": 3, "2": 2, "2 * reach + 1": 5, "R": 4}
    sizes |= {"num_heads": HEADS, "head_dim": WIDTH}
    inputs = {}
    for item in operator.inputs:
        shape = [sizes.get(axis, HEADS * WIDTH) for axis in item.axes]
        inputs[item.name] = torch.randn(shape, generator=generator)
    more = {"cu_seqlens": STARTS, "seed": torch.arange(3)}
    more["sums"] = torch.arange(320, dtype=torch.int32).reshape(10, 32)
    more |= {knob.name: torch.full((3,), knob.exact, dtype=TORCH_DTYPES[knob.dtype]) for knob in operator.knobs}
    more["positions"] = torch.arange(10)
    more["unmerged_cu_seqlens"] = torch.tensor([0, 4, 4, 11], dtype=torch.int32)
    more["buckets"] = torch.tensor([3, 2, 1, 0, 0])
    more["kept_cu_seqlens"] = torch.tensor([0, 2, 2, 5], dtype=torch.int32)
    return inputs | {name: value for name, value in more.items() if name in inputs}


def attributes(operator: Operator) -> dict[str, Any]:
    values = {"num_heads": HEADS, "hash_bits": 6}
    return {item.name: values[item.name] for item in operator.attributes if item.name in values}


def call(operator: Operator) -> Callable[..., Any]:
    return lambda inputs, attributes: overload(operator)(*inputs.values(), **attributes)


@pytest.mark.parametrize("operator", OPERATORS, ids=lambda operator: operator.name)
def test_schema_lists_inputs_then_attributes(operator: Operator) -> None:
    schema = overload(operator)._schema
    assert schema.name == f"attenuator::{op_name(operator)}"
    names = [argument.name for argument in schema.arguments]
    assert names[: len(operator.inputs)] == [item.name for item in operator.inputs]
    assert set(names[len(operator.inputs) :]) == {item.name for item in operator.attributes}
    assert len(schema.returns) == len(operator.outputs)


@pytest.mark.parametrize("operator", OPERATORS, ids=lambda operator: operator.name)
def test_passes_pytorchs_own_checks(operator: Operator) -> None:
    arguments = tuple(tensors(operator).values())
    torch.library.opcheck(
        overload(operator), arguments, attributes(operator), test_utils=("test_schema", "test_faketensor")
    )


def test_eager_runs_the_kernels() -> None:
    softmax = next(operator for operator in OPERATORS if operator.key == "softmax")
    inputs = tensors(softmax)
    expected = softmax_attention(*(tensor.numpy() for tensor in inputs.values()), num_heads=HEADS, window=2)
    output, importance = overload(softmax)(*inputs.values(), num_heads=HEADS, window=2)
    assert importance.shape == (0,)
    np.testing.assert_allclose(output.numpy(), expected, atol=1e-5)


def test_an_optional_output_is_computed_where_its_attribute_says_so() -> None:
    softmax = next(operator for operator in OPERATORS if operator.key == "softmax")
    inputs = tensors(softmax)
    arrays = {name: inputs[name].numpy() for name in ("query", "key", "cu_seqlens", "positions", "unmerged_cu_seqlens")}
    output, importance = overload(softmax)(*inputs.values(), num_heads=HEADS, importance="maximum")
    np.testing.assert_allclose(
        importance.numpy(), attention_importance(**arrays, num_heads=HEADS, importance="maximum"), atol=1e-5
    )
    assert torch.equal(output, overload(softmax)(*inputs.values(), num_heads=HEADS)[0])


def test_eager_takes_tensors_that_are_not_contiguous() -> None:
    yoso = next(operator for operator in OPERATORS if operator.key == "yoso")
    inputs = tensors(yoso)
    wide = torch.randn(10, 3, HEADS * WIDTH)
    inputs |= {"query": wide[:, 0], "key": wide[:, 1], "value": wide[:, 2], "conv_weight": None}
    output, _ = overload(yoso)(*inputs.values(), num_heads=HEADS, hash_bits=6)
    arrays = {name: tensor.numpy() for name, tensor in inputs.items() if tensor is not None}
    np.testing.assert_allclose(output.numpy(), yoso_attention(**arrays, num_heads=HEADS, hash_bits=6), atol=1e-5)


def test_errors_are_the_kernels_sentences() -> None:
    pool = next(operator for operator in OPERATORS if operator.key == "pool")
    with pytest.raises(EngineError, match=r"SequencePool: cu_seqlens\[2\] is 9"):
        overload(pool)(torch.zeros(5, 2), torch.tensor([0, 2, 9], dtype=torch.int32))
    with pytest.raises(EngineError, match="cu_seqlens is torch.int64"):
        overload(pool)(torch.zeros(5, 2), torch.tensor([0, 5]))
    mca = next(operator for operator in OPERATORS if operator.key == "mca")
    inputs = tensors(mca) | {"alpha": torch.tensor([0.0, 2.0, 0.0])}
    with pytest.raises(EngineError, match=r"McaAttention: alpha\[1\]"):
        overload(mca)(*inputs.values(), num_heads=HEADS)


class Shorter(torch.nn.Module):
    """Two layers, after each of which rows are selected; position ids are taken along."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(HEADS * WIDTH, HEADS * WIDTH)
        self.norm = torch.nn.LayerNorm(HEADS * WIDTH)

    def forward(
        self, rows: torch.Tensor, positions: torch.Tensor, cu_seqlens: torch.Tensor, keep: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        for _ in range(2):
            attend = overload(BY_KEY["softmax"])
            mixed, importance = attend(rows, rows, rows, cu_seqlens, num_heads=HEADS, importance="first")
            kept_cu_seqlens = overload(BY_KEY["kept_lengths"])(cu_seqlens, keep, exponent=0.5)
            kept, places = overload(BY_KEY["select"])(mixed, importance, cu_seqlens, kept_cu_seqlens)
            rows = self.norm(self.linear(kept) + torch.index_select(rows, 0, places))
            positions, cu_seqlens = torch.index_select(positions, 0, places), kept_cu_seqlens
        return overload(BY_KEY["softmax"])(rows, rows, rows, cu_seqlens, num_heads=HEADS)[0], positions


def test_a_selection_is_traced_with_axes_known_at_run_time_alone() -> None:
    def example(*lengths: int) -> tuple[torch.Tensor, ...]:
        total = sum(lengths)
        starts = torch.tensor([0, *lengths], dtype=torch.int32).cumsum(0, dtype=torch.int32)
        keep = torch.linspace(1, 0.3, len(lengths))
        return torch.randn(total, HEADS * WIDTH), torch.arange(total), starts, keep

    model = Shorter().eval()
    axes = tuple({0: torch.export.Dim(name)} for name in ("T", "T", "starts", "B"))
    with torch.no_grad(), quiet():
        program = torch.onnx.export(
            model,
            example(3, 4),
            dynamo=True,
            opset_version=OPSET,
            verbose=False,
            dynamic_shapes=axes,
            custom_translation_table={overload(operator): translation(operator) for operator in OPERATORS},
        )
    leave_out_unused(program.model.graph)
    attentions = [node for node in program.model.graph if node.op_type == BY_KEY["softmax"].name]
    assert [len(node.outputs) for node in attentions] == [2, 2, 1]
    selected = [node for node in program.model.graph if node.op_type == BY_KEY["select"].name]
    sizes = [[str(output.shape[0]) for output in node.outputs] for node in selected]
    assert all(len(set(both)) == 1 for both in sizes), "both outputs have the same rows"
    assert len({both[0] for both in sizes} | {"T"}) == 3, "each selection leaves another number of rows"
    session = open_session(program.model_proto.SerializeToString())
    for lengths in ((3, 4), (1,), (12, 1, 30, 7)):
        inputs = example(*lengths)
        feeds = {item.name: value.numpy() for item, value in zip(session.get_inputs(), inputs, strict=True)}
        with torch.no_grad():
            expected_rows, expected_positions = model(*inputs)
        rows, positions = session.run(None, feeds)
        np.testing.assert_allclose(rows, expected_rows.numpy(), atol=1e-5)
        np.testing.assert_array_equal(positions, expected_positions.numpy())
