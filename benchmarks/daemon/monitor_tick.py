"""CPU time of one monitoring tick: sample the GPUs, attribute processes to jobs, accumulate telemetry.

    python -m benchmarks.daemon.monitor_tick [--gpus 8] [--jobs 4] [--ticks 300] [--quick] [--write]

Two backends: NVML with a fake driver (so only Python's time counts, not the driver's), and the simulated server, whose
GPUs are files. Every job reports its steps in a progress file; under NVML every job is a process of its own. Times are
CPU time of the thread, so other load on the machine hardly matters. One 10 ms tick per second is 1 % of a core; the
goal is 5 ms for 8 GPUs.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from benchmarks._lib.results import add_write_option, today, write_result

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))
from cotenant import gpus
from cotenant.core.events import AttemptPlaced, JobSubmitted, ServerSampled
from cotenant.core.job import JobSpec
from cotenant.core.placement import Placement
from cotenant.core.ports import AttemptRef, GpuBackend
from cotenant.core.units import GiB
from cotenant.daemon.monitoring.monitor import Monitor
from cotenant.daemon.services.progress import ProgressService
from cotenant.engines.attempt_dir import AttemptDir
from cotenant.engines.local import LocalEngine, _WatchedAttempt
from cotenant.gpus.timeseries import GpuTimeSeries
from cotenant.scheduling import policies
from cotenant.scheduling.manager import Manager
from cotenant.simserver.backend import SimulatedServer
from fake_pynvml import MIB, FakeDriver, FakeGpu

PARTS = ("sample GPUs", "attribute processes, read progress", "store history", "update manager", "total")


class TimedBackend:
    """Wraps a backend; `spent_s` is the thread's CPU time for the last sample."""

    def __init__(self, backend: GpuBackend) -> None:
        self._backend = backend
        self.name = backend.name
        self.spent_s = 0.0
        self.inventory = backend.inventory
        self.close = backend.close

    def sample(self, at_s: float) -> Mapping[str, object]:
        """Sample the backend and time it."""
        before_s = time.thread_time()
        found = self._backend.sample(at_s)
        self.spent_s = time.thread_time() - before_s
        return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpus", type=int, default=8, help="number of GPUs (default: %(default)s)")
    parser.add_argument("--jobs", type=int, default=4, help="jobs per GPU (default: %(default)s)")
    parser.add_argument("--ticks", type=int, default=300, help="ticks to measure (default: %(default)s)")
    parser.add_argument("--quick", action="store_true", help="30 ticks")
    add_write_option(parser)
    args = parser.parse_args()
    ticks = 30 if args.quick else args.ticks
    rows = []
    for name, make in (("nvml, no driver", nvml), ("simulated", simulated)):
        with tempfile.TemporaryDirectory(prefix="cotenant-tick-") as folder, processes(args.gpus * args.jobs) as pids:
            rows += measured(name, make, Path(folder), pids, args.gpus, args.jobs, ticks)
    text = "\n".join(
        [
            f"# One monitoring tick: {args.gpus} GPUs with {args.jobs} jobs each, {today()}",
            "",
            f"Python {platform.python_version()}; no GPU. Milliseconds of CPU time, over {ticks} ticks.",
            "The goal is a total of 5 ms. Repeat with `python -m benchmarks.daemon.monitor_tick --write`.",
            "",
            "| backend | part | median | P95 | max |",
            "| --- | --- | ---: | ---: | ---: |",
            *rows,
            "",
        ]
    )
    print(text)
    if args.write:
        write_result("monitor_tick", text)
    return 0


@contextmanager
def processes(count: int) -> Iterator[list[int]]:
    """The PIDs of `count` sleeping processes."""
    started = [
        subprocess.Popen(["sleep", "600"], start_new_session=True, stdout=subprocess.DEVNULL) for _ in range(count)
    ]
    try:
        yield [process.pid for process in started]
    finally:
        for process in started:
            process.kill()
            process.wait()


def nvml(_: Path, pids: list[int], count: int, jobs_per_gpu: int) -> tuple[GpuBackend, Callable[[int], None]]:
    """NVML with GPM metrics and SM samples, and a function that renews these before each tick."""
    devices = [
        FakeGpu(
            uuid=f"GPU-{i}",
            gpm=(50.0, 20.0, 30.0),
            processes=[(pid, 1024 * MIB) for pid in pids[i * jobs_per_gpu : (i + 1) * jobs_per_gpu]],
        )
        for i in range(count)
    ]
    sys.modules["pynvml"] = FakeDriver(*devices)

    def renew(tick: int) -> None:
        for gpu in devices:
            gpu.sm_samples = [(pid, 1_000_000 * (tick + 1), 20) for pid, _ in gpu.processes]
            gpu.energy_mj += 300_000

    return gpus.create("nvml"), renew


def simulated(
    folder: Path, _pids: list[int], count: int, jobs_per_gpu: int
) -> tuple[GpuBackend, Callable[[int], None]]:
    """Simulated GPUs; this process attaches on behalf of all jobs."""
    server = SimulatedServer.create(folder / "server", f"{count}xA100-40GB")
    for index in range(count):
        for _ in range(jobs_per_gpu):
            server.attach(str(index), context_bytes=GiB).set_activity(smact=0.3, utilization=0.5)
    return gpus.create("simulated", gpus.BackendOptions(simulated_dir=folder / "server")), lambda _: None


def measured(
    name: str, make: Callable[..., tuple[GpuBackend, Callable[[int], None]]], folder: Path, pids: list[int],
    count: int, jobs_per_gpu: int, ticks: int,
) -> list[str]:  # fmt: skip
    """One table row per part."""
    plain, renew = make(folder, pids, count, jobs_per_gpu)
    backend = TimedBackend(plain)
    inventory = backend.inventory()
    refs = {pid: AttemptRef(job_id=i + 1, attempt=1) for i, pid in enumerate(pids)}
    engine = LocalEngine(folder / "state")
    files = ProgressService(folder / "progress")
    paths = [files.create_file(ref.job_id, os.geteuid()) for ref in refs.values()]
    # Register the processes as if the engine had started them; on the simulated server all are this process.
    for pid, ref in refs.items() if name != "simulated" else [(os.getsid(0), AttemptRef(job_id=1, attempt=1))]:
        folder_of = AttemptDir(folder, ref)
        engine._watched[ref] = _WatchedAttempt(attempt_dir=folder_of, runner_pid=pid, runner=None, descriptor=-1)
    clock = iter(range(1, 10**9))
    monitor = Monitor(
        backend,  # type: ignore[arg-type]
        engine,
        tick_s=1.0,
        now=lambda: float(next(clock)),
        emit=lambda _: None,
        observe=files.observe,
    )
    manager, past = a_manager([gpu.uuid for gpu in inventory], jobs_per_gpu), GpuTimeSeries(folder / "past.jsonl")
    spent: dict[str, list[float]] = {part: [] for part in PARTS}
    for tick in range(ticks + 5):
        renew(tick)
        for path in paths:
            if path is not None:
                Path(path).write_text(f"{10 * tick} {tick}.0\n")
        begin_s = time.thread_time()
        event: ServerSampled = monitor.read()
        read_s = time.thread_time()
        past.add(event.samples)
        stored_s = time.thread_time()
        manager.handle(event)
        end_s = time.thread_time()
        if tick >= 5:
            times = (
                backend.spent_s,
                read_s - begin_s - backend.spent_s,
                stored_s - read_s,
                end_s - stored_s,
                end_s - begin_s,
            )
            for part, seconds in zip(PARTS, times, strict=True):
                spent[part].append(1000 * seconds)
    backend.close()
    engine.close()
    return [
        f"| {name} | {part} | {statistics.median(values):.2f} | {sorted(values)[int(0.95 * len(values))]:.2f} | "
        f"{max(values):.2f} |"
        for part, values in spent.items()
    ]


def a_manager(uuids: list[str], jobs_per_gpu: int) -> Manager:
    """A manager with `jobs_per_gpu` placed jobs on each GPU."""
    manager = Manager(policies.create("most-memory", {}))
    for index in range(len(uuids) * jobs_per_gpu):
        job_id, uuid = index + 1, uuids[index // jobs_per_gpu]
        spec = JobSpec(
            command=("python", f"{job_id}.py"),
            workdir="/",
            env={},
            user="ann",
            uid=1000,
            name="job",
            declared_bytes=GiB,
        )
        place = Placement(job_id=job_id, gpu_uuids=(uuid,), sharing="time-sliced", promised_bytes=GiB)
        manager.handle(JobSubmitted(at_s=0.0, cause="", job_id=job_id, spec=spec))
        manager.handle(AttemptPlaced(at_s=0.0, cause="", job_id=job_id, attempt=1, placement=place))
    return manager


if __name__ == "__main__":
    sys.exit(main())
