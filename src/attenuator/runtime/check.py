"""Checks a bundle by running it; the program of the child process that `load` starts.

    python -m attenuator.runtime.check FOLDER [DEVICE [COPY]]

One JSON object a line on standard output: `{"stage": file}` before each file is touched, `{"error": sentence}` or
`{"ok": true}` at the end. If the process dies, the last stage tells which file killed it.
"""

import ctypes
import json
import math
import resource
import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from attenuator import ops
from attenuator.bundle import (
    CALIBRATION,
    MANIFEST,
    MODEL,
    PROBE,
    TAUGHT,
    TAUGHT_PROBE,
    TOKENIZER,
    Manifest,
    read_manifest,
)
from attenuator.errors import AttenuatorError, BundleError, DeviceUnavailable, OperatorLibraryMissing
from attenuator.ops import SEQUENCE_OUTPUTS
from attenuator.ops.spec import merge_knobs
from attenuator.precision import PRECISIONS
from attenuator.runtime.batch import Graphs, Row
from attenuator.runtime.calibrated import open_calibration
from attenuator.runtime.check_graph import check_attributes, check_graph, check_same_nodes
from attenuator.runtime.cost import cost_model
from attenuator.runtime.device import CPU, Device, parse_device
from attenuator.runtime.graph import Graph, read_graph
from attenuator.runtime.model import Model, check_device
from attenuator.runtime.pipeline import check_pipeline
from attenuator.runtime.probe import read_probe
from attenuator.runtime.session import first_line, open_model
from attenuator.runtime.tokens import Encoded, TextEncoder

INPUT_TYPES = {"int32": "tensor(int32)", "int64": "tensor(int64)", "float": "tensor(float)"}
MEMORY_BYTES = 16 * 2**30
CPU_SECONDS = 300
DIES_WITH_PARENT = 1  # PR_SET_PDEATHSIG: as the thread ends that waits for this process
# Usual text, then long runs that make a hostile pattern backtrack or a hostile replacement grow without end.
SAMPLE = "The quick (brown) fox's 1,234.5 jumps: na\u00efve \u6f22\u5b57. " + "a" * 64 + "! " + "0" * 64 + " x" * 64

FEW_TOKENS = 3


def check_bundle(folder: Path, device: Device = CPU, *, copy_to: Path | None = None) -> None:
    """Loads a bundle, checks it against what it claims, and runs its probe.

    Args:
        folder: the bundle.
        device: where to run it.
        copy_to: an empty folder that gets the files; what is checked is then this copy.

    Raises:
        BundleError: one sentence that names the file and what is wrong with it.
        OperatorLibraryMissing: the operators' shared library is not built, or not for the device.
        DeviceUnavailable: the device cannot be used.
    """
    _write_message(stage=MANIFEST)
    manifest = read_manifest(folder, copy_to=copy_to)
    files = copy_to or folder
    check_device(folder, manifest, device)
    check_knobs(folder, manifest)
    _write_message(stage=CALIBRATION)
    open_calibration(folder, manifest, folder, copy_to=copy_to)
    _write_message(stage=TOKENIZER)
    encoder = TextEncoder.of_bundle(files / TOKENIZER, manifest, folder)
    check_tokenizer(folder, encoder)
    ops.library_path()
    graph = check_model(folder, files, manifest, encoder, device)
    if manifest.taught is not None:
        check_same_nodes(folder, graph, check_model(folder, files, manifest, encoder, device, TAUGHT, TAUGHT_PROBE))


def check_model(
    folder: Path,
    files: Path,
    manifest: Manifest,
    encoder: TextEncoder,
    device: Device,
    file: str = MODEL,
    probe: str = PROBE,
) -> Graph:
    """Checks one graph of a bundle against what the manifest claims, and runs its probe.

    Args:
        folder: what error sentences call the bundle.
        files: holds what is checked.
        manifest: of the bundle.
        encoder: of the bundle.
        device: where to run it.
        file: of the graph.
        probe: the file of its probe.

    Raises:
        BundleError: one sentence that names the file and what is wrong with it.
        OperatorLibraryMissing: the operators' shared library is not for the device.
        DeviceUnavailable: the device cannot be used.
    """
    _write_message(stage=file)
    try:
        graph = read_graph(files / file)
    except ValueError as error:
        raise BundleError(f"bundle {folder}: {file} cannot be read: {error}") from None
    check_graph(folder, manifest, graph, file)
    check_attributes(folder, manifest, graph, file)
    session = open_model(files, folder, file, device=device)
    check_signature(folder, manifest, session, file)
    try:
        cost = cost_model(graph)
    except BundleError as error:
        raise BundleError(f"bundle {folder}: {file}: {error}") from None
    model = Model(manifest, encoder, Graphs(session, device=device), cost, device)
    check_tables(folder, model, file)
    _write_message(stage=probe)
    inputs, expected = read_probe(files / probe, folder, of_tokens=manifest.reads_tokens)
    check_probe(folder, model, inputs, expected, file=file, probe=probe)
    return graph


def check_tokenizer(folder: Path, encoder: TextEncoder) -> None:
    """Checks what the tokenizer's parts do, and tokenizes a sample here, where one that hangs harms nobody.

    Raises:
        BundleError: a part may do too much, or it cannot tokenize.
    """
    try:
        check_pipeline(encoder.content(), encoder.vocab_size)
    except ValueError as error:
        raise BundleError(f"bundle {folder}: {TOKENIZER} {error}") from None
    except (AttributeError, KeyError, IndexError, TypeError, RecursionError) as error:
        raise BundleError(f"bundle {folder}: {TOKENIZER} has a part that cannot be read: {first_line(error)}") from None
    try:
        encoder.encode(SAMPLE, None, truncate=True, param="text")
    except AttenuatorError as error:
        raise BundleError(f"bundle {folder}: {TOKENIZER} cannot tokenize a text: {first_line(error)}") from None


def check_knobs(folder: Path, manifest: Manifest) -> None:
    """Compares the manifest's knobs with those of the operators that it names.

    A bundle that was written before an operator got a knob has neither its row nor an input for it: its nodes compute
    the knob's exact value.

    Raises:
        BundleError: unknown operator or knob, a knob that a node requires is missing, another dtype, or values outside
            the operator's bounds.
    """
    operators = {operator.key: operator for operator in ops.OPERATORS}
    key = manifest.attention.operator
    where = f"bundle {folder}: {MANIFEST}"
    if key not in operators:
        raise BundleError(f"{where}: attention.operator is {key!r}, must be one of {', '.join(operators)}")
    keys = dict.fromkeys([key, *manifest.attention.other_nodes])
    used = [operators[name] for name in keys if name in operators]
    known = merge_knobs(used)
    rows = {knob.name for knob in manifest.knobs}
    for name in sorted(rows - set(known)):
        raise BundleError(f"{where}: knobs has {name!r}, must be a knob of its operators: {', '.join(known) or 'none'}")
    for operator in used:
        for item in operator.inputs:
            if item.name in known and item.name not in rows and not item.optional:
                raise BundleError(f"{where}: knobs lacks {item.name!r}, which {operator.name} requires")
    for knob in manifest.knobs:
        spec = known[knob.name]
        if knob.dtype != spec.dtype:
            raise BundleError(f"{where}: knob {knob.name} has dtype {knob.dtype}, must be {spec.dtype}")
        if not spec.low <= knob.low <= knob.high <= spec.high:
            raise BundleError(
                f"{where}: knob {knob.name} ranges from {knob.low:g} to {knob.high:g}, "
                f"must stay within {spec.low:g} to {spec.high:g}"
            )
        if knob.accuracy != spec.accuracy:
            raise BundleError(
                f"{where}: knob {knob.name} has accuracy {knob.accuracy!r}, must be {spec.accuracy!r} for this operator"
            )
        if knob.exact != spec.exact:
            raise BundleError(f"{where}: knob {knob.name} has exact {knob.exact:g}, must be {spec.exact:g}")
        for name, value in (("default", knob.default), ("exact", knob.exact)):
            if not knob.low <= value <= knob.high or (knob.dtype == "int32" and value != int(value)):
                kind = "a whole number" if knob.dtype == "int32" else "a number"
                raise BundleError(
                    f"{where}: knob {knob.name} has {name} {value:g}, must be {kind} from {knob.low:g} to {knob.high:g}"
                )


def check_signature(folder: Path, manifest: Manifest, session: Any, file: str = MODEL) -> None:
    """Compares the session's inputs and outputs with the manifest.

    Raises:
        BundleError: names or types differ, or there are other than one logit a label.
    """
    types = {"input_ids": "int64", "position_ids": "int64", "token_type_ids": "int64", "cu_seqlens": "int32"}
    types |= {"seed": "int64"} | {knob.name: knob.dtype for knob in manifest.knobs}
    where = f"bundle {folder}: {file}"
    inputs = {entry.name: entry.type for entry in session.get_inputs()}
    for name in manifest.inputs:
        if name not in types:
            raise BundleError(f"bundle {folder}: {MANIFEST}: inputs names {name!r}, must be one of {', '.join(types)}")
    expected = {name: INPUT_TYPES[types[name]] for name in manifest.inputs}
    if inputs != expected:
        raise BundleError(f"{where} takes the inputs {inputs}, but {MANIFEST} says {expected}")
    for name in [knob.name for knob in manifest.knobs]:
        if name not in inputs:
            raise BundleError(f"{where} has no input for knob {name}")
    for entry in session.get_outputs():
        if entry.type != INPUT_TYPES["float"]:
            raise BundleError(f"{where} has output {entry.name!r} of type {entry.type}, must be {INPUT_TYPES['float']}")
    names = [entry.name for entry in session.get_outputs()]
    if names != manifest.outputs or "logits" not in names or not set(names) <= {"logits", *SEQUENCE_OUTPUTS}:
        raise BundleError(f"{where} has the outputs {names}, but {MANIFEST} says {manifest.outputs}")
    # A graph may leave the number open; what a run then gives is compared by `Model.run`.
    width = session.get_outputs()[names.index("logits")].shape[-1:]
    if width and isinstance(width[0], int) and width[0] != len(manifest.labels):
        each = "token" if manifest.reads_tokens else "sequence"
        raise BundleError(
            f"{where} gives {width[0]} logits per {each}, but {MANIFEST} has {len(manifest.labels)} labels"
        )


def check_tables(folder: Path, model: Model, file: str = MODEL) -> None:
    """Runs the last token id and type at the last position, and a tokenized text: all must lie inside the tables.

    Raises:
        BundleError: the model fails on them.
    """
    manifest = model.manifest
    last = manifest.model_copy(update={"position_offset": manifest.position_offset + manifest.max_tokens - 1})
    ids = np.array([manifest.vocab_size - 1], dtype=np.int64)
    row = Row(ids, np.full_like(ids, manifest.token_types - 1), model.knobs.exact())
    try:
        model.with_manifest(last).run([row])
    except AttenuatorError as error:
        raise BundleError(
            f"bundle {folder}: {file} fails on its last token id at its last position, as token type "
            f"{manifest.token_types - 1}: {first_line(error)}"
        ) from None
    encoded = model.encode(SAMPLE, truncate=True)
    if len(encoded.token_ids) > manifest.max_tokens:
        raise BundleError(
            f"bundle {folder}: {TOKENIZER} adds {len(encoded.token_ids)} special tokens to a text, "
            f"but {MANIFEST} has max_tokens {manifest.max_tokens}"
        )
    try:
        model.run([Row(encoded.token_ids, encoded.type_ids, model.knobs.exact())])
    except AttenuatorError as error:
        raise BundleError(
            f"bundle {folder}: {file} fails on a text as {TOKENIZER} tokenizes it: {first_line(error)}"
        ) from None
    check_ends(folder, model, encoded, file)


def check_ends(folder: Path, model: Model, encoded: Encoded, file: str = MODEL) -> None:
    """Runs a text and its beginning at the lowest and the highest value of every knob, the others being exact.

    The probe has exact values alone, at which nodes that select tokens and disagree about their number go unnoticed;
    of a few tokens least go on.

    Raises:
        BundleError: the model fails at one of them.
    """
    for knob in model.manifest.knobs:
        for value in (knob.low, knob.high):
            try:
                values = model.knobs.check(model.knobs.exact() | {knob.name: value})
                model.run([Row(encoded.token_ids[:n], encoded.type_ids[:n], values) for n in (None, FEW_TOKENS)])
            except AttenuatorError as error:
                raise BundleError(
                    f"bundle {folder}: {file} fails at {knob.name} {value:g}: {first_line(error)}"
                ) from None


def check_probe(
    folder: Path,
    model: Model,
    inputs: list[Encoded],
    expected: npt.NDArray[np.float32],
    *,
    file: str = MODEL,
    probe: str = PROBE,
) -> None:
    """Compares the probe's logits with those of this machine.

    Args:
        folder: what error sentences call the bundle.
        model: the bundle.
        inputs: of the probe, N token sequences.
        expected: their logits, `[N, num_labels]`, or those of all tokens, `[T, num_labels]`.
        file: of the graph.
        probe: of the probe.

    Raises:
        BundleError: the probe does not fit the model, or a logit differs by more than the precision allows.
    """
    manifest = model.manifest
    if expected.shape[1] != len(manifest.labels):
        raise BundleError(f"bundle {folder}: {probe} has {expected.shape[1]} logits for {len(manifest.labels)} labels")
    for encoded in inputs:
        if len(encoded.token_ids) > manifest.max_tokens or not (
            encoded.token_ids.min() >= 0 and encoded.token_ids.max() < manifest.vocab_size
        ):
            raise BundleError(
                f"bundle {folder}: {probe} has an input with {len(encoded.token_ids)} token ids from "
                f"{encoded.token_ids.min()} to {encoded.token_ids.max()}, must have at most {manifest.max_tokens} ids "
                f"from 0 to {manifest.vocab_size - 1}"
            )
    exact = model.knobs.exact()
    try:
        results = model.run([Row(encoded.token_ids, encoded.type_ids, exact) for encoded in inputs])
    except AttenuatorError as error:
        raise BundleError(f"bundle {folder}: {file} fails on the probe: {first_line(error)}") from None
    for result in results:
        for name, value in result.outputs.items():
            if not 0 <= value < math.inf:  # NaN neither
                raise BundleError(
                    f"bundle {folder}: {file} gives {name} {value:g}, must be finite and at least 0: "
                    f"{SEQUENCE_OUTPUTS[name].doc}"
                )
    logits = np.vstack([result.logits for result in results])
    difference = np.abs(logits - expected) / np.maximum(1.0, np.abs(expected))
    worst = float(difference.max()) if np.isfinite(difference).all() else float("inf")
    limit = PRECISIONS[manifest.precision].probe_tolerance
    if worst > limit:
        raise BundleError(
            f"bundle {folder}: {file} gives other logits than {probe}: they differ by {worst:.2g}, "
            f"must be at most {limit:g}"
        )


def _write_message(**message: object) -> None:
    print(json.dumps(message), flush=True)


def lower_limit(kind: int, value: int) -> None:
    """Lowers one of this process's limits; one that is lower already, as the shell's `ulimit` sets it, stays.

    Args:
        kind: such as `resource.RLIMIT_AS`.
        value: in the limit's own unit.
    """
    soft, hard = resource.getrlimit(kind)
    resource.setrlimit(kind, (value if soft == resource.RLIM_INFINITY else min(value, soft), hard))


def main() -> int:
    """Checks the bundle named on the command line."""
    folder, device, copy_to, *_ = [*sys.argv[1:], None, None]
    place = CPU if device is None else parse_device(device)
    ctypes.CDLL(None).prctl(DIES_WITH_PARENT, signal.SIGKILL)  # nobody else would end it before its CPU time is up
    lower_limit(resource.RLIMIT_CORE, 0)
    if place.kind == "cpu":  # CUDA reserves an address space of terabytes
        lower_limit(resource.RLIMIT_AS, MEMORY_BYTES)
    lower_limit(resource.RLIMIT_CPU, CPU_SECONDS)
    try:
        check_bundle(Path(str(folder)), place, copy_to=None if copy_to is None else Path(copy_to))
    except AttenuatorError as error:
        kinds = {OperatorLibraryMissing: "library", DeviceUnavailable: "device"}
        _write_message(error=str(error), kind=kinds.get(type(error), "bundle"))
        return 1
    _write_message(ok=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
