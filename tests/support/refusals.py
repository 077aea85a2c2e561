"""Exports that are refused."""

import json
import resource
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import transformers
from checkpoints import fast_tokenizer

from attenuator.errors import AttenuatorError
from attenuator.export import export


def refuse(source: str | Path, tmp_path: Path, attention: str = "mca", **options: Any) -> str:
    """The sentence; nothing may lie in the output's parent afterwards."""
    output = tmp_path / "out" / "bundle"
    with pytest.raises(AttenuatorError) as caught:
        export(str(source), attention=attention, output=output, **options)
    assert not output.parent.exists() or not list(output.parent.iterdir())
    sentence = str(caught.value)
    assert "\n" not in sentence
    return sentence


def save(model: Any, folder: Path, tokenizer: Any = None) -> Path:
    transformers.utils.logging.disable_progress_bar()
    model.save_pretrained(folder)
    (tokenizer or fast_tokenizer()).save_pretrained(folder)
    return folder


def edit(folder: Path, target: Path, **changes: Any) -> Path:
    """A copy of a checkpoint with another config."""
    shutil.copytree(folder, target)
    config = json.loads((target / "config.json").read_text())
    (target / "config.json").write_text(json.dumps(config | changes))
    return target


@contextmanager
def files_up_to(size: int) -> Iterator[None]:
    """Within it writing beyond that many bytes of a file fails, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
