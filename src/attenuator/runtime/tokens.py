"""Inputs to token ids, through the `tokenizers` package alone: a text, a pair of texts, or ids used as sent."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from tokenizers import Encoding, Tokenizer

from attenuator.api import INPUT_FIELDS, INPUT_KINDS, TextInput, TokenInput
from attenuator.bundle import Manifest
from attenuator.errors import BundleError, EngineError, InputTooLong, InvalidRequest, UnknownField
from attenuator.ops.knobs import shown
from attenuator.runtime.cutting import check_room, cut, part_of
from attenuator.runtime.pipeline import splits_at
from attenuator.runtime.token_ids import Ids, whole_numbers
from attenuator.runtime.words import TokenSpans, Words

CHARS_PER_TOKEN = 16  # a text with more characters than this for each token allowed seldom fits
NEARBY_CHARS = 64  # where a text is cut, tokens may differ as far away as this
TOKENS_PER_CHAR = 4  # at most: one for each byte of the character in UTF-8
MAX_FIELD_CHARACTERS = 60  # of a field's name in an error sentence
MAX_UNBROKEN = 65_536  # characters without a place to cut: tokenizing them takes up to 30 MB


@dataclass(frozen=True, slots=True, eq=False)
class Encoded:
    """A tokenized input.

    Attributes:
        token_ids: int64 `[tokens]`, special tokens included.
        type_ids: int64 `[tokens]`: 1 where the tokenizer marks the second text of a pair, else 0; or as given.
        truncated: tokens that were cut off; a lower bound where the text was too long to be tokenized whole.
        rest: the windows that follow, where the text is read in several.
        spans: where the tokens stand in the text; None where nobody asks, and of a pair.
    """

    token_ids: Ids
    type_ids: Ids
    truncated: int = 0
    rest: Sequence["Encoded"] = ()
    spans: TokenSpans | None = None


class TextEncoder:
    """A bundle's tokenizer with its limits; never changed after construction, so threads may share it."""

    def __init__(
        self,
        path: Path,
        *,
        max_tokens: int,
        vocab_size: int,
        folder: Path | None = None,
        truncation_side: Literal["left", "right"] = "right",
        split_special_tokens: bool = False,
        token_types: int = 1,
        keeps_spans: bool = False,
    ) -> None:
        """Reads `tokenizer.json`.

        Args:
            path: the file.
            max_tokens: longest input, special tokens included.
            vocab_size: token ids are 0 to vocab_size - 1.
            folder: what error sentences call the bundle; the file's folder by default.
            truncation_side: where `encode` cuts a long text.
            split_special_tokens: whether special tokens written in a text are split like any other word.
            token_types: token types that come with token ids are 0 to token_types - 1.
            keeps_spans: whether what is encoded says where its tokens stand in the text.

        Raises:
            BundleError: the file is not a tokenizer, or knows ids outside the model's vocabulary.
        """
        where = f"bundle {folder or path.parent}: {path.name}"
        try:
            self._tokenizer = Tokenizer.from_file(str(path))
        except Exception as error:  # the package raises a bare Exception
            raise BundleError(f"{where} is not a tokenizer: {error}") from None
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()
        self._tokenizer.encode_special_tokens = split_special_tokens
        self.max_tokens = max_tokens
        self.vocab_size = vocab_size
        self.token_types = token_types
        self.truncation_side = truncation_side
        self._words = Words(self._tokenizer) if keeps_spans else None
        before, normalizer = (
            None if part is None else json.loads(part.__getstate__())
            for part in (self._tokenizer.pre_tokenizer, self._tokenizer.normalizer)
        )
        self._splits_at = splits_at(before, normalizer)
        added = (len(token.content) for token in self._tokenizer.get_added_tokens_decoder().values())
        self._unsure = TOKENS_PER_CHAR * (NEARBY_CHARS + max(added, default=0))
        largest = max(self._tokenizer.get_vocab(with_added_tokens=True).values(), default=-1)
        if largest >= vocab_size:
            raise BundleError(f"{where} has token id {largest}, must be below vocab_size {vocab_size}")

    @classmethod
    def of_bundle(cls, path: Path, manifest: Manifest, folder: Path | None = None) -> "TextEncoder":
        """The encoder of a bundle's `tokenizer.json` with the settings of its manifest; raises as the constructor."""
        return cls(
            path,
            max_tokens=manifest.max_tokens,
            vocab_size=manifest.vocab_size,
            folder=folder,
            truncation_side=manifest.truncation_side,
            split_special_tokens=manifest.split_special_tokens,
            token_types=manifest.token_types,
            keeps_spans=manifest.reads_tokens,
        )

    def content(self) -> dict[str, Any]:
        """`tokenizer.json` as the `tokenizers` package understands it."""
        return dict(json.loads(self._tokenizer.to_str()))

    def encode(
        self, text: str, text_pair: str | None, *, truncate: bool, param: str, pair_param: str = "", fixed: bool = False
    ) -> Encoded:
        """See `Model.encode`; sentences call `text_pair` by `pair_param` or after `param`; if `fixed` it is not cut."""
        check_text(text, param)
        whole_param, hint, named = param, "", pair_param
        if text_pair is not None:
            whole_param = pair_param or _together(param)
            pair_param = pair_param or _beside(param, "text", "text_pair")
            check_text(text_pair, pair_param)
        first, whole_text, before = self._encode_part(text, param)
        second, whole_pair, _ = (None, True, 0) if text_pair is None else self._encode_part(text_pair, pair_param)
        special = self._tokenizer.num_special_tokens_to_add(second is not None)
        count = len(first) + (0 if second is None else len(second)) + special
        if count == 0:
            raise no_tokens(whole_param)
        if count > self.max_tokens:
            room = max(0, self.max_tokens - special)
            fills = fixed and second is not None and len(second) >= room
            if not truncate or fills:
                if named and second is not None:  # the longer one is at fault
                    whole_param, other = (named, param) if fills or len(second) >= len(first) else (param, named)
                    hint = f", {other} included"
                hint += "" if fills else ", or set truncate"
                raise self._too_long(whole_param, count if whole_text and whole_pair else None, hint)
            cut(first, second, room, self.truncation_side, only_first=fixed)
        # Special tokens are added after cutting, so that none of them is cut off.
        whole = self._tokenizer.post_process(first, second, True)
        return self._encoded(whole, first, text, before, count - len(whole))

    def windows(
        self, text: str, text_pair: str | None, *, size: int, stride: int | None, most: int, param: str
    ) -> list[Encoded]:
        """Tokenizes a text in windows, each with its special tokens and the whole second text.

        Args:
            text: of any length.
            text_pair: the second text of a pair, or None.
            size: tokens of a window, special tokens included, at most `max_tokens`.
            stride: tokens from the beginning of a window to that of the next; None: they lie side by side.
            most: windows to make, from the first one on.
            param: what error sentences call the text.

        Raises:
            InvalidRequest: no token of the text would fit, or some would lie between two windows; or as `encode`.
        """
        check_text(text, param)
        second = None
        if text_pair is not None:
            pair_param = _beside(param, "text", "text_pair")
            check_text(text_pair, pair_param)
            second, *_ = self._encode_part(text_pair, pair_param)
        special = self._tokenizer.num_special_tokens_to_add(second is not None)
        room = size - special - (0 if second is None else len(second))
        step = room if stride is None else stride
        check_room(size, room, step)
        first, *_ = self._encode_part(text, param, room + (most - 1) * step)
        first.truncate(room + (most - 1) * step)  # windows that nobody reads would take gigabytes
        first.truncate(room, stride=room - step)
        whole = self._tokenizer.post_process(first, second, True)
        parts = [whole, *whole.overflowing][:most]
        if not parts[0].ids:
            raise no_tokens(param)
        own = [first, *first.overflowing][:most]
        return [self._encoded(one, bare, text) for one, bare in zip(parts, own, strict=True)]

    def from_ids(self, token_ids: Sequence[int], token_type_ids: Sequence[int] | None = None, *, param: str) -> Encoded:
        """See `Model.from_ids`."""
        if not token_ids:
            allowed = f"1 to {self.max_tokens} token ids"
            raise InvalidRequest(f"{param} is empty, must have {allowed}", param=param, allowed=allowed)
        if len(token_ids) > self.max_tokens:
            raise self._too_long(param, len(token_ids))
        ids = whole_numbers(token_ids, self.vocab_size, param)
        if token_type_ids is None:
            return Encoded(ids, np.zeros_like(ids))
        types_param = _beside(param, "token_ids", "token_type_ids")
        if len(token_type_ids) != len(token_ids):
            allowed = f"{len(token_ids)} token types, one for each token id"
            raise InvalidRequest(
                f"{types_param} has {len(token_type_ids)}, must have {allowed}", param=types_param, allowed=allowed
            )
        return Encoded(ids, whole_numbers(token_type_ids, self.token_types, types_param))

    def _encoded(self, tokens: Encoding, bare: Encoding, text: str, before: int = 0, truncated: int = 0) -> Encoded:
        """What tokens are to the model; `bare` are those of the text alone, of which `before` characters were cut."""
        is_single = tokens.n_sequences == 1
        spans = self._words.spans(tokens, bare.offsets, text, before) if self._words and is_single else None
        ids, types = np.array(tokens.ids, dtype=np.int64), np.array(tokens.type_ids, dtype=np.int64)
        return Encoded(ids, types, truncated, spans=spans)

    def _too_long(self, param: str, count: int | None, hint: str = "") -> InputTooLong:
        size = f"more than {self.max_tokens}" if count is None else count
        return InputTooLong(
            f"{param} has {size} tokens, must have at most {self.max_tokens}{hint}",
            param=param,
            allowed=f"at most {self.max_tokens} tokens",
        )

    def _encode_part(self, text: str, param: str, most: int | None = None) -> tuple[Encoding, bool, int]:
        """The tokens of a text; where it has far more than `max_tokens`, only those on the side that truncation keeps.

        With `most`, that takes the place of `max_tokens`, and the text's beginning is kept.

        Tokenizing millions of words would take hundreds of megabytes. So a long text is first cut at a space or another
        character where the pre-tokenizer starts a new piece: what is left has the same tokens as in the whole text.
        Tokens near the cut may differ, because an added token may contain the space and a replacement may join the
        words beside it; they are dropped.

        Returns:
            More than `max_tokens` of the tokens, or all of them; whether they are all; and the characters that were
            cut off before them.
        """
        side, most = (self.truncation_side, self.max_tokens) if most is None else ("right", most)
        size = CHARS_PER_TOKEN * (most + self._unsure)
        while True:
            is_whole = not self._splits_at or size >= len(text)
            part = text if is_whole else part_of(text, size, self._splits_at, side)
            if not unbroken_within(part, MAX_UNBROKEN, self._splits_at):
                raise InvalidRequest(
                    f"{param} has more than {MAX_UNBROKEN} characters in a row without a space or another place to cut "
                    f"it, must have at most {MAX_UNBROKEN}",
                    param=param,
                    allowed=f"at most {MAX_UNBROKEN} characters in a row without a space",
                )
            # The `fast` variant keeps no offsets: three times faster on long texts.
            run = self._tokenizer.encode_batch_fast if self._words is None else self._tokenizer.encode_batch
            try:
                [tokens] = run([part], add_special_tokens=False)
            except BaseException as error:
                # A panic of the package is no Exception and has no importable type, so that no caller could catch it.
                if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
                    raise
                raise EngineError("the tokenizer failed on this text", detail=str(error)) from error
            if is_whole:
                return tokens, True, 0
            if len(tokens) > most + self._unsure:
                tokens.truncate(len(tokens) - self._unsure, direction=side)
                return tokens, False, len(text) - len(part) if side == "left" else 0
            size *= 2


@dataclass(frozen=True, slots=True)
class Input:
    """One input, not tokenized yet.

    Attributes:
        param: what error sentences call it, such as `inputs[2]` or `inputs[2].text`.
        text: the text, or None where token ids are given.
        text_pair: the second text of a pair.
        token_ids: ids used as given; checked when encoded.
        token_type_ids: their types, checked likewise; None where they are all 0.
        pair_param: what they call the second text; empty where it is called after the first.
        fixed_pair: whether the second text is never cut.
    """

    param: str
    text: str | None = None
    text_pair: str | None = None
    token_ids: Sequence[Any] | None = None
    token_type_ids: Sequence[Any] | None = None
    pair_param: str = ""
    fixed_pair: bool = False

    @property
    def characters(self) -> int:
        """Characters of its texts; 0 for token ids."""
        return len(self.text or "") + len(self.text_pair or "")

    @property
    def size(self) -> int:
        """Characters, ids and types: what encoding it costs."""
        return self.characters + len(self.token_ids or ()) + len(self.token_type_ids or ())

    @classmethod
    def of(cls, fields: Mapping[str, Any], where: str) -> "Input":
        """An input as the HTTP API takes it, in the form of an object; see `api.INPUT_KINDS`.

        Args:
            fields: by name; values of any type.
            where: what error sentences call it, such as `inputs[2]`.

        Raises:
            InvalidRequest: an unknown field, fields that do not go together, or one of another type. What the texts
                and lists hold is checked when they are encoded.
        """
        for name in fields:
            if name not in INPUT_FIELDS:
                raise UnknownField(
                    f"{where} has an unknown field '{name[:MAX_FIELD_CHARACTERS]}', must be {INPUT_KINDS}",
                    param=f"{where}.{name[:MAX_FIELD_CHARACTERS]}",
                    allowed=INPUT_KINDS,
                )
        model = TokenInput if "token_ids" in fields else TextInput
        if not fields.keys() <= model.model_fields.keys() or next(iter(model.model_fields)) not in fields:
            names = " and ".join(fields) or "no field"
            raise InvalidRequest(f"{where} has {names}, must be {INPUT_KINDS}", param=where, allowed=INPUT_KINDS)
        for name, value in fields.items():
            kind, allowed = (list, "a list of whole numbers") if model is TokenInput else (str, "a text")
            if not isinstance(value, kind):
                raise InvalidRequest(
                    f"{where}.{name} is {shown(value)}, must be {allowed}", param=f"{where}.{name}", allowed=allowed
                )
        return cls(f"{where}.{next(iter(model.model_fields))}", **fields)

    def encode(self, encoder: TextEncoder, truncate: bool) -> Encoded:
        """Tokenizes it.

        Args:
            encoder: of the model.
            truncate: cuts a text that is too long instead of refusing it.

        Returns:
            Token ids and type ids, int64 `[tokens]`.

        Raises:
            InvalidRequest: empty, not valid Unicode, an id outside the vocabulary, or types that do not fit.
            InputTooLong: over the model's `max_tokens`, and `truncate` is off.
            EngineError: the tokenizer failed.
        """
        if self.token_ids is not None:
            return encoder.from_ids(self.token_ids, self.token_type_ids, param=self.param)
        names = {"param": self.param, "pair_param": self.pair_param}
        return encoder.encode(self.text or "", self.text_pair, truncate=truncate, fixed=self.fixed_pair, **names)


def no_tokens(param: str) -> InvalidRequest:
    """The error for a text of which the tokenizer leaves nothing."""
    allowed = "a text with at least one token"
    return InvalidRequest(f"{param} has no tokens, must be {allowed}", param=param, allowed=allowed)


def unbroken_within(text: str, size: int, marks: tuple[str, ...]) -> bool:
    """Whether no stretch of a text without one of the marks is longer than `size` characters."""
    start = 0
    while len(text) - start > size:
        start = 1 + max((text.rfind(mark, start, start + size + 1) for mark in marks), default=-1)
        if not start:
            return False
    return True


def check_text(text: str, param: str) -> None:
    """Refuses a text that no tokenizer takes.

    Raises:
        InvalidRequest: empty, only white space, or with half of a surrogate pair.
    """
    if not text.strip():
        allowed = "a text with at least one visible character"
        raise InvalidRequest(f"{param} is empty, must be {allowed}", param=param, allowed=allowed)
    if not text.isascii():
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            raise InvalidRequest(
                f"{param} has half of a surrogate pair at character {error.start}, must be Unicode text",
                param=param,
                allowed="Unicode text",
            ) from None


def _beside(param: str, own: str, other: str) -> str:
    """What a field is called beside one of an input: `inputs[2].text_pair`, `text_pair[2]`, or `inputs[2][1]`."""
    before, named, after = param.rpartition(own)
    return before + other + after if named else param.removesuffix("[0]") + "[1]"


def _together(param: str) -> str:
    """What both texts of a pair are called, from the name of the first."""
    return param.removesuffix(".text") if "text" in param else param.removesuffix("[0]")
