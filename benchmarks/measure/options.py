"""Types of the numbers on the programs' command lines."""

import argparse
import math
from pathlib import Path


def count(text: str) -> int:
    """A whole number of at least 1.

    Raises:
        argparse.ArgumentTypeError: it is none.
    """
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} must be a whole number of at least 1")
    return int(text)


def amount(text: str) -> float:
    """A number of at least 0.

    Raises:
        argparse.ArgumentTypeError: it is none.
    """
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} must be a number of at least 0")
    return value


def folder(text: str) -> Path:
    """A folder that is there, or can be made.

    Raises:
        argparse.ArgumentTypeError: something else is there.
    """
    path = Path(text)
    if path.exists() and not path.is_dir():
        raise argparse.ArgumentTypeError(f"'{text}' must be a folder, and is a file")
    return path
