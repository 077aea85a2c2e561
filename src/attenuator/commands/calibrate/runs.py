"""Runs of every text at every setting."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from attenuator.commands.calibrate.partial import PartialResults
from attenuator.ops.knobs import KnobValue
from attenuator.runtime import Encoded, Model, Row

TOKENS_PER_BATCH = 4096

Logits = npt.NDArray[np.float32]
Progress = Callable[[Mapping[str, float], int], None]


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


def run_all(
    settings: Sequence[tuple[Model, Mapping[str, KnobValue]]],
    texts: Sequence[Encoded],
    results: PartialResults,
    progress: Progress,
) -> list[Logits]:
    """Runs the texts, but for the batches that an earlier run has measured.

    The seed of a text is its place in the file: as the seeds of all texts differ, the noise of sampling counts in the
    agreement as the texts' own differences do.

    Args:
        settings: which bundle to run, and its checked values by knob name.
        texts: to run.
        results: keeps each batch as it is done.
        progress: called after each batch with the setting and the number of its tokens.

    Returns:
        Logits `[texts, labels]` of each setting.

    Raises:
        EngineError: ONNX Runtime failed.
    """
    groups = batches_of(texts)
    everything = []
    for setting, (model, knobs) in enumerate(settings):
        logits = np.empty((len(texts), len(model.manifest.labels)), dtype=np.float32)
        for batch, places in enumerate(groups):
            rows = [Row(texts[place].token_ids, texts[place].type_ids, knobs, seed=place) for place in places]
            done = results.get(setting, batch)
            if done is None:
                done = np.stack([row.logits for row in model.run(rows)])
                results.put(setting, batch, done)
            logits[places] = done
            progress(knobs, batch)
        everything.append(logits)
    return everything
