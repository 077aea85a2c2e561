"""docs/errors.md has an entry for every error, and quotes sentences that the code says."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

import attenuator.serve.app  # noqa: F401  every error class is imported
from attenuator import errors
from attenuator.serve.api.errors import (
    HTTP_ERROR,
    INTERNAL_ERROR,
    MALFORMED_REQUEST,
    PROTOCOL_KINDS,
    ROUTING_KINDS,
    STATUS,
    error_type,
)

ROOT = Path(__file__).resolve().parent.parent
PAGE = (ROOT / "docs/errors.md").read_text(encoding="utf-8")
VALUE = "…"


def rows(heading: str) -> list[list[str]]:
    """Cells of the lines of the tables below a heading, the head of each left out."""
    section = PAGE.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    return [
        [cell.strip() for cell in line.strip("|").split(" | ")]
        for line in re.findall(r"^\|.*\|$(?!\n\|---)", section, re.M)
        if not line.startswith("|---")
    ]


def sentence_of(node: ast.AST) -> str | None:
    """A text in the code with every value in it as an ellipsis."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else None
    if isinstance(node, ast.JoinedStr):
        parts = (part.value if isinstance(part, ast.Constant) else VALUE for part in node.values)
        return re.sub(f"{VALUE}+", VALUE, "".join(map(str, parts)))
    return None


@cache
def sentences() -> list[str]:
    files = [path for folder in ("src", "serve", "export", "ops", "clients") for path in (ROOT / folder).rglob("*.py")]
    nodes = (node for path in files for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
    return [sentence for node in nodes if (sentence := sentence_of(node)) and " " in sentence]


def error_types() -> dict[str, int]:
    """Status by every `error_type` that an answer may have, `http_error` aside: that has the web framework's status."""
    classes, kinds = [errors.AttenuatorError], {MALFORMED_REQUEST: 400, INTERNAL_ERROR: 500}
    while classes:
        classes += classes[0].__subclasses__()
        error = classes.pop(0)
        status = next((STATUS[kind] for kind in error.__mro__ if kind in STATUS), None)
        if status is not None:
            kinds[error_type(error.__name__)] = status
    return kinds | {kind: status for row in (ROUTING_KINDS, PROTOCOL_KINDS) for status, kind in row.items()}


def quoted() -> list[str]:
    return [cells[0].strip("`") for cells in rows("On the command line") if " " in cells[0]]


def test_every_error_type_has_its_status_and_a_remedy() -> None:
    table = {cells[0].strip("`"): cells for cells in rows("Over HTTP")}
    assert {kind: int(cells[1]) for kind, cells in table.items()} == error_types()
    assert [kind for kind, cells in table.items() if not (cells[2] and cells[3])] == []
    assert f"`{HTTP_ERROR}`" in PAGE


def test_every_error_class_is_explained() -> None:
    explained = "\n".join(cells[0] for cells in rows("In Python"))
    classes = [
        name
        for name, value in vars(errors).items()
        if isinstance(value, type) and issubclass(value, errors.AttenuatorError) and value is not errors.AttenuatorError
    ]
    assert classes
    assert [name for name in classes if f"`{name}`" not in explained] == []


def test_sentences_are_found() -> None:
    assert len(quoted()) > 20


@pytest.mark.parametrize("quote", quoted())
def test_quoted_sentences_are_said(quote: str) -> None:
    pattern = re.compile(".*".join(map(re.escape, re.split(f"{VALUE}+", quote))))
    assert any(pattern.fullmatch(sentence) for sentence in sentences()), quote
