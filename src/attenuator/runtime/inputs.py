"""One input on its way to token ids: a text, a pair of texts, or ids used as given."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from attenuator.api import INPUT_FIELDS, INPUT_KINDS, TextInput, TokenInput
from attenuator.errors import InvalidRequest, UnknownField
from attenuator.ops.knobs import shown
from attenuator.runtime.model import Model
from attenuator.runtime.tokens import Encoded, TextEncoder

MAX_FIELD_CHARACTERS = 60  # of a field's name in an error sentence


@dataclass(frozen=True, slots=True)
class Input:
    """One input, not tokenized yet.

    Attributes:
        param: what error sentences call it, such as `inputs[2]` or `inputs[2].text`.
        text: the text, or None where token ids are given.
        text_pair: the second text of a pair.
        token_ids: ids used as given; checked when encoded.
        token_type_ids: their types, checked likewise; None where they are all 0.
    """

    param: str
    text: str | None = None
    text_pair: str | None = None
    token_ids: Sequence[Any] | None = None
    token_type_ids: Sequence[Any] | None = None

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

    def encode(self, model: Model | TextEncoder, truncate: bool) -> Encoded:
        """Tokenizes it.

        Args:
            model: whose tokenizer and limits apply.
            truncate: cuts a text that is too long instead of refusing it.

        Returns:
            Token ids and type ids, int64 `[tokens]`.

        Raises:
            InvalidRequest: empty, not valid Unicode, an id outside the vocabulary, or types that do not fit.
            InputTooLong: over the model's `max_tokens`, and `truncate` is off.
            EngineError: the tokenizer failed.
        """
        if self.token_ids is not None:
            return model.from_ids(self.token_ids, self.token_type_ids, param=self.param)
        return model.encode(self.text or "", self.text_pair, truncate=truncate, param=self.param)
