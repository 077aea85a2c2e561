"""What a spec may say, and what several specs may say of one knob."""

from dataclasses import replace
from importlib import resources

import pytest

from attenuator.ops import FOLDERS, KNOBS, OPERATORS, package, part
from attenuator.ops.codegen import header
from attenuator.ops.spec import CU_SEQLENS, Attribute, Knob, Operator, Tensor, merge_knobs

KEEP = Knob(
    name="keep",
    dtype="float",
    default=0.5,
    low=0.0,
    high=1.0,
    exact=1.0,
    accuracy="rises",
    unit="share",
    doc="More rows go on.",
    source="one paper",
)
ROWS = Tensor("hidden", ("T", "C"), "float", "rows")
KEEP_INPUT = Tensor("keep", ("B",), "float", "share of rows", host=True)


def operator(name: str, *knobs: Knob, inputs: tuple[Tensor, ...] = (ROWS, CU_SEQLENS, KEEP_INPUT)) -> Operator:
    return Operator(
        name=name, key=name.lower(), inputs=inputs, outputs=(), attributes=(), knobs=knobs, doc="A doc.", source="none"
    )


def test_the_list_of_folders_gives_the_operators() -> None:
    assert tuple(operator.key for operator in OPERATORS)[: len(FOLDERS)] == FOLDERS
    assert {knob.name for operator in OPERATORS for knob in operator.knobs} == set(KNOBS)
    for operator in OPERATORS:
        assert package(operator.key).endswith(operator.key)
        assert part(operator.key, "spec").SPEC is operator


def test_one_knob_of_several_operators_is_one_knob() -> None:
    other = replace(KEEP, default=0.75, doc="Fewer rows cost less.", source="another paper")
    knobs = merge_knobs([operator("First", KEEP), operator("Second", other), operator("Third", KEEP)])
    assert list(knobs) == ["keep"]
    assert knobs["keep"] == replace(
        KEEP, doc="More rows go on. Fewer rows cost less.", source="one paper; another paper"
    )


@pytest.mark.parametrize(
    ("field", "value"), [("dtype", "int32"), ("low", 0.1), ("high", 2.0), ("exact", 0.0), ("accuracy", "falls")]
)
def test_operators_that_mean_different_things_by_a_knob_are_refused(field: str, value: object) -> None:
    first, second = operator("First", KEEP), operator("Second", KEEP)
    object.__setattr__(second, "knobs", (replace(KEEP, **{field: value}),))
    with pytest.raises(ValueError, match=rf"the knob keep has {field} .* in Second and .* in First"):
        merge_knobs([first, second])


@pytest.mark.parametrize(
    "wrong",
    [
        None,
        replace(KEEP_INPUT, dtype="int32"),
        replace(KEEP_INPUT, axes=("T",)),
        replace(KEEP_INPUT, host=False),
    ],
    ids=["missing", "dtype", "axes", "device"],
)
def test_a_knob_needs_an_input_that_fits(wrong: Tensor | None) -> None:
    inputs = (ROWS, CU_SEQLENS) if wrong is None else (ROWS, CU_SEQLENS, wrong)
    with pytest.raises(ValueError, match="First: the knob keep needs an input of its name"):
        operator("First", KEEP, inputs=inputs)


def test_optional_inputs_come_last() -> None:
    with pytest.raises(ValueError, match="First: optional inputs must come last"):
        operator("First", KEEP, inputs=(ROWS, replace(KEEP_INPUT, optional=True), CU_SEQLENS))


def with_output(*outputs: Tensor, attributes: tuple[Attribute, ...] = ()) -> Operator:
    return replace(operator("First"), outputs=outputs, attributes=attributes)


def test_an_optional_output_comes_last_and_has_an_attribute_that_leaves_it_out() -> None:
    optional = replace(ROWS, name="extra", optional=True)
    extra = Attribute("extra", "string", "which", default="none", choices=("none", "some"))
    with pytest.raises(ValueError, match="First: optional outputs must come last"):
        with_output(optional, ROWS, attributes=(extra,))
    for attributes in ((), (replace(extra, default=None),)):
        with pytest.raises(ValueError, match="First: the optional output extra needs an attribute of its name"):
            with_output(ROWS, optional, attributes=attributes)
    whole = with_output(ROWS, optional, attributes=(extra,))
    assert whole.outputs_with({}) == whole.outputs_with({"extra": "none"}) == (ROWS,)
    assert whole.outputs_with({"extra": "some"}) == (ROWS, optional)


def test_an_operator_has_cuda_kernels_where_its_folder_has_them() -> None:
    [line] = [line for line in header().splitlines() if line.startswith("#define ATTENUATOR_CUDA_OPERATORS")]
    named = {operator.name for operator in OPERATORS if f"X({operator.name})" in line}
    assert {"YosoAttention", "McaAttention", "SoftmaxAttention", "SequencePool"} <= named


def test_an_operator_says_whether_it_is_on_the_cpu_only() -> None:
    for operator in OPERATORS:
        has_kernels = resources.files(package(operator.key)).joinpath("cuda").is_dir()
        assert operator.cpu_only == (not has_kernels and not operator.host)
