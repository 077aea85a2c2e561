"""Other libraries' errors as part of one sentence."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pickle import UnpicklingError

from attenuator.errors import AttenuatorError

__all__ = ["disk_failure", "load_failure", "one_line", "writing"]

LONGEST = 300
# A full disk, a full quota, and a file larger than the process may write.
DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
# What PyTorch says where it cannot write.
TORCH_WRITES = ("PytorchStreamWriter failed writing", "unexpected pos")


def disk_failure(error: BaseException) -> str | None:
    """What the disk has against a file that was to be written, in the system's words; None for any other failure."""
    if isinstance(error, OSError):
        return os.strerror(error.errno) if error.errno in DISK_ERRORS else None
    text = str(error)
    # safetensors and tokenizers, which are written in Rust, say the number; PyTorch does not say why.
    said = re.search(r"os error (\d+)", text)
    if said is not None:
        return os.strerror(int(said[1])) if int(said[1]) in DISK_ERRORS else None
    return "the disk is full" if any(words in text for words in TORCH_WRITES) else None


@contextmanager
def writing(what: str, advice: str = "") -> Iterator[None]:
    """Within it a full disk, of which every library that writes has errors of its own, is one sentence.

    Args:
        what: is written, with quotes.
        advice: what to do then, after a semicolon.

    Raises:
        AttenuatorError: the disk is full.
    """
    try:
        yield
    except Exception as error:
        if (why := disk_failure(error)) is None:
            raise
        raise AttenuatorError(f"{what} cannot be written: {why}" + (f"; {advice}" if advice else "")) from None


def load_failure(error: BaseException) -> str:
    """Why weights could not be loaded; PyTorch's own text on a pickle that could run code advises to let it."""
    if "deserializing header" in str(error):  # of safetensors: a web page in the file's place, say
        return f"its weights are cut short or no safetensors file; fetch them again ({one_line(error)})"
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
