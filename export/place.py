"""Where SOURCE leads: a checkpoint folder, or a function in a file; found out without PyTorch, slow to import."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from attenuator.bundle import MANIFEST
from attenuator.errors import ExportError

__all__ = ["folder_or_function", "read_checkpoint_config"]

HUB_NAME = re.compile(r"[\w.-]+(/[\w.-]+)?")
CONFIG = "config.json"
TOKENIZER_CONFIG = "tokenizer_config.json"
ADAPTER = "adapter_config.json"
REMOTE_CODE = ("modeling_*.py", "tokenization_*.py")
# Where a training run's checkpoints lie, a hub's cache of a model, of several, and the folder above that.
BELOW = ("*", "snapshots/*", "*/snapshots/*", "*/*/snapshots/*")
LFS_POINTER = b"version https://git-lfs.github.com/spec/"


def folder_or_function(source: str) -> tuple[Path, str]:
    """The folder of a checkpoint and an empty text, or a file and the name of a function in it.

    Args:
        source: a checkpoint folder, or `FILE.py:NAME`.

    Raises:
        ExportError: nothing is there, or the folder is no checkpoint.
    """
    path, colon, function = source.rpartition(":")
    if colon and path.endswith(".py") and function:
        if not Path(path).is_file():
            raise ExportError(f"'{path}' does not exist")
        return Path(path), function
    if Path(source).is_dir():
        read_checkpoint_config(Path(source))
        return Path(source), ""
    sentence = f"'{source}' is not a folder; SOURCE is a checkpoint folder or FILE.py:NAME"
    if HUB_NAME.fullmatch(source):
        sentence += (
            "; nothing is fetched from a hub: load the model of that name with transformers, write model and tokenizer "
            "to a folder with save_pretrained, and give that folder"
        )
    raise ExportError(sentence)


def read_checkpoint_config(folder: Path) -> dict[str, Any]:
    """What a checkpoint's config.json holds.

    Raises:
        ExportError: the folder is no checkpoint, holds an adapter, files that were not fetched, or code of its own.
    """
    if (folder / ADAPTER).is_file():
        raise ExportError(
            f"'{folder}' holds an adapter ({ADAPTER}), must hold a whole model: merge the adapter into its base model "
            "with peft's merge_and_unload() and save the result and the tokenizer into a folder of their own"
        )
    for path in sorted(folder.iterdir()):
        if path.is_file() and is_pointer(path):
            raise ExportError(
                f"'{path}' is a pointer of git-LFS and not the file itself; fetch it with `git lfs pull` there"
            )
    if not (folder / CONFIG).exists():
        raise ExportError(f"'{folder}' is not a checkpoint: {instead_of_config(folder)}")
    refuse_own_code(folder)
    return read_object(folder / CONFIG)


def is_pointer(path: Path) -> bool:
    """Whether git-LFS left a file's name and size in its place."""
    with path.open("rb") as file:
        return file.read(len(LFS_POINTER)) == LFS_POINTER


def refuse_own_code(folder: Path) -> None:
    """Refuses a model or tokenizer with code of its own, which may compute anything else than the family it names."""
    own = [f"auto_map in {name}" for name in (CONFIG, TOKENIZER_CONFIG) if read_object(folder / name).get("auto_map")]
    own += sorted(path.name for pattern in REMOTE_CODE for path in folder.glob(pattern))
    if own:
        raise ExportError(
            f"the checkpoint '{folder}' brings code of its own ({own[0]}), which is never run and may compute "
            "something else than the family's own classes; if those compute the same, give FILE.py:NAME, a function of "
            "yours that loads the weights and the tokenizer with them"
        )


def read_object(path: Path) -> dict[str, Any]:
    """The object that a JSON file holds, an empty one where there is no file."""
    if not path.exists():
        return {}
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ExportError(f"{path} cannot be read: {error}") from None
    if not isinstance(values, dict):
        raise ExportError(f"{path} cannot be read: it holds a {type(values).__name__}, must hold an object")
    return values


def instead_of_config(folder: Path) -> str:
    """What a folder without a config.json is, and what to give instead."""
    if (folder / MANIFEST).is_file():
        return "it is a bundle, which export writes; give the checkpoint that the bundle was made from"
    found = [path.parent for below in BELOW for path in folder.glob(f"{below}/{CONFIG}")]
    if not found:
        return f"{CONFIG} is missing"
    newest = max(found, key=lambda path: ((path / CONFIG).stat().st_mtime, path.name))
    if len({path.parent for path in found}) > 1:
        return f"{CONFIG} is missing; give one of the {len(found)} folders below that have one, such as '{newest}'"
    return f"{CONFIG} is missing; give the folder '{newest}', which has one"
