"""Checkpoints as models to train, and back: what `save` writes is what `attenuator export` takes."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import load_file
from torch import nn

from attenuator.bundle import TRAINED_POSITIONS, Task
from attenuator.errors import ExportError
from attenuator.export.architectures import architecture_of
from attenuator.export.checkpoint import (
    is_token_classifier,
    pretrained,
    read_model_type,
    refuse_left_out,
    refuse_no_numbers,
)
from attenuator.export.eager import token_types
from attenuator.export.encoder import Encoder, EncoderConfig
from attenuator.export.families import OWN_ENCODER
from attenuator.export.longer import POSITIONS, lengthened
from attenuator.export.place import checkpoint_folder
from attenuator.export.sentences import load_failure, one_line, writing
from attenuator.export.source import task_of
from attenuator.export.tokenizer import bundle_tokenizer, load_tokenizer
from attenuator.runtime.tokens import TextEncoder
from attenuator.tuning import attention as attentions
from attenuator.tuning.batches import Collator
from attenuator.tuning.choices import CHOICES, REPLACEMENTS
from attenuator.tuning.data import text_encoder
from attenuator.tuning.packed import PackedClassifier
from attenuator.tuning.windows import without_windows

__all__ = ["Trainable", "load", "stored_labels"]

CONFIG, TOKENIZER = "config.json", "tokenizer.json"
PROBLEMS: dict[Task, str] = {
    "single_label": "single_label_classification",
    "multi_label": "multi_label_classification",
    "regression": "regression",
}


@dataclass(slots=True)
class Trainable:
    """A model to train, with all that its inputs need.

    Attributes:
        model: takes padded batches, as `Collator` has them; returns logits, and the loss where there are labels. In
            fp32 and training mode, on the GPU where torch has one.
        source: the checkpoint's folder.
        tokenizer: of transformers, or a `tokenizers.Tokenizer` for the own encoder.
        texts: tokenizes as the service will.
        collator: makes its batches.
        labels: in the order of the logits.
        task: what the logits mean.
        attention: key of the operator.
        new_weights: names of the weights that the checkpoint does not have, drawn at random.
    """

    model: nn.Module
    source: Path
    tokenizer: Any
    texts: TextEncoder
    collator: Collator
    labels: list[str]
    task: Task
    attention: str
    new_weights: list[str]

    @property
    def inner(self) -> Any:
        """The model of transformers, or the own `Encoder`."""
        return self.model.encoder if isinstance(self.model, PackedClassifier) else self.model

    @property
    def has_knobs(self) -> bool:
        """Whether its attention is trained at another value than the exact one."""
        return attentions.has_knobs(self.inner)

    def save(self, folder: Path) -> None:
        """Writes a checkpoint: config with what attention was trained with, weights, tokenizer; all of it or nothing.

        Raises:
            AttenuatorError: the disk is full.
        """
        unfinished = folder / "unfinished"
        shutil.rmtree(unfinished, ignore_errors=True)  # of a run that was killed here
        try:
            with writing(f"'{folder}'", "--resume goes on from here"):
                unfinished.mkdir(parents=True)
                self.inner.save_pretrained(unfinished)
                if isinstance(self.model, PackedClassifier):
                    shutil.copyfile(self.source / TOKENIZER, unfinished / TOKENIZER)
                else:
                    self.tokenizer.save_pretrained(unfinished)
                # Without a config no folder is a checkpoint.
                for path in sorted(unfinished.iterdir(), key=lambda path: path.name == CONFIG):
                    path.replace(folder / path.name)
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)


def place_of(source: Path) -> tuple[Path, bool]:
    """The checkpoint's folder, and whether weights are to be drawn anew, as for a config alone.

    Raises:
        ExportError: nothing is there, or the hub does not give it.
    """
    if source.is_file() and source.name == CONFIG:
        return source.parent, True
    allowed = f"give a checkpoint folder, a Hugging Face id (org/name) or a {CONFIG}"
    return checkpoint_folder(str(source), allowed), False


def stored_labels(source: Path) -> tuple[list[str], Task]:
    """The labels of a checkpoint in the order of its logits, and its task, without its weights.

    Raises:
        ExportError: the source is no checkpoint or config of a supported family.
    """
    folder, _ = place_of(source)
    config = read_config(folder, read_model_type(folder))
    return [str(config.id2label[index]) for index in sorted(config.id2label)], task_of(config)


def read_config(folder: Path, model_type: str) -> Any:
    """The config of a checkpoint, an `EncoderConfig` for the own encoder.

    Raises:
        ExportError: it cannot be read.
    """
    try:
        if model_type == OWN_ENCODER:
            return EncoderConfig.load(folder)
        return transformers.AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except Exception as error:  # config classes raise what they like
        raise ExportError(f"{folder / CONFIG} cannot be read: {one_line(error)}") from None


def load(
    source: Path,
    attention: str | None = None,
    *,
    settings: dict[str, Any] | None = None,
    labels: Sequence[str] | None = None,
    task: Task | None = None,
    seed: int = 0,
    positions: str = TRAINED_POSITIONS,
    max_tokens: int | None = None,
) -> Trainable:
    """Loads a checkpoint to train it.

    Args:
        source: a checkpoint folder or one of the hub, with or without a trained classifier, or a `config.json` beside a
            tokenizer: then all weights are drawn.
        attention: one of `choices.CHOICES`; that of the checkpoint by default.
        settings: of the attention, those that differ from the checkpoint's or the defaults.
        labels: of the model to train; the checkpoint's by default. Others than those get a classifier of new weights.
        task: likewise.
        seed: of weights that are drawn.
        positions: how the model reads more tokens than it was trained with, a key of `longer.POSITIONS`.
        max_tokens: longest input, special tokens included; what the model takes by default.

    Raises:
        ExportError: one sentence that says what the checkpoint lacks, or why it cannot be trained or exported.
    """
    folder, is_fresh = place_of(source)
    model_type = read_model_type(folder)
    tokenizer = load_tokenizer(folder, model_type)
    config = read_config(folder, model_type)
    chosen = attention or attentions.attention_of(config)
    # The own encoder goes on with whatever attention it has.
    has_it = isinstance(config, EncoderConfig) and config.attention == chosen
    if chosen not in CHOICES and not has_it:
        raise ExportError(f"attention is '{chosen}', must be one of: {', '.join(CHOICES)}")
    tuned = attentions.settings_of(config, chosen, settings or {})
    names = list(labels or [str(config.id2label[index]) for index in sorted(config.id2label)])
    config = labelled(config, names, task or task_of(config))
    torch.manual_seed(seed)
    architecture = architecture_of(model_type)
    is_own = isinstance(config, EncoderConfig)
    if is_own:
        config = attentions.encoder_config(config, chosen, tuned)
    inner, missing = (load_encoder if is_own else load_transformers)(folder, config, is_fresh)
    refuse_no_numbers(inner)
    if positions != TRAINED_POSITIONS:
        inner = lengthened(inner, architecture, positions, max_tokens)
        tokenizer.model_max_length = max_tokens
    if is_own:
        inner.compute_through_operator()
        inner.set_knobs(config.knobs)
    else:
        inner = without_windows(inner) if chosen in REPLACEMENTS else inner
        attentions.use(inner, chosen, tuned)
    held = bundle_tokenizer(tokenizer)
    vocab_size = config.vocab_size if is_own else inner.get_input_embeddings().num_embeddings
    types = token_types(inner)
    longest = longest_input(min(architecture.max_tokens(inner.config), held.max_tokens), max_tokens)
    pad_id = 0 if is_own else config.pad_token_id or 0
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return Trainable(
        model=(PackedClassifier(inner) if is_own else inner).float().train().to(device),
        source=folder,
        tokenizer=tokenizer,
        texts=text_encoder(held, longest, vocab_size, max(1, types)),
        collator=Collator(pad_id, types > 1, device),
        labels=names,
        task=task_of(config),
        attention=chosen,
        new_weights=sorted(missing),
    )


def longest_input(possible: int, max_tokens: int | None) -> int:
    """How many tokens a text may have, of those that are possible.

    Raises:
        ExportError: more are asked for.
    """
    if max_tokens is not None and max_tokens > possible:
        raise ExportError(
            f"max_tokens is {max_tokens}, must be at most the {possible} that the model and its tokenizer take; "
            f"positions {' or '.join(name for name in POSITIONS if name != TRAINED_POSITIONS)} let it read more"
        )
    return max_tokens or possible


def labelled(config: Any, labels: list[str], task: Task) -> Any:
    """The config with other labels and another task."""
    names = dict(enumerate(labels))
    if isinstance(config, EncoderConfig):
        return replace(config, num_labels=len(labels), id2label=names, problem_type=PROBLEMS[task])  # type: ignore[arg-type]
    config.id2label = names
    config.label2id = {label: index for index, label in names.items()}
    config.problem_type = PROBLEMS[task]
    return config


def load_encoder(folder: Path, config: EncoderConfig, is_fresh: bool) -> tuple[Any, list[str]]:
    """The own encoder, and the names of the weights that the checkpoint does not have in this shape.

    Raises:
        ExportError: the weights cannot be read, or are of another model.
    """
    encoder = Encoder(config)
    own = encoder.state_dict()
    if is_fresh:
        return encoder, sorted(own)
    try:
        stored = load_file(folder / "model.safetensors")
    except Exception as error:  # safetensors has errors of its own
        raise ExportError(f"the checkpoint '{folder}' cannot be loaded: {one_line(error)}") from None
    fitting = {name: value for name, value in stored.items() if name in own and own[name].shape == value.shape}
    missing = sorted(set(own) - set(fitting))
    head = {name for name in own if name.startswith("classifier.")}
    other = sorted(set(stored) - set(own)) or sorted(set(missing) - head)
    if other:
        raise ExportError(f"{folder / CONFIG} does not fit the weights: {other[0]} has no place or no weights in it")
    encoder.load_state_dict(fitting, strict=False)
    return encoder, missing


def load_transformers(folder: Path, config: Any, is_fresh: bool) -> tuple[Any, list[str]]:
    """A sequence classifier of transformers in fp32, and the names of the weights that the checkpoint does not have.

    Raises:
        ExportError: it cannot be loaded, layers are not in the checkpoint, or the config leaves some out.
    """
    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()
    family = architecture_of(config.model_type)
    if not is_fresh and is_token_classifier(config):
        raise ExportError(f"the checkpoint '{folder}' classifies tokens, must classify whole texts")
    family.check(config)
    family.check_training(config)
    if is_fresh:
        try:
            model = transformers.AutoModelForSequenceClassification.from_config(config, dtype=torch.float32)
        except Exception as error:  # a config that no module can be built from
            raise ExportError(f"the checkpoint '{folder}' cannot be loaded: {load_failure(error)}") from None
        return model, sorted(model.state_dict())
    model, info = pretrained(folder, config)
    refuse_left_out(config, info)
    missing = [*info["missing_keys"], *(name for name, *_ in info["mismatched_keys"])]
    inside = [name for name in missing if name.startswith(f"{model.base_model_prefix}.") and "pooler" not in name]
    if inside:
        raise ExportError(f"the checkpoint '{folder}' has no weights, or those of another shape, for {inside[0]}")
    return model, missing
