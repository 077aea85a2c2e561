"""Fingerprints of the kernels that a result was measured with, by which figures say that those have changed since.

A fingerprint is over the C++ sources of an operator's folder (on the CPU those outside of `cuda/`), its `rule.py`, and
what these include of `ops/common/`. Comments and layout do not count, nor does anything else in the tree: a commit that
leaves the kernels as they are leaves the fingerprints as they are.
"""

import hashlib
import re
from collections.abc import Iterable
from pathlib import Path

from attenuator.ops import DOMAIN, OPERATORS, package

OPS = Path(__file__).resolve().parents[2] / "ops"
SUFFIXES = (".cc", ".cu", ".h", ".inc", ".inl")
# How hosts find and call kernels; no part of one.
HOSTS = ("common/registry.h", "common/c_call.h", "c_api.h")
_INCLUDE = re.compile(r'^#include "ops/([^"]+)"', re.MULTILINE)
# Strings are matched so that what looks like a comment in one stays.
_COMMENT_OR_STRING = re.compile(r'"(?:\\.|[^"\\\n])*"|//[^\n]*|/\*.*?\*/', re.DOTALL)


def code_of(text: str) -> str:
    """C++ without comments, every run of white space as one space."""
    bare = _COMMENT_OR_STRING.sub(lambda found: found[0] if found[0].startswith('"') else " ", text)
    return " ".join(bare.split())


def own_sources(folder: Path, cuda: bool) -> list[Path]:
    """What decides the machine code of one folder."""
    files = [path for path in folder.rglob("*") if path.suffix in SUFFIXES or path.name == "rule.py"]
    return [path for path in files if cuda or "cuda" not in path.relative_to(folder).parts]


def brought_by(header: Path, ops: Path, cuda: bool) -> list[Path]:
    """What an included header stands for: a folder of `ops/common/` as a whole, else the files of the header's name."""
    if header.is_relative_to(ops / "common") and header.parent != ops / "common":
        return own_sources(ops / "common" / header.relative_to(ops).parts[1], cuda)
    return [header, *filter(Path.is_file, [header.with_suffix(".cc")])]


def sources(folder: Path, ops: Path, cuda: bool) -> list[Path]:
    """What decides an operator's machine code: its folder, and what is included of others', in the order of names."""
    found: set[Path] = set()
    waiting = own_sources(folder, cuda)
    while waiting:
        path = waiting.pop()
        if path in found:
            continue
        found.add(path)
        names = _INCLUDE.findall(path.read_text(encoding="utf-8"))
        included = [ops / name for name in names if name not in HOSTS]
        for header in filter(Path.is_file, included):
            waiting += brought_by(header, ops, cuda)
    return sorted(found)


def fingerprint(key: str, *, cuda: bool = False, ops: Path = OPS) -> str:
    """Of one operator.

    Args:
        key: the operator's.
        cuda: with its kernels for CUDA.
        ops: the folder of all operators.
    """
    digest = hashlib.sha256()
    for path in sources(ops / package(key).rpartition(".")[2], ops, cuda):
        text = path.read_text(encoding="utf-8")
        code = text if path.suffix == ".py" else code_of(text)
        digest.update(f"{path.relative_to(ops)}\0{code}\0".encode())
    return digest.hexdigest()[:16]


def fingerprints(keys: Iterable[str], *, cuda: bool = False) -> dict[str, str]:
    """Fingerprints by the operators' keys, as result files keep them (`kernels`)."""
    return {key: fingerprint(key, cuda=cuda) for key in sorted(keys)}


def in_model(path: Path) -> list[str]:
    """Keys of the operators that a bundle's model has.

    Args:
        path: the bundle's folder.
    """
    import onnx  # the only need of it, which `make gen` has not

    by_name = {operator.name: operator.key for operator in OPERATORS}
    graph = onnx.load(path / "model.onnx", load_external_data=False).graph
    return sorted({by_name[node.op_type] for node in graph.node if node.domain == DOMAIN})
