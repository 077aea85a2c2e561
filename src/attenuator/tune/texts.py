"""The texts of a tuning: without duplicates, as many as fit into the time, in two parts, to choose and to judge."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from torch import nn

from attenuator.commands.calibrate.texts import Texts
from attenuator.compare.data import SEED, encode, read_items
from attenuator.export.choose import MOST_TEXTS
from attenuator.export.source import Source
from attenuator.ops.cost import NS_PER_DENSE_MAC
from attenuator.rows import Columns
from attenuator.runtime.session import cpu_count
from attenuator.texts import Item
from attenuator.tune.result import CHOOSING_SHARE
from attenuator.tune.settings import TuneSettings

FEWEST = 40  # below, neither part could tell a setting that changes every tenth answer
MOST = 20_000
# What a text costs in all, in runs at the exact value: those that choose run once exactly and some times more for each
# way to merge; those that judge run at every setting of two bundles.
CHOOSING_RUNS, JUDGING_RUNS = 14.0, 6.5
RUNS = CHOOSING_SHARE * CHOOSING_RUNS + (1 - CHOOSING_SHARE) * JUDGING_RUNS  # of a text, in the mean
# Loading, exporting twice and checking what was exported, about, in seconds: by model and by million weights.
EXPORT_S, EXPORT_S_PER_MILLION = 30.0, 1.5


@dataclass(frozen=True, slots=True, eq=False)
class Parts:
    """Texts that choose settings, and texts that judge them; none is in both.

    Attributes:
        choosing: texts.
        judging: texts.
        items: those that judge, as the file has them.
        others: all that do not judge, drawn or not.
    """

    choosing: Texts
    judging: Texts
    items: Sequence[Item]
    others: Sequence[Item]


def read(path: Path, settings: TuneSettings, source: Source, note: Callable[[str], None]) -> tuple[Texts, list[Item]]:
    """Reads and tokenizes a file's texts, each once.

    Args:
        path: of the file.
        settings: of the command.
        source: the checkpoint.
        note: says a sentence to the user.

    Returns:
        The texts, and the same as the file has them.

    Raises:
        InvalidRequest: the file cannot be read, a text is empty, or a label is none of the model's.
    """
    columns = Columns(settings.column, settings.pair_column)
    every = read_items(path, columns, settings.label_column, MOST)
    items = list({json.dumps(item.content, sort_keys=True): item for item in reversed(every)}.values())[::-1]
    if len(items) < len(every):
        note(f"{len(every) - len(items)} of {len(every)} texts stand there twice, and count once")
    texts = encode(path, items, source, truncate=True)
    cut = sum(text.truncated > 0 for text in texts.encoded)
    if cut:
        note(
            f"{cut} of {len(items)} texts are longer than {source.max_tokens} tokens, and are cut; the service refuses "
            "such texts unless a request sets truncate"
        )
    return texts, items


def seconds_of(source: Source, texts: Texts, threads: int | None) -> tuple[float, float]:
    """What a tuning takes, about: seconds whatever the texts are, and seconds for each of them."""
    weights = sum(module.weight.numel() for module in source.model.modules() if isinstance(module, nn.Linear))
    total = sum(parameter.numel() for parameter in source.model.parameters())
    run_s = NS_PER_DENSE_MAC * 1e-9 * weights * float(texts.tokens.mean()) / (threads or cpu_count())
    return EXPORT_S + EXPORT_S_PER_MILLION * total / 1e6, run_s * RUNS


def fitting(fixed_s: float, each_s: float, texts: int, minutes: float) -> int:
    """How many of the texts can be run in the time; never fewer than say anything."""
    left_s = max(60 * minutes - fixed_s, 0.25 * 60 * minutes)  # exports take their time, however short it is
    return min(texts, max(FEWEST, int(left_s / each_s)))


def divided(texts: Texts, items: Sequence[Item], count: int) -> Parts:
    """Draws that many texts by lot, and divides them; more than `MOST_TEXTS` need not choose."""
    shuffled = np.random.default_rng(SEED).permutation(len(items))
    border = min(round(CHOOSING_SHARE * count), MOST_TEXTS)
    judges = count - round(CHOOSING_SHARE * count)
    choosing, judging = np.sort(shuffled[:border]), np.sort(shuffled[border : border + judges])
    others = np.sort(np.r_[choosing, shuffled[border + judges :]])
    return Parts(
        _of(texts, choosing.tolist()),
        _of(texts, judging.tolist()),
        [items[place] for place in judging],
        [items[place] for place in others],
    )


def _of(texts: Texts, places: list[int]) -> Texts:
    truth = None if texts.truth is None else texts.truth[places]
    return replace(texts, encoded=[texts.encoded[place] for place in places], truth=truth)
