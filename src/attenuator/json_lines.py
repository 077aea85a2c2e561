"""JSON files: written so that they can be compared line by line, read so that no field counts twice."""

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


def fields_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object's fields, as JSON is read; ValueError names one that occurs more than once."""
    names = [name for name, _ in pairs]
    if len(set(names)) < len(names):
        raise ValueError(
            f"the field '{next(name for name in names if names.count(name) > 1)[:60]}' occurs more than once"
        )
    return dict(pairs)


def _short(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))
