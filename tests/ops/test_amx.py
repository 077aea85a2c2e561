"""Hashing by AMX tiles, on emulated ones where the processor has none: the same machine code either way."""

import ctypes

import harness
import numpy as np
import pytest
from harness import TESTS, Array
from tiles import (
    BYTES,
    CONFIGURE,
    GUARD,
    LOAD,
    MULTIPLY,
    RELEASE,
    ROWS,
    STORE,
    STORE_CONFIGURATION,
    configuration,
    guarded,
    in_process,
    loaded,
    run_steps,
    saved_by_each,
)  # fmt: skip

MULTIPLIED = (MULTIPLY, 0, ())


if harness.isa("SoftmaxAttention") in ("avx2", "avx512"):  # naming YosoAttention would ask for AMX
    pytest.skip("hashing by tiles is written for processors with AVX-512 VNNI", allow_module_level=True)


@pytest.fixture(autouse=True, scope="module")
def library() -> ctypes.CDLL:
    """Not at collection: a machine that runs other tests alone, such as one with a GPU, need not have it."""
    library = loaded()
    assert library.attenuator_amx_enable() == 1
    return library


@pytest.mark.parametrize("tiles", [(0, 0, 1, 2), (1, 7, 6, 5), (2, 3, 4, 2)], ids=str)
@pytest.mark.parametrize("seed", range(40))
def test_a_product_of_tiles_of_any_shape(library: ctypes.CDLL, seed: int, tiles: tuple[int, int, int, int]) -> None:
    which, sums_tile, a_tile, b_tile = tiles
    rng = np.random.default_rng(seed)
    rows, depth, columns = (int(size) for size in rng.integers(1, 17, 3)) if seed else (16, 16, 16)
    a, b = rng.integers(0, 256, (rows, 4 * depth), np.uint8), rng.integers(0, 256, (depth, 4 * columns), np.uint8)
    a, b = (a, b.view(np.int8)) if which == 2 else (a.view(np.int8), b)  # which of them is signed
    sums = rng.integers(-(2**31), 2**31, (rows, columns)).astype(np.int32)
    expected = sums + np.einsum(  # wraps around
        "mki,kni->mn", a.reshape(rows, depth, 4).astype(np.int32), b.reshape(depth, columns, 4).astype(np.int32)
    )
    strides = rng.integers(BYTES, 200, 4)
    memory = [guarded(ROWS + 1, int(stride)) for stride in strides]
    for target, source in zip(memory, (a, b, sums), strict=False):
        source = source.view(np.uint8).reshape(len(source), -1)
        target[: source.shape[0], : source.shape[1]] = source
    shapes = {sums_tile: (rows, 4 * columns), a_tile: (rows, 4 * depth), b_tile: (depth, 4 * columns)}
    order = (a_tile, b_tile, sums_tile)
    run_steps(library, [
        (CONFIGURE, 0, configuration(shapes), 0),
        *((LOAD, tile, memory[i], int(strides[i])) for i, tile in enumerate(order)),
        (MULTIPLY, which, None, 0),
        (STORE, sums_tile, memory[3], int(strides[3])),
        (RELEASE, 0, None, 0),
    ])  # fmt: skip
    result = memory[3]
    assert np.array_equal(np.ascontiguousarray(result[:rows, : 4 * columns]).view(np.int32), expected)
    result[:rows, : 4 * columns] = GUARD
    assert np.all(result == GUARD)  # nothing is written beyond the tile's shape


FULL = (ROWS, BYTES)
MISUSE = {
    "tiles are not configured": [(LOAD, 0, ())],
    "the tile is not configured": [(CONFIGURE, 0, {1: FULL}), (LOAD, 0, ())],
    "more than 16 rows": [(CONFIGURE, 0, {0: (17, BYTES)})],
    "a row of more than 64 bytes": [(CONFIGURE, 0, {0: (ROWS, 68)})],
    "rows without bytes, or bytes without rows": [(CONFIGURE, 0, {0: (ROWS, 0)})],
    "unknown palette": [(CONFIGURE, 0, {"byte": (0, 2)})],
    "reserved bytes 2 to 15 are not zero": [(CONFIGURE, 0, {"byte": (9, 1)})],
    "bytes 32 to 47 are not zero": [(CONFIGURE, 0, {"byte": (32, 1)})],
    "bytes 56 to 63 are not zero": [(CONFIGURE, 0, {"byte": (63, 1)})],
    "columns of the sums and of the second factor differ": [
        (CONFIGURE, 0, {0: (16, 60), 1: FULL, 2: FULL}),
        MULTIPLIED,
    ],
    "rows of the sums and of the first factor differ": [(CONFIGURE, 0, {0: (15, 64), 1: FULL, 2: FULL}), MULTIPLIED],
    "the depths of the factors differ": [(CONFIGURE, 0, {0: FULL, 1: (16, 60), 2: FULL}), MULTIPLIED],
    "a row is no whole number of int32": [(CONFIGURE, 0, {0: (16, 62), 1: FULL, 2: (16, 62)}), MULTIPLIED],
}


def misuse(fault: str) -> None:
    """Ends the process."""
    library = loaded()
    library.attenuator_amx_enable()
    steps = []
    for kind, tile, argument in MISUSE[fault]:
        memory = guarded(ROWS, BYTES)
        if "byte" in argument:
            memory = configuration({})
            place, byte = argument["byte"]
            memory[place] = byte
        elif kind == CONFIGURE:
            memory = configuration(argument)
        steps.append((kind, tile, memory, BYTES))
    run_steps(library, steps)


@pytest.mark.parametrize("fault", MISUSE)
def test_misuse_ends_the_process(library: ctypes.CDLL, fault: str) -> None:
    done = in_process("import sys, test_amx; test_amx.misuse(sys.argv[1])", fault)
    assert done.returncode < 0
    if library.attenuator_amx_instructions() > 0:  # a processor ends it without a word
        assert fault in done.stderr


def hash_codes(
    library: ctypes.CDLL, by_tiles: bool, rows: Array, planes: Array, hash_bits: int, num_hashes: int
) -> Array | None:
    """All that hashing writes, [group, row, 4], and guards behind it; None where it refuses a row."""
    length, stride = rows.shape[0], rows.strides[0] // 4
    codes = np.full(((num_hashes + 3) // 4 + 1, length + 3, 4), GUARD, np.uint16 if hash_bits > 8 else np.uint8)
    addresses = [ctypes.c_void_p(array.ctypes.data) for array in (rows, planes, codes)]
    done = library.attenuator_amx_codes(
        by_tiles, rows.shape[1], hash_bits, num_hashes, addresses[0], ctypes.c_int64(stride), ctypes.c_int64(length),
        addresses[1], addresses[2], ctypes.c_int64(length + 3),
    )  # fmt: skip
    return codes if done else None


def check_codes(library: ctypes.CDLL, head_dim: int, hash_bits: int, num_hashes: int, length: int) -> None:
    rng = np.random.default_rng(head_dim)
    scales = rng.choice([1e-35, 1e-3, 1.0, 1e30], (length, 1))
    wide = (rng.standard_normal((length, head_dim + 5)) * scales).astype(np.float32)  # rows of a wider tensor
    wide[rng.integers(0, length)] = 0
    planes = rng.integers(0, 256, (num_hashes * hash_bits, head_dim)).astype(np.uint8)
    by_vnni, by_tiles = (
        hash_codes(library, tiles, wide[:, 2 : 2 + head_dim], planes, hash_bits, num_hashes) for tiles in (False, True)
    )
    assert by_vnni is not None
    assert by_tiles is not None
    assert np.array_equal(by_vnni, by_tiles), (head_dim, hash_bits, num_hashes, length)


@pytest.mark.parametrize("head_dims", np.array_split(np.arange(8, 257), 8), ids=lambda dims: f"{dims[0]}to{dims[-1]}")
def test_codes_equal_those_of_vnni_for_every_head_dim(library: ctypes.CDLL, head_dims: Array) -> None:
    rng = np.random.default_rng(int(head_dims[0]))
    for head_dim in head_dims:
        for _ in range(3):
            check_codes(library, int(head_dim), *(int(rng.integers(1, most + 1)) for most in (16, 32, 70)))


@pytest.mark.parametrize("head_dim", [20, 64, 168])
def test_codes_equal_those_of_vnni_for_every_length(library: ctypes.CDLL, head_dim: int) -> None:
    for length in range(1, 41):
        check_codes(library, head_dim, 1 + length % 16, 1 + 5 * length % 32, length)


@pytest.mark.parametrize("hash_bits", range(1, 17))
def test_codes_equal_those_of_vnni_for_every_number_of_hashes(library: ctypes.CDLL, hash_bits: int) -> None:
    for num_hashes in range(1, 33):
        check_codes(library, 33, hash_bits, num_hashes, 9 + num_hashes)


@pytest.mark.parametrize("head_dim", [8, 64, 256])
@pytest.mark.parametrize("bad_row", [None, 0, 15, 31, 32, 39])
def test_rows_that_are_not_finite_are_refused_and_tiles_left_as_they_were(
    library: ctypes.CDLL, bad_row: int | None, head_dim: int
) -> None:
    """ONNX Runtime configures a thread's tiles once, and its int8 products need them so ever after."""
    rows = np.ones((40, head_dim), np.float32)
    if bad_row is not None:
        rows[bad_row, -1] = np.inf
    planes = np.full((24, head_dim), 200, np.uint8)
    before = [np.zeros(64, np.uint8), configuration({tile: (16 - tile, 64 - 4 * tile) for tile in range(8)})]
    for expected in before:
        run_steps(library, [(CONFIGURE, 0, expected, 0)])
        for by_tiles in (False, True):
            codes = hash_codes(library, by_tiles, rows, planes, 8, 3)
            assert (codes is None) == (bad_row is not None)
        stored = guarded(1, BYTES)
        run_steps(library, [(STORE_CONFIGURATION, 0, stored, 0), (RELEASE, 0, None, 0)])
        assert np.array_equal(stored[0], expected)


COMPUTE = """
import sys
import numpy as np
from harness import isa, run
from tiles import loaded
from yoso_cases import make
saved = {}
for case, head_dim in enumerate((8, 9, 31, 33, 48, 64, 65, 127, 168, 255, 256)):
    # Keys are hashed by tiles in the same way for the first query alone: a few widths of them will do.
    for queries in ("all", "first") if head_dim in (9, 64, 255) else ("all",):
        lengths = (1, 7, 0, 8, 16, 17, 33, 40, 2, 90, 300)
        inputs = make(lengths, 2, head_dim, 24, np.random.default_rng(case).integers(1, 101, len(lengths)), queries)
        attributes = {"num_heads": 2, "hash_bits": 1 + 7 * case % 16, "queries": queries}
        saved[f"{head_dim} {queries}"] = run("yoso", inputs, attributes, threads=2)[0]
np.savez(sys.argv[1], isa=isa(), emulated=loaded().attenuator_amx_instructions(), **saved)
"""


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Array]]:
    return saved_by_each(COMPUTE, tmp_path_factory.mktemp("amx"))


def test_outputs_equal_those_of_vnni_bit_for_bit(results: dict[str, dict[str, Array]]) -> None:
    expected, actual = results["vnni"], results["amx"]
    assert expected.pop("isa") == "avx512_vnni"
    assert expected.pop("emulated") == 0
    assert actual["isa"] == "avx512_amx"
    for name, output in expected.items():
        assert np.array_equal(actual[name], output), name


def test_tiles_that_give_other_codes_are_not_used(results: dict[str, dict[str, Array]]) -> None:
    """The first choice compares a few codes; a processor cannot be broken, so this is about emulated tiles."""
    if results["amx"]["emulated"] == 0:
        pytest.skip("this processor has AMX itself")
    assert results["broken"]["isa"] == "avx512_vnni"
    assert results["broken"]["emulated"] < 0.1 * results["amx"]["emulated"]
    for name in set(results["vnni"]) - {"isa", "emulated"}:
        assert np.array_equal(results["broken"][name], results["vnni"][name]), name


ASK = """
import numpy as np
from cases import defaults, make_inputs, run_case
from harness import BY_NAME, isa

def asked():
    # Whether something handles SIGILL in this process.
    with open("/proc/self/status") as status:
        caught = next(line.split()[1] for line in status if line.startswith("SigCgt:"))
    return bool(int(caught, 16) & 1 << (4 - 1))

for name in ("SoftmaxAttention", "McaAttention", "YosoAttention"):
    case = defaults(BY_NAME[name])
    before = asked()
    run_case(case, make_inputs(case, (40, 3)))
    print(name, isa(name), before, asked())
"""


def test_operators_that_need_no_tiles_do_not_ask_for_them(results: dict[str, dict[str, Array]]) -> None:
    """The emulator installs its handler where Linux is asked for tiles elsewhere."""
    done = in_process(ASK, ATTENUATOR_ISA="avx512_amx")
    assert done.returncode == 0, done.stderr[-2000:]
    emulated = results["amx"]["emulated"] > 0
    assert done.stdout.splitlines() == [
        "SoftmaxAttention avx512_vnni False False",
        "McaAttention avx512_vnni False False",
        f"YosoAttention avx512_amx False {emulated}",
    ]


def test_shapes_and_rows_drawn_at_random_do_no_harm_on_tiles() -> None:
    """The tests above find the bits of VNNI, on which everything else about YosoAttention is tested.

    Each emulated instruction is a signal, hence one seed.
    """
    script = "import sys, pytest; sys.exit(pytest.main(sys.argv[1:]))"
    chosen = "yoso and (any_shape or hostile_rows)"
    environment = {"ATTENUATOR_ISA": "avx512_amx", "FUZZ_SEEDS": "1"}
    done = in_process(script, "-q", "-p", "no:cacheprovider", "-k", chosen, str(TESTS / "test_fuzz.py"), **environment)
    assert done.returncode == 0, done.stdout[-3000:]
