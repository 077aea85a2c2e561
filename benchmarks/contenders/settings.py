"""What programs call a contender: an attention's key, and after a colon what is set of it: `yoso:num_hashes=8`."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import Any

from attenuator.export.encoder import EncoderConfig
from attenuator.export.encoder_attention import ATTENTIONS as TRAINABLE
from attenuator.export.encoder_attention import attributes_of, check_knobs, sizes_of
from attenuator.ops import OPERATORS
from attenuator.ops.spec import Attribute, Knob, Operator

CONV_SIZE = Attribute("conv_size", "int", "taps of the convolution, for operators that have one", default=0)
TYPES = {"int": int, "int32": int, "float": float, "string": str}
# Attentions that the own encoder can have, in training or, trained with another, once exported.
BY_KEY: dict[str, Operator] = {
    operator.key: operator for operator in OPERATORS if operator.attention in TRAINABLE and not operator.asked_as
}
METAVAR = "KEY[:NAME=VALUE,...]"


@dataclass(frozen=True)
class Contender:
    """An attention and what is set of it.

    Attributes:
        key: of the operator.
        fields: of the encoder's config: `knobs`, `attributes`, `sizes`, `conv_size`.
    """

    key: str
    fields: dict[str, Any]

    @property
    def trained_with(self) -> str:
        """The attention that a model is trained with which is served with this one."""
        return self.key if self.key in TRAINABLE else BY_KEY[self.key].attention

    @property
    def knobs(self) -> dict[str, int | float]:
        """Knobs by name, all of them."""
        return dict(self.fields["knobs"])

    @property
    def settings(self) -> dict[str, Any]:
        """Everything that is set, by name; without knobs whose default is whatever was trained with."""
        found: dict[str, Any] = {}
        for name, value in self.fields.items():
            found |= value if isinstance(value, dict) else {name: value}
        bounded = {knob.name: knob.default for knob in BY_KEY[self.key].knobs if knob.bounded_by}
        return {name: value for name, value in found.items() if bounded.get(name) != value}

    @property
    def name(self) -> str:
        """As it would be asked for."""
        settings = ",".join(f"{name}={value}" for name, value in self.settings.items())
        return f"{self.key}:{settings}" if settings else self.key

    def config(self, **shape: Any) -> EncoderConfig:
        """The own encoder's, with this attention.

        Args:
            shape: every other field.
        """
        fields = self.fields if self.key == self.trained_with else self.fields | {"knobs": {}}
        return EncoderConfig(attention=self.trained_with, **fields, **shape)


def defaults(key: str) -> dict[str, int | float]:
    """An attention's knobs at the defaults of its operator."""
    return {
        knob.name: int(knob.default) if knob.dtype == "int32" else float(knob.default) for knob in BY_KEY[key].knobs
    }


def contender(text: str) -> Contender:
    """What `KEY:NAME=VALUE,...` names; knobs that it does not name have their defaults.

    Raises:
        argparse.ArgumentTypeError: it names what there is not, or a value that does not fit.
    """
    key, _, rest = text.partition(":")
    if key not in BY_KEY:
        raise argparse.ArgumentTypeError(f"attention is {key!r}, must be one of: {', '.join(BY_KEY)}")
    fields: dict[str, Any] = {"knobs": defaults(key), "attributes": {}, "sizes": {}}
    known: dict[str, tuple[str, Knob | Attribute]] = {CONV_SIZE.name: ("", CONV_SIZE)}
    known |= {knob.name: ("knobs", knob) for knob in BY_KEY[key].knobs}
    trained_with = Contender(key, fields).trained_with
    known |= {name: ("attributes", item) for name, item in attributes_of(trained_with).items()}
    known |= {name: ("sizes", item) for name, item in sizes_of(trained_with).items()}
    for item in filter(None, rest.split(",")):
        name, _, value = item.partition("=")
        if name not in known:
            raise argparse.ArgumentTypeError(f"{key} has no {name!r}, only: {', '.join(known)}")
        field, what = known[name]
        try:
            typed = TYPES[what.dtype if isinstance(what, Knob) else what.kind](value)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{name} of {key} is {value!r}, must be a number") from None
        if field:
            fields[field][name] = typed
        else:
            fields[name] = typed
    made = Contender(key, fields)
    try:
        made.config(vocab_size=2)
        check_knobs(BY_KEY[key].knobs, made.knobs)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return made


def trainable(text: str) -> Contender:
    """The same for programs that train.

    Raises:
        argparse.ArgumentTypeError: as `contender`, or the own encoder does not train with it.
    """
    made = contender(text)
    if made.key not in TRAINABLE:
        known = ", ".join(TRAINABLE)
        raise argparse.ArgumentTypeError(
            f"attention is {made.key!r}, which is not trained with; must be one of: {known}"
        )
    return made
