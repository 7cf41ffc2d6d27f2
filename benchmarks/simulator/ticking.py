"""A time-stepped cluster simulator in the style of the published ones, as a baseline for speed.

It does the same work as the simulators of Helios and Lucid (policy `fifo.py`, `cluster.py`), and shares no code with
them:

- every simulated second it scans a copy of the list of running jobs for those that end, takes new arrivals from the
  trace, sorts and copies the queue, and places jobs in order of submission until one does not fit;
- a job is a dictionary; a server has a list of jobs per GPU and counts its free GPUs on each query. Placing a job
  counts the free GPUs of all servers and sorts the servers by them;
- every simulated minute it samples the cluster: free GPUs, running and waiting jobs, servers with one and with several
  jobs, and per server, with numpy, mean utilization and memory of all GPUs and of those in use.

It does less than they do: one cluster instead of virtual clusters, and no log. `sampled=False` also omits the samples,
which is less than any published simulator does. A job can span any servers, so that its end can be compared with that
of `cotenant.sim`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from cotenant.sim.trace import Trace

TickedJob = dict[str, Any]
SAMPLE_EVERY_S = 60


class Node:
    """A server: the jobs on each of its GPUs, and the utilization and memory of each GPU."""

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
        """Place the job on `wanted` free GPUs; returns their indices."""
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
    """Simulate the trace; returns the end time of every job and the number of ticks."""
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
