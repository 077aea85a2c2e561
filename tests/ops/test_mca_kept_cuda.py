"""McaAttention's CUDA kernels on the test device: the facts of a constant weight are computed once, and kept."""

import ctypes
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from cases import same_bits
from harness import BY_NAME, Array, AttributeValue
from harness_cuda import library_path, run_on_device
from mca_cases import ESTIMATORS, mca_inputs

from attenuator.errors import EngineError
from attenuator.ops.c_api import DTYPE_CODES, Call, attributes, call_function, tensors

MCA = BY_NAME["mca"]
LAUNCHES, SHARED = "ATTENUATOR_ON_HOST_LAUNCHES", "ATTENUATOR_ON_HOST_SHARED"
# Estimator, element type, launches of a study of the weight.
STUDIES = [("sampled", "float", 3), ("deterministic", "float", 4), ("paper", "float", 3), ("paper", "bfloat16", 3)]
ALLOCATE = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)
LENGTHS = (70, 1, 40)


class Node:
    """A kernel that lives from run to run, as in a session (`node_probe.cc`)."""

    def __init__(self, values: dict[str, AttributeValue], data: str = "float", constant: bool = True) -> None:
        """`constant`: whether the weight is a constant of the graph."""
        self.values, self.data, self.scratch = values, data, 0
        self.handle = ctypes.c_void_p()
        rows = attributes(MCA, values)
        call_function(
            library_path(), "attenuator_node_make", rows, len(rows), DTYPE_CODES[data], int(constant),
            ctypes.byref(self.handle),
        )  # fmt: skip

    def __enter__(self) -> "Node":
        return self

    def __exit__(self, *_: object) -> None:
        ctypes.CDLL(library_path()).attenuator_node_free(self.handle)

    def __call__(self, inputs: dict[str, Array]) -> list[Array]:
        """The outputs of a run; `scratch` has the bytes it asked for."""

        def execute(call: Call, allocate: Callable[[int], int]) -> None:
            sizes: list[int] = []

            def give(_: object, size: int) -> int:
                sizes.append(size)
                return allocate(size)

            call_function(
                library_path(), "attenuator_node_run", self.handle, tensors(call.inputs), len(call.inputs),
                tensors(call.outputs), len(call.outputs), ALLOCATE(give),
            )  # fmt: skip
            self.scratch = sum(sizes)

        return run_on_device("mca", inputs, self.values, self.data, execute=execute)


@pytest.fixture
def launches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """How many kernels have been launched since this was last asked."""
    log = tmp_path / "launches"
    log.touch()
    monkeypatch.setenv(LAUNCHES, str(log))
    before = 0

    def count() -> int:
        nonlocal before
        total = len(log.read_text(encoding="utf-8").splitlines())
        before, more = total, total - before
        return more

    return count


def values_of(estimator: str) -> dict[str, AttributeValue]:
    return {"num_heads": 2, "estimator": estimator}


def inputs_of(seed: int = 0) -> dict[str, Array]:
    inputs = mca_inputs(LENGTHS, 2, 32, 200, seed=seed)
    inputs["alpha"][:] = 1.0
    return inputs


@pytest.mark.parametrize(("estimator", "data", "study"), STUDIES)
def test_a_constant_weight_is_studied_by_the_first_run_alone(
    estimator: str, data: str, study: int, launches: Callable[[], int]
) -> None:
    inputs = inputs_of()
    others = inputs_of(1) | {"value_weight": inputs["value_weight"]}
    with Node(values_of(estimator), data) as node:
        first, first_launches, first_scratch = node(inputs), launches(), node.scratch
        second, second_launches, second_scratch = node(inputs), launches(), node.scratch
        third = node(others)
    assert second_launches == first_launches - study
    assert second_scratch < first_scratch
    fresh = run_on_device("mca", inputs, values_of(estimator), data)
    assert fresh[1].min() < 1, "nothing was approximated"
    assert same_bits(first, fresh)
    assert same_bits(second, fresh)
    assert same_bits(third, run_on_device("mca", others, values_of(estimator), data))


def test_runs_that_approximate_nothing_do_not_study(launches: Callable[[], int]) -> None:
    inputs = inputs_of()
    with Node(values_of("sampled")) as node:
        node(inputs | {"alpha": np.zeros_like(inputs["alpha"])})
        launches()
        node(inputs)
        first = launches()
        node(inputs)
        assert first - launches() == 3


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_a_weight_that_is_not_constant_may_change(estimator: str) -> None:
    with Node(values_of(estimator), constant=False) as node:
        for seed in range(3):
            inputs = inputs_of(seed)
            assert same_bits(node(inputs), run_on_device("mca", inputs, values_of(estimator)))


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_threads_share_one_study(estimator: str, launches: Callable[[], int]) -> None:
    inputs, threads = inputs_of(), 6
    expected = run_on_device("mca", inputs, values_of(estimator))
    alone = launches()
    start = threading.Barrier(threads)
    with Node(values_of(estimator)) as node, ThreadPoolExecutor(threads) as pool:

        def run(_: int) -> list[Array]:
            start.wait(30)
            return node(inputs)

        results = list(pool.map(run, range(threads)))
    assert all(same_bits(result, expected) for result in results)
    study = next(count for name, data, count in STUDIES if (name, data) == (estimator, "float"))
    assert launches() == threads * (alone - study) + study


def test_a_study_that_failed_is_made_anew(monkeypatch: pytest.MonkeyPatch, launches: Callable[[], int]) -> None:
    inputs = inputs_of()
    expected = run_on_device("mca", inputs, values_of("sampled"))
    alone = launches()
    with Node(values_of("sampled")) as node:
        monkeypatch.setenv(SHARED, "1024")  # enough for the first kernel of a study, not for the second
        with pytest.raises(EngineError, match="McaAttention, probabilities: a block asks for 2056 bytes"):
            node(inputs)
        monkeypatch.delenv(SHARED)
        launches()
        assert same_bits(node(inputs), expected)
        assert launches() == alone
