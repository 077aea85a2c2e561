"""Where tokens stand in their text, which of them begin a word, and what they are together."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from tokenizers import Encoding, Tokenizer

UNKNOWN = ("[UNK]", "<unk>")  # of a tokenizer whose model names no such token


@dataclass(frozen=True, slots=True, eq=False)
class TokenSpans:
    """Where the tokens of an input stand in its text; special tokens are left out.

    Attributes:
        words: of the tokenizer.
        places: int64 `[N]`, among all tokens of the input.
        token_ids: int64 `[N]`.
        starts: int64 `[N]`, in characters of the text.
        ends: int64 `[N]`, behind the last character.
        begins_word: bool `[N]`.
        unknown: the text of each token that stands for what the tokenizer does not know, by its place among the N.
    """

    words: Words
    places: npt.NDArray[np.int64]
    token_ids: npt.NDArray[np.int64]
    starts: npt.NDArray[np.int64]
    ends: npt.NDArray[np.int64]
    begins_word: npt.NDArray[np.bool_]
    unknown: dict[int, str]

    def token(self, place: int) -> str:
        """A token as the tokenizer writes it, such as `##ing`."""
        return self.unknown.get(place) or self.words.token(int(self.token_ids[place]))

    def word(self, first: int, last: int) -> str:
        """What the tokens from one place to another are together, as the tokenizer's decoder joins them."""
        return self.words.decode([self.token(place) for place in range(first, last + 1)])


class Words:
    """What a tokenizer says of words; never changed after construction, so threads may share it."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        """Reads it off the tokenizer."""
        model = json.loads(tokenizer.to_str())["model"]
        self._tokenizer = tokenizer
        self._decoder = tokenizer.decoder
        # A model that marks what continues a word says for itself where words begin.
        self._marks = bool(model.get("continuing_subword_prefix"))
        names = [name for name in (model.get("unk_token"), *UNKNOWN) if name]
        ids = [tokenizer.token_to_id(name) for name in names]
        self._unknown = next((each for each in (model.get("unk_id"), *ids) if each is not None), None)

    def token(self, token_id: int) -> str:
        """A token as the tokenizer writes it."""
        return self._tokenizer.id_to_token(token_id) or ""

    def decode(self, tokens: Sequence[str]) -> str:
        """Tokens as one text."""
        return " ".join(tokens) if self._decoder is None else str(self._decoder.decode(list(tokens)))

    def spans(self, encoding: Encoding, offsets: Sequence[tuple[int, int]], text: str, before: int = 0) -> TokenSpans:
        """Where the tokens of a text stand.

        A token begins a word where its model does not mark it as the rest of one, or, of models without such marks,
        behind a space: as transformers' `TokenClassificationPipeline` has it.

        Args:
            encoding: of the text, special tokens included.
            offsets: start and end of each token but the special ones, read before those were added, because adding
                them trims spaces a second time.
            text: whole.
            before: characters of the text before the part that was tokenized.
        """
        kept = [place for place, special in enumerate(encoding.special_tokens_mask) if not special]
        ids, tokens = encoding.ids, encoding.tokens
        begins, unknown = np.ones(len(kept), dtype=np.bool_), {}
        spans = np.array(offsets, dtype=np.int64).reshape(-1, 2) + before
        for number, (place, (start, end)) in enumerate(zip(kept, spans.tolist(), strict=True)):
            if ids[place] == self._unknown:
                unknown[number] = text[start:end]
            elif self._marks:
                begins[number] = len(tokens[place]) == end - start
            else:
                begins[number] = start == 0 or " " in text[start - 1 : start + 1]
        token_ids = np.array(ids, dtype=np.int64)[kept]
        places = np.array(kept, dtype=np.int64)
        return TokenSpans(self, places, token_ids, spans[:, 0], spans[:, 1], begins, unknown)
