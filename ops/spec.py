"""How an operator describes itself, in plain data: inputs, outputs, attributes and knobs, each fact once.

Each `<operator>/spec.py` holds one `Operator`. C++ bounds and checks (`codegen.py`), graph inputs, request schema,
error texts, README table and client checks are derived from it. Standard library only.

Beside `spec.py` an operator's folder has

* `README.md` and `reference.py`, its mathematics in words and in NumPy; `rule.py`, constants that kernels share;
* `cost.py`, what it costs and what its knobs can win, by the vocabulary of `ops/cost.py`;
* `fallback.py`, its exact value as an ONNX function;
* `inputs.cc`, its checks, the same on every device, and `operator.cc`, the choice of a code path on the CPU, which
  knows neither ONNX Runtime nor torch;
* `cpu/` and `cuda/`, its kernels; a file's suffix (`_avx2`, `_avx512`, `_avx512_vnni`, `_avx512_amx`) is its
  instruction set. Without `cuda/` the spec says `cpu_only`, or `host` where it computes on host memory alone;
* `eager.py` where the project's own encoder trains with it. It reads attributes and knobs off the layer that it is
  given, draws trained weights of its own in `parameters(config)` or `shared_parameters(config)` by the names of the
  spec's inputs, and lists in `SIZES` what of their shape a config may set.

An input or output of bundles that exist already is optional and last: an older bundle computes the knob's exact value.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

DType = Literal["float", "int32", "int64", "uint8"]


@dataclass(frozen=True, slots=True)
class Tensor:
    """An operator's input or output.

    Attributes:
        name: the field's standard term.
        axes: named axes, outermost first, such as `("T", "num_heads * head_dim")`.
        dtype: element type on CPU.
        doc: one sentence.
        host: True where the tensor lives in host memory on every device.
        optional: True where a trailing input or output may be left out. A knob that an operator gets later is optional:
            nodes exported before have no input for it, and compute its exact value. An optional output has an
            attribute of its name whose default leaves it out, and where no node uses it it costs nothing.
        float32: True where the tensor is float even if the operator's data tensors are half as wide, as on CUDA.
        shape: outputs only, how shape inference finds each axis: `("query", 0)` takes axis 0 of input `query`;
            `("kept_cu_seqlens", LAST)` the last value of that host input, known at run time alone; None is the batch.
    """

    name: str
    axes: tuple[str, ...]
    dtype: DType
    doc: str
    host: bool = False
    optional: bool = False
    float32: bool = False
    shape: tuple[tuple[str, int] | None, ...] = ()

    @property
    def data(self) -> bool:
        """Whether the element type is the operator's: float on CPU; float, float16 or bfloat16 on CUDA."""
        return self.dtype == "float" and not self.host and not self.float32


@dataclass(frozen=True, slots=True)
class Attribute:
    """A value fixed at export, stored in the node.

    Attributes:
        name: attribute name in the node.
        kind: `int` (with low and high), `float`, or `string` (with choices).
        default: value where the node has none; None makes it required.
        low: smallest value of an `int`, and of a `float` whose low is below its high; any other `float` is finite.
        high: largest value, likewise.
        choices: what a `string` may be.
        doc: one sentence.
    """

    name: str
    kind: Literal["int", "float", "string"]
    doc: str
    default: int | float | str | None = None
    low: float = 0
    high: float = 0
    choices: tuple[str, ...] = ()

    @property
    def bounded(self) -> bool:
        """Whether `low` and `high` hold."""
        return self.kind == "int" or (self.kind == "float" and self.low < self.high)

    @property
    def allowed(self) -> str:
        """What the value must be, in words."""
        if self.kind == "string":
            return f"one of: {', '.join(self.choices)}"
        if not self.bounded:
            return "a finite number"
        return f"{'a whole number' if self.kind == 'int' else 'a number'} in [{self.low:g}, {self.high:g}]"

    def fits(self, value: object) -> bool:
        """Whether the operator takes a value; True and False are no numbers."""
        if self.kind == "string":
            return value in self.choices
        if isinstance(value, bool) or not isinstance(value, int if self.kind == "int" else (int, float)):
            return False
        return self.low <= value <= self.high if self.bounded else math.isfinite(value)


@dataclass(frozen=True, slots=True)
class Knob:
    """A value that trades accuracy for time at run time, one per sequence.

    Attributes:
        name: the word for it from C++ to JSON.
        dtype: `int32` or `float`.
        default: where neither the caller nor the bundle says otherwise.
        low: smallest value.
        high: largest value.
        exact: the value at which the operator computes its exact limit.
        accuracy: how accuracy moves as the value rises, the exact value aside.
        unit: what is counted.
        doc: one sentence: what more of it buys and costs.
        source: paper and section.
        sampling: what is random about an answer at other values than the exact one. `none`: nothing; `counted`: the
            value is the number of independent samples, so that its variance is proportional to 1/value; `bounded`: it
            is random, and the value does not say how many samples it takes.
        bounded_by: an attribute beyond whose value the knob changes nothing: in a bundle the largest of its nodes' is
            the upper bound. Empty where there is none.
    """

    name: str
    dtype: Literal["int32", "float"]
    default: float
    low: float
    high: float
    exact: float
    accuracy: Literal["rises", "falls"]
    unit: str
    doc: str
    source: str
    sampling: Literal["none", "counted", "bounded"] = "none"
    bounded_by: str = ""


@dataclass(frozen=True, slots=True)
class Operator:
    """One operator of the ONNX domain `attenuator`.

    Attributes:
        name: ONNX op type.
        key: folder name, and what `attention.operator` in a bundle says.
        inputs: in the node's order; knobs appear among them under the knob's name.
        outputs: in the node's order.
        attributes: in no particular order.
        knobs: the subset of the inputs that callers may set.
        doc: one sentence.
        source: paper and section.
        attention: key of the operator whose attention this one computes at the exact values of its knobs, itself
            perhaps: models trained with that attention may be exported with either. Empty for what is no attention.
        asked_as: key by which a user asks for this attention, where that is another operator's: the same one, with
            terms that only some models have. Empty where it is its own.
        cpu_only: True where it has no CUDA kernels (no folder `cuda/`) and does not run on the host there either: on
            CUDA it answers in one sentence, and export refuses precisions that only CUDA runs.
        host: True where it computes on host memory alone, without a data tensor: it runs on the CPU in every session,
            since ONNX Runtime's custom operators cannot put an output into host memory on CUDA.
        own_isa: True where its folder says itself which instruction set it uses (`OwnIsa` of `ops/common/registry.h`),
            since that is not always the processor's best.
        draws_unless: an attribute and its value with which nothing is drawn at random, whatever the knobs say.
        version: opset version of the domain.

    Raises:
        ValueError: a knob has no input that fits it, an optional output has no attribute that leaves it out, a
            required input or output follows an optional one, or a host operator has a tensor that is not the host's.
    """

    name: str
    key: str
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    attributes: tuple[Attribute, ...]
    knobs: tuple[Knob, ...]
    doc: str
    source: str
    attention: str = ""
    asked_as: str = ""
    cpu_only: bool = False
    host: bool = False
    own_isa: bool = False
    draws_unless: tuple[str, str] | None = None
    version: int = 1

    def __post_init__(self) -> None:
        """Refuses a spec from which nothing sound could be derived."""
        inputs = {item.name: item for item in self.inputs}
        for knob in self.knobs:
            item = inputs.get(knob.name)
            if item is None or (item.axes, item.dtype, item.host) != (("B",), knob.dtype, True):
                raise ValueError(
                    f"{self.name}: the knob {knob.name} needs an input of its name with axes ('B',), "
                    f"dtype {knob.dtype} and host=True"
                )
        for kind, items in (("inputs", self.inputs), ("outputs", self.outputs)):
            optional = [item.optional for item in items]
            if optional != sorted(optional):
                raise ValueError(f"{self.name}: optional {kind} must come last")
        attributes = {item.name: item for item in self.attributes}
        for output in self.outputs:
            attribute = attributes.get(output.name)
            if output.optional and (attribute is None or attribute.default is None):
                raise ValueError(
                    f"{self.name}: the optional output {output.name} needs an attribute of its name with a default, "
                    "which leaves the output out"
                )
        for item in (*self.inputs, *self.outputs):
            if self.host and not item.host:
                raise ValueError(f"{self.name}: a host operator's tensors are the host's, {item.name} is not")

    def filled(self, attributes: Mapping[str, int | float | str]) -> dict[str, int | float | str]:
        """The attributes of a node as its kernels read them.

        Args:
            attributes: by name, such as the operator does not know among them perhaps.

        Returns:
            Those that the operator has, by its defaults where they are absent; a required one that is absent stays so.
        """
        values = {item.name: attributes.get(item.name, item.default) for item in self.attributes}
        return {name: value for name, value in values.items() if value is not None}

    def outputs_with(self, attributes: Mapping[str, object]) -> tuple[Tensor, ...]:
        """The outputs that a node with these attributes has.

        Args:
            attributes: by name; those left out have their defaults.

        Returns:
            All outputs, without the optional ones that their attributes leave out.
        """
        defaults = {item.name: item.default for item in self.attributes}
        return tuple(
            item
            for item in self.outputs
            if not item.optional or attributes.get(item.name, defaults[item.name]) != defaults[item.name]
        )


def merge_knobs(operators: Iterable[Operator]) -> dict[str, Knob]:
    """The knobs of several operators by name: one word means the same wherever it stands.

    Args:
        operators: any number; several may have a knob of the same name.

    Returns:
        Knob by name. Of operators that share a knob the first one's default counts, which a bundle's own overrides,
        and `doc` and `source` say what each of them does with it.

    Raises:
        ValueError: two operators mean different things by one name: another type, bounds, exact value or direction.
    """
    knobs: dict[str, Knob] = {}
    owners: dict[str, str] = {}
    for operator in operators:
        for knob in operator.knobs:
            known = knobs.setdefault(knob.name, knob)
            owner = owners.setdefault(knob.name, operator.name)
            for field in ("dtype", "low", "high", "exact", "accuracy", "sampling"):
                ours, theirs = getattr(knob, field), getattr(known, field)
                if ours != theirs:
                    raise ValueError(
                        f"the knob {knob.name} has {field} {ours!r} in {operator.name} and {theirs!r} in {owner}: "
                        "operators that share a knob must agree"
                    )
            doc, source = _both(known.doc, knob.doc, " "), _both(known.source, knob.source, "; ")
            knobs[knob.name] = replace(known, doc=doc, source=source)
    return knobs


def _both(first: str, second: str, joint: str) -> str:
    return first if second in first else f"{first}{joint}{second}"


DOMAIN = "attenuator"
LAST = -1  # in `Tensor.shape`, in place of an axis
SEED_HIGH = 2**53 - 1  # seeds travel as JSON numbers, which are exact up to here

QUERY = Tensor("query", ("T or B", "num_heads * head_dim"), "float", "projected queries")
KEY = Tensor("key", ("T", "num_heads * head_dim"), "float", "projected keys")
VALUE = Tensor("value", ("T", "num_heads * value_dim"), "float", "projected values")
ATTENTION_OUTPUT = Tensor(
    "output",
    ("T or B", "num_heads * value_dim"),
    "float",
    "attention output",
    shape=(("query", 0), ("value", 1)),
)
CU_SEQLENS = Tensor("cu_seqlens", ("B + 1",), "int32", "first row of each sequence, then T", host=True)
SEED = Tensor("seed", ("B",), "int64", f"one seed per sequence, 0 to 2^53 - 1 = {SEED_HIGH}", host=True)
NUM_HEADS = Attribute("num_heads", "int", "attention heads", low=1, high=1024)
LAYER = Attribute("layer", "int", "random stream of this node", default=0, low=0, high=65535)
SCALE = Attribute("scale", "float", "factor on the scores; 0 means 1/sqrt(head_dim)", default=0.0)
WINDOW = Attribute("window", "int", "keys with |i - j| <= window; 0 = all", default=0, low=0, high=2**30)
# At run time: an upper bound on the window that a model was trained with, in every operator that has one.
WINDOW_KNOB = Knob(
    name="window",
    dtype="int32",
    default=2**16,
    low=0,
    high=2**16,
    exact=0,
    accuracy="rises",
    unit="tokens on either side",
    doc="A wider window costs proportionally more time and sees more of the keys that the model was trained to see; 0 "
    "is the window that it was trained with, which no value exceeds.",
    source="Beltagy et al., 'Longformer', 2020, section 3.1",
    bounded_by="window",
)
WINDOW_INPUT = Tensor(
    WINDOW_KNOB.name, ("B",), "int32", "keys with |i - j| <= window, at most as trained; 0 = as trained", host=True
)
GLOBAL_TOKENS = Attribute(
    "global_tokens", "int", "1: the first token sees and is seen by all", default=0, low=0, high=1
)
POSITIONS = Tensor(
    "positions",
    ("T",),
    "int64",
    "where each row stands in its sequence, ascending: what a window measures; without it, row after row",
    optional=True,
)
UNMERGED_CU_SEQLENS = Tensor(
    "unmerged_cu_seqlens",
    ("B + 1",),
    "int32",
    "first row of each sequence before rows were merged, then their number: where a sequence had more rows, its last "
    "one is the mean of all that are missing; without it, no row is a mean",
    host=True,
    optional=True,
)
IMPORTANCE = Attribute(
    "importance",
    "string",
    "what a key's importance is: its weight for the first row, or its largest weight for any row, summed over heads",
    default="none",
    choices=("none", "first", "maximum"),
)
IMPORTANCE_OUTPUT = Tensor(
    "importance",
    ("T",),
    "float",
    "importance of each key, as the attribute of this name says",
    optional=True,
    float32=True,
    shape=(("key", 0),),
)
QUERIES = Attribute(
    "queries",
    "string",
    "which rows are computed: all, or the first of each sequence",
    default="all",
    choices=("all", "first"),
)
INT8_PRODUCTS = Attribute(
    "int8_products",
    "int",
    "1: both products in int8 where the processor has VNNI; 0: in float",
    default=0,
    low=0,
    high=1,
)
NUM_FEATURES = Knob(
    name="num_features",
    dtype="int32",
    default=256,
    low=0,
    high=1024,
    exact=0,
    accuracy="rises",
    unit="random directions",
    doc="More features cost proportionally more time and shrink the sampling error as 1/sqrt(num_features); 0 computes "
    "what they estimate, quadratic in length.",
    source="Choromanski et al., ICLR 2021, section 2; Peng et al., ICLR 2021, section 3",
    sampling="bounded",
)
