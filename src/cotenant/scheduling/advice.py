"""What the history of an ended job says about how to submit it next time, in sentences. Pure.

Only what was measured counts: peaks of samples, its own SM activity, and what neighbors did to its steps.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from cotenant.core.job import Attempt, Job
from cotenant.core.units import GiB, MiB, format_bytes, format_duration
from cotenant.scheduling.sharing_guidelines import MAX_SMACT_SUM

MIN_RUN_S = 60.0
"""Shorter runs say little of what a job does."""
MAX_USED_SHARE = 0.5
"""A job that held less of what it declared blocks memory that others could use."""
HEADROOM = 1.15
"""What to declare, as a multiple of the peak."""
MAX_GOOD_SLOWDOWN = 1.10
MIN_BAD_SLOWDOWN = 1.50
MIN_CO_RUN_S = 60.0

Instances = Mapping[str, tuple[int, float]]
"""MIG profiles of a GPU: memory in bytes, and its part of the SMs, by name, e.g. `1g.5gb`."""


def advice_for(
    job: Job, *, instances: Instances, name_of: Callable[[int], str | None] = lambda job_id: f"job {job_id}"
) -> tuple[str, ...]:
    """Sentences about the last attempt of `job`, without a final stop; empty where nothing is to be said.

    `instances` are those of the model of GPU that it ran on; `name_of` names a neighbor, or returns None for one that
    the reader may not see.
    """
    if not job.attempts:
        return ()
    attempt = job.attempts[-1]
    if attempt.started_at_s is None or attempt.ended_at_s is None:
        return ()
    if attempt.ended_at_s - attempt.started_at_s < MIN_RUN_S:
        return ()
    peak = max(attempt.peak_observed_bytes.values(), default=0)
    smact = None if attempt.usage is None else attempt.usage.smact
    found: list[str] = []
    if peak:
        found += _declared_too_much(job, peak)
        found += _would_fit_instance(job, peak, smact, instances)
    found += _alone_for_nothing(job, attempt, smact)
    found += _neighbors(attempt, name_of)
    return tuple(found)


def _declared_too_much(job: Job, peak_bytes: int) -> Sequence[str]:
    declared = job.spec.declared_bytes
    if declared is None or peak_bytes >= MAX_USED_SHARE * declared:
        return ()
    wanted = math.ceil(peak_bytes * HEADROOM / (512 * MiB)) * 512 * MiB
    held = f"held {peak_bytes / declared:.0%} of the {format_bytes(declared)} it declared"
    return (f"{held}: `--gpu-mem {wanted / GiB:g}G` leaves the rest to others",)


def _would_fit_instance(job: Job, peak_bytes: int, smact: float | None, instances: Instances) -> Sequence[str]:
    if job.spec.gpus > 1 or job.spec.sharing == "mig" or smact is None:
        return ()
    largest = max((share for _, share in instances.values()), default=0.0)  # takes the whole GPU, e.g. 7g.40gb
    fitting = [
        (memory_bytes, share, name)
        for name, (memory_bytes, share) in instances.items()
        if peak_bytes * HEADROOM <= memory_bytes and smact <= share < largest
    ]
    if not fitting:
        return ()
    memory_bytes, _, name = min(fitting)
    did = f"it held {format_bytes(peak_bytes)} and kept {smact:.0%} of the SMs active"
    return (f"would fit a {name} instance ({format_bytes(memory_bytes)}): {did}",)


def _alone_for_nothing(job: Job, attempt: Attempt, smact: float | None) -> Sequence[str]:
    if not job.spec.exclusive or smact is None or attempt.placement.sharing != "exclusive":
        return ()
    if smact > MAX_SMACT_SUM / 2:
        return ()
    return (f"had its GPU to itself and kept {smact:.0%} of the SMs active: without `--exclusive` it could share",)


def _neighbors(attempt: Attempt, name_of: Callable[[int], str | None]) -> Sequence[str]:
    """The longest company that it bore well, and the one that slowed it most."""
    runs = [
        (run.slowdown, run.seconds, [name for other in run.neighbor_ids if (name := name_of(other)) is not None])
        for run in attempt.co_runs
        if run.neighbor_ids and run.slowdown is not None and run.seconds >= MIN_CO_RUN_S
    ]
    good = max((run for run in runs if run[0] <= MAX_GOOD_SLOWDOWN), key=lambda run: run[1], default=None)
    bad = max((run for run in runs if run[0] >= MIN_BAD_SLOWDOWN), key=lambda run: run[0], default=None)
    found = []
    if good is not None:
        found.append(f"shared well with {_names(good[2])}: slowed {good[0]:.2f} times in {format_duration(good[1])}")
    if bad is not None:
        found.append(f"was slowed {bad[0]:.2f} times beside {_names(bad[2])}: `--max-slowdown` would prevent that")
    return found


def _names(names: Sequence[str]) -> str:
    return ", ".join(names) or "jobs of others"
