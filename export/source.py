"""Loads what SOURCE names: a checkpoint folder or one of the hub, or `FILE.py:NAME`."""

from __future__ import annotations

import hashlib
import importlib.util
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from torch import nn

from attenuator.bundle import Task
from attenuator.errors import ExportError
from attenuator.export import taught
from attenuator.export.architectures import Architecture, architecture_of, of_tokens
from attenuator.export.checkpoint import load_model, read_config, read_model_type, refuse_no_numbers
from attenuator.export.eager import token_types
from attenuator.export.encoder import Encoder
from attenuator.export.families import OWN_ENCODER
from attenuator.export.place import place_of, read_cross_encoder
from attenuator.export.retrained import as_trained
from attenuator.export.sentences import one_line
from attenuator.export.taught import TaughtWeights
from attenuator.export.tokenizer import BundleTokenizer, bundle_tokenizer, load_tokenizer

__all__ = ["Source", "load", "load_of_sequences"]


# How the class of a model of transformers ends.
SEQUENCES, TOKENS = "ForSequenceClassification", "ForTokenClassification"


@dataclass
class Source:
    """A trained classifier, of sequences or of tokens, or regressor, ready to be exported.

    Attributes:
        name: what provenance says: the folder's name, the id on the hub, or `FILE.py:NAME`.
        model: fp32, in evaluation mode.
        architecture: how it is laid out.
        tokenizer: as the bundle will hold it.
        type_vocab_size: token types that it tells apart; 1 where it has none, or a table of one row.
        labels: in the order of the logits.
        task: as the bundle will say.
        activation: what the checkpoint asks sentence-transformers to apply to its score, such as `Sigmoid`, or empty.
        max_tokens: longest input the model and its tokenizer take.
        vocab_size: rows of the embedding table.
        taught: weights beside those of the model that were taught to bear a small `keep`, or None.
    """

    name: str
    model: nn.Module
    architecture: Architecture
    tokenizer: BundleTokenizer
    type_vocab_size: int
    labels: list[str]
    task: Task
    activation: str
    max_tokens: int
    vocab_size: int
    taught: TaughtWeights | None = None

    @property
    def has_token_types(self) -> bool:
        """Whether the graph takes `token_type_ids`."""
        return self.type_vocab_size > 1

    @cached_property
    def weights_sha256(self) -> str:
        """Hash of all weights and buffers with their names, by which bundles of one checkpoint are known.

        Taken before an export first prepares the model, which may add modules or round weights.
        """
        digest = hashlib.sha256()
        for name, tensor in sorted(self.model.state_dict().items()):
            values = tensor.detach().cpu().contiguous()
            digest.update(f"{name} {values.dtype} {list(values.shape)}\n".encode())
            digest.update(values.numpy().data)
        return digest.hexdigest()


def load(source: str) -> Source:
    """Loads a trained classifier.

    Args:
        source: a checkpoint folder, which stays what it is where its name has the form of an id; an id of the Hugging
            Face hub, `org/name` or `org/name@revision`; or `FILE.py:NAME` where the function NAME returns model,
            tokenizer and labels (labels None takes those of the model's config).

    Returns:
        The model with all that a bundle says about it.

    Raises:
        ExportError: one sentence that says what the source lacks or why it cannot be exported.
    """
    folder, function, name = place_of(source)
    if function:
        model, tokenizer, labels = call(folder, function)
        return describe(name, model, tokenizer, labels)
    model_type = read_model_type(folder)
    if model_type != OWN_ENCODER:
        read_config(folder)  # transformers reads it for a tokenizer, too, which would get the blame
    tokenizer = load_tokenizer(folder, model_type)
    cross_encoder = read_cross_encoder(folder)
    described = describe(name, load_model(folder, model_type), tokenizer, None, cross_encoder)
    described.taught = taught.read(folder)
    return described


def load_of_sequences(source: str) -> Source:
    """As `load`; also refuses, with ExportError, a token classifier, which takes no calibration."""
    loaded = load(source)
    if loaded.task == "token_classification":
        raise ExportError(
            f"the checkpoint {loaded.name} classifies tokens, must classify whole texts: token classifiers cannot be "
            "calibrated; attenuator export makes a bundle of it"
        )
    return loaded


def call(path: Path, function: str) -> tuple[Any, Any, Any]:
    """Runs the user's function and returns what it does: model, tokenizer and labels.

    Raises:
        ExportError: the file cannot be run, has no such function, or the function fails or returns something else.
    """
    # A name of its own: a file called torch.py must not stand in for torch.
    name = f"attenuator_export_source_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ExportError(f"'{path}' is not a Python module")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and pickles look their module up
    sys.path.insert(0, str(path.resolve().parent))  # as if it were run: its neighbours can be imported
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # the user's code
        raise ExportError(f"importing '{path}' failed: {type(error).__name__}: {one_line(error)}") from error
    target = getattr(module, function, None)
    if not callable(target):
        raise ExportError(f"'{path}' has no function '{function}'")
    try:
        result = target()
    except Exception as error:  # the user's code
        raise ExportError(f"{path.name}:{function} failed: {type(error).__name__}: {one_line(error)}") from error
    if not isinstance(result, tuple) or len(result) != 3:
        raise ExportError(f"{path.name}:{function} must return (model, tokenizer, labels)")
    return result


def describe(
    name: str, loaded: Any, tokenizer: Any, labels: Any, cross_encoder: Mapping[str, Any] | None = None
) -> Source:
    """Gathers what a bundle says about a model and refuses what it cannot say.

    Args:
        name: what provenance says.
        loaded: the model.
        tokenizer: see `bundle_tokenizer`.
        labels: see `label_names`.
        cross_encoder: see `score_activation`.

    Raises:
        ExportError: one sentence that says why the model cannot be exported.
    """
    model: Any = loaded  # mypy takes a module's attributes for tensors
    config = getattr(model, "config", None)
    if not isinstance(loaded, nn.Module) or config is None:
        raise ExportError(f"{name} gives a {type(model).__name__}, must be a transformers model or an Encoder")
    architecture = architecture_of(getattr(config, "model_type", None))
    if not isinstance(model, Encoder):
        kind = type(model).__name__
        if not kind.endswith((SEQUENCES, TOKENS)):
            raise ExportError(f"{name} gives a {kind}, must be a ...{SEQUENCES} or ...{TOKENS}")
        architecture.check(config)
        architecture = as_trained(architecture, config)
        if kind.endswith(TOKENS):
            architecture = of_tokens(architecture)
        config.return_dict = True  # whatever the checkpoint says: the parts of a model read each other's fields
    if not architecture.blocks(model):
        raise ExportError("the model has no layers (num_hidden_layers is 0), must have at least 1")
    refuse_no_numbers(model)
    task = "token_classification" if architecture.reads_tokens else task_of(config)
    names = label_names(config, labels)
    held = bundle_tokenizer(tokenizer)
    vocab_size = config.vocab_size if isinstance(model, Encoder) else model.get_input_embeddings().num_embeddings
    largest = max(held.plain.get_vocab(with_added_tokens=True).values(), default=-1)
    if largest >= vocab_size:
        raise ExportError(f"the tokenizer has token id {largest}, must be below the model's vocab_size {vocab_size}")
    model.requires_grad_(False)
    return Source(
        name=name,
        model=model.float().eval(),
        architecture=architecture,
        tokenizer=held,
        type_vocab_size=max(1, token_types(model)),
        labels=names,
        task=task,
        activation=score_activation(config, cross_encoder) if task == "regression" else "",
        max_tokens=min(architecture.max_tokens(config), held.max_tokens),
        vocab_size=vocab_size,
    )


def task_of(config: Any) -> Task:
    """What the logits mean; transformers too takes a single output for a regression unless the config says otherwise.

    Raises:
        ExportError: a regression with several outputs.
    """
    if config.problem_type == "multi_label_classification":
        return "multi_label"
    if config.problem_type == "regression" and config.num_labels != 1:
        raise ExportError(
            f"the model is a regression with {config.num_labels} outputs, must have one: export it with problem_type "
            "'single_label_classification' or 'multi_label_classification' if its outputs are classes"
        )
    return "regression" if config.num_labels == 1 else "single_label"


def score_activation(config: Any, cross_encoder: Mapping[str, Any] | None = None) -> str:
    """What a CrossEncoder of sentence-transformers asks to apply to a score; empty for the identity.

    Args:
        config: of the model: releases of sentence-transformers before the sixth wrote it there, under one of two names.
        cross_encoder: what `place.read_cross_encoder` gives.
    """
    stored = getattr(config, "sentence_transformers", None)
    name = (cross_encoder or {}).get("activation_fn") or (
        stored.get("activation_fn") if isinstance(stored, dict) else None
    )
    name = str(name or getattr(config, "sbert_ce_default_activation_function", None) or "").rpartition(".")[2]
    return name if name.isidentifier() and name != "Identity" else ""


def label_names(config: Any, labels: Any) -> list[str]:
    """The labels in the order of the logits.

    Args:
        config: the model's; says how many there are, and their names where `labels` is None.
        labels: a list, tuple or array of names, or None.

    Raises:
        ExportError: there are too few or too many, two are equal, or one cannot be shown.
    """
    count = config.num_labels
    if labels is None:
        if sorted(config.id2label) != list(range(count)):
            ids = ", ".join(str(index) for index in sorted(config.id2label)[:5])
            raise ExportError(f"id2label has the ids {ids}, must have every id from 0 to {count - 1}")
        labels = [config.id2label[index] for index in range(count)]
    elif isinstance(labels, str | bytes) or not isinstance(labels, Iterable):
        raise ExportError(f"labels is a {type(labels).__name__}, must be a list of {count} names")
    names = [str(label) for label in labels]
    if len(names) != count or len(set(names)) != len(names):
        raise ExportError(f"labels must be {count} different names, not {ascii(names)}")
    for index, label in enumerate(names):
        if not label.strip():
            raise ExportError(f"label {index} is {label!r}, must have a visible character")
        try:
            label.encode()
        except UnicodeEncodeError:
            raise ExportError(f"label {index} is {ascii(label)}, half of a surrogate pair; must be Unicode") from None
    return names
