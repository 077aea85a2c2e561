"""One input on its way to token ids: a text, a pair of texts, or ids used as given."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from attenuator.runtime.model import Model
from attenuator.runtime.tokens import Encoded


@dataclass(frozen=True, slots=True)
class Input:
    """One input, not tokenized yet.

    Attributes:
        param: what error sentences call it, such as `inputs[2]` or `inputs[2].text`.
        text: the text, or None where token ids are given.
        text_pair: the second text of a pair.
        token_ids: ids used as given; checked when encoded.
    """

    param: str
    text: str | None = None
    text_pair: str | None = None
    token_ids: Sequence[Any] | None = None

    @property
    def characters(self) -> int:
        """Characters of its texts; 0 for token ids."""
        return len(self.text or "") + len(self.text_pair or "")

    @property
    def size(self) -> int:
        """Characters or ids: what encoding it costs."""
        return self.characters + len(self.token_ids or ())

    def encode(self, model: Model, truncate: bool) -> Encoded:
        """Tokenizes it.

        Args:
            model: whose tokenizer and limits apply.
            truncate: cuts a text that is too long instead of refusing it.

        Returns:
            Token ids and type ids, int64 `[tokens]`.

        Raises:
            InvalidRequest: empty, not valid Unicode, or an id outside the vocabulary.
            InputTooLong: over the model's `max_tokens`, and `truncate` is off.
            EngineError: the tokenizer failed.
        """
        if self.token_ids is not None:
            return model.from_ids(self.token_ids, param=self.param)
        return model.encode(self.text or "", self.text_pair, truncate=truncate, param=self.param)
