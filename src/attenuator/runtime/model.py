"""A loaded bundle: encode texts, run packed batches, read scores."""

import json
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import onnxruntime as ort

from attenuator.bundle import MANIFEST, MODEL, TOKENIZER, Manifest, manifest_content, parse_manifest, read_manifest
from attenuator.calibration import Calibration
from attenuator.errors import (
    AttenuatorError,
    BundleError,
    DeviceUnavailable,
    EngineError,
    OperatorLibraryMissing,
    printable,
)
from attenuator.ops.cost import Drawn
from attenuator.precision import PRECISIONS
from attenuator.runtime import scores
from attenuator.runtime import session as sessions
from attenuator.runtime.batch import Graphs, Row, RowResult, open_graphs
from attenuator.runtime.calibrated import open_calibration
from attenuator.runtime.cost import CostModel, cost_model
from attenuator.runtime.device import CPU, SAFE_PATH, Device
from attenuator.runtime.graph import read_graph
from attenuator.runtime.request import KnobTable
from attenuator.runtime.snapshot import private_folder
from attenuator.runtime.tokens import Encoded, TextEncoder

CHECK_TIMEOUT_S = 300
MAX_REMEMBERED = 16_384  # costs of lengths at settings: predicting one takes 10 us
ERRORS_BY_KIND: dict[str, type[AttenuatorError]] = {"library": OperatorLibraryMissing, "device": DeviceUnavailable}


class Cancellation:
    """Stops a run that is under way, between two nodes of the graph; safe to call from another thread."""

    def __init__(self) -> None:
        self.options = ort.RunOptions()
        self.options.log_severity_level = sessions.SILENT

    def cancel(self) -> None:
        """Makes the run that was given this object raise soon."""
        self.options.terminate = True


class Model:
    """A bundle that is ready to run; every method may be called from several threads at once.

    Attributes:
        manifest: what `bundle.json` says.
        knobs: checks of what a caller may set.
        device: where it runs.
        device_name: what answers call that: `cpu`, `cuda:0`.
        encoder: makes token ids.
        calibration: what its settings are worth; None where it was not calibrated.
        cost: predicts the work of its rows.
    """

    def __init__(
        self,
        manifest: Manifest,
        encoder: TextEncoder,
        graphs: Graphs,
        cost: CostModel,
        device: Device = CPU,
        calibration: Calibration | None = None,
    ) -> None:
        self.manifest = manifest
        self.device = device
        self.calibration = calibration
        self.knobs = KnobTable(manifest.name, manifest.knobs)
        self.encoder = encoder
        self.device_name = str(device)
        self._graphs = graphs
        self._origin: tuple[Path, int | None] | None = None
        self.cost = cost
        self._costs: dict[tuple[int, tuple[tuple[str, float], ...]], float] = {}
        self._drawn: dict[tuple[tuple[str, float], ...], Drawn] = {}

    def encode(
        self, text: str, text_pair: str | None = None, *, truncate: bool = False, param: str = "text"
    ) -> Encoded:
        """Tokenizes a text or a pair of texts, special tokens included.

        Args:
            text: the text, or the first of a pair.
            text_pair: the second of a pair.
            truncate: cuts a text that is too long (the longer of a pair first) instead of refusing it.
            param: what error sentences call `text`; `text_pair` is named after it.

        Returns:
            Token ids and type ids, int64 `[tokens]`.

        Raises:
            InvalidRequest: a text is empty, or not valid Unicode.
            InputTooLong: over `max_tokens`, and `truncate` is off.
            EngineError: the tokenizer failed.
        """
        return self.encoder.encode(text, text_pair, truncate=truncate, param=param)

    def from_ids(
        self, token_ids: Sequence[int], token_type_ids: Sequence[int] | None = None, *, param: str = "token_ids"
    ) -> Encoded:
        """Takes token ids and their types as given, special tokens included.

        Args:
            token_ids: 1 to `max_tokens` ids.
            token_type_ids: as many, from 0 to `Manifest.token_types` - 1; all 0 by default.
            param: what error sentences call the ids; the types are named after it.

        Returns:
            Token ids and type ids, int64 `[tokens]`.

        Raises:
            InvalidRequest: there are none, one is not a whole number inside the vocabulary, or the types do not fit.
            InputTooLong: over `max_tokens`.
        """
        return self.encoder.from_ids(token_ids, token_type_ids, param=param)

    def run(self, rows: Sequence[Row], cancellation: Cancellation | None = None) -> list[RowResult]:
        """Runs rows as one packed batch; on the CPU each answer is, bit for bit, the one that the row gets alone.

        On CUDA that holds for the operators; cuBLAS chooses a kernel by the number of rows, so that logits at the exact
        value agree within rounding.

        Args:
            rows: any number of rows of any length and knob; none gives an empty list.
            cancellation: stops the run from another thread.

        Returns:
            One result per row, in order.

        Raises:
            EngineError: ONNX Runtime failed, or the run was cancelled.
        """
        options = None if cancellation is None else cancellation.options
        return self._graphs.run(rows, self.manifest, options) if rows else []

    def predict(self, logits: np.ndarray) -> scores.RowScores:
        """Labels and scores of one row.

        Args:
            logits: float32 `[num_labels]`.

        Returns:
            The prediction.

        Raises:
            EngineError: a logit is not finite.
        """
        manifest = self.manifest
        thresholds = manifest.thresholds if manifest.task == "multi_label" else None
        return scores.predict(self.scores(logits), logits, labels=manifest.labels, thresholds=thresholds)

    def scores(self, logits: np.ndarray) -> scores.Floats:
        """Scores of the labels, for any number of rows at once; each has the bits that it has alone.

        Args:
            logits: float32 `[..., num_labels]`.

        Returns:
            float64 of the same shape.

        Raises:
            EngineError: a logit is not finite.
        """
        if not np.isfinite(logits).all():  # every score would be NaN, and the first label would win
            raise EngineError(f"model '{self.manifest.name}' gave logits that are not finite")
        return scores.SCORES[self.manifest.task](logits)

    def with_manifest(self, manifest: Manifest) -> "Model":
        """The same sessions under another manifest; for checks at load."""
        return Model(manifest, self.encoder, self._graphs, self.cost, self.device, self.calibration)

    def reopen(self) -> None:
        """Makes the sessions again, from the bundle's folder; runs that are under way end on the one they began with.

        Raises:
            BundleError: the folder holds another revision by now, or cannot be read.
            OperatorLibraryMissing: as `load`.
            DeviceUnavailable: likewise.
        """
        assert self._origin is not None, "only a model that `load` made has a folder"
        folder, threads = self._origin
        # This revision was checked before, and its calibration stays as it was read.
        again = load(folder, device=self.device, threads=threads, check=False, calibrated=False)
        if again.manifest.revision != self.manifest.revision:
            raise BundleError(
                f"bundle {folder} holds revision {again.manifest.revision[:12]} by now, must hold "
                f"{self.manifest.revision[:12]}, the one that is served"
            )
        self._graphs = again._graphs

    def predict_cost(self, tokens: int, knobs: Mapping[str, float]) -> float:
        """Predicted work of one row, in multiply-adds; see `runtime.cost`."""
        key = (tokens, tuple(knobs.items()))
        cost = self._costs.get(key)
        if cost is None:
            if len(self._costs) >= MAX_REMEMBERED:
                self._costs.clear()
            cost = self._costs[key] = self.cost.predict(tokens, knobs)
        return cost

    def drawn(self, knobs: Mapping[str, float]) -> Drawn:
        """What a run draws for a seed that is new; see `runtime.cost`."""
        key = tuple(knobs.items())
        drawn = self._drawn.get(key)
        if drawn is None:
            if len(self._drawn) >= MAX_REMEMBERED:
                self._drawn.clear()
            drawn = self._drawn[key] = self.cost.drawn(knobs)
        return drawn

    def total_cost(self, lengths: Sequence[int], knobs: Mapping[str, float]) -> float:
        """Predicted work of several rows, in multiply-adds.

        Args:
            lengths: of the rows, in tokens.
            knobs: a value for every knob.
        """
        if len(lengths) == 1:
            return self.predict_cost(lengths[0], knobs)
        return sum(count * self.predict_cost(tokens, knobs) for tokens, count in Counter(lengths).items())


def load(
    folder: Path | str,
    *,
    device: Device = CPU,
    threads: int | None = None,
    check: bool = True,
    calibrated: bool = True,
) -> Model:
    """Loads a bundle.

    Args:
        folder: the bundle.
        device: where it runs; `device.choose` finds one that works.
        threads: threads inside one run; every core this process may use by default.
        check: first loads and probes it in a child process, so that a hostile bundle harms only the child.
        calibrated: also reads its calibration, where it has one.

    Returns:
        The model, ready to run.

    Raises:
        BundleError: one sentence that names the file and what is wrong with it.
        OperatorLibraryMissing: the operators' shared library is not built, or not for the device.
        DeviceUnavailable: the device cannot be used.
    """
    folder = Path(folder)
    manifest_content(folder)  # what is no bundle at all is refused before a process is started for it
    with private_folder(folder) as copy:
        if check:
            check_in_child(folder, device=device, copy_to=copy)
            manifest = parse_manifest((copy / MANIFEST).read_bytes(), folder)
        else:
            manifest = read_manifest(folder, copy_to=copy)
        check_device(folder, manifest, device)
        calibration = open_calibration(copy if check else folder, manifest, folder) if calibrated else None
        encoder = TextEncoder.of_bundle(copy / TOKENIZER, manifest, folder)
        try:
            cost = cost_model(read_graph(copy / MODEL))
        except ValueError as error:
            raise BundleError(f"bundle {folder}: {MODEL} cannot be read: {error}") from None
        graphs = open_graphs(copy, folder, manifest, device=device, threads=threads)
    model = Model(manifest, encoder, graphs, cost, device, calibration)
    model._origin = (folder, threads)
    return model


def check_device(folder: Path, manifest: Manifest, device: Device) -> None:
    """Compares a bundle's precision with the device.

    Raises:
        BundleError: it runs on CUDA only.
    """
    if not PRECISIONS[manifest.precision].cpu and device.kind != "cuda":
        raise BundleError(
            f"bundle {folder}: {MANIFEST} has precision {manifest.precision}, which runs on a CUDA device only "
            f"(--device cuda); the device here is {device}"
        )


def check_in_child(
    folder: Path, *, device: Device = CPU, copy_to: Path | None = None, timeout_s: float = CHECK_TIMEOUT_S
) -> None:
    """Runs `attenuator.runtime.check` on a bundle in a process of its own.

    Args:
        folder: the bundle.
        device: where to run it.
        copy_to: an empty folder that gets the files, as they were checked.
        timeout_s: the child is killed after this.

    Raises:
        BundleError: a check failed, or the child died or hung; names the file that it was checking.
    """
    command = [sys.executable, SAFE_PATH, "-m", "attenuator.runtime.check", str(folder), str(device)]
    if copy_to is not None:
        command.append(str(copy_to))
    try:
        child = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=timeout_s, check=False)
        output, ending = child.stdout, ending_of(child.returncode, child.stderr)
    except subprocess.TimeoutExpired as error:
        output, ending = error.stdout or b"", f"did not end within {timeout_s:g} s"
    stage = ""
    for line in output.decode("utf-8", errors="replace").splitlines():
        try:
            message = json.loads(line)
        except ValueError:
            continue
        if message.get("ok"):
            return
        if "error" in message:
            raise ERRORS_BY_KIND.get(message["kind"], BundleError)(message["error"])
        stage = f" while it checked {message['stage']}"
    raise BundleError(f"bundle {folder}: the process that checks it {ending}{stage}")


def ending_of(code: int, stderr: bytes) -> str:
    """How a child process ended, with the last line that it wrote to standard error.

    Args:
        code: `Popen.returncode`.
        stderr: all that it wrote there.
    """
    ending = f"ended with {signal.Signals(-code).name if code < 0 else f'code {code}'}"
    lines = stderr.decode("utf-8", errors="replace").strip().splitlines()
    return f"{ending} ({printable(lines[-1], sessions.MAX_QUOTED)})" if lines else ending
