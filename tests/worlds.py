"""Simulations small enough to compute by hand: jobs, a simple interference model, a policy that starts jobs at once."""

from __future__ import annotations

from cotenant.core.gpu import ServerSnapshot
from cotenant.core.placement import Placement
from cotenant.core.units import GiB
from cotenant.sim import cluster
from cotenant.sim.engine.config import SimulationConfig
from cotenant.sim.simulate import simulate
from cotenant.sim.trace import JobProfile, Trace, TraceJob

NO_DELAY = SimulationConfig(delay_median_s=0.0, delay_p95_s=0.0, restart_s=0.0)


class Halves:
    """n jobs on a GPU run at 1/n speed each; a job on a MIG instance runs at a quarter."""

    def speeds(self, members, gpu_type="A100-40GB", sharing="time-sliced"):
        if sharing == "mig":
            return [0.25] * len(members)
        return [1.0 / (len(members) * member.sensitivity if len(members) > 1 else 1.0) for member in members]


class Eager:
    """Places every job on the first GPUs at once, whatever it needs."""

    name = "eager"

    def __init__(self, sharing="time-sliced"):
        self.sharing = sharing
        self.seen: list[ServerSnapshot] = []

    def decide(self, queue, server):
        self.seen.append(server)
        uuids = tuple(snapshot.gpu.uuid for snapshot in server.gpus)
        return [
            Placement(job_id=job.id, gpu_uuids=uuids[: job.spec.gpus], sharing=self.sharing, promised_bytes=need(job))
            for job in queue
            if not job.exclusive_retry or not server.gpus[0].residents
        ]


def need(job):
    return max(job.estimate.bound_bytes if job.estimate else 0, job.min_memory_bytes)


def a_profile(name="w", gib=8.0, first_gib=None, smact=0.5, reported_gib=None):
    size = int(gib * GiB)
    return JobProfile(
        workload=name,
        first_peak_bytes=size if first_gib is None else int(first_gib * GiB),
        peak_bytes=size,
        smact=smact,
        reported_bytes={} if reported_gib is None else {"horus": int(reported_gib * GiB)},
    )


def a_trace(*jobs):
    """Jobs as (submit, duration, GPUs, profile)."""
    return Trace(
        "made", [TraceJob(submit_s=at, duration_s=run, gpus=gpus, profile=profile) for at, run, gpus, profile in jobs]
    )


def run_eager(trace, gpus="1xA100-40GB", *, sharing="time-sliced", estimator="oracle", config=NO_DELAY):
    return simulate(
        trace, cluster.parse(gpus), Eager(sharing), estimator=estimator, interference=Halves(), config=config
    )
