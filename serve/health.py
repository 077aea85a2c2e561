"""Whether the service can do its work: lanes that have died, batches that take far longer than predicted."""

from collections.abc import Iterable
from dataclasses import dataclass

from attenuator.serve.jobs import Lane

HANG_FACTOR = 10  # a batch may take this many times its predicted time, and the time of the setting besides


@dataclass(frozen=True, slots=True)
class RunningBatch:
    """A batch that is running.

    Attributes:
        model: name of its model.
        lane: where it runs.
        predicted_s: seconds that it was predicted to take.
        running_s: seconds since it began.
    """

    model: str
    lane: Lane
    predicted_s: float
    running_s: float


def fault(dead: Iterable[Lane], running: Iterable[RunningBatch], hang_s: float) -> str | None:
    """Why the service cannot do its work.

    Args:
        dead: lanes whose task has ended.
        running: batches.
        hang_s: seconds over ten times the predicted ones from which on a batch hangs.

    Returns:
        One sentence, or None where nothing is wrong.
    """
    for lane in dead:
        return f"the {lane} lane has stopped and is about to start again"
    for batch in running:
        if batch.running_s > HANG_FACTOR * batch.predicted_s + hang_s:
            return (
                f"a batch of model '{batch.model}' in the {batch.lane} lane has been running for "
                f"{batch.running_s:.0f} s, predicted were {batch.predicted_s:.2g} s"
            )
    return None
