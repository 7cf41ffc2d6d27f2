"""Jobs of `cotenant pack` in an allocation of a real Slurm."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path

from cotenant.demo.slurm_cluster import why_no_cluster
from pack_folders import PackFolder
from slurm_clusters import SlurmCluster


def missing():
    return why_no_cluster()


class Case:
    adopts = False
    after_node_loss = "COMPLETED"

    def __init__(self, root, first):
        self.root = root
        (root / "slurm").mkdir()
        self.cluster = SlurmCluster(root / "slurm")
        self._pack = PackFolder(root, first)
        try:
            self.cluster.start()
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
        slurmd = int((self.cluster.folder / f"slurmd.{node}.pid").read_text())
        for number in (signal.SIGSTOP, signal.SIGKILL):  # all at once: nobody may report the end of another
            for pid in (slurmd, *self._steps(), *processes_with(f"SLURMD_NODENAME={node}")):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)
        self.cluster.slurm("scontrol", "update", f"NodeName={node}", "State=DOWN", "Reason=lost")
        # Slurm waits two minutes with a job that it requeues.
        self.cluster.slurm("scontrol", "update", f"JobId={self._job_id}", "StartTime=now")

    def _steps(self):
        """Slurm's processes that watch ours; there is one allocation."""
        for pid in processes_with(f"SLURM_CONF={self.cluster.env['SLURM_CONF']}"):
            with contextlib.suppress(OSError):
                if Path(f"/proc/{pid}/comm").read_text().strip() == "slurmstepd":
                    yield pid

    def ended(self):
        return self._pack.ended()

    def close(self):
        self.cluster.stop()


def processes_with(variable):
    """Processes that have it in their environment."""
    for path in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if variable.encode() in path.read_bytes().split(b"\0"):
                yield int(path.parent.name)
