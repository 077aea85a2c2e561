"""JSON that is read and compared line by line."""

import json
from collections.abc import Mapping
from typing import Any


def in_lines(fields: Mapping[str, Any]) -> str:
    """An object as JSON: a line for each field, and for each item of a list of lists or objects.

    Args:
        fields: of the object; what `json.dumps` takes.
    """
    lines = []
    for key, value in fields.items():
        if isinstance(value, list) and value and isinstance(value[0], dict | list):
            rows = ",\n".join(_short(row) for row in value)
            lines.append(f"{_short(key)}: [\n{rows}\n]")
        else:
            lines.append(f"{_short(key)}: {_short(value)}")
    return "{\n" + ",\n".join(lines) + "\n}\n"


def _short(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))
