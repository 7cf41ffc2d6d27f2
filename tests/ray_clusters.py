"""A real Ray cluster on this machine, with nodes whose GPUs are numbers, and a daemon whose pilot uses it."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os

from cotenant.simserver.server import SimulatedServer
from sites import Site

MISSING = "ray is not installed, 80 MB to fetch and 270 MB on disk: make test-ray installs it"
MiB = 2**20


def why_no_ray():
    """None where Ray is installed."""
    return None if importlib.util.find_spec("ray") else MISSING


def set_environment():
    """Set what Ray of tests needs in the environment; returns what was there before."""
    # Ray writes a token into the home folder otherwise, and phones home; its dashboard starts four processes.
    own = {
        "RAY_AUTH_MODE": "disabled",
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
        "RAY_raylet_start_wait_time_s": "240",  # 30 by default, which a machine with other work exceeds
    }
    before = {name: os.environ.get(name) for name in own}
    os.environ.update(own)
    return before


@contextlib.contextmanager
def ray_cluster(*nodes):
    """A cluster whose head has no GPU, and a connection to it; each of `nodes` has arguments of `Cluster.add_node`."""
    before = set_environment()
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


def gpu_nodes(root, *, gpus=1, nodes=("r1", "r2")):
    """Arguments of nodes with a simulated server each; their agents call them so."""
    for number, node in enumerate(nodes):
        folder = root / f"gpus-{node}"
        SimulatedServer.create(folder, f"{gpus}xA100-40GB", time_scale=60, seed=number)
        yield {
            "num_cpus": 2,
            "num_gpus": gpus,
            "env_vars": {"SLURMD_NODENAME": node, "COTENANT_SIM_SERVER": str(folder)},
        }


@contextlib.contextmanager
def pilot_site(root, address, *, ray_options=(), **settings):
    """A site, not started, whose pilot may hold two allocations of one GPU each."""
    site = Site(root)
    section = {
        "enabled": True,
        "max_allocations": 2,
        "backlog": 2,
        "idle_s": 1000.0,
        "poll_s": 0.2,
        "retry_s": 0.1,
        **settings,
    }
    table = {"address": address, **dict(ray_options)}
    (root / "config" / "cotenant").mkdir(parents=True)
    lines = ["[pilot]", *(f"{name} = {json.dumps(value)}" for name, value in section.items())]
    lines += ["[pilot.ray]", *(f"{name} = {json.dumps(value)}" for name, value in table.items())]
    (root / "config" / "cotenant" / "config.toml").write_text("\n".join(lines) + "\n")
    site.env["COTENANT_POLICY__OPTIONS__WARMUP_S"] = "0"
    try:
        yield site
    finally:
        if site.daemon is not None and site.daemon.poll() is None:
            with contextlib.suppress(Exception):  # the test may have failed because it does not answer
                for view in site.client.jobs(active=True):
                    site.client.cancel(view["id"])
            site.stop()
        site.kill_left_behind()


def node_called(cluster, name):
    """The node of a cluster with this name."""
    (found,) = (node for node in cluster.worker_nodes if node._ray_params.env_vars["SLURMD_NODENAME"] == name)
    return found
