"""Nothing outside the operators' folders names an operator or a knob: what is said of them derives from the specs.

An operator has a folder of its key in `ops/`, and one in `training/` where models can be trained with it.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from attenuator.ops import KNOBS, OPERATORS

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "attenuator"
FOLDERS = ("serve", "clients", "export", "src/attenuator", "scripts")
OWN_FOLDERS = {operator.key for operator in OPERATORS}
FILES = sorted(
    file
    for folder in FOLDERS
    for file in (ROOT / folder).rglob("*.py")
    if not {"ops", *OWN_FOLDERS} & set(file.relative_to(ROOT / folder).parts)
)

# Pooling is part of every model; what may be approximated is attention.
ATTENTION = [operator for operator in OPERATORS if operator.attention]
# Keys and knobs that are ordinary words: only a text that is the word and nothing else names the operator or the knob.
ORDINARY = ({operator.key for operator in ATTENTION} | set(KNOBS)) & {"softmax", "linear", "relative", "keep", "window"}
DISTINCT = ({operator.key for operator in ATTENTION} | set(KNOBS)) - ORDINARY | {
    operator.name for operator in ATTENTION
}
# As a word of its own or a part of an identifier; `value_alpha`, but not `alphabet`.
PATTERN = re.compile("|".join(rf"(?<![a-z]){re.escape(name)}(?![a-z])" for name in sorted(DISTINCT)), re.IGNORECASE)

FAMILY = "the family of this name in transformers"
# File, then what it may say, with the reason.
ALLOWED = {
    "export/architectures.py": {
        "yoso": FAMILY,
        "num_hashes": "the knob that the family's config calls num_hash",
        "nystrom": "what the family nystromformer was trained with",
        "num_landmarks": "the knob, of the same name in the family's config",
        "num_random_blocks": "the knob, of the same name in the family's config",
        "'relative'": "what MPNet and DeBERTa were trained with",
        "'window'": "what Longformer was trained with",
    },
    "export/checks.py": {
        "yoso": FAMILY,
        "num_landmarks": "a field of the family nystromformer's config",
        "bigbird": "the operator whose blocks the family's config sets",
        "num_random_blocks": "a field of the family big_bird's config",
    },
    "export/eager.py": {
        "yoso": FAMILY,
        "bigbird": FAMILY,
        "num_landmarks": "a field of the family nystromformer's attention",
    },
    "export/families.py": {"yoso": FAMILY, "bigbird": FAMILY, "reformer": FAMILY},
    "export/encoder_config.py": {"yoso": "what older checkpoints have, and fields that they have for its attributes"},
    "export/linear_layers.py": {"alpha": "an attribute of ONNX's Gemm"},
    "export/layers.py": {"yoso": FAMILY},
    "export/settings.py": {"yoso": FAMILY, "bigbird": FAMILY},
    "export/packed.py": {"'window'": "an attribute of attention nodes, whose upper bound is the knob"},
    "src/attenuator/training/differentiable.py": {
        name: "an operator whose form with gradients it has"
        for name in ("softmaxattention", "relativeattention", "'softmax'", "'relative'")
    },
    "serve/api/peers/tei.py": {"'softmax'": "an activation over the labels, as Hugging Face's clients name it"},
}


def texts(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Every identifier and every text of a file, docstrings among them, with its line."""
    for node in ast.walk(tree):
        line = getattr(node, "lineno", 0)
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield repr(node.value) if node.value in ORDINARY else node.value, line
        for field in ("id", "attr", "name", "arg", "asname", "module"):
            value = getattr(node, field, None)
            if isinstance(value, str):
                yield value, line


def named(source: str) -> list[tuple[int, str]]:
    """What a file calls by name, with the line."""
    names = []
    for text, line in texts(ast.parse(source)):
        names += [(line, match.group().lower()) for match in PATTERN.finditer(text)]
        names += [(line, text) for key in ORDINARY if text == repr(key)]
    return names


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(ROOT)))
def test_a_file_names_no_operator_and_no_knob(file: Path) -> None:
    allowed = ALLOWED.get(str(file.relative_to(ROOT)), {})
    wrong = [f"{file}:{line}: {name}" for line, name in named(file.read_text()) if name not in allowed]
    assert not wrong, "\n".join(wrong)


def test_what_is_allowed_is_needed() -> None:
    for file, names in ALLOWED.items():
        present = {name for _, name in named((ROOT / file).read_text())}
        assert present == set(names), f"{file} names {present}, may name {set(names)}"


def test_names_are_found_in_texts_and_identifiers() -> None:
    source = 'def yoso_verdict(x):\n    """MCA alphabet."""\n    if x == "softmax":\n        return f"{x.num_hashes}"'
    assert sorted(named(source)) == [(1, "yoso"), (2, "mca"), (3, "'softmax'"), (4, "num_hashes")]
    assert named("def softmax(logits): ...") == [], "a function of mathematics"
