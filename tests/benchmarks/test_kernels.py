"""Results know the kernels that they measured, and figures say where those have changed since."""

import importlib.util
import shutil
from pathlib import Path
from types import ModuleType

import pytest
from benchmarks.measure import kernels
from benchmarks.measure.kernels import OPS, fingerprint, in_model
from benchmarks.report import origins

ROOT = OPS.parent


@pytest.fixture
def ops(tmp_path: Path) -> Path:
    """The folder of all operators, to be changed."""
    return Path(shutil.copytree(OPS, tmp_path / "ops"))


def change(path: Path, old: str, new: str) -> None:
    text = path.read_text(encoding="utf-8")
    assert old in text, f"{path} has no {old!r}"
    path.write_text(text.replace(old, new, 1), encoding="utf-8")


def test_comments_layout_and_what_no_kernel_is_made_of_leave_a_fingerprint(ops: Path) -> None:
    before = {key: fingerprint(key, ops=ops) for key in ("yoso", "softmax", "pool")}
    change(ops / "yoso/cpu/planes.cc", "#include", "// Another word,\n/* and another */\n#include")
    change(ops / "yoso/cpu/planes.cc", "namespace attenuator::yoso {", "namespace\n  attenuator::yoso   {")
    for name in ("yoso/README.md", "yoso/reference.py", "yoso/spec.py"):
        change(ops / name, "YosoAttention", "Attention")
    change(ops / "yoso/cuda/planes.cu", "namespace", "int unused;\nnamespace")
    change(ops / "common/philox_lanes.h", "namespace", "int unused;\nnamespace")  # which yoso alone includes
    after = {key: fingerprint(key, ops=ops) for key in before}
    assert {key for key in before if before[key] != after[key]} == {"yoso"}
    change(ops / "common/philox_lanes.h", "int unused;\n", "")
    assert fingerprint("yoso", ops=ops) == before["yoso"]


@pytest.mark.parametrize(
    ("path", "moved"),
    [
        ("yoso/cpu/planes.cc", {"yoso"}),
        ("yoso/cpu/angle.inl", {"yoso"}),
        ("common/simd/avx2.h", {"yoso", "softmax"}),
        ("common/attention/cpu/attention.cc", {"yoso", "softmax"}),
        ("common/check.cc", {"yoso", "softmax", "pool"}),
    ],
)
def test_a_kernel_that_changes_moves_those_who_use_it(ops: Path, path: str, moved: set[str]) -> None:
    before = {key: fingerprint(key, ops=ops) for key in ("yoso", "softmax", "pool")}
    with (ops / path).open("a", encoding="utf-8") as file:
        file.write("int unused;\n")
    assert {key for key in before if before[key] != fingerprint(key, ops=ops)} == moved


def test_kernels_for_cuda_count_for_results_of_cuda_alone(ops: Path) -> None:
    before = fingerprint("mca", ops=ops), fingerprint("mca", cuda=True, ops=ops)
    change(ops / "mca/cuda/facts.cu", "namespace", "int unused;\nnamespace")
    after = fingerprint("mca", ops=ops), fingerprint("mca", cuda=True, ops=ops)
    assert after[0] == before[0]
    assert after[1] != before[1]


def test_strings_that_look_like_comments_count() -> None:
    assert kernels.code_of('f("// a");  // b') == 'f("// a");'
    assert kernels.code_of('f("/*");\n g();  /* h */ i("*/");') == 'f("/*"); g(); i("*/");'


def test_operators_of_a_bundle() -> None:
    assert in_model(ROOT / "examples/bundles/reviews") == ["pool", "yoso"]


def test_figures_say_which_kernels_have_changed_since() -> None:
    head = {"commit": "0123456789abcdef", "modified": False}
    now = kernels.fingerprints(["mca", "yoso"])
    assert origins.commit(head | {"kernels": now}) == "commit 0123456789ab"
    old = now | {"yoso": "other"}
    said = origins.commit(head | {"kernels": old})
    assert said == "commit 0123456789ab (**since then the kernels of YosoAttention have changed**)"
    both = origins.commit(head | {"kernels": old}, head | {"kernels": {"mca": "", "gone": ""}})
    assert both.endswith("(**since then the kernels of McaAttention, YosoAttention and gone have changed**)")
    assert "is not known" in origins.commit(head | {"modified": True})


@pytest.fixture(scope="module")
def gen() -> ModuleType:
    spec = importlib.util.spec_from_file_location("gen", ROOT / "scripts/gen.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "scripts"))
        spec.loader.exec_module(module)
    return module


def test_the_check_names_a_block_that_does_not_say_yet_that_it_is_old(gen: ModuleType) -> None:
    block = "text\n<!-- servers:begin -->\n{}\n<!-- servers:end -->\n"
    silent, admits = block.format("commit 1"), block.format("commit 1 (**since then the kernels of A have changed**)")
    [sentence] = gen.outdated("benchmarks/service/server.md", silent, admits)
    assert sentence.startswith(
        'benchmarks/service/server.md, block "servers", is older than the kernels it measures (since then'
    )
    assert list(gen.outdated("benchmarks/service/server.md", admits, admits)) == []
    assert list(gen.outdated("benchmarks/service/server.md", admits, silent)) == []
