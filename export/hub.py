"""A checkpoint of the Hugging Face hub: downloaded through `huggingface_hub`, or taken from its cache.

Tokens (`HF_TOKEN`), the cache (`HF_HOME`), offline mode (`HF_HUB_OFFLINE`), mirrors (`HF_ENDPOINT`) and the bars on
standard error are that library's own.
"""

from __future__ import annotations

import functools
import re
from pathlib import Path

from attenuator.errors import ExportError
from attenuator.export.sentences import one_line
from attenuator.export.tokenizer import VOCABULARY_FILES

__all__ = ["fetched", "is_hub_id"]

HUB_ID = re.compile(r"(?P<repo>\w[\w.-]*/\w[\w.-]*)(@(?P<revision>.+))?", re.DOTALL)
REVISION = re.compile(r"(?!.*\.\.)[\w./-]+")
# What loading reads, all at the top of the repository: weights of TensorFlow, Flax or ONNX are left where they are.
FILES = (
    *("config.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "adapter_config.json"),
    *("modules.json", "config_sentence_transformers.json"),
    *dict.fromkeys(name for row in VOCABULARY_FILES for name in row),
)
SAFETENSORS = ("model.safetensors", "model.safetensors.index.json", "model-*-of-*.safetensors")
PICKLES = ("pytorch_model.bin", "pytorch_model.bin.index.json", "pytorch_model-*-of-*.bin")


def is_hub_id(source: str) -> bool:
    """Whether a word has the form of an id: `org/name`, or `org/name@revision`."""
    return HUB_ID.fullmatch(source) is not None


@functools.lru_cache(maxsize=8)  # asked before PyTorch is imported, and again to load
def fetched(source: str) -> Path:
    """The folder of a checkpoint in the hub's cache; what it lacks is downloaded.

    Args:
        source: an id, with a branch, tag or commit after an `@` where it is not the main branch.

    Raises:
        ExportError: one sentence that tells apart a hub out of reach, an unknown id or revision, one that this token
            may not read, and a cache without it in offline mode.
    """
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError

    parts = HUB_ID.fullmatch(source)
    assert parts is not None, "`is_hub_id` says so"
    if parts["revision"] is not None and not REVISION.fullmatch(parts["revision"]):
        allowed = "must be a branch, tag or commit of letters, digits, '.', '_', '/' and '-', without '..'"
        raise ExportError(f"the revision of '{parts['repo']}' is {parts['revision'][:80]!r}, {allowed}")

    def download(*files: str) -> Path:
        return Path(snapshot_download(parts["repo"], revision=parts["revision"], allow_patterns=list(files)))

    try:
        folder = download(*FILES, *SAFETENSORS)
        if not any(folder.glob("*.safetensors")):
            folder = download(*FILES, *PICKLES)
        return folder
    except HFValidationError as error:
        raise ExportError(f"'{source}' is not a folder here, and is no id of the hub: {one_line(error)}") from None
    except OSError as error:  # that of a hub or of the disk
        why = refusal(error, parts["repo"], parts["revision"])
        raise ExportError(f"'{source}' is not a folder here, and {why}") from None


def refusal(error: OSError, repo: str, revision: str | None) -> str:
    """Why a checkpoint cannot be had, as the end of a sentence.

    Args:
        error: of `huggingface_hub`, or of the system.
        repo: the id without its revision.
        revision: None for the main branch.
    """
    from huggingface_hub import constants, errors

    hub = constants.ENDPOINT
    cause = error.__cause__ or error
    status = getattr(getattr(cause, "response", None), "status_code", None)
    if isinstance(cause, errors.OfflineModeIsEnabled):
        lacks = "all files of it" if isinstance(error, errors.IncompleteSnapshotError) else "it"
        return f"the Hugging Face cache lacks {lacks}, while HF_HUB_OFFLINE forbids to download: unset that"
    if isinstance(error, errors.GatedRepoError):
        return f"it is gated on {hub}: accept its conditions at {hub}/{repo}, and set HF_TOKEN to a token of yours"
    if isinstance(error, errors.RevisionNotFoundError):
        return f"'{repo}' on {hub} has no revision '{revision or constants.DEFAULT_REVISION}'"
    if isinstance(error, errors.RepositoryNotFoundError):
        return f"{hub} has no model '{repo}' that it shows you: check the id; for a private one set HF_TOKEN"
    if status in (401, 403):
        return f"{hub} refuses it (status {status}): HF_TOKEN is wrong or may not read it"
    if isinstance(error, errors.LocalEntryNotFoundError):
        return f"{hub} gives no answer for it ({one_line(cause)}): check the network, or HF_ENDPOINT"
    return f"it cannot be downloaded: {one_line(error)}"
