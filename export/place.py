"""Where SOURCE leads: a folder, or a function in a file. Found out without PyTorch, whose import takes seconds."""

import re
from pathlib import Path

from attenuator.errors import ExportError

__all__ = ["folder_or_function"]

HUB_NAME = re.compile(r"[\w.-]+(/[\w.-]+)?")


def folder_or_function(source: str) -> tuple[Path, str]:
    """The folder of a checkpoint and an empty text, or a file and the name of a function in it.

    Args:
        source: a checkpoint folder, or `FILE.py:NAME`.

    Raises:
        ExportError: nothing is there.
    """
    path, colon, function = source.rpartition(":")
    if colon and path.endswith(".py") and function:
        if not Path(path).is_file():
            raise ExportError(f"'{path}' does not exist")
        return Path(path), function
    if Path(source).is_dir():
        return Path(source), ""
    sentence = f"'{source}' is not a folder; SOURCE is a checkpoint folder or FILE.py:NAME"
    if HUB_NAME.fullmatch(source):
        sentence += (
            "; nothing is fetched from a hub: load the model of that name with transformers, write model and tokenizer "
            "to a folder with save_pretrained, and give that folder"
        )
    raise ExportError(sentence)
