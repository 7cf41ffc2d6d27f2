"""Decisions per second of the registered policies, beside a plain loop on the same servers in the same run.

One decision: the next job of a queue gets a GPU, or a reason why not. `loop` is the least that could work, a scan of
two arrays for the GPU with most free memory below a cap on activity, without reasons, checks or promises kept;
`policy` is `Policy.decide` on whole snapshots with one verdict per GPU and wait; `manager` is a whole daemon step
(event in, decision, state, command out). Run: `python benchmarks/decisions.py [--quick] [--policy NAME] [--seed N]`.
"""

from __future__ import annotations

import argparse
import gc
import platform
import random
import statistics
import time
from collections.abc import Callable

from cotenant.core.events import AttemptExited, JobSubmitted, Launch, ServerSampled
from cotenant.core.gpu import Gpu, GpuSample, GpuSnapshot, ServerSnapshot
from cotenant.core.job import AttemptExit, Job, JobSpec, Queued
from cotenant.core.units import GiB
from cotenant.scheduling.manager import Manager, ManagerConfig
from cotenant.scheduling.policies import create, policies

CAP = 0.8


def a_server(count: int, rng: random.Random) -> ServerSnapshot:
    gpus = []
    for index in range(count):
        gpu = Gpu(uuid=f"GPU-{index}", index=index, name="A100-40GB", memory_total_bytes=40 * GiB)
        strangers = rng.randrange(0, 20) * GiB
        sample = GpuSample(at_s=0.0, used_bytes=strangers, smact=rng.random())
        gpus.append(GpuSnapshot(gpu=gpu, samples=(sample,), residents=(), strangers_bytes=strangers))
    return ServerSnapshot(at_s=0.0, gpus=tuple(gpus))


def a_queue(count: int, rng: random.Random) -> list[Job]:
    return [
        Job(id=each, spec=a_spec(rng), submitted_at_s=float(each), state=Queued(since_s=0.0))
        for each in range(1, count + 1)
    ]


def a_spec(rng: random.Random) -> JobSpec:
    return JobSpec(
        command=("true",),
        workdir="/",
        env={},
        user="ann",
        uid=1,
        name="job",
        declared_bytes=rng.choice((2, 4, 6, 8, 12, 16)) * GiB,
    )


def loop(server: ServerSnapshot, queue: list[Job]) -> int:
    """How many jobs the baseline places."""
    free = [each.available_bytes or 0 for each in server.gpus]
    activity = [each.samples[-1].smact or 0.0 for each in server.gpus]
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


def per_second(step: Callable[[], int], repeats: int) -> float:
    """Median over `repeats` of decisions per second; `step` answers how many decisions it took."""
    rates = []
    for _ in range(repeats):
        gc.collect()
        began = time.perf_counter()
        decisions = step()
        rates.append(decisions / (time.perf_counter() - began))
    return statistics.median(rates)


def manager_step(name: str, options: dict[str, object], gpus: int, jobs: int, rng: random.Random) -> Callable[[], int]:
    """Submit `jobs` one by one; each starts and ends before the next."""
    specs = [a_spec(rng) for _ in range(jobs)]
    inventory = tuple(each.gpu for each in a_server(gpus, rng).gpus)
    samples = {each.uuid: GpuSample(at_s=0.0, used_bytes=0, smact=0.2) for each in inventory}
    done = AttemptExit(exit_code=0, signal=None, reason="exited")

    def step() -> int:
        manager = Manager(create(name, options), ManagerConfig(estimate=False))
        manager.handle(ServerSampled(at_s=0.0, cause="bench", gpus=inventory, samples=samples, observed=()))
        for job_id, spec in enumerate(specs, start=1):
            commands = manager.handle(JobSubmitted(at_s=0.0, cause="bench", job_id=job_id, spec=spec))
            if not any(isinstance(each, Launch) for each in commands):
                raise SystemExit(f"job {job_id} was not placed: {manager.explain(job_id).reason}")
            manager.handle(
                AttemptExited(at_s=0.0, cause="bench", job_id=job_id, attempt=1, exit=done, peak_observed_bytes={})
            )
        return jobs

    return step


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="smaller queues, 3 repeats instead of 5")
    parser.add_argument("--policy", default="most-memory", choices=policies())
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    repeats = 3 if args.quick else 5
    options: dict[str, object] = {} if args.policy == "exclusive" else {"settle_s": 0.0}
    policy = create(args.policy, options)
    print(f"policy {args.policy}, seed {args.seed}, median of {repeats}, Python {platform.python_version()}")
    print(f"{'GPUs':>6} {'jobs':>6} {'loop/s':>11} {'policy/s':>11} {'manager/s':>11} {'placed: loop, policy':>22}")
    for gpus, jobs in ((4, 12), (4, 1000), (1000, 1000), (10_000, 100 if args.quick else 1000)):
        rng = random.Random(args.seed)
        server, queue = a_server(gpus, rng), a_queue(jobs, rng)
        placed_by_loop = loop(server, queue)
        placed = sum(1 for each in policy.decide(queue, server) if hasattr(each, "gpu_uuids"))
        baseline = per_second(lambda server=server, queue=queue: (loop(server, queue), len(queue))[1], repeats)
        decided = per_second(lambda server=server, queue=queue: len(policy.decide(queue, server)), repeats)
        steps = max(5, min(jobs, 20_000 // gpus))
        managed = per_second(manager_step(args.policy, options, gpus, steps, rng), repeats)
        counts = f"{placed_by_loop}, {placed}"
        print(f"{gpus:>6} {jobs:>6} {baseline:>11,.0f} {decided:>11,.0f} {managed:>11,.0f} {counts:>22}")


if __name__ == "__main__":
    main()
