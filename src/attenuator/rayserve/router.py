"""Choice of a request's replica: the one with the least predicted work before it, by Ray Serve's interface for routers.

Serve's own router compares numbers of requests, of which one may cost a thousand times as much as another.
"""

from collections.abc import Mapping
from typing import Any

from ray.serve.request_router import PendingRequest, ReplicaID, RequestRouter, RunningReplica

from attenuator.rayserve.calls import Call
from attenuator.rayserve.outstanding import by_work, of_this_process

QUEUE_STAT = "predicted_s"  # what a replica reports, by front


class LeastWork(RequestRouter):
    """Orders replicas by what the front of this process has sent them, and what they say that other fronts have."""

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        """Every replica, one a rank: the next is tried where one takes no more requests."""
        call = call_of(pending_request)
        by_id = {replica.replica_id.unique_id: replica for replica in candidate_replicas}
        reported = [(name, reported_of(replica)) for name, replica in by_id.items()]
        front, avoid = (call.front, call.avoid) if call else ("", frozenset())
        order = by_work(reported, of_this_process(), front, avoid)
        if call is not None and order:
            # Counted before the replica has accepted it, or requests that come together would all go to one.
            of_this_process().send(call.number, order[0])
        return [[by_id[name]] for name in order]

    def on_request_routed(self, pending_request: PendingRequest, replica_id: ReplicaID, result: Any) -> None:
        """Counts the request where it went."""
        call = call_of(pending_request)
        if call is not None:
            of_this_process().send(call.number, replica_id.unique_id)


def call_of(request: PendingRequest | None) -> Call | None:
    """The call that a request of Serve's carries; None where it carries something else."""
    first = request.args[0] if request is not None and request.args else None
    return first if isinstance(first, Call) else None


def reported_of(replica: RunningReplica) -> Mapping[str, float]:
    """Predicted seconds by front, as a replica said last."""
    reported: Mapping[str, float] = replica.routing_stats.get(QUEUE_STAT, {})
    return reported
