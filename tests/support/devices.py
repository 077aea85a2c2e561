"""Where the conformance tests run an operator.

The CPU and a GPU through ONNX Runtime, a GPU through PyTorch, the test device through the C ABI.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources

import harness_cuda
from cases import RAGGED, Case, run_case
from harness import Array, build_model, open_session, run
from onnxruntime.capi.onnxruntime_pybind11_state import InvalidArgument

from attenuator.errors import EngineError
from attenuator.ops import FOLDERS, OPERATORS, package

# Every thread is a fiber there: few tokens, but in one sequence, whose knob is rough, more than a warp has lanes and
# enough for MCA to sample.
RAGGED_ON_HOST = (3, 60, 0, 1)


@dataclass(frozen=True)
class Device:
    """A device and the element type of the data tensors on it.

    Attributes:
        kind: `cpu`, `cuda_on_host`, `cuda`, or `torch`, which is a GPU too.
        data: `float`, `float16` or `bfloat16`.
    """

    kind: str
    data: str = "float"

    def __str__(self) -> str:
        return self.kind if self.kind == "cpu" else f"{self.kind}-{self.data}"

    @property
    def ragged(self) -> Sequence[int]:
        """Lengths of a batch that has everything: empty sequences, short ones, one long one."""
        return RAGGED_ON_HOST if self.kind == "cuda_on_host" else RAGGED

    @property
    def refusal(self) -> type[Exception]:
        """What a refused input raises."""
        return InvalidArgument if self.kind in ("cpu", "cuda") else EngineError

    def run(
        self, case: Case, inputs: dict[str, Array], *, threads: int = 1, constant: bool = True, fresh: bool = False
    ) -> list[Array]:
        """Runs a case once.

        Args:
            case: operator and attributes.
            inputs: by the names of the spec, float32 where the spec says float.
            threads: of the CPU.
            constant: weights are initializers, as in a model, where the device's host knows such.
            fresh: in a session of its own.

        Returns:
            The outputs in the spec's order, float32 where the spec says float.
        """
        if self.kind == "cuda_on_host":
            return harness_cuda.run_on_device(case.operator.name, inputs, case.attributes, self.data)
        if self.kind == "torch":
            return harness_cuda.run_on_torch(case.operator, inputs, case.attributes, self.data)
        constants = case.constants if constant else ()
        if self.kind == "cuda":
            return harness_cuda.run_on_cuda(case, inputs, self.data, constants, fresh)
        if not fresh:
            return run_case(case, inputs, threads) if constant else run(case.operator.name, inputs, case.attributes)
        weights = {name: inputs[name] for name in constants}
        session = open_session(build_model(case.operator, list(inputs), case.attributes, weights), threads)
        return list(session.run(None, {name: value for name, value in inputs.items() if name not in weights}))


CPU = Device("cpu")
ON_HOST = tuple(Device("cuda_on_host", data) for data in harness_cuda.DATA_TYPES)
CUDA = tuple(Device("cuda", data) for data in harness_cuda.DATA_TYPES)
TORCH = tuple(Device("torch", data) for data in harness_cuda.DATA_TYPES)

CUDA_OPERATORS = tuple(
    operator for operator in OPERATORS if resources.files(package(operator.key)).joinpath("cuda").is_dir()
)
# The operators of the product that have no kernels for CUDA.
CPU_OPERATORS = tuple(
    operator
    for operator in OPERATORS
    if operator not in CUDA_OPERATORS and not operator.host and operator.key in FOLDERS
)
HOST_OPERATORS = tuple(operator for operator in OPERATORS if operator.host)
