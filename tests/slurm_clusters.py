"""A real Slurm of two nodes with two fake GPUs each, in a folder of its own, without systemd. Needs root and Debian's
packages slurmctld, slurmd, slurm-client and munge.

The GPUs are twins of /dev/null, with 40 shards each, by the lines that `cotenant slurm config` writes. Jobs that need a
GPU use a simulated server of cotenant.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

from cotenant.core.units import GiB
from cotenant.slurm.site_files import NodeGroup, site_lines
from sites import COTENANT

PROGRAMS = ("slurmctld", "slurmd", "sbatch", "munged", "scontrol")
TIMEOUT_S = 200
SHARDS = 40

CONF = """
ClusterName=cot
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
ReturnToService=2
KillWait=5
SchedulerParameters=batch_sched_delay=0,sched_interval=1,bf_interval=1
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
MailProg=/bin/true
GresTypes=gpu,shard
SlurmdParameters=config_overrides
NodeName=n1 NodeAddr=127.0.0.1 Port={ports[1]} CPUs=16 RealMemory=2000 Gres={gres}
NodeName=n2 NodeAddr=127.0.0.1 Port={ports[2]} CPUs=16 RealMemory=2000 Gres={gres}
PartitionName=gpu Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


def missing():
    """Why no cluster can be started here, or None."""
    if os.geteuid() != 0:
        return "a Slurm cluster needs root here"
    absent = [name for name in PROGRAMS if shutil.which(name) is None]
    return f"{', '.join(absent)} not installed (Debian: slurmctld slurmd slurm-client munge)" if absent else None


class SlurmCluster:
    """The running cluster."""

    def __init__(self, folder, type_of="none"):
        self.folder = folder
        group = NodeGroup(
            names="n[1-2]", model="A100-40GB", memory_bytes=SHARDS * GiB, gpus=2, device=f"{folder}/gpu%d"
        )
        self.lines = site_lines([group], type_of)
        self.env = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "SBATCH_"))},
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "SLURM_CONF": str(folder / "slurm.conf"),
            "XDG_STATE_HOME": str(folder / "home-state"),
            "XDG_RUNTIME_DIR": str(folder / "run"),
            "TMPDIR": str(folder / "tmp"),
            "COTENANT_TO": "slurm",
        }

    def start(self):
        for name in ("state", "spool", "munge", "run", "work", "tmp"):
            (self.folder / name).mkdir()
        self.folder.chmod(0o755)
        for name in ("gpu0", "gpu1"):
            os.mknod(self.folder / name, 0o666 | 0o020000, os.makedev(1, 3))
        values = {"host": socket.gethostname().partition(".")[0], "folder": self.folder, "ports": _free_ports(3)}
        gres = self.lines.node_gres["n[1-2]"]
        (self.folder / "slurm.conf").write_text(CONF.format(**values, gres=gres))
        (self.folder / "gres.conf").write_text("\n".join(self.lines.gres_conf) + "\n")
        self._start_munge()
        self._run("slurmctld")
        for node in ("n1", "n2"):
            self._run("slurmd", "-N", node)
        self.until(lambda: self._run("sinfo", "-h", "-o", "%t").split() == ["idle"], "nodes are idle")
        return self

    def _start_munge(self):
        folder = self.folder / "munge"
        key = folder / "key"
        key.write_bytes(os.urandom(1024))
        key.chmod(0o400)
        shutil.chown(key, "munge", "munge")
        shutil.chown(folder, "munge", "munge")
        folder.chmod(0o755)
        options = [f"--{name}={folder}/{file}" for name, file in (
            ("socket", "socket"), ("key-file", "key"), ("pid-file", "pid"), ("log-file", "log"), ("seed-file", "seed"),
        )]  # fmt: skip
        subprocess.run(["runuser", "-u", "munge", "--", "munged", *options], check=True, timeout=TIMEOUT_S)

    def stop(self):
        """End all jobs and daemons."""
        with contextlib.suppress(subprocess.SubprocessError, AssertionError):
            self._run("scancel", "--full", "-s", "KILL", "-u", "root")
            self._run("scancel", "-u", "root")
            self.until(lambda: not self._run("squeue", "-h").strip(), "no job is left")
        for name in ("slurmd.n1.pid", "slurmd.n2.pid", "slurmctld.pid", "munge/pid"):
            with contextlib.suppress(OSError, ValueError):
                pid = int((self.folder / name).read_text())
                os.kill(pid, signal.SIGTERM)
                self.until(lambda pid=pid: not Path(f"/proc/{pid}").exists(), f"{name} has ended")

    def _run(self, *command):
        done = subprocess.run(
            command, env=self.env, capture_output=True, text=True, check=False, timeout=TIMEOUT_S, cwd=self.folder
        )
        assert done.returncode == 0, (command, done.stdout, done.stderr, self.logs())
        return done.stdout

    def slurm(self, *command):
        """What one of Slurm's own commands prints."""
        return self._run(*command)

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

    def until(self, holds, what):
        """Wait until `holds()`."""
        give_up_s = time.monotonic() + TIMEOUT_S
        while not holds():
            assert time.monotonic() < give_up_s, f"never: {what}\n{self.logs()}"
            time.sleep(0.1)

    def state(self, job_id):
        """State of a job in Slurm's words."""
        found = [
            word for word in self._run("scontrol", "show", "job", str(job_id)).split() if word.startswith("JobState=")
        ]
        return found[0].partition("=")[2]

    def ended(self, job_id):
        """State of a job once it has ended."""
        going = ("PENDING", "RUNNING", "COMPLETING", "CONFIGURING")
        self.until(lambda: self.state(job_id) not in going, f"job {job_id} has ended")
        return self.state(job_id)

    def logs(self):
        return "\n".join(path.read_text()[-2000:] for path in sorted(self.folder.glob("*.log")))


def _free_ports(count):
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for opened in sockets:
            opened.bind(("127.0.0.1", 0))
        return [opened.getsockname()[1] for opened in sockets]
