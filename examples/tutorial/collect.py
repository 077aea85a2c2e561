"""Labelled texts that every installation has: the help texts of its Python packages, each with its package as label.

    python examples/tutorial/collect.py --output tutorial

The sources are read, not imported. OUTPUT gets two files of JSON lines, `{"text": "..", "label": "numpy"}`:
train.jsonl and texts.jsonl (which `attenuator tune` takes). A source file's texts are all in the same one, so that
neither has a near copy of what the other has.
"""

import argparse
import ast
import contextlib
import hashlib
import json
import sys
from collections import Counter
from collections.abc import Iterator
from importlib.util import find_spec
from itertools import islice
from pathlib import Path

PACKAGES = ("numpy", "scipy", "sklearn", "torch", "transformers")
WORDS = range(15, 400)
FROM_A_FILE = 12  # at most, so that many files are read
# The last hexadecimal digit of a file's digest says where its texts go.
SPLITS = {"texts": "012", "train": "3456789abcdef"}


def digest(text: str) -> str:
    """As good as drawn by lot, and the same in every run."""
    return hashlib.sha256(text.encode()).hexdigest()


def docstrings(package: str) -> Iterator[tuple[str, str]]:
    """The help texts of a package, source after source: digest of the source's path, text with single blanks."""
    spec = find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit(f"the package {package} is not installed: run `make setup`")
    root = Path(spec.submodule_search_locations[0])
    sources = [path for path in root.rglob("*.py") if "tests" not in path.parts]
    for path in sorted(sources, key=lambda each: digest(each.relative_to(root).as_posix())):
        with contextlib.suppress(SyntaxError, ValueError):  # a template, or another encoding
            nodes = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
            documented = (node for node in nodes if isinstance(node, ast.FunctionDef | ast.ClassDef))
            texts = ((ast.get_docstring(node) or "").split() for node in documented)
            for words in islice((words for words in texts if len(words) in WORDS), FROM_A_FILE):
                yield digest(path.relative_to(root).as_posix()), " ".join(words)


def main() -> int:
    """Runs the program."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--output", type=Path, required=True, help="folder for the two files")
    parser.add_argument("--limit", type=int, default=1200, help="texts of a package")
    options = parser.parse_args()
    options.output.mkdir(parents=True, exist_ok=True)
    lines: dict[str, list[str]] = {name: [] for name in SPLITS}
    for package in PACKAGES:
        texts: dict[str, str] = {}
        for source, text in docstrings(package):
            texts.setdefault(text, source)
            if len(texts) == options.limit:
                break
        for text in sorted(texts, key=digest):
            split = next(name for name, digits in SPLITS.items() if texts[text][-1] in digits)
            lines[split].append(json.dumps({"text": text, "label": package}, ensure_ascii=False))
    for name, rows in lines.items():
        (options.output / f"{name}.jsonl").write_text("\n".join(rows) + "\n", encoding="utf-8")
        counts = Counter(json.loads(row)["label"] for row in rows)
        print(f"{name}.jsonl: {len(rows)} texts, {dict(counts)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
