"""`export()`: from a trained model to a complete bundle, or to none."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from pydantic import ValidationError

import attenuator
from attenuator import bundle
from attenuator.bundle import TRAINED_POSITIONS, Attention, Manifest, Provenance, Taught
from attenuator.errors import ExportError
from attenuator.export import labelled, taught_graph
from attenuator.export.attributes import CHOICES, DEFAULT_ESTIMATORS, ESTIMATORS, check_choice
from attenuator.export.choose import AGREEMENT, KNOB, SelectionOptions, choose_selection
from attenuator.export.computing import lacking, trained_with
from attenuator.export.knobs import bundle_knobs, requested_defaults
from attenuator.export.longer import lengthen
from attenuator.export.lower import Progress, trace_forms, write_and_compare
from attenuator.export.output import refuse_output, replace, staging_for
from attenuator.export.packed import OPERATOR_BY_KEY
from attenuator.export.samples import draw, encoded_texts
from attenuator.export.selection import DEFAULT, DROPPED
from attenuator.export.selection_checks import check_selection, check_selection_names
from attenuator.export.source import Source, load
from attenuator.export.thresholds import Thresholds, chosen
from attenuator.export.trace import PackedClassifier
from attenuator.ops import BASELINE, library_path
from attenuator.ops.spec import Operator
from attenuator.precision import PRECISIONS
from attenuator.runtime import Encoded
from attenuator.runtime.check import check_knobs
from attenuator.runtime.check_graph import check_graph
from attenuator.runtime.device import CPU, choose
from attenuator.runtime.graph import read_graph
from attenuator.runtime.model import check_in_child

__all__ = ["ATTENTIONS", "export", "finish"]

ATTENTIONS = tuple(key for key, operator in OPERATOR_BY_KEY.items() if operator.attention and not operator.asked_as)

TOOLS = ("torch", "transformers", "onnx", "onnxscript", "onnxruntime", "tokenizers")


def export(
    source: str | Source,
    *,
    output: Path | str,
    attention: str = BASELINE.key,
    name: str | None = None,
    max_tokens: int | None = None,
    positions: str = TRAINED_POSITIONS,
    estimator: str | None = None,
    table_precision: str | None = None,
    random_blocks: str | None = None,
    precision: str = "fp32",
    schedule: str | None = None,
    merge: str | None = None,
    texts: Path | str | Sequence[Encoded] | None = None,
    min_agreement: float = AGREEMENT,
    knob_default: float | Mapping[str, float] | None = None,
    thresholds: Thresholds | None = None,
    fit_thresholds: Path | str | None = None,
    data: str = "",
    licence: str = "",
    progress: Progress = lambda step: None,
    note: Callable[[str], None] = lambda sentence: None,
) -> Manifest:
    """Turns a trained sequence classifier or regressor into a bundle, and checks that it computes the same.

    The bundle appears under `output` whole or not at all; a bundle that is already there is replaced.

    Args:
        source: a checkpoint folder, a Hugging Face id, or `FILE.py:NAME` of a function, as `source.load` takes it; or
            what that gave for one of them.
        output: the bundle's folder.
        attention: key of the operator that computes attention.
        name: what requests call the model; the output folder's name by default.
        max_tokens: longest input, special tokens included; what the model takes by default.
        positions: how the model reads more tokens than it was trained with, a key of `longer.POSITIONS`.
        estimator: for operators that have that attribute, one of its choices; by default that of `DEFAULT_ESTIMATORS`.
        table_precision: for operators that have that attribute, one of its choices; by default the attribute's.
        random_blocks: likewise.
        precision: what the model computes in: a row of `attenuator.precision`.
        schedule: how the selection of tokens spreads over the layers, a key of `selection.SCHEDULES`, by default
            `selection.DEFAULT`; `NONE` exports without selection.
        merge: what becomes of the tokens that it leaves out, a key of `selection.MERGES`; by default the better of
            those that the model can have where there are texts, else `selection.DROPPED`.
        texts: texts such as the model will get, a file or tokenized, by which schedule, merge and the default of the
            selection's knob are chosen, unless the caller names them; see `choose`.
        min_agreement: share of the texts whose answers the default must not change.
        knob_default: the knob's value where a request sets none, or values by knob; the checkpoint's or operator's own
            by default.
        thresholds: of a multi-label model, in the order of its labels or by label; those not named stay 0.5.
        fit_thresholds: JSON lines with `text` and `labels`, on which thresholds are fitted; see `export.thresholds`.
        data: what the model was trained on, for provenance.
        licence: licence of the weights, for provenance.
        progress: called with one phrase at the start of each step.
        note: called with each sentence that the user should read afterwards.

    Returns:
        The bundle's manifest; `provenance.parity` holds the measured differences to the PyTorch model.

    Raises:
        ExportError: the model cannot be exported as asked, or the graph does not compute what the model computes.
        InvalidRequest: the labelled texts cannot be read.
        BundleError: serving would refuse the result.
        OperatorLibraryMissing: the operators, with which the graph is checked, are not built.
    """
    folder = Path(output).resolve()
    refuse_output(folder)
    library_path()
    asked = {"estimator": estimator, "table_precision": table_precision, "random_blocks": random_blocks}
    check_names(attention, asked, precision)
    check_selection_names(schedule, merge or DROPPED)
    progress("load the model")
    loaded = load(source) if isinstance(source, str) else source
    lengthen(loaded, positions, max_tokens)
    weights = loaded.weights_sha256  # before half precision rounds them
    schedule, merge = taught_graph.selection_of(loaded, attention, schedule, merge, precision)
    operator = OPERATOR_BY_KEY[fitting(loaded, attention)]
    check_kernels(operator, precision)
    fields = describe(loaded, name or default_name(folder), max_tokens)
    fields["thresholds"] = chosen(loaded.task, loaded.labels, thresholds, fit_thresholds)
    own = node_attributes(loaded, operator, asked)
    classifier = PackedClassifier(
        loaded.architecture,
        loaded.model,
        operator.key,
        own,
        loaded.has_token_types,
        schedule or DEFAULT,
        merge or DROPPED,
    )
    check_selection(classifier, schedule)
    defaults = requested_defaults(classifier.operators, knob_default)
    fields |= {
        "knobs": bundle_knobs(
            classifier.operators,
            loaded.architecture.knob_defaults(loaded.model.config),
            defaults,
            classifier.attributes,
        ),
        "precision": precision,
        "pooling": classifier.pooling,
        "inputs": classifier.inputs,
        "outputs": classifier.outputs,
    }
    with staging_for(folder) as staging:
        loaded.tokenizer.plain.save(str(staging / bundle.TOKENIZER))
        if fit_thresholds is not None:
            progress("fit the thresholds")
            known = Manifest.model_construct(**fields)
            fields["thresholds"] = labelled.fit_thresholds(
                Path(fit_thresholds), loaded, known, staging / bundle.TOKENIZER, note
            )
        by = Path(texts) if isinstance(texts, str) else texts
        options = SelectionOptions(schedule, merge, defaults.get(KNOB.name), by, min_agreement)
        selection = choose_selection(classifier, fields, options, staging, progress, note, loaded.taught)
        fields["attention"], parity = write_files(
            loaded, classifier, Manifest.model_construct(**fields), staging, progress
        )
        if loaded.taught is not None:
            progress("write the taught graph")
            fields["taught"] = Taught(knob=KNOB.name, below=loaded.taught.below)
            parity |= taught_graph.write_beside(
                loaded, classifier, Manifest.model_construct(**fields), staging, partial(write_files, progress=progress)
            )
        fields["provenance"] = Provenance(
            source=loaded.name,
            data=data,
            licence=licence,
            activation=loaded.activation,
            positions=positions,
            weights=weights,
            tools=tool_versions(),
            parity=parity,
            selection=selection,
        )
        progress("load the bundle as the server will")
        manifest = finish(staging, fields)
        replace(staging, folder)
    return manifest


def write_files(
    source: Source, classifier: PackedClassifier, manifest: Manifest, folder: Path, progress: Progress
) -> tuple[Attention, dict[str, float]]:
    """Writes the files of the bundle but tokenizer and `bundle.json`, and compares the model's graph with the model.

    Args:
        source: the loaded model; for half precision it is changed.
        classifier: the same model on packed batches.
        manifest: what the bundle will say, as far as that is known.
        folder: where; holds the tokenizer.
        progress: called with one phrase at the start of each step.

    Returns:
        The operator nodes that the graph has, and the differences to PyTorch by name.

    Raises:
        ExportError: the tokenizer or the graph does not do what the source does.
        BundleError: serving would refuse the tokenizer.
    """
    progress("compare the tokenizer with the one that transformers loads")
    texts = encoded_texts(source, manifest, folder / bundle.TOKENIZER)
    progress("run the PyTorch model")
    sample = draw(source, manifest, texts)
    progress("trace the graph")
    traced = trace_forms(source, classifier, sample)
    progress("write the files")
    return write_and_compare(traced, classifier, folder, progress)


def check_names(attention: str, asked: Mapping[str, str | None], precision: str) -> None:
    """Refuses an attention, an attribute's value or a precision that does not exist.

    Args:
        attention: key of the operator.
        asked: value by attribute, a key of `attributes.CHOICES`; None where none was chosen.
        precision: of the bundle.

    Raises:
        ExportError: names what is allowed.
    """
    if attention not in ATTENTIONS:
        raise ExportError(f"attention is '{attention}', must be one of: {', '.join(ATTENTIONS)}")
    for name, choice in asked.items():
        check_choice(name, choice, attention, CHOICES[name])
    if precision not in PRECISIONS:
        raise ExportError(f"precision is '{precision}', must be one of: {', '.join(PRECISIONS)}")


def fitting(source: Source, attention: str) -> str:
    """The key of the operator that computes what the model was trained with, as which the user asks for it.

    Raises:
        ExportError: the model was trained with another attention.
    """
    keys = source.architecture.operators(source.model.config)
    allowed = {OPERATOR_BY_KEY[key].asked_as or key: key for key in keys}
    if attention not in allowed:
        trained = trained_with(keys)
        raise ExportError(
            f"the model was trained with {trained} attention, which attention '{attention}' does not compute; "
            f"use {' or '.join(allowed)}" + (f" ({attention}: {reason})" if (reason := lacking(attention)) else "")
        )
    return allowed[attention]


def node_attributes(source: Source, operator: Operator, asked: Mapping[str, str | None]) -> dict[str, str]:
    """The attributes of the attention nodes that a user may choose, with export's own choice of the estimator.

    Args:
        source: the loaded model.
        operator: that computes its attention.
        asked: as in `check_names`.
    """
    own = {}
    if operator.key in ESTIMATORS:
        own["estimator"] = DEFAULT_ESTIMATORS[source.architecture.pooling(source.model.config)]
    return own | {name: choice for name, choice in asked.items() if choice is not None}


def check_kernels(operator: Operator, precision: str) -> None:
    """Refuses a precision that only CUDA runs where the operator does not."""
    others = [name for name, row in PRECISIONS.items() if not row.half]
    if operator.cpu_only and precision not in others:
        raise ExportError(
            f"precision is '{precision}', which runs on CUDA alone, where {operator.name} does not run; "
            f"must be {' or '.join(others)}"
        )


def default_name(folder: Path) -> str:
    """The output folder's name, without the characters that a model's name may not have."""
    cleaned = re.sub(r"[^A-Za-z0-9._-]+", "-", folder.name).lstrip("._-")
    return cleaned[:128] or "model"


def check_name(name: str) -> None:
    """Refuses what is no name of a bundle.

    Raises:
        ExportError: as described.
    """
    if not re.fullmatch(bundle.NAME, name):
        raise ExportError(f"name is {name[:80]!r}, must be {bundle.NAME_ALLOWED}")


def describe(source: Source, name: str, max_tokens: int | None) -> dict[str, Any]:
    """The manifest's fields that follow from the model and the options."""
    limit = source.max_tokens
    if max_tokens is not None and not 1 <= max_tokens <= limit:
        raise ExportError(f"max_tokens is {max_tokens}, must be from 1 to {limit} for this model")
    check_name(name)
    config = source.model.config
    return {
        "format_version": bundle.FORMAT_VERSION,
        "name": name,
        "task": source.task,
        "labels": source.labels,
        "max_tokens": max_tokens or limit,
        "position_offset": source.architecture.position_offset(config),
        "vocab_size": source.vocab_size,
        "type_vocab_size": source.type_vocab_size,
        "truncation_side": source.tokenizer.truncation_side,
        "split_special_tokens": source.tokenizer.split_special_tokens,
        "precision": "fp32",
    }


def tool_versions() -> dict[str, str]:
    """Versions of the packages that export uses."""
    versions = {"attenuator": attenuator.__version__}
    for tool in TOOLS:
        try:
            versions[tool] = version(tool)
        except PackageNotFoundError:
            continue
    return versions


def finish(folder: Path, fields: dict[str, Any]) -> Manifest:
    """Writes `bundle.json` over the finished files and loads the bundle as serving will.

    A bundle of half precision is loaded where CUDA works; elsewhere its files are checked without running it.

    Args:
        folder: holds every file of the bundle but `bundle.json`, and nothing else.
        fields: of the manifest, by name, all but `files` and `revision`, which follow from the files.

    Returns:
        The manifest, as written.

    Raises:
        ExportError: a field is missing or does not fit.
        BundleError: serving would refuse the bundle.
    """
    files = {path.name: bundle.file_sha256(path) for path in sorted(folder.iterdir())}
    try:
        manifest = Manifest(**fields, files=files, revision=bundle.revision(files))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"]) or "bundle.json"
        raise ExportError(f"{where}: {first['msg']}") from None
    bundle.write_manifest(folder, manifest)
    runs_on_cpu = PRECISIONS[manifest.precision].cpu
    device = CPU if runs_on_cpu else choose("auto").device
    if device.kind == "cpu" and not runs_on_cpu:
        # The CPU cannot run it, so only those checks are made that need not run it.
        check_knobs(folder, manifest)
        check_graph(folder, manifest, read_graph(folder / bundle.MODEL))
    else:
        check_in_child(folder, device=device)
    return manifest
