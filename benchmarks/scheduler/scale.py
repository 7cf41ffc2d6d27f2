"""One manager over many hosts: what each costs per second, and which part is full first.

    python -m benchmarks.scheduler.scale [--quick] [--write] [--seed N]

For 1, 12, 125 and 1,250 hosts of 8 GPUs, each size in a process of its own: two jobs run on each GPU and two wait for
each, and up to 2,000 small jobs a second come and go. Measured in CPU time: a sample of all GPUs (`ServerSampled`), the
whole life of one more job (submitted, placed, started, ended), reading one host's message, and merging those of all
hosts; and the memory of the process.

The messages are those of agents (`hosts/messages.py`), one a host and second, with its GPUs, their samples and the
owners of processes; their bytes as they are, and in one zlib stream that is flushed after each line, which agents do
not use. The jobs' own messages (launch, started, ended) are left out. Last, Philly four times over on 1,250 simulated
hosts.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import platform
import random
import resource
import statistics
import subprocess
import sys
import time
import zlib
from dataclasses import replace
from typing import cast

from benchmarks._lib.results import add_write_option, commit, today, write_result
from cotenant.core.events import (
    AttemptExited,
    AttemptSample,
    AttemptStarted,
    Command,
    JobSubmitted,
    Launch,
    ServerSampled,
)
from cotenant.core.gpu import Gpu, GpuProcess, GpuSample
from cotenant.core.job import AttemptExit, JobSpec, ProcessId
from cotenant.core.units import GiB
from cotenant.hosts.gpu_listing import HostGpus
from cotenant.hosts.link import HostLink
from cotenant.hosts.messages import HostReading, line_of, parsed, reading_of
from cotenant.scheduling.manager import Manager, ManagerConfig
from cotenant.scheduling.policies import create
from cotenant.sim import cluster, traces
from cotenant.sim.simulate import simulate
from cotenant.sim.traces import transforms

HOSTS = (1, 12, 125, 1250)
GPUS = 8  # of a host
POLICY, OPTIONS = "most-memory", {"warmup_s": 0.0, "smact_limit": 1.0}
RUNNING, WAITING = 2, 2  # for each GPU
RUNNING_BYTES, WAITING_BYTES = 12 * GiB, 30 * GiB  # of 40: two run, and none of those that wait fits beside them
SMALL_BYTES = 2 * GiB  # of the jobs that come and go
JOBS_A_SECOND = 2000
MESSAGES = 60
PHILLY_TIMES = 4


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="up to 125 hosts, and 4,000 jobs of Philly")
    parser.add_argument("--seed", type=int, default=1, help="random seed (default: %(default)s)")
    add_write_option(parser)
    parser.add_argument("--only", help="one size, or `philly`, in this process; prints JSON")
    args = parser.parse_args()
    if args.only:
        found = philly(quick=args.quick) if args.only == "philly" else one(int(args.only), args.seed, quick=args.quick)
        print(json.dumps(found))
        return 0
    sizes = HOSTS[:-1] if args.quick else HOSTS
    rows = [in_process(str(hosts), args) for hosts in sizes]
    report = "\n".join(lines(rows, in_process("philly", args)))
    print(report)
    if args.write:
        write(report)
    return 0


def in_process(name: str, args: argparse.Namespace) -> dict[str, float]:
    command = [sys.executable, "-m", "benchmarks.scheduler.scale", "--only", name, "--seed", str(args.seed)]
    print(name, file=sys.stderr, flush=True)
    done = subprocess.run(command + ["--quick"] * args.quick, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout)


class FullCluster:
    """A manager whose GPUs all run `RUNNING` jobs, and its next messages."""

    def __init__(self, hosts: int, seed: int) -> None:
        self.rng = random.Random(seed)
        self.gpus = tuple(
            Gpu(
                uuid=f"GPU-{self.rng.getrandbits(128):032x}",
                index=index,
                name="A100-40GB",
                memory_total_bytes=40 * GiB,
                server=f"node-{index // GPUS:04d}",
            )
            for index in range(hosts * GPUS)
        )
        self.manager = Manager(create(POLICY, OPTIONS), ManagerConfig(estimate=False))
        self.on_gpu: dict[str, list[int]] = {gpu.uuid: [] for gpu in self.gpus}
        self.next_id = 1
        self.at_s = 0.0
        self.manager.handle(self.sampled())
        for _ in range(RUNNING * len(self.gpus)):
            for launch in self.submit(RUNNING_BYTES):
                job_id, uuid = self.started(launch)
                self.on_gpu[uuid].append(job_id)
        placed = sum(map(len, self.on_gpu.values()))
        if placed != RUNNING * len(self.gpus):
            raise SystemExit(f"{placed} jobs run, wanted {RUNNING * len(self.gpus)}: the setup is wrong")
        for _ in range(WAITING * len(self.gpus)):
            if self.submit(WAITING_BYTES):
                raise SystemExit("a job started that was to wait: the setup is wrong")

    def submit(self, declared_bytes: int) -> list[Launch]:
        """Submit one job: the jobs that start then."""
        job_id, self.next_id = self.next_id, self.next_id + 1
        spec = JobSpec(
            command=("python", "train.py", "--seed", str(job_id)),
            workdir="/home/ann/project",
            env={"PATH": "/usr/bin"},
            user="ann",
            uid=1000,
            name="train.py",
            declared_bytes=declared_bytes,
        )
        return launches(self.manager.handle(JobSubmitted(at_s=self.at_s, cause="bench", job_id=job_id, spec=spec)))

    def started(self, launch: Launch) -> tuple[int, str]:
        """The job has started: its id and GPU."""
        job_id = launch.placed.job_id
        (uuid,) = launch.placed.placement.gpu_uuids
        process = ProcessId(pid=job_id, start_ticks=1, boot_id="boot")
        self.manager.handle(AttemptStarted(at_s=self.at_s, cause="bench", job_id=job_id, attempt=1, process=process))
        return job_id, uuid

    def end(self, job_id: int, uuid: str) -> None:
        """The job has ended."""
        done = AttemptExit(exit_code=0, signal=None, reason="exited")
        peak = {uuid: SMALL_BYTES}
        self.manager.handle(
            AttemptExited(at_s=self.at_s, cause="bench", job_id=job_id, attempt=1, exit=done, peak_observed_bytes=peak)
        )

    def come_and_go(self, count: int) -> float:
        """The next second, in which `count` small jobs come, start and end: CPU seconds of all of it.

        With many waiting jobs the manager looks at new ones with the next sample (`eager_queue`), not at once.
        """
        event = self.sampled()
        began_s = time.process_time()
        found = [launch for _ in range(count) for launch in self.submit(SMALL_BYTES)]
        found += launches(self.manager.handle(event))
        if len(found) != count:
            raise SystemExit(f"{len(found)} of {count} small jobs were placed: the setup is wrong")
        for started in [self.started(launch) for launch in found]:
            self.end(*started)
        return time.process_time() - began_s

    def host_readings(self, host: int) -> tuple[list[GpuSample], list[AttemptSample]]:
        """What one host measures now."""
        rng, samples, observed = self.rng, [], []
        for gpu in self.gpus[host * GPUS : (host + 1) * GPUS]:
            used = [rng.randrange(8 * GiB, RUNNING_BYTES) for _ in self.on_gpu[gpu.uuid]]
            processes = tuple(
                GpuProcess(pid=100_000 + job_id, used_bytes=held, sm=round(rng.random() / 2, 2))
                for job_id, held in zip(self.on_gpu[gpu.uuid], used, strict=True)
            )
            smact = round(rng.random(), 4)
            samples.append(
                GpuSample(
                    at_s=self.at_s,
                    used_bytes=sum(used) + 500_000_000,
                    smact=smact,
                    smocc=round(smact / 2, 4),
                    drama=round(smact / 3, 4),
                    utilization=round(rng.random(), 2),
                    power_w=round(60 + 340 * smact, 3),
                    energy_j=round(1e9 + 300 * self.at_s + rng.random(), 3),
                    processes=processes,
                )
            )
            observed += [
                AttemptSample(
                    job_id=job_id,
                    attempt=1,
                    gpu_uuid=gpu.uuid,
                    used_bytes=held,
                    sm=process.sm,
                    steps_hz=round(10 * rng.random(), 3),
                )
                for job_id, held, process in zip(self.on_gpu[gpu.uuid], used, processes, strict=True)
            ]
        return samples, observed

    def message(self, host: int) -> bytes:
        """The line that the agent of one host sends now."""
        gpus = self.gpus[host * GPUS : (host + 1) * GPUS]
        samples, _ = self.host_readings(host)
        refs = {100_000 + job_id: [job_id, 1] for gpu in gpus for job_id in self.on_gpu[gpu.uuid]}
        return line_of(
            {
                "say": "sample",
                "gpus": [replace(gpu, index=index) for index, gpu in enumerate(gpus)],
                "samples": {gpu.uuid: sample for gpu, sample in zip(gpus, samples, strict=True)},
                "owners": {str(pid): ref for pid, ref in refs.items()},
                "clock_s": self.at_s,
            }
        )

    def sampled(self) -> ServerSampled:
        """What all hosts measure in the next second."""
        self.at_s += 1.0
        samples, observed = {}, []
        for host in range(len(self.gpus) // GPUS):
            of_gpus, of_attempts = self.host_readings(host)
            gpus = self.gpus[host * GPUS : (host + 1) * GPUS]
            samples.update({gpu.uuid: sample for gpu, sample in zip(gpus, of_gpus, strict=True)})
            observed += of_attempts
        return ServerSampled(at_s=self.at_s, cause="bench", gpus=self.gpus, samples=samples, observed=tuple(observed))


def launches(commands: list[Command]) -> list[Launch]:
    return [command for command in commands if isinstance(command, Launch)]


class SilentLink:
    """A host whose agent has sent one message."""

    def __init__(self, reading: HostReading) -> None:
        self._reading = reading

    def reading(self) -> tuple[HostReading, float]:
        return self._reading, self._reading.clock_s


def merging_s(readings: list[HostReading], next_readings: list[HostReading]) -> float:
    """CPU seconds for one list of the GPUs and samples of all hosts, as the daemon makes it at each tick."""
    merged, began_s = HostGpus(), 0.0
    for found in (readings, next_readings):
        links = cast("dict[str, HostLink]", {reading.gpus[0].server: SilentLink(reading) for reading in found})
        hosts = {ref: reading.gpus[0].server for reading in found for ref in reading.owners.values()}
        began_s = time.process_time()
        merged.inventory(links, ())
        merged.inventory(links, ())
        samples = merged.sample(found[0].clock_s, links, hosts)
    took_s = time.process_time() - began_s
    if len(samples) != GPUS * len(readings):
        raise SystemExit(f"{len(samples)} samples were merged: the setup is wrong")
    return took_s


def one(hosts: int, seed: int, *, quick: bool) -> dict[str, float]:
    """All figures of one size."""
    gc.collect()
    before_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    full = FullCluster(hosts, seed)
    gc.collect()
    gc.freeze()
    seconds = 5 if quick else 9
    ticks = [full.come_and_go(0) for _ in range(seconds)]
    jobs = min(JOBS_A_SECOND, 4 * len(full.gpus))  # for which there is memory
    busy = [full.come_and_go(jobs) for _ in range(seconds)]
    tick_s = statistics.median(ticks)
    job_s = (statistics.median(busy) - tick_s) / jobs
    after_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    texts, stream, packed = [], zlib.compressobj(), []
    for _ in range(MESSAGES):
        full.at_s += 1.0
        texts.append(full.message(0))
        packed.append(len(stream.compress(texts[-1]) + stream.flush(zlib.Z_SYNC_FLUSH)))
    began_s = time.process_time()
    for text in texts:
        reading_of(parsed(text), "node-0000")
    read_s = (time.process_time() - began_s) / MESSAGES
    of_all, next_of_all = (
        [reading_of(parsed(full.message(host)), f"node-{host:04d}") for host in range(hosts)] for _ in range(2)
    )
    merge_s = merging_s(of_all, next_of_all)
    return {
        "hosts": hosts,
        "gpus": hosts * GPUS,
        "running": RUNNING * hosts * GPUS,
        "waiting": WAITING * hosts * GPUS,
        "tick_s": tick_s,
        "job_s": job_s,
        "read_s": read_s,
        "merge_s": merge_s,
        "text_bytes": statistics.mean(map(len, texts)),
        "packed_bytes": statistics.mean(packed[1:]),
        "rss_mib": (after_kib - before_kib) / 1024,
    }


def philly(*, quick: bool) -> dict[str, float]:
    """Philly, each job four times, on 1,250 hosts."""
    trace = traces.load("philly")
    if quick:
        trace = transforms.first_jobs(trace, 1000)
    made = transforms.repeated(transforms.assign(trace), PHILLY_TIMES)
    began_s = time.process_time()
    run = simulate(made, cluster.parse(f"{HOSTS[-1]}*{GPUS}xA100-40GB"), POLICY, options={"max_jobs": 4})
    seconds = time.process_time() - began_s
    return {
        "jobs": len(made),
        "ended": run.completed,
        "decisions": run.decisions,
        "seconds": seconds,
        "rss_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "makespan_s": run.makespan_s,
    }


def lines(rows: list[dict[str, float]], simulated: dict[str, float]) -> list[str]:
    """The tables, and what is full first."""
    names: tuple[str, ...] = (
        "hosts",
        "GPUs",
        "running",
        "waiting",
        "one sample, ms",
        "a job, ms",
        "reading all messages, ms",
        "merging them, ms",
    )
    names += ("messages, kB/s", "the same in zlib", "MiB")
    out = [f"| {' | '.join(names)} |", "|" + " ---: |" * len(names)]
    for row in rows:
        hosts = row["hosts"]
        out.append(
            f"| {hosts:,} | {row['gpus']:,} | {row['running']:,} | {row['waiting']:,} | {1e3 * row['tick_s']:.1f} | "
            f"{1e3 * row['job_s']:.2f} | {1e3 * hosts * row['read_s']:.1f} | "
            f"{1e3 * row['merge_s']:.1f} | {hosts * row['text_bytes'] / 1e3:,.0f} | "
            f"{hosts * row['packed_bytes'] / 1e3:,.0f} | {row['rss_mib']:,.0f} |"
        )
    return [*out, "", *manager_summary(rows[-1]), "", *philly_summary(simulated)]


def manager_summary(row: dict[str, float]) -> list[str]:
    """What is full first, for the largest size."""
    reading_s = row["hosts"] * row["read_s"]
    telemetry_s = row["tick_s"] + reading_s + row["merge_s"]
    out = [
        f"With a sample each second, {row['gpus']:,} GPUs take {telemetry_s:.2f} s of CPU a second:",
        f"{row['tick_s']:.2f} in the manager, {reading_s:.2f} to read {row['hosts']:,} messages of",
        f"{row['text_bytes']:,.0f} bytes ({row['packed_bytes']:,.0f} in zlib), {row['merge_s']:.2f} to merge them.",
        f"Agents send {row['hosts'] * row['text_bytes'] / 1e6:.1f} MB a second. Threads of one Python take turns:",
    ]
    left_s = 1.0 - telemetry_s
    if left_s > 0:
        return [*out, f"{left_s:.2f} s are left, for {left_s / row['job_s']:,.0f} jobs a second."]
    every_s = 2 * telemetry_s
    rate = 0.5 / row["job_s"]
    return [
        *out,
        f"it is full. A sample each {every_s:.1f} s takes half of it, and the rest {rate:,.0f} jobs a second.",
    ]


def philly_summary(run: dict[str, float]) -> list[str]:
    """The simulation."""
    return [
        f"Simulated: {run['jobs']:,.0f} jobs of Philly ({PHILLY_TIMES} times over) on {HOSTS[-1]:,} hosts,",
        f"`{POLICY}`: {run['decisions']:,.0f} decisions in {run['seconds']:.1f} s of CPU,",
        f"{run['decisions'] / run['seconds']:,.0f} a second, {run['rss_mib']:,.0f} MiB in all;",
        f"{run['ended']:,.0f} jobs completed.",
    ]


def write(report: str) -> None:
    load = ", ".join(f"{average:.1f}" for average in os.getloadavg())
    head = [
        f"# One manager over 1,250 hosts, {today()}",
        "",
        f"Commit {commit()}; Python {platform.python_version()}; {os.cpu_count()} cores, load {load}; no GPU.",
        f"Policy `{POLICY}`; on each GPU {RUNNING} jobs run and {WAITING} wait. Times are CPU time of one thread;",
        "messages are those of the agents of all hosts in one second. Memory is what the manager adds to the process.",
        "Repeat with `python -m benchmarks.scheduler.scale --write`.",
        "",
    ]
    write_result("scale", "\n".join([*head, report, ""]))


if __name__ == "__main__":
    sys.exit(main())
