"""A real Slurm for tests: the demo's, and what tests ask of it."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path

from cotenant.demo.slurm_cluster import TIMEOUT_S, SlurmInFolder
from running import is_running
from sites import COTENANT
from support.slurm_nodes import kill_node

_shared = []


def shared_cluster():
    """The cluster of this process, which is started at the first call; `conftest` ends it with the session."""
    if not _shared:
        cluster = SlurmCluster(Path(tempfile.mkdtemp(prefix="cotenant-slurm-", dir="/tmp")))
        try:
            cluster.start()
        except BaseException:
            _end(cluster)
            raise
        _shared.append(cluster)
    return _shared[0]


def stop_shared():
    """End the shared cluster, if there is one."""
    while _shared:
        _end(_shared.pop())


def _end(cluster):
    cluster.stop()
    shutil.rmtree(cluster.folder, ignore_errors=True)


class SlurmCluster(SlurmInFolder):
    """The running cluster; `work` is a folder of the test's own."""

    def cli(self, *words, cwd=None, env=None, **options):
        """Run cotenant to its end."""
        return subprocess.run(
            [*COTENANT, *words],
            env={**self.env, **(env or {})},
            cwd=cwd or self.folder / "work",
            capture_output=True,
            text=True,
            check=False,
            **{"timeout": TIMEOUT_S, **options},
        )

    def plain(self, *command, env):
        """Run one of Slurm's own commands in the test's folder, to its end."""
        return subprocess.run(
            command,
            env={**self.env, **env},
            cwd=self.work,
            capture_output=True,
            text=True,
            check=False,
            timeout=TIMEOUT_S,
        )

    def end_controller(self):
        """End slurmctld as a restart does: it saves its jobs, which otherwise takes it up to 5 s (SAVE_MAX_WAIT)."""
        pid = (self.folder / "slurmctld.pid").read_text()
        os.kill(int(pid), signal.SIGTERM)
        self.until(lambda: not is_running(pid), "slurmctld has ended")

    def lose_node(self, node, state_dir=None):
        """Kill all that runs on a node, which stays down."""
        slurmd = (self.folder / f"slurmd.{node}.pid").read_text()
        kill_node(self.folder, node, state_dir)
        self.until(lambda: not is_running(slurmd), f"slurmd of {node} has ended")
        self.slurm("scontrol", "update", f"NodeName={node}", "State=DOWN", "Reason=lost")

    def restore_node(self, node):
        """Start a lost node again, which returns to service by itself (ReturnToService=2)."""
        self.slurm("slurmd", "-N", node)
        self.until(lambda: self.slurm("sinfo", "-h", "-n", node, "-o", "%t").strip() in ("idle", "mix"), "it is back")

    def clear(self):
        """End all jobs, and start lost nodes again."""
        self.slurm("scancel", "--full", "-s", "KILL", "-u", "root")
        self.slurm("scancel", "-u", "root")
        for node in self.nodes:
            if not is_running((self.folder / f"slurmd.{node}.pid").read_text()):
                self.restore_node(node)
        self.until(lambda: not self.slurm("squeue", "-h").strip(), "the queue is empty")
        self.until(lambda: self.slurm("sinfo", "-h", "-o", "%t").split() == ["idle"], "nodes are idle")

    def state(self, job_id):
        """State of a job in Slurm's words."""
        found = [
            word for word in self.slurm("scontrol", "show", "job", str(job_id)).split() if word.startswith("JobState=")
        ]
        return found[0].partition("=")[2]

    def ended(self, job_id):
        """State of a job once it has ended."""
        going = ("PENDING", "RUNNING", "COMPLETING", "CONFIGURING")
        self.until(lambda: self.state(job_id) not in going, f"job {job_id} has ended")
        return self.state(job_id)
