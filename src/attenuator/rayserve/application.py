"""Puts the application together, for `serve run` and `serve deploy` of Ray Serve."""

from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, field_validator
from ray import serve
from ray.serve import Application
from ray.serve.config import AutoscalingConfig, AutoscalingPolicy, RequestRouterConfig
from ray.serve.schema import LoggingConfig

from attenuator.rayserve.autoscaling import PredictedQueue
from attenuator.rayserve.front import Front
from attenuator.rayserve.replica import Replica
from attenuator.rayserve.router import LeastWork
from attenuator.serve.settings import ServeSettings

MARGIN = 64  # requests over the limit of a replica, so that the replica itself refuses them, in the service's words
FRONT_REQUESTS = 8192
STATS_EVERY_S = 1.0
STOP_MARGIN_S = 5.0
OWN_LOG = LoggingConfig(enable_access_log=False)  # the replica's access log says more


class Arguments(BaseModel):
    """What a configuration says under `args`."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)

    bundles: list[str] = Field(default_factory=list)
    """Folders of bundles, on every machine at the same place; `user_config` of the replicas goes before it."""
    replicas: int = Field(default=2, ge=1)
    """Replicas; with max_replicas those to begin with, and the least."""
    max_replicas: int | None = Field(default=None, ge=1)
    """Most replicas; their number then follows the predicted seconds of work that wait and arrive."""
    target_queue_s: float = Field(default=0.5, gt=0)
    """Predicted seconds of work that may wait for each replica before more are started."""
    cpus_per_replica: int = Field(default=1, ge=1)
    """Cores that Ray counts for a replica, and threads inside one run."""
    gpus_per_replica: float = Field(default=0, ge=0)
    """CUDA devices for a replica, or a share of one; with any, models run on CUDA."""
    fronts: int = Field(default=1, ge=1)
    """Processes that take requests from Ray Serve's proxies."""
    answer_timeout_s: float = Field(default=120, gt=0)
    """Longest wait for an answer without timeout_ms, with restarts of replicas; then 503."""
    settings: dict[str, Any] = Field(default_factory=dict)
    """Further settings of `attenuator serve`, by the names of their variables in small letters, without prefix."""

    @field_validator("settings")
    @classmethod
    def are_settings(cls, settings: dict[str, Any]) -> dict[str, Any]:
        """Refuses what is no setting, and routes that would change one replica of several."""
        for name in settings:
            if name not in ServeSettings.model_fields:
                raise ValueError(f"{name} is no setting of attenuator serve")
            if name in ("host", "port", "admin_key"):
                reason = "bundles are rolled over through 'bundles'" if name == "admin_key" else "Ray Serve listens"
                raise ValueError(f"{name} has no use here: {reason}")
        ServeSettings(**settings)
        return settings


def application(arguments: Arguments) -> Application:
    """Builds the application.

    Args:
        arguments: of the configuration.

    Returns:
        The front, bound to its replicas.
    """
    settings = {"threads": arguments.cpus_per_replica} | arguments.settings
    if arguments.gpus_per_replica:
        settings = {"device": "cuda"} | settings
    checked = ServeSettings(**settings)
    bundles = [str(Path(folder).absolute()) for folder in arguments.bundles]
    scaling: dict[str, Any] = {"num_replicas": arguments.replicas}
    if arguments.max_replicas is not None:
        policy = AutoscalingPolicy(
            policy_function=PredictedQueue, policy_kwargs={"target_queue_s": arguments.target_queue_s}
        )
        scaling = {
            "autoscaling_config": AutoscalingConfig(
                min_replicas=arguments.replicas,
                initial_replicas=arguments.replicas,
                max_replicas=arguments.max_replicas,
                upscale_delay_s=5,
                downscale_delay_s=120,
                metrics_interval_s=1,
                look_back_period_s=5,
                policy=policy,
            )
        }
    replicas = serve.deployment(
        name="Replica",
        user_config={"bundles": bundles},
        ray_actor_options={"num_cpus": arguments.cpus_per_replica, "num_gpus": arguments.gpus_per_replica},
        max_ongoing_requests=checked.max_requests + MARGIN,
        request_router_config=RequestRouterConfig(
            request_router_class=LeastWork, request_routing_stats_period_s=STATS_EVERY_S
        ),
        graceful_shutdown_timeout_s=checked.drain_timeout_ms / 1000 + STOP_MARGIN_S,
        logging_config=OWN_LOG,
        **scaling,
    )(Replica)
    front = serve.deployment(
        name="Front",
        num_replicas=arguments.fronts,
        ray_actor_options={"num_cpus": 0},
        max_ongoing_requests=FRONT_REQUESTS,
        logging_config=OWN_LOG,
    )(Front)
    return front.bind(replicas.bind(settings), settings, arguments.answer_timeout_s)
