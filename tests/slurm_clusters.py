"""A real Slurm for tests: the demo's, and what tests ask of it."""

from __future__ import annotations

import os
import signal
import subprocess
import time

from cotenant.demo.slurm_cluster import TIMEOUT_S, SlurmInFolder
from sites import COTENANT


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

    def kill_controller(self):
        """Kill slurmctld, once it has saved the jobs of now: it does so every few seconds, and forgets younger ones."""
        saved, began_s = self.folder / "state" / "job_state", time.time()
        self.until(lambda: saved.exists() and saved.stat().st_mtime > began_s, "the controller has saved its jobs")
        os.kill(int((self.folder / "slurmctld.pid").read_text()), signal.SIGKILL)

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
