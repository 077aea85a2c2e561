"""Other libraries' errors as part of one sentence."""

from __future__ import annotations

__all__ = ["one_line"]

LONGEST = 300


def one_line(error: BaseException) -> str:
    """An exception's text as one line of at most 300 characters, the name of its class where it has no text."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= LONGEST else text[: LONGEST - 3] + "..."
