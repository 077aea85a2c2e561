"""Loads what SOURCE names: a checkpoint folder, or `module.py:function`."""

from __future__ import annotations

import importlib.util
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from tokenizers import Tokenizer
from tokenizers.processors import TemplateProcessing
from torch import nn

from attenuator.errors import ExportError
from attenuator.export.architectures import Architecture, architecture_of, token_types
from attenuator.export.encoder import MODEL_TYPE, Encoder

__all__ = ["Source", "load"]

# Tokenizers without a limit of their own report a huge one.
NO_LIMIT = 10**9
# Texts on which tokenizer.json alone must agree with the tokenizer's own class.
SAMPLES = ("A film so bad that it is good, again!", "Überraschung: 42 tokens\tand  two spaces.", "x")


@dataclass
class Source:
    """A trained classifier, ready to be exported.

    Attributes:
        name: what provenance says: the folder's name, or `module.py:function`.
        model: fp32, in evaluation mode.
        architecture: its family's row.
        tokenizer: without truncation and padding.
        has_token_types: whether the graph takes `token_type_ids`.
        labels: in the order of the logits.
        task: `single_label` or `multi_label`.
        max_tokens: longest input the model and its tokenizer take.
        vocab_size: rows of the embedding table.
    """

    name: str
    model: nn.Module
    architecture: Architecture
    tokenizer: Tokenizer
    has_token_types: bool
    labels: list[str]
    task: Literal["single_label", "multi_label"]
    max_tokens: int
    vocab_size: int


def load(source: str) -> Source:
    """Loads a trained classifier from disk; nothing is ever fetched from a network.

    Args:
        source: a checkpoint folder, or `module.py:function` where the function returns model, tokenizer and labels
            (labels None takes those of the model's config).

    Returns:
        The model with all that a bundle says about it.

    Raises:
        ExportError: one sentence that says what the source lacks or why it cannot be exported.
    """
    path, colon, function = source.rpartition(":")
    if colon and path.endswith(".py"):
        model, tokenizer, labels = call(Path(path), function)
        return describe(f"{Path(path).name}:{function}", model, tokenizer, labels)
    folder = Path(source)
    if not folder.is_dir():
        raise ExportError(f"'{source}' is not a folder; SOURCE is a checkpoint folder or module.py:function")
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        model_type = config.get("model_type")
    except FileNotFoundError:
        raise ExportError(f"'{source}' is not a checkpoint: config.json is missing") from None
    except (OSError, ValueError, AttributeError) as error:
        raise ExportError(f"{folder / 'config.json'} cannot be read: {error}") from None
    architecture_of(model_type)
    model = load_encoder(folder) if model_type == MODEL_TYPE else load_transformers(folder)
    return describe(folder.resolve().name, model, load_tokenizer(folder, model_type), None)


def load_encoder(folder: Path) -> nn.Module:
    """A checkpoint of the project's own encoder."""
    try:
        return Encoder.from_pretrained(folder)
    except Exception as error:  # safetensors has errors of its own
        raise ExportError(f"the checkpoint '{folder}' cannot be loaded: {one_line(error)}") from None


def load_transformers(folder: Path) -> nn.Module:
    """A Hugging Face sequence classification checkpoint, as fp32."""
    import transformers

    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()
    try:
        config = transformers.AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except Exception as error:  # config classes raise what they like
        raise ExportError(f"{folder / 'config.json'} cannot be read: {one_line(error)}") from None
    check_config(config)
    try:
        model, info = transformers.AutoModelForSequenceClassification.from_pretrained(
            folder,
            config=config,
            dtype=torch.float32,
            local_files_only=True,
            trust_remote_code=False,
            attn_implementation="eager",
            output_loading_info=True,
        )
    except Exception as error:  # from a missing file to a shape that does not fit
        raise ExportError(f"the checkpoint '{folder}' cannot be loaded: {one_line(error)}") from None
    missing = sorted(info["missing_keys"])
    if missing:
        raise ExportError(
            f"the checkpoint has no trained weights for {missing[0]}"
            + (f" and {len(missing) - 1} more" if len(missing) > 1 else "")
            + "; it must be a fine-tuned sequence classifier"
        )
    loaded: nn.Module = model
    return loaded


def check_config(config: Any) -> None:
    """Refuses what is not an encoder with a classification head."""
    classes = config.architectures or []
    if classes and not any(name.endswith("ForSequenceClassification") for name in classes):
        raise ExportError(f"the checkpoint is a {classes[0]}, must be a sequence classifier")
    architecture_of(config.model_type).check(config)


def load_tokenizer(folder: Path, model_type: str) -> Any:
    """The checkpoint's tokenizer: `tokenizer.json` alone for the own encoder, else what transformers makes of it."""
    file = folder / "tokenizer.json"
    try:
        if model_type == MODEL_TYPE:
            if not file.is_file():
                raise ExportError(f"'{folder}' has no tokenizer.json")
            return Tokenizer.from_file(str(file))
        import transformers

        return transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except ExportError:
        raise
    except Exception as error:  # tokenizers raises bare Exceptions, transformers whatever its parts raise
        raise ExportError(f"the tokenizer of '{folder}' cannot be loaded: {one_line(error)}") from None


def call(path: Path, function: str) -> tuple[Any, Any, Any]:
    """Runs the user's function."""
    if not path.is_file():
        raise ExportError(f"'{path}' does not exist")
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


def describe(name: str, given: Any, tokenizer: Any, labels: Any) -> Source:
    """Gathers what a bundle says about a model and refuses what it cannot say."""
    model: Any = given  # mypy takes a module's attributes for tensors
    config = getattr(model, "config", None)
    if not isinstance(given, nn.Module) or config is None:
        raise ExportError(f"{name} gives a {type(model).__name__}, must be a transformers model or an Encoder")
    architecture = architecture_of(getattr(config, "model_type", None))
    if not isinstance(model, Encoder):
        if not type(model).__name__.endswith("ForSequenceClassification"):
            raise ExportError(f"{name} gives a {type(model).__name__}, must be a ...ForSequenceClassification")
        architecture.check(config)
    problem = config.problem_type
    if problem == "regression" or (config.num_labels == 1 and problem != "multi_label_classification"):
        raise ExportError("the model is a regressor (one output, no classes); classifiers can be exported")
    names = [str(label) for label in labels or [config.id2label[i] for i in range(config.num_labels)]]
    if len(names) != config.num_labels or len(set(names)) != len(names):
        raise ExportError(f"labels must be {config.num_labels} different names, not {names}")
    plain, limit = plain_tokenizer(tokenizer)
    vocab_size = config.vocab_size if isinstance(model, Encoder) else model.get_input_embeddings().num_embeddings
    largest = max(plain.get_vocab(with_added_tokens=True).values(), default=-1)
    if largest >= vocab_size:
        raise ExportError(f"the tokenizer has token id {largest}, must be below the model's vocab_size {vocab_size}")
    model.requires_grad_(False)
    return Source(
        name=name,
        model=model.float().eval(),
        architecture=architecture,
        tokenizer=plain,
        has_token_types=token_types(model) > 1,
        labels=names,
        task="multi_label" if problem == "multi_label_classification" else "single_label",
        max_tokens=min(architecture.max_tokens(config), limit),
        vocab_size=vocab_size,
    )


def plain_tokenizer(tokenizer: Any) -> tuple[Tokenizer, int]:
    """The tokenizer as `tokenizer.json` holds it, and its own limit on tokens.

    Raises:
        ExportError: it is not one that the `tokenizers` package runs alone.
    """
    if isinstance(tokenizer, Tokenizer):
        plain = Tokenizer.from_str(tokenizer.to_str())
        plain.no_truncation()
        plain.no_padding()
        return plain, NO_LIMIT
    if not getattr(tokenizer, "is_fast", False):
        raise ExportError(f"the tokenizer is a {type(tokenizer).__name__}, must be a fast one (tokenizer.json)")
    plain = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
    plain.no_truncation()
    plain.no_padding()
    if "token_type_ids" not in tokenizer(SAMPLES[0], SAMPLES[1]):
        plain = without_token_types(plain)
    for text, pair in ((SAMPLES[0], None), (SAMPLES[1], None), (SAMPLES[2], None), SAMPLES[:2]):
        given = tokenizer(text, pair)
        alone = plain.encode(text, pair)
        types = given.get("token_type_ids", [0] * len(alone))
        if given["input_ids"] != alone.ids or types != alone.type_ids:
            raise ExportError(f"tokenizer.json alone gives other ids than {type(tokenizer).__name__}")
    return plain, int(min(tokenizer.model_max_length, NO_LIMIT))


def without_token_types(tokenizer: Tokenizer) -> Tokenizer:
    """The tokenizer with type 0 for every token.

    A tokenizer class that hands no types to the model lets it see zeros, also where tokenizer.json marks the second
    text of a pair.
    """
    content = json.loads(tokenizer.to_str())
    processor = content["post_processor"]
    if processor is None:
        tokenizer.post_processor = TemplateProcessing(single="$A:0", pair="$A:0 $B:0")
        return tokenizer
    if processor["type"] == "BertProcessing":
        (sep, sep_id), (cls, cls_id) = processor["sep"], processor["cls"]
        tokenizer.post_processor = TemplateProcessing(
            single=f"{cls}:0 $A:0 {sep}:0",
            pair=f"{cls}:0 $A:0 {sep}:0 $B:0 {sep}:0",
            special_tokens=[(cls, cls_id), (sep, sep_id)],
        )
        return tokenizer
    content["post_processor"] = zero_types(processor)
    return Tokenizer.from_str(json.dumps(content))


def zero_types(node: Any) -> Any:
    """A part of tokenizer.json with every `type_id` at 0."""
    if isinstance(node, dict):
        return {key: 0 if key == "type_id" else zero_types(value) for key, value in node.items()}
    return [zero_types(item) for item in node] if isinstance(node, list) else node


def one_line(error: BaseException) -> str:
    """An exception's text as one line."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 300 else text[:297] + "..."
