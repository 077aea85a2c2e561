"""Times of a bundle on this machine, over lengths and knob values, against exact softmax attention in the same process.

Settings are timed in turns, so that a change of the machine's speed hits all of them.
"""

import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from attenuator.bundle import MODEL, MODEL_DATA
from attenuator.calibration.turns import in_turns
from attenuator.commands.baseline import has_replaced, write_baseline
from attenuator.commands.report import ByKnob, Measured
from attenuator.errors import InvalidRequest
from attenuator.ops import OPERATORS, SEQUENCE_OUTPUTS
from attenuator.ops.knobs import KnobValue
from attenuator.ops.spec import Operator
from attenuator.runtime import Model, Row, create, load
from attenuator.runtime.batch import pack

SEED = 0

Ids = npt.NDArray[np.int64]
Run = Callable[[], Mapping[str, npt.NDArray[Any]]]
Setting = tuple[str, float]  # a knob and its value, all others at their defaults; or one of these two:
EXACT, OWN = ("exact softmax attention", 0.0), ("the bundle's own attention", 0.0)
BASE = "all but "  # before a knob's name: that one exact, all others at their defaults


@contextmanager
def _baseline_folder(model: Model, folder: Path) -> Iterator[Path]:
    """The folder of the model with exact softmax attention: the bundle's own if that is exact, else a temporary one."""
    manifest = model.manifest
    keys = {manifest.attention.operator, *manifest.attention.other_nodes}
    if not has_replaced(operator.name for operator in OPERATORS if operator.key in keys):
        yield folder
        return
    with tempfile.TemporaryDirectory(prefix="attenuator-") as scratch:
        write_baseline(folder / MODEL, Path(scratch) / MODEL)
        if (folder / MODEL_DATA).exists():
            shutil.copy(folder / MODEL_DATA, Path(scratch) / MODEL_DATA)
        yield Path(scratch)


def _token_source(model: Model, sample: Path | None) -> Callable[[int], Ids]:
    """A function from a length to as many token ids: those of a text, repeated, or else random ones."""
    if sample is None:
        random = np.random.default_rng(SEED)
        return lambda tokens: random.integers(0, model.manifest.vocab_size, tokens, dtype=np.int64)
    try:
        text = sample.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise InvalidRequest(f"--sample {sample} cannot be read: {error}") from None
    ids = model.encode(text, truncate=True, param=str(sample)).token_ids
    return lambda tokens: np.resize(ids, tokens)


def _by_knob(values: Mapping[str, Sequence[float]], of: Callable[[Setting], float]) -> ByKnob:
    return {name: {value: of((name, value)) for value in each} for name, each in values.items() if each}


def _output_of(results: Mapping[Setting, Mapping[str, npt.NDArray[Any]]], name: str) -> Callable[[Setting], float]:
    return lambda setting: float(results[setting][name][0])


def _knobs_of(operator: Operator) -> set[str]:
    return {knob.name for knob in operator.knobs}


class _Timer:
    """The sessions of a bundle and of its baseline, and the runs to time at one length."""

    def __init__(self, model: Model, folder: Path, baseline_folder: Path, threads: int | None) -> None:
        self._model = model
        self._own = create(folder / MODEL, threads=threads)
        self._replaced = baseline_folder != folder
        self._baseline = create(baseline_folder / MODEL, threads=threads) if self._replaced else self._own

    def _run(self, session: Any, ids: Ids, knobs: Mapping[str, KnobValue]) -> Run:
        manifest = self._model.manifest
        feeds = pack([Row(ids, np.zeros_like(ids), knobs, SEED)], manifest)
        return lambda: dict(zip(manifest.outputs, session.run(manifest.outputs, feeds), strict=True))

    def runs(self, ids: Ids, values: Mapping[str, Sequence[float]]) -> dict[Setting, Run]:
        """The baseline, then the bundle at each value of each knob, or as it is where it has no knob."""
        knobs, rows = self._model.knobs, self._model.knobs.rows
        runs = {EXACT: self._run(self._baseline, ids, knobs.exact())}
        if self._replaced and not rows:
            runs[OWN] = self._run(self._own, ids, {})
        for name, each in values.items():
            if len(rows) > 1:
                replaced = has_replaced(operator.name for operator in OPERATORS if name in _knobs_of(operator))
                session = self._baseline if replaced else self._own
                runs[BASE + name, 0.0] = self._run(session, ids, knobs.defaults() | {name: knobs.exact()[name]})
            for value in each:
                typed = int(value) if rows[name].dtype == "int32" else value
                runs[name, value] = self._run(self._own, ids, knobs.defaults() | {name: typed})
        return runs


def measure(
    folder: Path,
    lengths: Sequence[int],
    values: Mapping[str, Sequence[float]],
    *,
    threads: int | None = None,
    sample: Path | None = None,
    budget_s: float = 2.0,
    progress: Callable[[int], None] = lambda tokens: None,
) -> list[Measured]:
    """Times one sequence at a time.

    Args:
        folder: the bundle.
        lengths: in tokens.
        values: by knob name, one knob at a time while the others have their defaults.
        threads: threads of a run; every core by default.
        sample: a text to fill the lengths with; random tokens by default. What some operators save depends on the text.
        budget_s: time to spend on a length, in seconds; every setting runs at least three times.
        progress: called before each length.

    Returns:
        One timing per length.

    Raises:
        InvalidRequest: the sample cannot be read.
        AttenuatorError: the bundle does not run here.
    """
    model = load(folder, threads=threads)
    tokens_of = _token_source(model, sample)
    outputs = [name for name in model.manifest.outputs if name in SEQUENCE_OUTPUTS]
    timings = []
    with _baseline_folder(model, folder) as baseline_folder:
        timer = _Timer(model, folder, baseline_folder, threads)
        for tokens in lengths:
            progress(tokens)
            runs = timer.runs(tokens_of(tokens), values)
            taken = in_turns(list(runs.values()), budget_s, threads=threads)
            best = {setting: each.seconds * 1e3 for setting, each in zip(runs, taken, strict=True)}
            results = {setting: run() for setting, run in runs.items()} if outputs else {}
            timings.append(
                Measured(
                    tokens=tokens,
                    exact_ms=best[EXACT],
                    noisy=not all(each.credible() for each in taken),
                    base_ms={name: best[BASE + name, 0.0] for name in values if (BASE + name, 0.0) in best},
                    own_ms=best.get(OWN),
                    knob_ms=_by_knob(values, best.__getitem__),
                    outputs={name: _by_knob(values, _output_of(results, name)) for name in outputs},
                )
            )
    return timings
