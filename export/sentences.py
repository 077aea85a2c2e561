"""Other libraries' errors as part of one sentence."""

from __future__ import annotations

from pickle import UnpicklingError

__all__ = ["load_failure", "one_line"]

LONGEST = 300


def load_failure(error: BaseException) -> str:
    """Why weights could not be loaded; PyTorch's own text on a pickle that could run code advises to let it."""
    if isinstance(error, UnpicklingError):
        return (
            "its weights are a pickle that is damaged or holds more than tensors, which is not read, since it could "
            "run code; write them as safetensors, with save_pretrained"
        )
    return one_line(error)


def one_line(error: BaseException) -> str:
    """An exception's text as one line of at most 300 characters, the name of its class where it has no text."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= LONGEST else text[: LONGEST - 3] + "..."
