"""Limits of the parts of `tokenizer.json`: bounded growth of a text, bounded time, the same ids for the same text.

The `tokenizers` package runs any pipeline that a file describes. One that multiplies its input would take gigabytes on
a request that is small, and a pattern that backtracks would take years. The components allowed here are those of the
model families that export supports, and others that grow a text as little.
"""

import base64
import re
import string
from collections.abc import Iterator, Mapping
from typing import Any

NORMALIZERS = {"BertNormalizer", "Lowercase", "NFC", "NFD", "NFKC", "NFKD", "Nmt", "Precompiled", "Prepend", "Replace"}
NORMALIZERS |= {"Sequence", "Strip", "StripAccents", "ByteLevel"}
# Those that start a new piece at white space, so that tokens before a space do not depend on what follows it.
SPLITTERS = {"BertPreTokenizer", "ByteLevel", "Metaspace", "Whitespace", "WhitespaceSplit"}
# Those among them that make ideographic punctuation a piece of its own.
PUNCTUATION_SPLITTERS = {"BertPreTokenizer", "ByteLevel", "Whitespace"}
PRE_TOKENIZERS = SPLITTERS | {"CharDelimiterSplit", "Digits", "Punctuation", "Sequence", "Split", "UnicodeScripts"}
MODELS = {"BPE", "Unigram", "WordLevel", "WordPiece"}
POST_PROCESSORS = {"BertProcessing", "ByteLevel", "RobertaProcessing", "Sequence", "TemplateProcessing"}
# Decoders join tokens into the `word` of an entity.
DECODERS = {"BPEDecoder", "ByteFallback", "ByteLevel", "Fuse", "Metaspace", "Replace", "Sequence", "Strip", "WordPiece"}
ALLOWED = {
    "normalizer": NORMALIZERS,
    "pre_tokenizer": PRE_TOKENIZERS,
    "post_processor": POST_PROCESSORS,
    "decoder": DECODERS,
}

MAX_PARTS = 32  # components of one kind, those inside sequences included
MAX_GROWTH = 8  # of a text by all replacements together; Unicode's own forms come on top, at most 18-fold
MAX_CHARSMAP_BYTES = 64  # that one entry of a precompiled table may give; U+FDFA gives 33
MAX_TEMPLATE = 64  # special tokens around a text or a pair
MAX_ADDED_CHARS = 256  # of an added token
MAX_WORD_CHARS = 1000  # WordPiece takes time in the square of a word's length
MAX_PATTERN_CHARS = 200

# A pattern of single characters and classes of which only the last may repeat needs no backtracking.
ATOM = (
    r"(?:\\[pP]\{\^?\w+\}|\\[sSdDwWnrtf]|\\[^\w\s]|\[\^?(?:[^\[\]\\]|\\[pP]\{\^?\w+\}|\\[^pP])+\]|[^\\()\[\]{}*+?|^$.])"
)
REPEAT = r"(?:[+*?]|\{\d{1,2}(?:,\d{0,2})?\})?"
SIMPLE = re.compile(rf"{ATOM}*{ATOM}{REPEAT}(?:\|{ATOM}*{ATOM}{REPEAT})*")
# Published patterns beyond that, which take linear time: GPT-2's and those of its successors.
ENDINGS = r"'s|'t|'re|'ve|'m|'ll|'d"
REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
PUBLISHED = {
    ENDINGS + r"| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    *(rf"(?i:{ENDINGS})|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|{digits}|{REST}" for digits in (r"\p{N}{1,3}", r"\p{N}")),
}
# Pattern of the pre-tokenizer `Split` -> the pre-tokenizer that splits a text in the same way.
SPLIT_LIKE = dict.fromkeys(PUBLISHED, "ByteLevel") | {r"\s+": "WhitespaceSplit", r"\s": "WhitespaceSplit"}
SPACES = (" ", "\n")
BERT_MARKS = ("\t", "\r", *string.punctuation)  # `BertPreTokenizer` starts a new piece at each of them


def parts(component: Any) -> Iterator[Mapping[str, Any]]:
    """A component of `tokenizer.json` and all that are inside it, sequences before their members."""
    if not isinstance(component, dict):
        return
    yield component
    for key in ("normalizers", "pretokenizers", "processors", "decoders"):
        for inner in component.get(key) or ():
            yield from parts(inner)


def splits_at(pre_tokenizer: Any, normalizer: Any = None) -> tuple[str, ...]:
    """Characters at which a tokenizer always starts a new piece; none where the pieces depend on the whole text.

    Args:
        pre_tokenizer: of `tokenizer.json`.
        normalizer: likewise; what its replacements look for is no such character, spaces aside.
    """
    kinds = set()
    for part in parts(pre_tokenizer):
        kind = part["type"]
        if kind == "Split":
            kind = SPLIT_LIKE.get(part["pattern"].get("Regex"), kind)
        if part.get("use_regex", True) and part.get("split", True):
            kinds.add(kind)
    marks: tuple[str, ...] = SPACES if kinds & SPLITTERS else ()
    if kinds & PUNCTUATION_SPLITTERS:
        marks += ("\u3002", "\uff0c")
    patterns = [part["pattern"] for part in parts(normalizer) if part["type"] == "Replace"]
    if "BertPreTokenizer" in kinds and all("String" in pattern for pattern in patterns):
        marks += tuple(mark for mark in BERT_MARKS if not any(mark in pattern["String"] for pattern in patterns))
    return marks


def check_pipeline(raw: Any, vocab_size: int) -> None:
    """Checks the parts of `tokenizer.json`.

    Args:
        raw: its content as the `tokenizers` package understands it (`Tokenizer.to_str`).
        vocab_size: token ids are 0 to vocab_size - 1.

    Raises:
        ValueError: a part is not allowed or does too much; its text continues a sentence that starts with the file.
    """
    for kind, allowed in ALLOWED.items():
        components = list(parts(raw.get(kind)))
        if len(components) > MAX_PARTS:
            raise ValueError(f"has {len(components)} parts in its {kind}, must have at most {MAX_PARTS}")
        for part in components:
            if part.get("type") not in allowed:
                names = ", ".join(sorted(allowed))
                raise ValueError(f"has a {kind} of type {part.get('type')!r}, must be one of {names}")
    for kind in ("normalizer", "decoder"):
        check_growth(kind, list(parts(raw.get(kind))))
    for part in parts(raw.get("pre_tokenizer")):
        if part["type"] == "Split":
            check_pattern(part.get("pattern"))
    check_model(raw.get("model") or {})
    for part in parts(raw.get("post_processor")):
        check_post_processor(part, vocab_size)
    for token in raw.get("added_tokens") or ():
        if not 1 <= len(token["content"]) <= MAX_ADDED_CHARS:
            raise ValueError(
                f"has an added token of {len(token['content'])} characters, must have 1 to {MAX_ADDED_CHARS}"
            )


def check_growth(kind: str, components: list[Mapping[str, Any]]) -> None:
    """Bounds how much longer a normalizer or decoder makes a text; raises as `check_pipeline`."""
    growth = 1.0
    for part in components:
        if part["type"] == "Replace":
            growth *= max(1.0, len(part["content"]) / check_pattern(part["pattern"]))
        elif part["type"] == "BPEDecoder" and not part["suffix"]:
            raise ValueError("has a decoder with an empty suffix, must have at least one character")
        elif part["type"] == "Prepend" and len(part["prepend"]) > MAX_GROWTH:
            raise ValueError(
                f"has a normalizer that prepends {len(part['prepend'])} characters, must be at most {MAX_GROWTH}"
            )
        elif part["type"] == "Precompiled" and part.get("precompiled_charsmap"):
            table = base64.b64decode(part["precompiled_charsmap"])
            texts = table[4 + int.from_bytes(table[:4], "little") :]
            longest = max(map(len, texts.split(b"\0")), default=0)
            if longest > MAX_CHARSMAP_BYTES:
                raise ValueError(
                    f"has a normalizer whose table gives {longest} bytes for a character, must be at most "
                    f"{MAX_CHARSMAP_BYTES}"
                )
    if growth > MAX_GROWTH:
        raise ValueError(
            f"has a {kind} that can make a text {growth:.3g} times as long, must be at most {MAX_GROWTH} times"
        )


def check_pattern(pattern: Any) -> int:
    """Refuses a pattern that could backtrack; raises as `check_pipeline`.

    Returns:
        Fewest characters that a match has, at least 1.
    """
    if "String" in pattern:
        if not pattern["String"]:
            raise ValueError("has an empty pattern, must have at least one character")
        return len(pattern["String"])
    regex = pattern["Regex"]
    if regex not in PUBLISHED and (len(regex) > MAX_PATTERN_CHARS or not SIMPLE.fullmatch(regex)):
        raise ValueError(
            f"has the pattern {regex[:80]!r}, must be a plain text, the pattern of GPT-2 or a successor, or characters "
            "and classes of which only the last repeats: any other may take time without end"
        )
    return 1


def check_model(model: Mapping[str, Any]) -> None:
    """Refuses models that sample or take long; raises as `check_pipeline`."""
    kind = model.get("type")
    if kind is not None and kind not in MODELS:
        raise ValueError(f"has a model of type {kind!r}, must be one of {', '.join(sorted(MODELS))}")
    if model.get("dropout"):
        raise ValueError(
            f"has a model with dropout {model['dropout']!r}, must be 0: a text would get other tokens each time"
        )
    vocab = model.get("vocab") or {}
    # Of two tokens with one id, the package says now one and now the other.
    ids = list(vocab.values()) if isinstance(vocab, dict) else []
    if len(set(ids)) < len(ids):
        raise ValueError("has two tokens with one id, must have an id for each")
    for token in vocab if isinstance(vocab, dict) else (piece for piece, _ in vocab):
        if len(token) > MAX_WORD_CHARS:
            raise ValueError(f"has a token of {len(token)} characters, must have at most {MAX_WORD_CHARS}")
    longest = model.get("max_input_chars_per_word") or 0
    if longest > MAX_WORD_CHARS:
        raise ValueError(f"has max_input_chars_per_word {longest}, must be at most {MAX_WORD_CHARS}")


def check_post_processor(part: Mapping[str, Any], vocab_size: int) -> None:
    """Bounds the special tokens around a text; raises as `check_pipeline`."""
    ids = [part[name][1] for name in ("cls", "sep") if name in part]
    special = part.get("special_tokens") or {}
    for name, texts in (("single", ["A"]), ("pair", ["A", "B"])):
        pieces = part.get(name) or []
        order = [piece["Sequence"]["id"] for piece in pieces if "Sequence" in piece]
        if name in part and sorted(order) != texts:
            named = ", ".join(order[:8]) or "no text"
            raise ValueError(
                f"has a template '{name}' that names {named}, must name each of {' and '.join(texts)} once"
            )
        names = [piece["SpecialToken"]["id"] for piece in pieces if "SpecialToken" in piece]
        added = [index for token in names for index in special[token]["ids"]]
        if len(added) > MAX_TEMPLATE:
            raise ValueError(
                f"has a template '{name}' with {len(added)} special tokens, must be at most {MAX_TEMPLATE}"
            )
        ids += added
    for index in ids:
        if index >= vocab_size:
            raise ValueError(f"adds token id {index}, must be below vocab_size {vocab_size}")
