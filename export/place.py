"""Where SOURCE leads: a checkpoint folder, one of the hub, or a function; found out without PyTorch, slow to import."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

from attenuator.bundle import MANIFEST
from attenuator.errors import ExportError
from attenuator.export.hub import fetched, is_hub_id

__all__ = ["Place", "checkpoint_folder", "place_of", "read_checkpoint_config", "read_cross_encoder"]

CONFIG = "config.json"
MODULES, CROSS_ENCODER = "modules.json", "config_sentence_transformers.json"
TOKENIZER_CONFIG = "tokenizer_config.json"
ADAPTER = "adapter_config.json"
REMOTE_CODE = ("modeling_*.py", "tokenization_*.py")
# Where a training run's checkpoints lie, a hub's cache of a model, of several, and the folder above that.
BELOW = ("*", "snapshots/*", "*/snapshots/*", "*/*/snapshots/*")
LFS_POINTER = b"version https://git-lfs.github.com/spec/"


class Place(NamedTuple):
    """Where a source leads.

    Attributes:
        path: the folder of a checkpoint, or the file of a function.
        function: its name; empty for a checkpoint.
        name: what the source is called: its folder's name, the id, or `FILE.py:NAME` without the file's folder.
    """

    path: Path
    function: str
    name: str


def place_of(source: str) -> Place:
    """Finds out where a source leads; one of the hub is downloaded.

    Args:
        source: a checkpoint folder, an id of the Hugging Face hub, or `FILE.py:NAME`.

    Raises:
        ExportError: nothing is there, the hub does not give it, or the folder is no checkpoint.
    """
    path, colon, function = source.rpartition(":")
    if colon and path.endswith(".py") and function:
        if not Path(path).is_file():
            raise ExportError(f"'{path}' does not exist")
        return Place(Path(path), function, f"{Path(path).name}:{function}")
    folder = checkpoint_folder(source, "SOURCE is a checkpoint folder, a Hugging Face id (org/name) or FILE.py:NAME")
    read_checkpoint_config(folder)
    return Place(folder, "", folder.resolve().name if Path(source).is_dir() else source)


def checkpoint_folder(source: str, allowed: str) -> Path:
    """The folder that a word names, else that of the hub's checkpoint of this id, which is downloaded.

    Args:
        source: the word.
        allowed: what it could be, for the error.

    Raises:
        ExportError: it is neither, or the hub does not give it.
    """
    if Path(source).is_dir():
        return Path(source)
    if is_hub_id(source) and not Path(source).exists():
        return fetched(source)
    raise ExportError(f"'{source}' is not a folder; {allowed}")


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


def read_cross_encoder(folder: Path) -> dict[str, Any]:
    """What sentence-transformers says of a CrossEncoder beside its model; empty for any other checkpoint.

    Raises:
        ExportError: it has modules after the model, or puts a prompt before each text: a bundle would leave both out.
    """
    stored = read_object(folder / CROSS_ENCODER)
    if stored.get("model_type") != "CrossEncoder":
        return {}
    modules = read_json(folder / MODULES) if (folder / MODULES).exists() else []
    if not isinstance(modules, list) or len(modules) > 1:
        kinds = [str(each.get("type")).rpartition(".")[2] for each in modules if isinstance(each, dict)]
        raise ExportError(
            f"the CrossEncoder '{folder}' has the modules {', '.join(kinds)} in {MODULES}, must have one, a sequence "
            "classifier: what follows it would be left out"
        )
    if stored.get("default_prompt_name"):
        raise ExportError(
            f"the CrossEncoder '{folder}' puts its prompt '{stored['default_prompt_name']}' before each text, which a "
            f"bundle does not: take default_prompt_name out of {CROSS_ENCODER}, and send texts with the prompt"
        )
    return stored


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
    values = read_json(path) if path.exists() else {}
    if not isinstance(values, dict):
        raise ExportError(f"{path} cannot be read: it holds a {type(values).__name__}, must hold an object")
    return values


def read_json(path: Path) -> Any:
    """What a JSON file holds."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ExportError(f"{path} cannot be read: {error}") from None


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
