"""A Slurm of its own in one folder: slurmctld and some slurmd on this machine, with fake GPUs, without systemd.

It needs root, and the programs of Debian's packages slurmctld, slurmd, slurm-client and munge. The GPUs are twins of
/dev/null, with shards, by the lines that `cotenant slurm config` writes. Nothing of a Slurm that runs here is touched:
ports, keys, sockets and states are in the folder.
"""

from __future__ import annotations

import contextlib
import functools
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from cotenant.core.errors import BackendError
from cotenant.core.units import GiB
from cotenant.osutil import procfs
from cotenant.slurm.site_files import GresTypeOf, NodeGroup, SiteLines, site_lines

PROGRAMS = ("slurmctld", "slurmd", "sbatch", "munged", "scontrol")
PACKAGES = "slurmctld slurmd slurm-client munge"
TIMEOUT_S = 200.0
"""Slurm starts in 2 s; on a machine that is busy with other things it has taken a minute."""
END_TIMEOUT_S = 30.0
"""Until a daemon that does not end is killed."""
POLL_S = 0.1
MODEL = "A100-40GB"
SHARDS = 40  # of a GPU, 1 GiB each
GPUS = 2  # of a node

_CONF = """
ClusterName=cot
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller_port}
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
{nodes}
PartitionName=gpu Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""
_NODE = "NodeName={name} NodeAddr=127.0.0.1 Port={port} CPUs=16 RealMemory=2000 Gres={gres}\n"


def why_no_cluster() -> str | None:
    """Why no cluster can be started here; None if it can."""
    if os.geteuid() != 0:
        return "a Slurm cluster needs root here"
    absent = [name for name in PROGRAMS if shutil.which(name) is None]
    return f"{', '.join(absent)} not installed (Debian: {PACKAGES})" if absent else None


class SlurmInFolder:
    """The cluster. Call `stop` also if `start` fails.

    `type_of`: what a type of its GPUs names; see `site_lines`.

    Attributes:
        env: with which Slurm's commands, and cotenant, find this cluster.
        lines: of its gres.conf.
    """

    def __init__(self, folder: Path, type_of: GresTypeOf = "none", nodes: tuple[str, ...] = ("n1", "n2")) -> None:
        self.folder = folder
        self.nodes = nodes
        group = NodeGroup(
            names=",".join(nodes), model=MODEL, memory_bytes=SHARDS * GiB, gpus=GPUS, device=f"{folder}/gpu%d"
        )
        self.lines: SiteLines = site_lines([group], type_of)
        inherited = {key: value for key, value in os.environ.items() if not key.startswith(("SLURM_", "SBATCH_"))}
        self.env = {
            **inherited,
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "SLURM_CONF": str(folder / "slurm.conf"),
            "XDG_STATE_HOME": str(folder / "home-state"),
            "XDG_RUNTIME_DIR": str(folder / "run"),
            "TMPDIR": str(folder / "tmp"),
            "COTENANT_TO": "slurm",
        }

    def start(self) -> None:
        """Write its files, start its daemons, and wait until its nodes are idle.

        Raises:
            BackendError: it does not start; the message has the end of Slurm's logs.
        """
        for name in ("state", "spool", "munge", "run", "work", "tmp"):
            (self.folder / name).mkdir()
        self.folder.chmod(0o755)
        for index in range(GPUS):
            os.mknod(self.folder / f"gpu{index}", 0o666 | 0o020000, os.makedev(1, 3))
        controller_port, *ports = free_ports(1 + len(self.nodes))
        (gres,) = self.lines.node_gres.values()
        text = _CONF.format(
            host=socket.gethostname().partition(".")[0],
            controller_port=controller_port,
            folder=self.folder,
            nodes="".join(
                _NODE.format(name=name, port=port, gres=gres) for name, port in zip(self.nodes, ports, strict=True)
            ),
        )
        (self.folder / "slurm.conf").write_text(text)
        (self.folder / "gres.conf").write_text("\n".join(self.lines.gres_conf) + "\n")
        self._start_munge()
        self.slurm("slurmctld")
        for node in self.nodes:
            self.slurm("slurmd", "-N", node)
        self.until(lambda: self.slurm("sinfo", "-h", "-o", "%t").split() == ["idle"], "nodes are idle")

    def _start_munge(self) -> None:
        folder = self.folder / "munge"
        key = folder / "key"
        key.write_bytes(os.urandom(1024))
        key.chmod(0o400)
        shutil.chown(key, "munge", "munge")
        shutil.chown(folder, "munge", "munge")
        folder.chmod(0o755)
        files = {"socket": "socket", "key-file": "key", "pid-file": "pid", "log-file": "log", "seed-file": "seed"}
        options = [f"--{name}={folder}/{file}" for name, file in files.items()]
        self.slurm("runuser", "-u", "munge", "--", "munged", *options)

    def stop(self) -> None:
        """End all jobs and daemons."""
        with contextlib.suppress(subprocess.SubprocessError, BackendError):
            self.slurm("scancel", "--full", "-s", "KILL", "-u", "root")
            self.slurm("scancel", "-u", "root")
            self.until(lambda: not self.slurm("squeue", "-h").strip(), "no job is left")
        ending: dict[str, int] = {}
        for name in (*(f"slurmd.{node}.pid" for node in self.nodes), "slurmctld.pid", "munge/pid"):
            with contextlib.suppress(OSError, ValueError):
                pid = int((self.folder / name).read_text())
                os.kill(pid, signal.SIGTERM)
                ending[name] = pid
        give_up_s = time.monotonic() + END_TIMEOUT_S
        for name, pid in ending.items():  # each takes a second or two
            while not _has_ended(pid) and time.monotonic() < give_up_s:
                time.sleep(POLL_S)
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            self.until(functools.partial(_has_ended, pid), f"{name} has ended")

    def slurm(self, *command: str) -> str:
        """What one of Slurm's commands prints.

        Raises:
            BackendError: it fails; the message has the end of Slurm's logs.
        """
        done = subprocess.run(
            command, env=self.env, capture_output=True, text=True, check=False, timeout=TIMEOUT_S, cwd=self.folder
        )
        if done.returncode:
            raise BackendError(f"`{' '.join(command)}` failed: {done.stdout}{done.stderr}\n{self.logs()}")
        return done.stdout

    def until(self, holds: Callable[[], bool], what: str) -> None:
        """Wait until `holds()`.

        Raises:
            BackendError: it does not within `TIMEOUT_S`.
        """
        give_up_s = time.monotonic() + TIMEOUT_S
        while not holds():
            if time.monotonic() >= give_up_s:
                raise BackendError(f"never: {what}\n{self.logs()}")
            time.sleep(POLL_S)

    def logs(self) -> str:
        """The ends of the daemons' logs."""
        return "\n".join(path.read_text(errors="replace")[-2000:] for path in sorted(self.folder.glob("*.log")))


def _has_ended(pid: int) -> bool:
    """Daemons are children of pid 1, which in a container may collect zombies late, or never."""
    return procfs.start_ticks(pid) is None


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on, outside of the range from which the kernel takes those of connections (ip(7)).

    A port of that range may be taken before its daemon listens, or while a killed one is started again.
    """
    first, last = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
    outside = [port for port in range(10_000, 65_536) if not first <= port <= last] or [0]
    with contextlib.ExitStack() as stack:
        found: list[int] = []
        while len(found) < count:
            opened = stack.enter_context(socket.socket())
            with contextlib.suppress(OSError):  # taken
                opened.bind(("", random.choice(outside)))  # noqa: S311 - no secret
                found.append(opened.getsockname()[1])
        return found
