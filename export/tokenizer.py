"""The checkpoint's tokenizer as the bundle holds it: `tokenizer.json`, run by the `tokenizers` package alone."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

from tokenizers import Tokenizer
from tokenizers.processors import TemplateProcessing

from attenuator.errors import ExportError
from attenuator.export.families import OWN_ENCODER
from attenuator.export.sentences import one_line

__all__ = ["BundleTokenizer", "bundle_tokenizer", "load_tokenizer"]

Side = Literal["left", "right"]
# Tokenizers without a limit of their own report a huge one.
NO_LIMIT = 10**9
# Files from any one of these rows transformers builds a tokenizer of some family; without any it invents an empty one.
VOCABULARY_FILES = (
    ("tokenizer.json",),
    ("vocab.txt",),
    ("vocab.json", "merges.txt"),
    ("spiece.model",),
    ("spm.model",),
    ("sentencepiece.bpe.model",),
    ("tokenizer.model",),
)
SAVE_IT = "save the one it was trained with into the folder: tokenizer.save_pretrained(folder)"


@dataclass(frozen=True, slots=True)
class BundleTokenizer:
    """A tokenizer as a bundle holds it, beside the one it comes from.

    Attributes:
        plain: without truncation and padding.
        own: the tokenizer of transformers that it must agree with; None where the source has none.
        max_tokens: the tokenizer's own limit, special tokens included.
        truncation_side: where tokens of a long text are cut off.
        split_special_tokens: whether special tokens written in a text are split like any other word.
    """

    plain: Tokenizer
    own: Any
    max_tokens: int
    truncation_side: Side
    split_special_tokens: bool

    def special_tokens(self) -> list[str]:
        """The special tokens that the tokenizer recognises in a text, in the order of their ids."""
        added = self.plain.get_added_tokens_decoder()
        return [added[index].content for index in sorted(added) if added[index].special]


def load_tokenizer(folder: Path, model_type: str) -> Any:
    """The checkpoint's tokenizer: `tokenizer.json` alone for the own encoder, else what transformers makes of it.

    Args:
        folder: the checkpoint.
        model_type: its family.

    Returns:
        A `tokenizers.Tokenizer` for the own encoder, else a tokenizer of transformers.

    Raises:
        ExportError: the folder has no tokenizer, or its files cannot be read.
    """
    rows = VOCABULARY_FILES[:1] if model_type == OWN_ENCODER else VOCABULARY_FILES
    if not any(all((folder / name).is_file() for name in row) for row in rows):
        files = ", ".join(" with ".join(row) for row in rows)
        raise ExportError(f"'{folder}' has no tokenizer (none of {files}); {SAVE_IT}")
    try:
        if model_type == OWN_ENCODER:
            return Tokenizer.from_file(str(folder / "tokenizer.json"))
        import transformers

        return transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except Exception as error:  # tokenizers raises bare Exceptions, transformers whatever its parts raise
        raise ExportError(f"the tokenizer of '{folder}' cannot be loaded: {one_line(error)}") from None


def bundle_tokenizer(tokenizer: Any) -> BundleTokenizer:
    """The tokenizer as a bundle holds it.

    Args:
        tokenizer: a fast tokenizer of transformers, or a `tokenizers.Tokenizer`.

    Returns:
        A copy, with the settings that `tokenizer.json` does not carry or that the bundle leaves out of it.

    Raises:
        ExportError: it is not one that the `tokenizers` package runs alone, or knows no word.
    """
    if isinstance(tokenizer, Tokenizer):
        plain, own, limit = copy_of(tokenizer), None, NO_LIMIT
        side = (tokenizer.truncation or {}).get("direction", "right")
        split = bool(tokenizer.encode_special_tokens)
    elif getattr(tokenizer, "is_fast", False):
        plain, own, limit = copy_of(tokenizer.backend_tokenizer), tokenizer, tokenizer.model_max_length
        if "token_type_ids" not in tokenizer("a", "b"):
            plain = without_token_types(plain)
        side, split = tokenizer.truncation_side, bool(tokenizer.split_special_tokens)
    else:
        raise ExportError(f"the tokenizer is a {type(tokenizer).__name__}, must be a fast one (tokenizer.json)")
    special = {token.content for token in plain.get_added_tokens_decoder().values() if token.special}
    if not set(plain.get_vocab()) - special:
        raise ExportError(f"the tokenizer knows its {len(special)} special tokens and no word; {SAVE_IT}")
    return BundleTokenizer(plain, own, int(min(limit, NO_LIMIT)), cast(Side, side.lower()), split)


def copy_of(tokenizer: Tokenizer) -> Tokenizer:
    """A copy that neither cuts nor pads."""
    plain = Tokenizer.from_str(tokenizer.to_str())
    plain.no_truncation()
    plain.no_padding()
    return plain


def without_token_types(tokenizer: Tokenizer) -> Tokenizer:
    """The tokenizer with type 0 for every token.

    A tokenizer class that hands no types to the model lets it see zeros, also where tokenizer.json marks the second
    text of a pair.
    """
    content = json.loads(tokenizer.to_str())
    processor = content["post_processor"]
    if processor is None:
        tokenizer.post_processor = TemplateProcessing(single="$A:0", pair="$A:0 $B:0")
        return tokenizer
    if processor["type"] == "BertProcessing":
        (sep, sep_id), (cls, cls_id) = processor["sep"], processor["cls"]
        tokenizer.post_processor = TemplateProcessing(
            single=f"{cls}:0 $A:0 {sep}:0",
            pair=f"{cls}:0 $A:0 {sep}:0 $B:0 {sep}:0",
            special_tokens=[(cls, cls_id), (sep, sep_id)],
        )
        return tokenizer
    content["post_processor"] = zero_types(processor)
    return Tokenizer.from_str(json.dumps(content))


def zero_types(node: Any) -> Any:
    """A part of tokenizer.json with every `type_id` at 0."""
    if isinstance(node, dict):
        return {key: 0 if key == "type_id" else zero_types(value) for key, value in node.items()}
    return [zero_types(item) for item in node] if isinstance(node, list) else node
