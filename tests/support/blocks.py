"""The code blocks of the documents, and why some of them are not run.

A block of a language that runs is run by `make docs-test`, in the order of its page, unless the line above it says why
not: `<!-- not run: needs Docker -->`.
"""

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SHELL, PYTHON, JAVASCRIPT = ("", "sh", "bash", "console"), ("python",), ("js", "javascript")
RUN = (*SHELL, *PYTHON, *JAVASCRIPT)
SHOWN = ("json", "yaml", "text", "html", "nginx", "promql", "ts", "typescript")  # looked at, not run
REASONS = (
    "needs Docker",
    "needs a GPU",
    "needs a cluster",
    "needs a service beside it",  # a proxy, a collector, another server
    "needs the Hugging Face hub",
    "needs data that is not in the tree",
    "takes hours",
    "installs packages",
    "is a part of a program",
)
BLOCK = re.compile(
    r"^(?:<!-- not run: (?P<reason>.*?) -->\n)?^```(?P<language>\w*)[^\n]*\n(?P<text>.*?)^```", re.M | re.S
)


@dataclass(frozen=True)
class Block:
    """A code block: its page, the line before its text, its language, its text, and why it is not run, if it is not."""

    document: str
    line: int
    language: str
    text: str
    reason: str | None

    def __str__(self) -> str:
        return f"{self.document}:{self.line}"


def blocks_of(document: str, *languages: str) -> list[Block]:
    """The blocks of a page in their order, of some languages or of all."""
    text = (ROOT / document).read_text(encoding="utf-8")
    return [
        Block(document, text[: match.start("text")].count("\n"), match["language"], match["text"], match["reason"])
        for match in BLOCK.finditer(text)
        if not languages or match["language"] in languages
    ]


def documents() -> list[str]:
    """The pages for people, as paths in the repository."""
    pages = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs").rglob("*.md"))
    return ["README.md", "CONTRIBUTING.md", *pages]
