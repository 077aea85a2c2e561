"""Exchange of a model's attention for the one that it is trained with."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields, replace
from importlib import import_module
from typing import Any

from attenuator import training
from attenuator.errors import ExportError
from attenuator.export.encoder import Encoder, EncoderConfig
from attenuator.ops import BASELINE, DOMAIN, OPERATORS
from attenuator.tuning.choices import REPLACEMENTS, settings_class

__all__ = ["attention_of", "encoder_config", "exact", "has_knobs", "settings_of", "use"]


def _interface(attention: str) -> Any:
    return import_module(f"{training.__name__}.{attention}.attention_interface")


def attention_of(config: Any) -> str:
    """Key of the attention that a checkpoint's config says it was trained with.

    Raises:
        ExportError: the config names one that there is not.
    """
    if isinstance(config, EncoderConfig):
        return config.attention
    stored = getattr(config, DOMAIN, None)
    if stored is None:
        return BASELINE.key
    key = stored.get(training.ATTENTION) if isinstance(stored, dict) else None
    if key not in REPLACEMENTS:
        allowed = ", ".join(REPLACEMENTS)
        raise ExportError(f"{DOMAIN}.{training.ATTENTION} in the config is {key!r}, must be one of: {allowed}")
    return str(key)


def settings_of(config: Any, attention: str, changes: dict[str, Any]) -> Any:
    """Settings of an attention: what the checkpoint says where it has that attention, else defaults; then the changes.

    Args:
        config: of the checkpoint.
        attention: one of `choices.CHOICES`.
        changes: by field.

    Returns:
        A `settings_class(attention)`; None for an attention that has no settings, as the baseline.

    Raises:
        ExportError: values that are not allowed, or any for an attention without settings.
    """
    if attention not in REPLACEMENTS:
        if changes:
            raise ExportError(f"{', '.join(changes)} cannot be set for {attention} attention, which has no settings")
        return None
    chosen = settings_class(attention)
    try:
        if isinstance(config, EncoderConfig):
            stored: dict[str, Any] = {**config.all_attributes, **config.knobs} if config.attention == attention else {}
            start = chosen(**{item.name: stored[item.name] for item in fields(chosen) if item.name in stored})
        else:
            start = _interface(attention).settings_of(config) if attention_of(config) == attention else chosen()
        return replace(start, **changes)
    except (TypeError, ValueError) as error:
        raise ExportError(str(error)) from None


def encoder_config(config: EncoderConfig, attention: str, settings: Any) -> EncoderConfig:
    """The own encoder's config with another attention.

    Args:
        config: as it is.
        attention: one of `choices.CHOICES`.
        settings: as `settings_of` returns them.

    Raises:
        ExportError: the encoder cannot have this attention.
    """
    if settings is None and config.attention == attention:
        return config
    values = {} if settings is None else {item.name: getattr(settings, item.name) for item in fields(settings)}
    operator = next(operator for operator in OPERATORS if operator.key == attention)
    knobs = {knob.name: values[knob.name] for knob in operator.knobs if knob.name in values}
    attributes = {item.name: values[item.name] for item in operator.attributes if item.name in values}
    is_same = config.attention == attention
    kept = (config.attributes, config.sizes) if is_same else ({}, {})
    try:
        return replace(config, attention=attention, knobs=knobs, attributes=kept[0] | attributes, sizes=kept[1])
    except ValueError as error:
        raise ExportError(f"the encoder cannot have {attention} attention: {error}") from None


def use(model: Any, attention: str, settings: Any) -> None:
    """Makes a model of transformers compute an attention, and its config say so.

    Args:
        model: to change.
        attention: one of `choices.CHOICES`.
        settings: as `settings_of` returns them.

    Raises:
        ExportError: the model computes its attention by itself.
    """
    if attention == BASELINE.key:
        if hasattr(model.config, DOMAIN):
            delattr(model.config, DOMAIN)
        return
    try:
        _interface(attention).use(model, settings)
    except ValueError as error:
        raise ExportError(str(error)) from None


def has_knobs(model: Any) -> bool:
    """Whether a model, of transformers or the own encoder, was not asked for the exact value of its attention."""
    if isinstance(model, Encoder):
        return bool(model.config.knobs)
    return attention_of(model.config) in REPLACEMENTS


@contextmanager
def exact(model: Any) -> Iterator[None]:
    """Within it a model computes its attention at the knobs' exact values.

    Args:
        model: of transformers, or the own encoder.
    """
    if isinstance(model, Encoder):
        model.set_knobs({})
        try:
            yield
        finally:
            model.set_knobs(model.config.knobs)
    elif (key := attention_of(model.config)) in REPLACEMENTS:
        with _interface(key).expected(model):
            yield
    else:
        yield
