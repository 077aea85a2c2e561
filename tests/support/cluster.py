"""Ray on this machine with the application of `attenuator.rayserve`, for its tests."""

import contextlib
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx
from benchmarks.measure.processes import free_port

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
APPLICATION = "attenuator"
IMPORT_PATH = "attenuator.rayserve.application:application"
OBJECT_STORE_BYTES = 100 * 2**20
DEPLOYED_WITHIN_S = 240  # on a machine that does much else


class Cluster:
    """One machine's Ray, with as many logical cores as replicas may want."""

    def __init__(self, cores: int = 4) -> None:
        import ray
        from ray import serve

        self.port = free_port()
        ray.init(
            num_cpus=cores,
            num_gpus=0,
            include_dashboard=False,
            object_store_memory=OBJECT_STORE_BYTES,
            log_to_driver=False,
            configure_logging=False,
        )
        serve.start(http_options={"host": "127.0.0.1", "port": self.port})

    def close(self) -> None:
        """Ends Ray on this machine."""
        import ray
        from ray import serve

        serve.shutdown()
        ray.shutdown()

    @property
    def url(self) -> str:
        """Where Serve's proxy listens."""
        return f"http://127.0.0.1:{self.port}"

    def deploy(self, bundles: Sequence[Path], **arguments: Any) -> None:
        """Deploys the application, or changes what is deployed, as `serve deploy` does; returns once it runs.

        Args:
            bundles: folders of bundles; other ones roll them over.
            arguments: of the application.
        """
        from ray import serve
        from ray.serve.context import _get_global_client
        from ray.serve.schema import ServeDeploySchema

        replica = {"name": "Replica", "user_config": {"bundles": [str(folder) for folder in bundles]}}
        config = {"name": APPLICATION, "import_path": IMPORT_PATH, "args": arguments, "deployments": [replica]}
        schema = ServeDeploySchema.model_validate({"applications": [{"route_prefix": "/", **config}]})
        client = _get_global_client()
        client.deploy_apps(schema)
        end_s = time.monotonic() + DEPLOYED_WITHIN_S
        while (status := serve.status().applications[APPLICATION].status) != "RUNNING":
            late = status == "DEPLOY_FAILED" or time.monotonic() > end_s
            assert not late, f"the application is {status}, must be RUNNING"
            time.sleep(0.1)
        client.wait_for_proxies_serving(wait_for_applications_running=True)

    def replicas(self, deployment: str = "Replica") -> dict[str, int]:
        """Process ids of the replicas that live, by id."""
        import ray
        from ray.exceptions import RayError

        prefix = f"SERVE_REPLICA::{APPLICATION}#{deployment}#"
        names = [row["name"] for row in ray.util.list_named_actors(all_namespaces=True)]
        running = {}
        for name in names:
            if name.startswith(prefix):
                with contextlib.suppress(RayError, ValueError):  # it died, and its name is not taken off the list yet
                    actor = ray.get_actor(name, namespace="serve")
                    running[name.removeprefix(prefix)] = ray.get(actor.__ray_call__.remote(lambda _: os.getpid()))
        return running

    def wait_for_replicas(self, number: int, within_s: float = 60) -> dict[str, int]:
        """The replicas, once there are so many."""
        end_s = time.monotonic() + within_s
        while len(running := self.replicas()) != number:
            assert time.monotonic() < end_s, f"{len(running)} replicas run, must be {number}"
            time.sleep(0.2)
        return running

    def client(self) -> httpx.Client:
        """A client of the proxy."""
        return httpx.Client(base_url=self.url, timeout=60)
