"""Jobs of a daemon whose pilot holds GPUs of a real Ray by actors. Each node has a simulated server."""

from __future__ import annotations

import contextlib
import os
import signal

import ray_clusters
from support.slurm_nodes import processes_of


def missing():
    return ray_clusters.why_no_ray()


class Case:
    adopts = True
    after_node_loss = "COMPLETED"

    def __init__(self, root, first):
        self.root = root
        self._stack = contextlib.ExitStack()
        try:
            self._cluster = self._stack.enter_context(ray_clusters.ray_cluster(*ray_clusters.gpu_nodes(root)))
            self.site = self._stack.enter_context(ray_clusters.pilot_site(root, self._cluster.address))
            self.env = {"PATH": self.site.env["PATH"]}
            self.site.start(simulate=None)
            self.client = self.site.client
            self._first = self.site.submit(first, requeue=True)
        except BaseException:
            self.close()
            raise

    def crash(self):
        self.site.kill()
        self.site.start(simulate=None)

    def lose_node(self):
        (uuid,) = self.client.job(self._first)["gpu_uuids"]
        (host,) = (gpu["server"] for gpu in self.client.gpus() if gpu["uuid"] == uuid)
        node = host.partition(".")[0]
        lost = ray_clusters.node_called(self._cluster, node)
        of_this_ray = f"COTENANT_SIM_SERVER={self.root}/gpus-{node}"
        found = processes_of(node, self.root / "state" / "cotenant", variable=of_this_ray)
        for number in (signal.SIGSTOP, signal.SIGKILL):  # all at once: nobody may report the end of another
            for pid in found:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)
        self._cluster.remove_node(lost, allow_graceful=False)

    def ended(self):
        view = self.client.job(self._first)
        return view["state"] if view["ended_at"] is not None else None

    def close(self):
        self._stack.close()
