"""Times a bundle here, over lengths and knob values, against exact softmax attention in the same process.

Settings are timed in turns, so that a change of the machine's speed hits all of them, and each keeps its shortest time.
"""

import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from attenuator.bundle import MODEL, MODEL_DATA, Manifest
from attenuator.commands.baseline import write_softmax_model
from attenuator.commands.report import Measured
from attenuator.errors import InvalidRequest
from attenuator.runtime import Model, Row, create, load
from attenuator.runtime.batch import pack

SEED = 0
MIN_ROUNDS = 3

Ids = npt.NDArray[np.int64]
Run = Callable[[], Mapping[str, npt.NDArray[Any]]]


@contextmanager
def _softmax_folder(folder: Path, manifest: Manifest) -> Iterator[Path]:
    """Where the model with exact softmax attention lies: beside the bundle's own, or written for the while."""
    if manifest.attention.operator != "yoso":
        yield folder
        return
    with tempfile.TemporaryDirectory(prefix="attenuator-") as scratch:
        write_softmax_model(folder / MODEL, Path(scratch) / MODEL)
        if (folder / MODEL_DATA).exists():
            shutil.copy(folder / MODEL_DATA, Path(scratch) / MODEL_DATA)
        yield Path(scratch)


def _token_source(model: Model, sample: Path | None) -> Callable[[int], Ids]:
    """Gives token ids of any length: those of a text, repeated, or else random ones."""
    if sample is None:
        random = np.random.default_rng(SEED)
        return lambda tokens: random.integers(0, model.manifest.vocab_size, tokens, dtype=np.int64)
    try:
        text = sample.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise InvalidRequest(f"{sample} cannot be read: {error}") from None
    ids = model.encode(text, truncate=True, param=str(sample)).token_ids
    return lambda tokens: np.resize(ids, tokens)


def _shortest_ms(runs: Mapping[float | None, Run], budget_s: float) -> dict[float | None, float]:
    """Shortest time of each run, taken in turns until the time is spent; the first turn only warms up."""
    best = dict.fromkeys(runs, float("inf"))
    end = time.perf_counter() + budget_s
    for turn in range(1_000_000):
        for name, run in runs.items():
            started = time.perf_counter()
            run()
            elapsed_ms = (time.perf_counter() - started) * 1e3
            best[name] = min(best[name], elapsed_ms) if turn else best[name]
        if turn >= MIN_ROUNDS and time.perf_counter() > end:
            break
    return best


def measure(
    folder: Path,
    lengths: Sequence[int],
    values: Sequence[float],
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
        values: of the bundle's knob; none for a bundle without one.
        threads: threads of a run; every core by default.
        sample: a text to fill the lengths with; random tokens by default. What MCA saves depends on the text.
        budget_s: time to spend on a length, in seconds; every setting runs at least three times.
        progress: called before each length.

    Returns:
        One timing per length.

    Raises:
        InvalidRequest: the sample cannot be read.
        AttenuatorError: the bundle does not run here.
    """
    model = load(folder, threads=threads)
    manifest = model.manifest
    tokens_of = _token_source(model, sample)
    knob = manifest.knobs[0] if manifest.knobs else None
    timings = []
    with _softmax_folder(folder, manifest) as softmax_folder:
        own = create(folder / MODEL, threads=threads)
        exact = own if softmax_folder == folder else create(softmax_folder / MODEL, threads=threads)

        def run(session: Any, ids: Ids, value: float | None) -> Run:
            given = {} if value is None or knob is None else {knob.name: int(value) if knob.dtype == "int32" else value}
            settings = model.knobs.exact() | given
            feeds = pack([Row(ids, np.zeros_like(ids), settings, SEED)], manifest)
            return lambda: dict(zip(manifest.outputs, session.run(manifest.outputs, feeds), strict=True))

        for tokens in lengths:
            progress(tokens)
            ids = tokens_of(tokens)
            runs: dict[float | None, Run] = {None: run(exact, ids, None)}
            runs |= {value: run(own, ids, value) for value in values}
            best = _shortest_ms(runs, budget_s)
            timing = Measured(tokens=tokens, exact_ms=best[None], knob_ms={value: best[value] for value in values})
            if "value_flops" in manifest.outputs:
                timing.value_flops = {value: float(runs[value]()["value_flops"][0]) for value in values}
            timings.append(timing)
    return timings
