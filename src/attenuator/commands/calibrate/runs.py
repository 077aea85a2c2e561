"""Runs of every text at every setting."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from attenuator.calibration.frontier import PredictedTime
from attenuator.commands.calibrate.partial import PartialResults
from attenuator.ops.knobs import Knobs
from attenuator.runtime import Encoded, Model, Row

TOKENS_PER_BATCH = 4096

Logits = npt.NDArray[np.float32]
Progress = Callable[["Run", Sequence[int]], None]


def batches_of(texts: Sequence[Encoded]) -> list[list[int]]:
    """Places of the texts by batch, the short ones first, at most `TOKENS_PER_BATCH` tokens or one text a batch."""
    groups: list[list[int]] = []
    room = 0
    for place in sorted(range(len(texts)), key=lambda each: len(texts[each].token_ids)):
        tokens = len(texts[place].token_ids)
        if tokens > room:
            groups.append([])
            room = TOKENS_PER_BATCH
        groups[-1].append(place)
        room -= tokens
    return groups


@dataclass(frozen=True, slots=True, eq=False)
class Run:
    """One setting of a model, and what runs at it.

    Attributes:
        model: the bundle.
        knobs: checked values by name.
        texts: in its own tokens.
        seeds: one for each of them.
        predicted: time of a text by its length and setting.
    """

    model: Model
    knobs: Knobs
    texts: Sequence[Encoded]
    seeds: Sequence[int]
    predicted: PredictedTime

    def work(self, places: Sequence[int]) -> float:
        """Predicted time of some of the texts."""
        lengths = Counter(len(self.texts[place].token_ids) for place in places)
        return sum(count * self.predicted(tokens, self.knobs) for tokens, count in lengths.items())


def run_all(runs: Sequence[Run], results: PartialResults, progress: Progress) -> list[Logits]:
    """Runs the texts, but for the batches that an earlier call has measured.

    As the seeds of texts or lists all differ, the noise of sampling counts in the agreement as their own differences
    do.

    Args:
        runs: all of as many texts, and of models with as many labels.
        results: keeps each batch as it is done.
        progress: called after each batch with its run and the places of its texts.

    Returns:
        Logits `[texts, labels]` of each run.

    Raises:
        EngineError: ONNX Runtime failed.
    """
    everything = []
    for number, run in enumerate(runs):
        texts = run.texts
        logits = np.empty((len(texts), len(run.model.manifest.labels)), dtype=np.float32)
        for batch, places in enumerate(batches_of(texts)):
            done = results.get(number, batch)
            if done is None:
                rows = [
                    Row(texts[place].token_ids, texts[place].type_ids, run.knobs, run.seeds[place]) for place in places
                ]
                done = np.stack([row.logits for row in run.model.run(rows)])
                results.put(number, batch, done)
            logits[places] = done
            progress(run, places)
        everything.append(logits)
    return everything
