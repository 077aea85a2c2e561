"""Which seeds' random draws the operators still keep: those of another seed have to be drawn first, which takes time.

Hash planes and random directions are drawn once for a seed and kept in caches of the process, least recently used first
out. A text of a few tokens with a new seed may take many times what it takes with a known one. So the time of drawing
is predicted apart from that of the texts (`ops.cost.Drawn`), and this module follows what the caches hold. It is on the
safe side: here all models share the room of one cache, and what two of them share counts twice.
"""

from collections import OrderedDict

from attenuator.ops.cost import KEPT_BYTES, NOTHING_DRAWN, Drawn
from attenuator.ops.knobs import Knobs
from attenuator.runtime import Model


class KnownSeeds:
    """The seeds of one process, by what was drawn of them."""

    def __init__(self, most_bytes: int = KEPT_BYTES) -> None:
        """Starts with none.

        Args:
            most_bytes: room for what was drawn.
        """
        self._most_bytes = most_bytes
        self._kept: OrderedDict[tuple[str, int], Drawn] = OrderedDict()  # by revision; least recently used first
        self._bytes = 0

    def missing(self, model: Model, seed: int, knobs: Knobs) -> float:
        """Multiply-adds of what a run with a seed would have to draw first; 0 where all of it is kept."""
        drawn = model.drawn(knobs)
        kept = self._kept.get((model.manifest.revision, seed), NOTHING_DRAWN)
        return drawn.work if drawn.work > kept.work else 0.0

    def used(self, model: Model, seed: int, knobs: Knobs) -> None:
        """A run used a seed, so what it takes is kept now."""
        drawn, key = model.drawn(knobs), (model.manifest.revision, seed)
        if not drawn.work:
            return
        kept = self._kept.pop(key, NOTHING_DRAWN)
        if kept.work < drawn.work:
            self._bytes += drawn.bytes - kept.bytes
            kept = drawn
        self._kept[key] = kept
        while self._bytes > self._most_bytes and self._kept:
            self._bytes -= self._kept.popitem(last=False)[1].bytes
