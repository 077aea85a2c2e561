"""What is learned and counted of every batch that ran."""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from attenuator.errors import AttenuatorError
from attenuator.runtime import Model, Row
from attenuator.serve.contention import Contention
from attenuator.serve.jobs import Entry, Job, Lane
from attenuator.serve.latency import LatencyModel
from attenuator.serve.metrics import BatchRun, Metrics
from attenuator.serve.seeds import KnownSeeds

if TYPE_CHECKING:
    from attenuator.serve.otel import Traces


class Accounts:
    """The accounts of one service's batches.

    Attributes:
        traces: get a span for every batch; None makes none.
    """

    def __init__(
        self,
        latencies: Mapping[Model, LatencyModel],
        contention: Contention,
        metrics: Metrics,
        model_failed: Callable[[Model], None],
        seeds: KnownSeeds,
        traces: "Traces | None",
    ) -> None:
        """Makes them.

        Args:
            latencies: how long each model's rows take; learn from every batch.
            contention: how much the lanes slow each other down; learns from every batch.
            metrics: count batches.
            model_failed: called when ONNX Runtime has failed on a batch of a model.
            seeds: learn what every batch used.
            traces: as above.
        """
        self.traces = traces
        self._latencies = latencies
        self._contention = contention
        self._metrics = metrics
        self._model_failed = model_failed
        self._seeds = seeds

    def ended(
        self,
        lane: Lane,
        batch: Sequence[Entry],
        rows: Sequence[Row],
        seconds: float,
        beside_s: float,
    ) -> None:
        """A batch ran.

        Args:
            lane: where.
            batch: its rows' places.
            rows: as they ran.
            seconds: that it took.
            beside_s: of them beside a batch of the other lane.
        """
        model = batch[0].job.model
        times = [entry.job.times[entry.index] for entry in batch]
        alone_s = self._contention.alone_s(seconds, beside_s)
        predicted_s = self._latencies[model].learn(times, alone_s)
        self._contention.learn(seconds, beside_s, predicted_s)
        run = BatchRun(
            model=model.manifest.name,
            lane=lane,
            settings=list({id(row.knobs): row.knobs for row in rows}.values()),
            tokens=sum(entry.tokens for entry in batch),
            sequences=len(batch),
            predicted_s=predicted_s * seconds / max(alone_s, 1e-6),  # beside the other lane
            seconds=seconds,
            shares=_shares(batch),
        )
        self._metrics.batch_ended(run)
        for row in {(row.seed, id(row.knobs)): row for row in rows}.values():
            self._seeds.used(model, row.seed, row.knobs)
        if self.traces is not None:
            self.traces.batch_ended(run, model, (entry.job.trace for entry in batch))

    def failed(self, jobs: Sequence[Job], lane: Lane, error: AttenuatorError) -> None:
        """A batch failed; it counts where ONNX Runtime did and somebody still waits."""
        if jobs and error.__cause__ is not None:
            self._metrics.batch_failed(jobs[0].model.manifest.name, lane)
            self._model_failed(jobs[0].model)


def _shares(batch: Sequence[Entry]) -> dict[tuple[str, str], float]:
    """Predicted seconds of a batch by API key and class."""
    shares: dict[tuple[str, str], float] = defaultdict(float)
    for entry in batch:
        shares[entry.job.flow.key, entry.job.flow.priority] += entry.seconds
    return shares
