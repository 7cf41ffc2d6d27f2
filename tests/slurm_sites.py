"""Daemons whose jobs run in allocations of a real Slurm: made by somebody before, or requested by a pilot."""

from __future__ import annotations

import contextlib
import shlex

from cotenant.core.errors import CotenantError
from cotenant.simserver.server import SimulatedServer
from host_sites import hosts_site
from places import until
from sites import Site

ON_NODE = """\
allocation=$(squeue -h -n host-$1 -t R -o %A)
shift
exec srun --jobid=$allocation --overlap -N1 -n1 --quiet "$@"
"""


def hosts_on_slurm(cluster, root):
    """A site, not started, whose hosts are the nodes of two allocations, found by their names."""
    for node in cluster.nodes:
        allocate(cluster, node)
    script = root / "on-node"
    script.write_text(ON_NODE)
    site = hosts_site(root, {node: f"sh {script} {node}" for node in cluster.nodes})
    site.env["SLURM_CONF"] = cluster.env["SLURM_CONF"]
    return site


def allocate(cluster, node):
    """An allocation that runs on a node."""
    words = ("--no-requeue", "-w", node, "--gres=gpu:1", f"--job-name=host-{node}", "--wrap=sleep 100000")
    allocation = cluster.slurm("sbatch", "--parsable", *words).strip()
    cluster.until(lambda: cluster.state(allocation) == "RUNNING", "it has its node")


def pilot_on_slurm(cluster, root, **settings):
    """A site, not started, whose pilot may ask for two allocations of one simulated GPU each."""
    site = Site(root)
    for node in cluster.nodes:
        SimulatedServer.create(site.root / f"gpus-{node}", "1xA100-40GB", time_scale=60, seed=ord(node[1]))
    on_node = f'exec env COTENANT_SIM_SERVER={site.root}/gpus-$SLURMD_NODENAME "$@"'
    section = {
        "enabled": True,
        "sbatch": "--exclusive --gres=gpu:1",
        "launcher": f"sh -c {shlex.quote(on_node)} sh",
        "max_allocations": 2,
        "backlog": 2,
        "idle_s": 1000.0,
        "poll_s": 0.2,
        "retry_s": 0.1,
        **settings,
    }
    for name, value in section.items():
        site.env[f"COTENANT_PILOT__{name.upper()}"] = str(value).lower() if isinstance(value, bool) else str(value)
    site.env["COTENANT_POLICY__OPTIONS__WARMUP_S"] = "0"
    site.env["SLURM_CONF"] = cluster.env["SLURM_CONF"]
    return site


def end_site(site):
    """End its jobs, its daemon and whatever is left."""
    if site.daemon is not None and site.daemon.poll() is None:
        for view in site.client.jobs(active=True):
            with contextlib.suppress(CotenantError):  # it has ended meanwhile
                site.client.cancel(view["id"])
        site.stop()
    site.kill_left_behind()


class SlurmCase:
    """A place (`places`) with hosts on a Slurm: `site` was started there, and `first` is the id of its first job."""

    adopts = True

    def __init__(self, root, cluster, site, first):
        self.root, self.client, self.env = root, site.client, site.env
        self._cluster, self._site, self._first = cluster, site, first

    def crash(self):
        self._site.kill()
        self._site.start(simulate=None)

    def lose_node(self):
        (host,) = [
            gpu["server"]
            for gpu in self.client.gpus()
            if self._first in [resident["job_id"] for resident in gpu["residents"]]
        ]
        node = host.partition(".")[0]
        self._cluster.lose_node(node, self.root / "state" / "cotenant")
        return node

    def ended(self):
        view = self.client.job(self._first)
        return view["state"] if view["ended_at"] is not None else None

    def close(self):
        try:
            end_site(self._site)
        finally:
            self._cluster.clear()


def all_heard_of(site, count):
    """Wait until the GPUs of so many hosts are listed."""
    until(lambda: len(site.client.gpus()) == count, f"{count} hosts are heard of")
