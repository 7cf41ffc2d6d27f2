"""Jobs of `cotenant pack` in an allocation of a real Slurm."""

from __future__ import annotations

import os
import signal

from cotenant.demo.slurm_cluster import why_no_cluster
from pack_folders import PackFolder
from slurm_clusters import shared_cluster


def missing():
    return why_no_cluster()


class Case:
    adopts = False
    after_node_loss = "COMPLETED"

    def __init__(self, root, first):
        self.root = root
        self.cluster = shared_cluster()
        self._pack = PackFolder(root, first)
        try:
            self.env = {"PATH": self.cluster.env["PATH"]}
            self._begin()
        except BaseException:
            self.close()
            raise

    def _begin(self):
        done = self.cluster.cli("pack", *self._pack.words, cwd=self.root)
        assert done.returncode == 0, done.stderr
        self._job_id = done.stdout.split()[3].rstrip(":")
        self.client = self._pack.client_of(self.cluster.until)

    def crash(self):
        os.kill(self.client.status()["pid"], signal.SIGKILL)
        assert self.cluster.ended(self._job_id) == "FAILED"
        self._begin()

    def lose_node(self):
        (node,) = self.cluster.slurm("squeue", "-h", "-j", self._job_id, "-o", "%N").split()
        self.cluster.lose_node(node)
        # Slurm waits two minutes with a job that it requeues.
        self.cluster.slurm("scontrol", "update", f"JobId={self._job_id}", "StartTime=now")

    def ended(self):
        return self._pack.ended()

    def close(self):
        self.cluster.clear()
