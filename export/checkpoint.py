"""Loads the model of a checkpoint folder, and refuses one whose config and weights do not belong together."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from attenuator.errors import ExportError
from attenuator.export.architectures import architecture_of
from attenuator.export.encoder import Encoder
from attenuator.export.families import OWN_ENCODER
from attenuator.export.place import MODULES, read_checkpoint_config, read_cross_encoder
from attenuator.export.sentences import load_failure, one_line

__all__ = ["load_model", "pretrained", "read_config", "read_model_type", "refuse_left_out", "refuse_no_numbers"]

# What the end of a class's name says that it is for.
TASKS = {
    "ForQuestionAnswering": "question answering",
    "ForMultipleChoice": "multiple choice",
    "ForMaskedLM": "language modelling",
    "ForCausalLM": "language modelling",
    "LMHeadModel": "language modelling",
    "ForPreTraining": "language modelling",
    "Model": "embedding",
}
# What wrappers for training on several devices and for compiling put before the names of weights.
WRAPPERS = {r"^(module\.|_orig_mod\.)+": ""}
# Part of a weight's name -> the config's field that gives its first axis a length.
SIZED_BY = {
    "word_embeddings": "vocab_size",
    "tok_embeddings": "vocab_size",
    "position_embeddings": "max_position_embeddings",
    "token_type_embeddings": "type_vocab_size",
    "classifier": "num_labels",
}
# Part of a numbered weight's name -> the config's field that counts such parts.
COUNTED_BY = {"albert_layer_groups": "num_hidden_groups", "albert_layers": "inner_group_num"}


def read_model_type(folder: Path) -> str:
    """The family of a checkpoint.

    Raises:
        ExportError: the folder is no checkpoint, holds an adapter or code of its own, is of a family that cannot be
            exported, or names a class that transformers does not know.
    """
    config = read_checkpoint_config(folder)
    model_type = str(config.get("model_type"))
    architecture_of(model_type)
    if model_type != OWN_ENCODER:
        import transformers

        for name in config.get("architectures") or []:
            if not hasattr(transformers, str(name)):
                raise ExportError(
                    f"{folder / 'config.json'} names the architecture '{name}', which transformers has not and which "
                    f"may compute something else than {sequence_classifier(model_type)}; if that computes the same, "
                    "give FILE.py:NAME, a function of yours that loads the weights into it"
                )
    return model_type


def sequence_classifier(model_type: str) -> str:
    """The name of the class of transformers that a family's sequence classifiers are."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES

    return str(MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES[model_type])


def is_token_classifier(config: Any) -> bool:
    """Whether a checkpoint's config names the class of transformers that its family's token classifiers are."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING_NAMES

    own = MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING_NAMES[config.model_type]
    return own in (config.architectures or [])


def load_model(folder: Path, model_type: str) -> nn.Module:
    """The trained model.

    Args:
        folder: the checkpoint.
        model_type: its family.

    Returns:
        The model, in fp32 for families of transformers.

    Raises:
        ExportError: it cannot be loaded, is not a sequence classifier, or config.json describes another model than
            the weights.
    """
    if model_type != OWN_ENCODER:
        return load_transformers(folder)
    try:
        return Encoder.from_pretrained(folder)
    except Exception as error:  # safetensors has errors of its own
        raise ExportError(f"the checkpoint '{folder}' cannot be loaded: {load_failure(error)}") from None


def read_config(folder: Path) -> Any:
    """What transformers makes of a checkpoint's config.json, or ExportError with what it says against it."""
    import transformers

    try:
        return transformers.AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except Exception as error:  # config classes raise what they like
        raise ExportError(f"{folder / 'config.json'} cannot be read: {one_line(error)}") from None


def load_transformers(folder: Path) -> nn.Module:
    """A Hugging Face checkpoint of a sequence or token classifier, as fp32."""
    import transformers

    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()
    config = read_config(folder)
    refuse_other_class(folder, config)
    architecture_of(config.model_type).check(config)
    kind = transformers.AutoModelForSequenceClassification
    if is_token_classifier(config):
        kind = transformers.AutoModelForTokenClassification
    model, info = pretrained(folder, config, kind, attn_implementation="eager")
    refuse_other_model(config, info)
    trained: nn.Module = model
    return trained


def refuse_other_class(folder: Path, config: Any) -> None:
    """Refuses a checkpoint that says it is anything but its family's sequence or token classifier."""
    own, classes = sequence_classifier(config.model_type), config.architectures or []
    if not classes or own in classes or is_token_classifier(config):
        return
    task = next((title for ending, title in TASKS.items() if classes[0].endswith(ending)), None)
    if (folder / MODULES).is_file() and not read_cross_encoder(folder):
        task = "embedding"  # of sentence-transformers, whatever the model below was trained for
    raise ExportError(
        f"the checkpoint is a {classes[0]}, must be a sequence classifier ({own}) or a token classifier"
        + (f": {task} is not supported" if task else "")
    )


def pretrained(folder: Path, config: Any, kind: Any = None, **options: Any) -> tuple[Any, dict[str, Any]]:
    """A classifier of transformers as fp32, and what transformers says about loading it.

    Args:
        folder: the checkpoint.
        config: of the model; weights of another shape are left out, and named in what is said.
        kind: the auto class that loads it, by default that of sequence classifiers.
        options: further ones of `from_pretrained`.

    Raises:
        ExportError: files are damaged, or no module can be built from the config.
    """
    import transformers

    try:
        model, info = (kind or transformers.AutoModelForSequenceClassification).from_pretrained(
            folder,
            config=config,
            dtype=torch.float32,
            local_files_only=True,
            trust_remote_code=False,
            output_loading_info=True,
            ignore_mismatched_sizes=True,
            key_mapping=WRAPPERS,
            **options,
        )
    except Exception as error:  # whatever the library likes
        raise ExportError(f"the checkpoint '{folder}' cannot be loaded: {load_failure(error)}") from None
    return model, info


def refuse_no_numbers(model: nn.Module) -> None:
    """Refuses weights with a NaN or an infinite value, of which every answer or that of one token would be nonsense."""
    for name, weight in model.named_parameters():
        if not bool(torch.isfinite(weight).all()):
            raise ExportError(f"the weight {name} has values that are NaN or infinite, must be numbers")


def refuse_other_model(config: Any, info: Mapping[str, Any]) -> None:
    """Refuses weights that config.json does not describe; `info` is what transformers says about loading them."""
    for name, stored, described in sorted(info["mismatched_keys"]):
        raise ExportError(other_size(config, name, tuple(stored), tuple(described)))
    missing = sorted(info["missing_keys"])
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        renamed = next((name for name in sorted(info["unexpected_keys"]) if name.endswith(f".{missing[0]}")), None)
        hint = f"; it has {renamed}: save the model inside its wrapper, with save_pretrained" if renamed else ""
        raise ExportError(
            f"the checkpoint has no trained weights for {missing[0]}{more}; it must be a fine-tuned classifier" + hint
        )
    refuse_left_out(config, info)


def refuse_left_out(config: Any, info: Mapping[str, Any]) -> None:
    """Refuses a config that leaves trained layers out; arguments as `refuse_other_model`."""
    # Heads of pretraining and poolers may be left over; a numbered weight belongs to a layer that was trained.
    layers = [name for name in sorted(info["unexpected_keys"]) if re.search(r"\.\d+\.", name)]
    if layers:
        raise ExportError(left_out(config, layers[0]))


def other_size(config: Any, name: str, stored: tuple[int, ...], described: tuple[int, ...]) -> str:
    """Says which field of the config gives a weight another shape than it has."""
    axis = next((i for i, (a, b) in enumerate(zip(stored, described, strict=False)) if a != b), 0)
    sized = (field for part, field in SIZED_BY.items() if part in name and axis == 0)
    equal = (field for field, value in config.to_dict().items() if value == described[axis] and type(value) is int)
    field = next(sized, None) or next(equal, "config.json")
    expected = f"{field} asks for {described[axis]}"
    if field == "num_labels":
        expected = f"id2label names {described[axis]} labels (2 where it is missing)"
    return (
        f"config.json does not fit the weights: {expected}, but {name} has {stored[axis]} (its shape is {list(stored)})"
    )


def left_out(config: Any, name: str) -> str:
    """Says which field of the config leaves a trained weight out, or that the family has no place for it."""
    field = next((field for part, field in COUNTED_BY.items() if part in name), "num_hidden_layers")
    part = next((part for part in COUNTED_BY if part in name), "layers?")
    index = re.search(rf"\.{part}\.(\d+)\.", name)
    count = getattr(config, field, 0)
    if index is None or int(index[1]) < count:
        return f"the trained weight {name} has no place in a model of family '{config.model_type}'"
    return (
        f"config.json does not fit the weights: with {field} {count} the trained weight {name} would be left out; "
        f"set {field} to what the model was trained with"
    )
