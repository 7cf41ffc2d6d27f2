"""A cluster simulator that ticks, written as the published ones are: for comparison, not for use.

What the simulators of Helios and Lucid (policy `fifo.py`, `cluster.py`) do, and this does in the same way, with none of
their lines:

- each simulated second, a copy of the list of running jobs is walked for those that end; new arrivals are taken from
  the trace; the queue is sorted by submission and copied; the first in it asks for its GPUs, and the first that gets
  none stops the rest;
- a job is a dictionary; a server keeps a list of jobs for each of its GPUs, and counts those without any whenever
  somebody wants to know how many are free. Who is to be placed has all servers counted, and sorted by what is free;
- each minute the cluster is sampled: GPUs that are free, jobs that run and wait, servers with one and with several
  jobs, and means of the utilization and the memory of the GPUs, of all and of those in use, by server with numpy.

It does less: one cluster in place of virtual ones, and no log. `sampled=False` leaves the samples out, too, which is
less than any published one does. A job may be spread over any servers, so that ends can be compared with ours.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from cotenant.sim.trace import Trace

TickedJob = dict[str, Any]
SAMPLE_EVERY_S = 60


class Node:
    """A server: who is on each of its GPUs, and what that does to the GPU."""

    def __init__(self, name: int, gpus: int) -> None:
        self.name = name
        self.jobs_on: dict[int, list[TickedJob]] = {index: [] for index in range(gpus)}
        self.utilization = dict.fromkeys(range(gpus), 0.0)
        self.memory = dict.fromkeys(range(gpus), 0.0)
        self.jobs = 0

    @property
    def free(self) -> int:
        """GPUs without a job, counted."""
        count = 0
        for jobs in self.jobs_on.values():
            if not jobs:
                count += 1
        return count

    def take(self, job: TickedJob, wanted: int) -> list[int]:
        """So many of its free GPUs."""
        taken = [index for index, jobs in self.jobs_on.items() if not jobs][:wanted]
        for index in taken:
            self.jobs_on[index].append(job)
            self.utilization[index], self.memory[index] = job["utilization"], job["memory"]
        self.jobs += 1
        return taken

    def give_back(self, job: TickedJob, indices: Sequence[int]) -> None:
        for index in indices:
            self.jobs_on[index].remove(job)
            self.utilization[index] = self.memory[index] = 0.0
        self.jobs -= 1


def replay(trace: Trace, nodes: Sequence[Node], *, sampled: bool = True) -> tuple[list[float], int]:
    """End of every job, and how many seconds were ticked through."""
    jobs = [_job(trace, number) for number in range(len(trace))]
    waiting: list[TickedJob] = []
    running: list[TickedJob] = []
    samples: list[dict[str, float]] = []
    now_s, arrived, ended = 0, 0, 0
    while ended < len(jobs):
        for job in running.copy():
            if job["end_s"] <= now_s:
                ended += 1
                for node, indices in job["nodes"]:
                    node.give_back(job, indices)
                running.remove(job)
        while arrived < len(jobs) and jobs[arrived]["submit_s"] <= now_s:
            waiting.append(jobs[arrived])
            arrived += 1
        waiting.sort(key=lambda job: job["submit_s"])
        for job in waiting.copy():
            if not _place(nodes, job):
                break
            job["start_s"] = now_s
            job["end_s"] = now_s + job["duration_s"]
            waiting.remove(job)
            running.append(job)
        if sampled and now_s % SAMPLE_EVERY_S == 0:
            samples.append(_sample(nodes, running, waiting, now_s))
        now_s += 1
    return [job["end_s"] for job in jobs], now_s


def _job(trace: Trace, number: int) -> TickedJob:
    return {
        "id": number,
        "submit_s": trace.submit_s[number],
        "duration_s": trace.duration_s[number],
        "gpus": trace.gpus[number],
        "utilization": 0.5,
        "memory": 0.5,
        "nodes": [],
    }


def _place(nodes: Sequence[Node], job: TickedJob) -> bool:
    wanted = job["gpus"]
    if sum(node.free for node in nodes) < wanted:
        return False
    for node in sorted([node for node in nodes if node.free > 0], key=lambda node: node.free):
        taken = node.take(job, min(wanted, node.free))
        job["nodes"].append((node, taken))
        wanted -= len(taken)
        if not wanted:
            break
    return True


def _sample(
    nodes: Sequence[Node], running: Sequence[TickedJob], waiting: Sequence[TickedJob], now_s: int
) -> dict[str, float]:
    return {
        "at_s": now_s,
        "free": sum(node.free for node in nodes),
        "running": len(running),
        "waiting": len(waiting),
        "gpus_wanted": sum(job["gpus"] for job in waiting),
        "alone": len([node for node in nodes if node.jobs == 1]),
        "shared": len([node for node in nodes if node.jobs > 1]),
        "utilization": _mean(nodes, lambda node: node.utilization.values(), used=False),
        "memory": _mean(nodes, lambda node: node.memory.values(), used=False),
        "utilization_used": _mean(nodes, lambda node: node.utilization.values(), used=True),
        "memory_used": _mean(nodes, lambda node: node.memory.values(), used=True),
    }


def _mean(nodes: Sequence[Node], values_of: Callable[[Node], Any], *, used: bool) -> float:
    means = []
    for node in nodes:
        values = [value for value in values_of(node) if value > 0 or not used]
        if values:
            means.append(np.mean(values))
    return float(np.mean(means)) if means else 0.0
