"""A real Ray cluster on this machine, with nodes whose GPUs are numbers."""

from __future__ import annotations

import contextlib
import os

MISSING = "ray is not installed, 80 MB to fetch and 270 MB on disk: make test-ray installs it"
MiB = 2**20


@contextlib.contextmanager
def ray_cluster(*nodes):
    """A cluster whose head has no GPU, and a connection to it; each of `nodes` has arguments of `Cluster.add_node`."""
    # Ray writes a token into the home folder otherwise, and phones home; its dashboard starts four processes.
    own = {"RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}
    before = {name: os.environ.get(name) for name in own}
    os.environ.update(own)
    import ray
    from ray.cluster_utils import Cluster

    common = {"object_store_memory": 80 * MiB}
    cluster = Cluster(
        initialize_head=True, head_node_args={"num_cpus": 1, "num_gpus": 0, "include_dashboard": False, **common}
    )
    try:
        for node in nodes:
            cluster.add_node(**common, **node)
        ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR")
        try:
            yield cluster
        finally:
            ray.shutdown()
    finally:
        cluster.shutdown()
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
