"""The demo's jobs on a real Slurm with simulated GPUs: each on whole GPUs of its own, and as a pack."""

from __future__ import annotations

import contextlib
import json
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cotenant.core.errors import BackendError, UsageError
from cotenant.core.stats import mean
from cotenant.core.units import MiB, format_bytes
from cotenant.demo.published import PublishedJob
from cotenant.demo.server import uninterrupted, window_s
from cotenant.demo.slurm_cluster import GPUS, MODEL, PACKAGES, SlurmInFolder, why_no_cluster
from cotenant.simserver.server import SimulatedServer

POLL_S = 0.25
ENDED = ("COMPLETED", "FAILED", "TIMEOUT", "CANCELLED", "NODE_FAIL", "OUT_OF_MEMORY")
JOB_COMMAND = (sys.executable, "-m", "cotenant.simserver.fake_job", "--workload")


@dataclass(slots=True)
class SlurmRun:
    """How the jobs fared in one way to run them, in the time of the simulated GPUs.

    Attributes:
        makespan_s: all are queued to the last has ended; with all that Slurm and a daemon need in between.
        ended_s: of each job that has ended, by its number in the trace.
        failed: the jobs that did not complete.
        ooms: attempts that ran out of memory; `recoveries`: a sentence for each job that had one.
    """

    jobs: int
    makespan_s: float = 0.0
    ended_s: dict[int, float] = field(default_factory=dict)
    failed: list[str] = field(default_factory=list)
    ooms: int = 0
    recoveries: list[str] = field(default_factory=list)

    @property
    def mean_jct_s(self) -> float:
        """Mean of queued to ended."""
        return mean(list(self.ended_s.values())) if self.ended_s else 0.0


Show = Callable[[float, int], None]
"""Called now and then with the seconds since the jobs were queued, and how many have ended."""


class SlurmDemo:
    """Both ways to run the jobs, on one cluster; use `slurm_demo` to make one."""

    def __init__(self, cluster: SlurmInFolder, *, time_scale: float) -> None:
        self.cluster = cluster
        self.time_scale = time_scale
        self._work = cluster.folder / "work"

    def version(self) -> str:
        """As Slurm prints it."""
        return self.cluster.slurm("sbatch", "--version").strip()

    def run_whole(self, jobs: Sequence[PublishedJob], show: Show, *, limit_s: float) -> SlurmRun:
        """One job of Slurm for each, with `--gres=gpu:N`: no other job is on its GPUs.

        Raises:
            BackendError: Slurm refuses one, or they have not ended after `limit_s` of wall-clock time.
        """
        servers = self._work / "servers"
        for node in self.cluster.nodes:
            SimulatedServer.create(servers / node, f"{GPUS}x{MODEL}", time_scale=self.time_scale)
        by_id = {}
        for job in jobs:
            wrap = f"COTENANT_SIM_SERVER={servers}/$SLURMD_NODENAME exec {shlex.join((*JOB_COMMAND, job.workload))}"
            words = ("sbatch", "--parsable", "--hold", f"--gres=gpu:{job.gpus}", "-J", job.workload, "--wrap", wrap)
            by_id[self.cluster.slurm(*words, "-o", f"{self._work}/whole-%j.out").strip()] = job
        run = SlurmRun(jobs=len(jobs))
        began_s = time.monotonic()
        self.cluster.slurm("scontrol", "release", ",".join(by_id))

        def ended() -> dict[int, str]:
            lines = self.cluster.slurm("squeue", "-h", "-t", "all", "-o", "%i %T").splitlines()
            states = dict(line.split() for line in lines)
            return {by_id[name].number: state for name, state in states.items() if name in by_id and state in ENDED}

        self._watch(run, ended, show, began_s, limit_s, lambda: None)
        names = {job.number: job.workload for job in jobs}
        run.failed = [f"{names[number]}: {state}" for number, state in ended().items() if state != "COMPLETED"]
        return run

    def run_packed(self, jobs: Sequence[PublishedJob], show: Show, *, limit_s: float) -> SlurmRun:
        """One allocation of all GPUs, in which `cotenant pack` shares the list between the nodes.

        Raises:
            BackendError: it fails, or has not ended after `limit_s` of wall-clock time.
        """
        listed, folder = self._work / "jobs.txt", self._work / "jobs.pack"
        lines = [_line(job) for job in jobs]
        listed.write_text("\n".join(lines) + "\n", encoding="utf-8")
        numbers = dict(enumerate(jobs, start=1))
        run = SlurmRun(jobs=len(jobs))
        began_s = time.monotonic()
        nodes = len(self.cluster.nodes)
        words = ["srun", "-N", str(nodes), "-n", str(nodes), f"--gres=gpu:{GPUS}", f"--chdir={self._work}"]
        words += [*PACK, "--simulate", f"{GPUS}x{MODEL}", listed.name]
        log = self._work / "pack.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                words, env=self._pack_env(), stdin=subprocess.DEVNULL, stdout=output, stderr=output
            )
        try:

            def check() -> None:
                if process.poll() is not None and len(_entries(folder)) < len(jobs):
                    raise BackendError(f"the pack ended: {log.read_text(errors='replace')[-1000:].strip()}")

            self._watch(
                run,
                lambda: {numbers[entry["line"]].number: entry["state"] for entry in _entries(folder)},
                show,
                began_s,
                limit_s,
                check,
            )
            process.wait(timeout=limit_s)
        finally:
            if process.poll() is None:
                process.terminate()
                process.wait()
        add_results(run, _entries(folder), numbers)
        return run

    def _pack_env(self) -> Mapping[str, str]:
        """The daemons of a pack read these: time passes faster for their GPUs, and for their window of samples."""
        return {
            **self.cluster.env,
            "COTENANT_GPUS__TIME_SCALE": f"{self.time_scale:g}",
            "COTENANT_SCHEDULING__WINDOW_S": f"{window_s(self.time_scale):g}",
        }

    def _watch(
        self,
        run: SlurmRun,
        ended: Callable[[], Mapping[int, str]],
        show: Show,
        began_s: float,
        limit_s: float,
        check: Callable[[], None],
    ) -> None:
        """Record when each job ends, until all have."""
        while len(run.ended_s) < run.jobs:
            found = ended()
            elapsed_s = time.monotonic() - began_s
            for number in found:
                run.ended_s.setdefault(number, elapsed_s * self.time_scale)
            show(elapsed_s * self.time_scale, len(run.ended_s))
            if elapsed_s > limit_s:
                left = run.jobs - len(run.ended_s)
                raise BackendError(f"{left} of {run.jobs} jobs have not ended after {limit_s:.0f} s")
            check()
            time.sleep(POLL_S)
        run.makespan_s = max(run.ended_s.values())


PACK = (sys.executable, "-m", "cotenant", "pack", "--policy-options", "smact_limit=1.0")
"""As in the other demo: without the default limit on SM activity, with which memory rarely runs out."""


def _line(job: PublishedJob) -> str:
    """The job as a line of a list."""
    words = ("--gpus", str(job.gpus), "--gpu-mem", f"{job.reported_bytes // MiB}M", "--", *JOB_COMMAND, job.workload)
    return shlex.join(words)


def add_results(run: SlurmRun, entries: Sequence[Mapping[str, Any]], by_line: Mapping[int, PublishedJob]) -> None:
    """Add what a pack has recorded of its jobs, which are known by the number of their line."""
    for entry in entries:
        job, repeated = by_line[entry["line"]], entry["attempts"] - 1
        if entry["state"] != "COMPLETED":
            run.failed.append(f"{job.workload}: {entry['state']}")
        if repeated:
            run.ooms += repeated
            run.recoveries.append(
                f"{job.workload} declared {format_bytes(job.reported_bytes)} and ran out of memory {repeated} x; "
                f"then with {format_bytes(entry['promised_bytes'])}: {entry['state']}"
            )


def _entries(folder: Path) -> list[dict[str, Any]]:
    """What the pack has recorded so far."""
    found = []
    for path in folder.glob("done-*.jsonl"):
        for line in path.read_text(encoding="utf-8").splitlines():
            with contextlib.suppress(ValueError):  # a line that is being written
                found.append(json.loads(line))
    return found


@contextlib.contextmanager
def slurm_demo(*, time_scale: float) -> Iterator[SlurmDemo]:
    """A cluster for the duration of a `with` block.

    Raises:
        UsageError: there can be none here. BackendError: it does not start.
    """
    reason = why_no_cluster()
    if reason is not None:
        raise UsageError(
            f"the demo on Slurm cannot run: {reason}",
            hint="as root on Debian or Ubuntu: scripts/install_slurm.sh, "
            f"or apt-get install {PACKAGES} slurm-wlm-basic-plugins",
        )
    folder = Path(tempfile.mkdtemp(prefix="cotenant-slurm-"))
    try:
        cluster = SlurmInFolder(folder)
        try:
            cluster.start()
            yield SlurmDemo(cluster, time_scale=time_scale)
        finally:
            with uninterrupted():
                cluster.stop()
    finally:
        with uninterrupted():
            shutil.rmtree(folder, ignore_errors=True)
