"""Decisions per second of the registered policies, compared with a plain loop on the same servers in the same run.

One decision places one job. `plain loop` is a lower bound: a scan of two arrays for the GPU with the most free memory
below an activity cap, without reasons, checks or promises. `incremental` is a policy in steady state: a job arrives,
the oldest running job releases its GPU, and waiting jobs are placed; promises, gates and demand classes are updated
incrementally. `backlog` adds many waiting jobs that fit nowhere. `snapshot` is `Policy.decide` on whole snapshots, with
an explanation per GPU for waiting jobs. `manager` is a whole daemon step: event in, decision, state, command out.
Rates are per CPU second, so that load on the machine matters less.

Run: `python -m benchmarks.scheduler.decisions [--quick] [--policy NAME] [--seed N] [--write]`.
"""

from __future__ import annotations

import argparse
import gc
import os
import platform
import random
import statistics
import time
from collections import deque
from collections.abc import Callable

from benchmarks._lib.results import add_write_option, commit, today, write_result
from cotenant.core.events import AttemptExited, JobSubmitted, Launch, ServerSampled
from cotenant.core.gpu import Gpu, GpuSample, GpuSnapshot, ServerSnapshot
from cotenant.core.job import AttemptExit, Job, JobSpec, Queued
from cotenant.core.units import GiB
from cotenant.scheduling.manager import Manager, ManagerConfig
from cotenant.scheduling.placement.policy import IncrementalPolicy
from cotenant.scheduling.policies import create, options, policies

CAP = 0.8
GOALS = {4: (200_000, 500_000), 1_000: (150_000, 500_000), 10_000: (100_000, 300_000)}
BACKLOG = 80_000


def a_server(count: int, rng: random.Random) -> ServerSnapshot:
    gpus = []
    for index in range(count):
        gpu = Gpu(uuid=f"GPU-{index}", index=index, name="A100-40GB", memory_total_bytes=40 * GiB)
        foreign_bytes = rng.randrange(0, 20) * GiB
        sample = GpuSample(at_s=0.0, used_bytes=foreign_bytes, smact=rng.random())
        gpus.append(GpuSnapshot(gpu=gpu, samples=(sample,), residents=(), foreign_bytes=foreign_bytes))
    return ServerSnapshot(at_s=0.0, gpus=tuple(gpus))


def a_queue(count: int, rng: random.Random, *, first: int = 1, sizes: tuple[int, ...] = (2, 4, 6, 8, 12)) -> list[Job]:
    return [
        Job(id=job_id, spec=a_spec(rng, sizes), submitted_at_s=float(job_id), state=Queued(since_s=0.0))
        for job_id in range(first, first + count)
    ]


def a_spec(rng: random.Random, sizes: tuple[int, ...] = (2, 4, 6, 8, 12, 16)) -> JobSpec:
    return JobSpec(
        command=("true",),
        workdir="/",
        env={},
        user="ann",
        uid=1,
        name="job",
        declared_bytes=rng.choice(sizes) * GiB,
    )


def loop(server: ServerSnapshot, queue: list[Job]) -> int:
    """Place the queue with the baseline; returns the number of placed jobs."""
    free = [gpu.available_bytes or 0 for gpu in server.gpus]
    activity = [gpu.samples[-1].smact or 0.0 for gpu in server.gpus]
    jobs_on = [0] * len(free)
    placed = 0
    for job in queue:
        need, best, best_free = job.spec.declared_bytes or 0, -1, -1
        for index, available in enumerate(free):
            if available >= need and available > best_free and (activity[index] < CAP or not jobs_on[index]):
                best, best_free = index, available
        if best >= 0:
            free[best] -= need
            jobs_on[best] += 1
            placed += 1
    return placed


def per_second(step: Callable[[], tuple[int, float]], repeats: int) -> float:
    """Median decisions per second over `repeats`; `step` returns its decisions and its CPU seconds."""
    return statistics.median(decisions / seconds for decisions, seconds in (step() for _ in range(repeats)))


def timed(work: Callable[[], int]) -> Callable[[], tuple[int, float]]:
    """Wrap `work` so that it returns its decisions and its CPU seconds."""

    def step() -> tuple[int, float]:
        gc.collect()
        began = time.process_time()
        decisions = work()
        return decisions, time.process_time() - began

    return step


def incremental(
    name: str, chosen: dict[str, object], gpus: int, count: int, seed: int, *, backlog: int
) -> tuple[int, float]:
    """A policy in steady state on a half-full server, with `backlog` waiting jobs that fit nowhere."""
    rng = random.Random(seed)
    policy = create(name, chosen)
    assert isinstance(policy, IncrementalPolicy)
    placer = policy.placer()
    for gpu in a_server(gpus, rng).gpus:
        placer.update(gpu)
    live: deque[int] = deque()
    for job in a_queue(gpus, rng):
        placer.add(job)
    live.extend(placement.job_id for placement in placer.decide(0.0))
    for job in a_queue(backlog, rng, first=10_000_000, sizes=tuple(range(41, 47))):
        placer.add(job)
    placer.decide(0.0)
    jobs = a_queue(count, rng, first=1_000_000)
    gc.collect()
    gc.freeze()
    placed = 0
    began = time.process_time()
    for job in jobs:
        placer.add(job)
        if live:
            placer.release(live.popleft())
        for placement in placer.decide(0.0):
            live.append(placement.job_id)
            placed += 1
    seconds = time.process_time() - began
    gc.unfreeze()
    if placed < 0.5 * count:
        raise SystemExit(f"only {placed} of {count} jobs were placed, expected at least half: the setup is wrong")
    return count, seconds


def managed(name: str, chosen: dict[str, object], gpus: int, count: int, seed: int) -> tuple[int, float]:
    """Submit jobs one at a time; each one starts and ends before the next."""
    rng = random.Random(seed)
    specs = [a_spec(rng) for _ in range(count)]
    inventory = tuple(snapshot.gpu for snapshot in a_server(gpus, rng).gpus)
    samples = {gpu.uuid: GpuSample(at_s=0.0, used_bytes=0, smact=0.2) for gpu in inventory}
    done = AttemptExit(exit_code=0, signal=None, reason="exited")
    manager = Manager(create(name, chosen), ManagerConfig(estimate=False))
    manager.handle(ServerSampled(at_s=0.0, cause="bench", gpus=inventory, samples=samples, observed=()))
    manager.handle(JobSubmitted(at_s=0.0, cause="bench", job_id=1_000_000, spec=specs[0]))  # warm-up
    gc.collect()
    began = time.process_time()
    for job_id, spec in enumerate(specs, start=1):
        commands = manager.handle(JobSubmitted(at_s=0.0, cause="bench", job_id=job_id, spec=spec))
        if not any(isinstance(command, Launch) for command in commands):
            raise SystemExit(f"job {job_id} was not placed: {manager.explain(job_id).reason}")
        manager.handle(
            AttemptExited(at_s=0.0, cause="bench", job_id=job_id, attempt=1, exit=done, peak_observed_bytes={})
        )
    return count, time.process_time() - began


def row(name: str, chosen: dict[str, object], gpus: int, repeats: int, seed: int, *, quick: bool) -> str:
    server = a_server(gpus, random.Random(seed))
    few = max(10, min(1000, 1_000_000 // gpus) if quick else 1000)
    queue = a_queue(few, random.Random(seed + 1))
    count = 3_000 if quick else 20_000
    policy = create(name, chosen)
    rates = (
        per_second(timed(lambda: (loop(server, queue), len(queue))[1]), repeats),
        per_second(lambda: incremental(name, chosen, gpus, count, seed, backlog=0), repeats),
        per_second(
            lambda: incremental(name, chosen, gpus, count, seed, backlog=BACKLOG // (10 if quick else 1)), repeats
        ),
        per_second(timed(lambda: len(policy.decide(queue, server))), repeats),
        per_second(lambda: managed(name, chosen, gpus, min(count, 2000), seed), repeats),
    )
    required, goal = GOALS[gpus]
    cells = " | ".join(f"{rate:,.0f}" for rate in rates)
    return f"| {gpus:,} | {cells} | {required:,} | {goal:,} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="smaller queues, 3 repeats instead of 5")
    parser.add_argument("--policy", default="most-memory", choices=policies(), help="default: %(default)s")
    parser.add_argument("--seed", type=int, default=1, help="random seed (default: %(default)s)")
    add_write_option(parser)
    args = parser.parse_args()
    repeats = 3 if args.quick else 5
    chosen: dict[str, object] = {"warmup_s": 0.0} if "warmup_s" in options(args.policy) else {}
    lines = [
        f"Policy `{args.policy}` {chosen or ''}, seed {args.seed}, median of {repeats}; decisions per second.",
        "",
        "| GPUs | plain loop | incremental | with backlog | snapshot | manager | required | goal |",
        "| ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    print("\n".join(lines))
    for gpus in GOALS:
        lines.append(row(args.policy, chosen, gpus, repeats, args.seed, quick=args.quick))
        print(lines[-1], flush=True)
    if args.write:
        write(lines, args.policy)


def write(lines: list[str], policy: str) -> None:
    backlog = f"Backlog: {BACKLOG:,} jobs of six sizes that fit nowhere."
    load = ", ".join(f"{average:.1f}" for average in os.getloadavg())
    head = [
        f"# Decisions per second, {today()}",
        "",
        f"Commit {commit()}; Python {platform.python_version()}; {os.cpu_count()} cores, load {load}; no GPU.",
        f"Repeat with `python -m benchmarks.scheduler.decisions --policy {policy} --write`. {backlog}",
        "Required rate and goal are for `incremental`: one arrival, one release and the placement.",
        "",
    ]
    write_result(f"decisions_{policy}", "\n".join([*head, *lines, ""]))


if __name__ == "__main__":
    main()
