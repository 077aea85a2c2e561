"""The number of replicas that there should be, by predicted seconds of work."""

from typing import Any

# What a replica reports: predicted seconds of work that wait, and that arrive in a second.
QUEUE_S, ARRIVED_S = "queue_predicted_s", "arrived_predicted_s_per_s"
BUSY_SHARE = 0.8  # of their time that replicas should be at work


class PredictedQueue:
    """A policy of Ray Serve's autoscaler, which adds its bounds and delays.

    There are enough replicas for the work that arrives, and enough more for what waits to be done within the target.
    """

    def __init__(self, target_queue_s: float = 0.5) -> None:
        """Makes it.

        Args:
            target_queue_s: predicted seconds of work that may wait for each replica.
        """
        self._target_queue_s = target_queue_s

    def __call__(self, context: Any) -> tuple[float, dict[str, Any]]:
        """The number of replicas.

        Args:
            context: Serve's `AutoscalingContext`, with what `Replica.record_autoscaling_stats` reported.

        Returns:
            The number, before Serve's bounds, and no state.
        """
        reported = context.aggregated_metrics or {}
        queue_s = sum(reported.get(QUEUE_S, {}).values())
        arrived = sum(reported.get(ARRIVED_S, {}).values())
        return max(queue_s / self._target_queue_s, arrived / BUSY_SHARE), {}
