"""Attention in int8 by AMX tiles: the bits of VNNI, on which everything else about it is tested."""

import numpy as np
import pytest
from harness import Array, AttributeValue, isa, offsets, run
from int8_cases import LENGTHS, draw
from tiles import (
    BYTES,
    CONFIGURE,
    STORE_CONFIGURATION,
    configuration,
    guarded,
    in_process,
    loaded,
    run_steps,
    saved_by_each,
)

if isa("SoftmaxAttention") in ("avx2", "avx512"):
    pytest.skip("attention by tiles is written for processors with AVX-512 VNNI", allow_module_level=True)

CASES: dict[str, tuple[dict[str, Array], dict[str, AttributeValue]]] = {
    # What head_dim leaves of its last 64 is a tile of its own.
    **{f"head_dim {size}": (draw(LENGTHS, 2, size, 24), {}) for size in (8, 9, 31, 64, 65, 100, 128, 160, 200, 256)},
    **{f"value_dim {size}": (draw(LENGTHS, 2, 24, size), {}) for size in (8, 17, 64, 129, 256)},
    **{f"length {length}": (draw((length,), 2, 16, 16), {}) for length in (*range(48, 132), 320, 700)},
    **{
        f"window {window}, global {tokens}": (
            draw((*LENGTHS, 500), 2, 40, 24),
            {"window": window, "global_tokens": tokens},
        )
        for window in (1, 7, 63, 64, 128, 200)
        for tokens in (0, 1)
    },
    **{
        f"importance, window {window}": (draw(LENGTHS, 2, 64, 64), {"importance": "maximum", "window": window})
        for window in (0, 30)
    },
    "a last key that stands for several": (
        draw((48, 50, 127, 128, 129, 200), 2, 32, 32) | {"unmerged_cu_seqlens": offsets([48, 51, 132, 428, 131, 209])},
        {"importance": "maximum"},
    ),
}


def rows_not_finite() -> dict[str, Array]:
    """NaN and infinity in one sequence each, and rows that no bytes stand for."""
    inputs = draw((70, 80, 90, 100), 2, 64, 64)
    inputs["query"][3] = np.nan
    inputs["key"][75] = np.inf
    inputs["value"][160] = np.nan
    inputs["key"][250] *= 1e4
    return inputs


CASES["rows that are not finite"] = (rows_not_finite(), {})


def compute(file: str) -> None:
    """Saves what every case gives, and how many instructions were emulated."""
    saved = {}
    for name, (inputs, attributes) in CASES.items():
        arrays = run("softmax", inputs, {"num_heads": 2, "int8_products": 1} | attributes, threads=2)
        saved |= {f"{name}/{place}": array for place, array in enumerate(arrays)}
    np.savez(file, emulated=loaded().attenuator_amx_instructions(), **saved)


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Array]]:
    script = "import sys, test_softmax_amx; test_softmax_amx.compute(sys.argv[1])"
    return saved_by_each(script, tmp_path_factory.mktemp("tiles"))


def same_bits(one: dict[str, Array], other: dict[str, Array]) -> None:
    assert set(one) == set(other)
    for name in set(one) - {"emulated"}:
        assert np.array_equal(one[name].view(np.uint8), other[name].view(np.uint8)), name


def test_outputs_and_maxima_equal_those_of_vnni_bit_for_bit(results: dict[str, dict[str, Array]]) -> None:
    assert results["vnni"]["emulated"] == 0
    same_bits(results["vnni"], results["amx"])


def test_tiles_that_give_other_numbers_are_not_used(results: dict[str, dict[str, Array]]) -> None:
    """The first choice compares a few rows; a processor cannot be broken, so this is about emulated tiles."""
    if results["amx"]["emulated"] == 0:
        pytest.skip("this processor has AMX itself")
    assert 0 < results["broken"]["emulated"] < 0.1 * results["amx"]["emulated"]
    same_bits(results["vnni"], results["broken"])


def leave_configuration() -> None:
    """Fails where attention leaves other tiles than it found on its thread."""
    library = loaded()
    library.attenuator_amx_enable()
    expected = configuration({tile: (16 - tile, 64 - 4 * tile) for tile in range(8)})
    run_steps(library, [(CONFIGURE, 0, expected, 0)])
    for name in ("head_dim 100", "rows that are not finite"):
        inputs, attributes = CASES[name]
        run("softmax", inputs, {"num_heads": 2, "int8_products": 1} | attributes, threads=1)
    stored = guarded(1, BYTES)
    run_steps(library, [(STORE_CONFIGURATION, 0, stored, 0)])
    assert np.array_equal(stored[0], expected)


def test_tiles_are_left_as_they_were() -> None:
    """ONNX Runtime configures a thread's tiles once, and its int8 products need them so ever after."""
    script = "import test_softmax_amx; test_softmax_amx.leave_configuration()"
    done = in_process(script, ATTENUATOR_ISA="avx512_amx")
    assert done.returncode == 0, done.stderr[-2000:]
