"""Imports go one way, heavy libraries stay where they belong, files stay small."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "attenuator"

# part -> parts it may import, besides itself
MAY_IMPORT = {
    "__init__": {"local"},  # when `attenuator.load` is asked for
    "__main__": {"errors"},  # the commands are imported by name, when called
    "errors": set(),
    "api": {"errors", "bundle", "ops"},
    "classify_request": {"api", "ops"},
    "ranking": {"api"},
    "precision": set(),
    "bundle": {"errors", "json_lines", "precision"},
    "commandline": {"errors"},
    "json_body": {"errors", "ops"},
    "ops": {"errors"},
    "journal": {"errors"},
    "json_lines": set(),
    "rate_limited_log": set(),
    "load_generator": {"errors", "api"},
    "texts": {"errors", "api", "json_body", "ops"},
    "rows": {"errors", "api", "texts"},
    "training": {"errors", "ops"},
    "calibration": {"errors", "bundle", "json_lines"},
    "runtime": {"errors", "api", "bundle", "calibration", "classify_request", "precision", "ops", "ranking"},
    "local": {"errors", "api", "calibration", "classify_request", "ops", "ranking", "runtime", "texts"},
    "export": {
        "errors",
        "api",
        "bundle",
        "calibration",
        "precision",
        "commandline",
        "ops",
        "runtime",
        "texts",
        "training",
    },
    "serve": {
        "errors",
        "api",
        "bundle",
        "calibration",
        "classify_request",
        "precision",
        "commandline",
        "json_body",
        "ops",
        "rate_limited_log",
        "ranking",
        "runtime",
    },
    "rayserve": {"errors", "api", "bundle", "calibration", "json_body", "ops", "runtime", "serve"},
    "clients": {"errors", "api", "bundle", "journal", "ops", "ranking"},
    "tuning": {
        "errors",
        "api",
        "bundle",
        "calibration",
        "commandline",
        "export",
        "ops",
        "rows",
        "runtime",
        "texts",
        "training",
    },
    "compare": {
        "errors",
        "bundle",
        "calibration",
        "clients",
        "commandline",
        "commands",
        "export",
        "journal",
        "ops",
        "precision",
        "rows",
        "runtime",
        "texts",
        "tuning",
    },
    "tune": {
        "errors",
        "bundle",
        "calibration",
        "commandline",
        "commands",
        "compare",
        "export",
        "journal",
        "ops",
        "rows",
        "runtime",
        "texts",
        "tuning",
    },
    "commands": {
        "errors",
        "api",
        "bundle",
        "classify_request",
        "precision",
        "commandline",
        "journal",
        "json_lines",
        "load_generator",
        "local",
        "ops",
        "ranking",
        "rows",
        "runtime",
        "texts",
        "clients",
        "calibration",
    },
}
# room of serve/ -> what it may import of the others; a module that is no room stands alone
SERVE = {
    "events": set(),
    "settings": set(),
    "scheduling": {"events"},
    "accuracy": set(),
    "models": {"events", "settings"},
    "access": {"settings"},
    "edge": {"settings"},
    "page": set(),
    "observe": {"events", "scheduling"},
    "engine": {"accuracy", "events", "models", "scheduling", "settings"},
    "api": {"access", "accuracy", "edge", "engine", "events", "page", "scheduling", "settings"},
    "app": {"access", "api", "engine", "observe", "scheduling", "settings"},
    "__main__": {"access", "api", "app", "edge", "engine", "observe", "settings"},
    "__init__": set(),
}
TRAINING = {"torch", "transformers", "onnx", "onnxscript", "onnx_ir", "safetensors", "sklearn", "accelerate"}
SOURCES = {".py", ".cc", ".cu", ".h", ".inl", ".sh"}
MAX_LINES = 400


def python_files(part: str) -> list[Path]:
    single = PACKAGE / f"{part}.py"
    return [single] if single.is_file() else sorted((PACKAGE / part).resolve().rglob("*.py"))


def imported(file: Path) -> Iterator[tuple[str, int]]:
    """Every module that a file imports anywhere in it, with the line."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"), str(file))):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}:{node.lineno}: relative imports hide the layer"
            yield from ((f"{node.module}.{alias.name}", node.lineno) for alias in node.names)


def included(files: Iterable[Path], pattern: str) -> list[str]:
    """Every #include of C++ and CUDA files that the pattern matches somewhere, with the file."""
    return [
        f"{file}: {line}"
        for file in sorted(files)
        for line in re.findall(rf"#include.*(?:{pattern}).*", file.read_text(encoding="utf-8"))
    ]


def test_every_part_has_a_rule() -> None:
    parts = {path.stem for path in PACKAGE.iterdir() if path.suffix == ".py" or path.is_dir()} - {"__pycache__"}
    assert parts == set(MAY_IMPORT)


@pytest.mark.parametrize("part", MAY_IMPORT)
def test_part_imports_only_what_lies_below_it(part: str) -> None:
    files = python_files(part)
    assert files
    wrong = []
    for file in files:
        for name, line in imported(file):
            root, _, rest = name.partition(".")
            below = rest.partition(".")[0]
            if root == "attenuator" and below in MAY_IMPORT and below not in MAY_IMPORT[part] | {part}:
                wrong.append(f"{file}:{line}: {part} must not import attenuator.{below}")
    assert not wrong, "\n".join(wrong)


def modules_below(folder: Path, package: str) -> dict[str, set[str]]:
    """What each module below a folder imports of the others there, anywhere in it: functions and TYPE_CHECKING too."""
    files = {
        ".".join((package, *file.relative_to(folder).with_suffix("").parts)).removesuffix(".__init__"): file
        for file in folder.rglob("*.py")
    }
    imports: dict[str, set[str]] = {}
    for module, file in files.items():
        names = {name for name, _ in imported(file)}
        imports[module] = {each for name in names for each in (name, name.rpartition(".")[0]) if each in files}
        if file.name != "__init__.py":  # a package may be imported by what lies in it: it lists its parts
            imports[module] -= {parent for parent in files if module.startswith(parent + ".")}
    return imports


def circle_in(arrows: dict[str, set[str]]) -> list[str]:
    """The nodes of one circle, the first one again at the end; empty where there is none."""
    done: set[str] = set()

    def walk(node: str, way: list[str]) -> list[str]:
        if node in way:
            return [*way[way.index(node) :], node]
        if node in done:
            return []
        circles = (walk(each, [*way, node]) for each in sorted(arrows.get(node, set()) - {node}))
        found = next(filter(None, circles), [])
        done.add(node)
        return found

    return next(filter(None, (walk(node, []) for node in sorted(arrows))), [])


def rooms_of_serve() -> dict[str, set[str]]:
    """What each room of serve/ imports of the others."""
    arrows: dict[str, set[str]] = {}
    for module, names in modules_below((PACKAGE / "serve").resolve(), "attenuator.serve").items():
        room = (module.split(".") + ["__init__"])[2]
        others = {name.split(".")[2] for name in names if name.count(".") > 1}
        arrows.setdefault(room, set()).update(others - {room})
    return arrows


def test_a_room_of_serve_imports_what_lies_below_it_and_the_table_says_just_that() -> None:
    arrows = rooms_of_serve()
    assert set(arrows) == set(SERVE)
    assert {(room, other) for room, others in arrows.items() for other in others ^ SERVE[room]} == set()


def test_few_modules_of_serve_lie_outside_its_rooms() -> None:
    assert len(list((PACKAGE / "serve").resolve().glob("*.py"))) <= 6


def test_only_what_puts_the_service_together_knows_who_is_told_of_events() -> None:
    assert {room for room, others in rooms_of_serve().items() if "observe" in others} == {"app", "__main__"}


def test_events_that_every_room_may_import_know_nothing_of_the_service() -> None:
    assert rooms_of_serve()["events"] == set()


def test_a_circle_is_found() -> None:
    assert circle_in({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": {"a"}}) == ["b", "c", "b"]
    assert circle_in({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == []


@pytest.mark.parametrize("part", sorted(MAY_IMPORT))
def test_the_modules_of_a_part_do_not_import_each_other_in_a_circle(part: str) -> None:
    folder = (PACKAGE / part).resolve()
    if folder.is_dir():
        assert circle_in(modules_below(folder, f"attenuator.{part}")) == []


def test_no_parts_and_no_rooms_import_each_other_in_a_circle() -> None:
    assert circle_in(MAY_IMPORT) == []
    assert circle_in(rooms_of_serve()) == []


@pytest.mark.parametrize("part", ["errors", "api", "bundle", "runtime", "serve", "rayserve", "clients"])
def test_serving_side_never_imports_training_libraries(part: str) -> None:
    wrong = [
        f"{file}:{line}: {name}"
        for file in python_files(part)
        for name, line in imported(file)
        if name.partition(".")[0] in TRAINING
    ]
    assert not wrong, "\n".join(wrong)


def test_operators_import_numpy_and_torch_only_where_they_are_for() -> None:
    wrong = []
    for file in python_files("ops"):
        allowed = {"attenuator"} | set(sys.stdlib_module_names)
        if file.name.startswith("reference"):
            allowed |= {"numpy", "math"}
        if file.name.startswith("torch_op"):
            allowed |= {"numpy", "torch"}
        if file.name.startswith("eager"):
            allowed.add("torch")
        allowed |= {"fallback.py": {"onnx"}}.get(file.name, set())
        wrong += [f"{file}:{line}: {name}" for name, line in imported(file) if name.partition(".")[0] not in allowed]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("part", ["serve", "clients"])
def test_only_the_runtime_creates_sessions(part: str) -> None:
    wrong = [
        f"{file}:{line}: {name}"
        for file in python_files(part)
        for name, line in imported(file)
        if name.partition(".")[0] == "onnxruntime"
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    ("modules", "unwanted"),
    [
        (["attenuator"], ["numpy", "onnxruntime", "pydantic", "tokenizers", "asyncio", "attenuator.local"]),
        (["attenuator.ops"], ["numpy", "torch", "onnx", "onnxruntime", "pydantic"]),
        (["attenuator.clients"], ["numpy", "torch", "onnxruntime", "transformers", "onnx", "fastapi"]),
        (
            ["attenuator.commands.classify", "attenuator.commands.inspect", "attenuator.commands.calibrate.__main__"],
            ["torch", "transformers", "onnx", "fastapi"],
        ),
        (
            ["attenuator.tuning.train.__main__", "attenuator.compare.__main__"],
            ["torch", "transformers", "onnx", "onnxruntime", "numpy"],
        ),
        (["attenuator.calibration"], ["numpy", "rich", "onnxruntime"]),
        (["attenuator.runtime"], ["torch", "transformers", "onnx", "fastapi", "httpx"]),
        (["attenuator.serve.__main__", "attenuator.serve.app"], ["torch", "transformers", "onnx", "onnxscript"]),
    ],
    ids=["package", "ops", "clients", "commands", "training", "calibration", "runtime", "serve"],
)
def test_importing_stays_light(modules: list[str], unwanted: list[str]) -> None:
    program = f"import sys, {', '.join(modules)}\nprint(*sorted(set({unwanted!r}) & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == []


def test_kernels_and_device_code_know_neither_onnxruntime_nor_torch() -> None:
    ops = ROOT / "ops"
    files = {file for room in ("cpu", "cuda") for file in ops.rglob(f"{room}/*") if file.is_file()}
    assert len(files) > 20
    wrong = included(files, r"onnxruntime|torch|ATen|\bort/")
    assert not wrong, "\n".join(wrong)


def test_hosts_compile_without_a_cuda_toolkit() -> None:
    ops = ROOT / "ops"
    files = {
        ops / "common/cuda/context.h",
        ops / "common/cuda/batch.h",
        *(ops / "ort").iterdir(),
        *ops.glob("c_api.*"),
        *ops.rglob("cuda/operator.cc"),
        *ops.rglob("cuda/kernel.h"),
    }
    wrong = included(files, r"<cuda|device\.h|on_host\.h")
    assert not wrong, "\n".join(wrong)


def test_only_the_shared_vocabulary_has_inline_assembly() -> None:
    """The test device compiles every other file as C++."""
    vocabulary = {ROOT / "ops/common/cuda/device.h", ROOT / "ops/common/cuda/on_host.cc"}
    wrong = [
        str(file)
        for file in (ROOT / "ops").rglob("cuda/*")
        if file.is_file() and file not in vocabulary and re.search(r"\basm\b", file.read_text(encoding="utf-8"))
    ]
    assert not wrong, "\n".join(wrong)


def test_no_file_is_too_long() -> None:
    folders = [
        PACKAGE,
        *(ROOT / name for name in ("ops", "export", "serve", "clients", "examples", "benchmarks", "scripts", "tests")),
    ]
    lines = {
        file: len(file.read_text(encoding="utf-8").splitlines())
        for folder in folders
        for file in folder.rglob("*")
        if file.is_file() and file.suffix in SOURCES and "build" not in file.parts
    }
    assert len(lines) > 40
    long = [f"{file.relative_to(ROOT)}: {count}" for file, count in lines.items() if count > MAX_LINES]
    assert not long, "\n".join(long)
