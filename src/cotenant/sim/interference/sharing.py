"""Speeds under MPS and on MIG instances: rules, since no measured pairs have been published for either."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from cotenant.core.errors import UsageError
from cotenant.core.gpu import mig_slices
from cotenant.sim.interference.model import TrueActivity

# The cost of a partner when neither SMs nor memory are saturated: beside a recommender that keeps the SMs 5 % busy,
# ResNet152 took 4.8 % longer under MPS, the recommender 3.9 % (thesis, table 4.2).
MPS_COST = 0.043

# A job on a slice with a part `c` of the SMs and `m` of the memory's bandwidth is slowed down
# 1 + 0.376 u^2.11 (1/c - 1) + 0.984 d (1/m - 1), u and d its SM and memory activity on the whole GPU. Fitted to the 113
# slices of the MISO measurements (A100-40GB, MIT licence); a model left out: mean error 0.08 of full speed, R2 0.71.
SM_FACTOR, SM_POWER, MEMORY_FACTOR = 0.376, 2.114, 0.984

# Parts of the SMs and of memory bandwidth; NVIDIA's profile names have them as sevenths and eighths.
SLICES: Mapping[int, tuple[float, float]] = {
    1: (1 / 7, 1 / 8),
    2: (2 / 7, 2 / 8),
    3: (3 / 7, 4 / 8),
    4: (4 / 7, 4 / 8),
    7: (1.0, 1.0),
}


def mps_speeds(members: Sequence[TrueActivity]) -> list[float]:
    """Speeds under MPS: kernels run concurrently until SMs or memory are saturated; then all jobs slow down equally.

    Assumed: slowdown = max(1, sum of SMACT, sum of DRAMA) + 0.043 per partner. It stays within the ranges that the
    thesis gives (chapter 4): two small or medium jobs in about the time of one, three 1.5-2.1 times, seven small
    ones 2.0-2.5 times, two large ones below 2.
    """
    if len(members) < 2:
        return [1.0] * len(members)
    full = max(1.0, sum(member.smact for member in members), sum(member.drama or 0.0 for member in members))
    cost = full - 1.0 + MPS_COST * (len(members) - 1)
    return [1.0 / (1.0 + cost * member.sensitivity) for member in members]


def slice_of(gpu_type: str) -> tuple[float, float]:
    """Shares of the SMs and the memory bandwidth of e.g. `A100-40GB/3g.20gb`; 1 and 1 for a whole GPU.

    Raises:
        UsageError: there is no such profile.
    """
    _, slash, profile = gpu_type.partition("/")
    if not slash:
        return 1.0, 1.0
    count = mig_slices(profile)
    if count not in SLICES:
        raise UsageError(f"`{gpu_type}` names no MIG profile", hint="write e.g. `A100-40GB/3g.20gb`")
    return SLICES[count]


def slice_speed(job: TrueActivity, gpu_type: str) -> float:
    """Speed of a job alone on a MIG instance, relative to the whole GPU."""
    sms, memory = slice_of(gpu_type)
    slowdown = 1.0 + SM_FACTOR * float(job.smact**SM_POWER) * (1.0 / sms - 1.0)
    slowdown += MEMORY_FACTOR * (job.drama or 0.0) * (1.0 / memory - 1.0)
    return 1.0 / slowdown


def on_slice(job: TrueActivity, gpu_type: str) -> TrueActivity:
    """The activity of a job alone on an instance: the same work on fewer SMs."""
    sms, memory = slice_of(gpu_type)
    speed = slice_speed(job, gpu_type)
    drama = None if job.drama is None else min(1.0, job.drama * speed / memory)
    return job._replace(workload=None, smact=min(1.0, job.smact * speed / sms), drama=drama)
