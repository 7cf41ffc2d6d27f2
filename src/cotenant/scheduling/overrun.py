"""Attempts that hold more than their promise: which of them are to blame for a neighbor, and what they are charged.

Promises on a GPU never add up to more than its memory. So when an attempt runs out of memory within its promise, either
a neighbor or a foreign process holds what was promised to it. Samples show which neighbor (decision 0054).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from cotenant.core.job import Charge, Job, Overrun, ResourceUsage
from cotenant.core.units import MiB, format_bytes

TOLERANCE = 0.02
"""Share of a promise by which samples may exceed it without blame: the driver rounds, and so do promises."""
MIN_TOLERANCE_BYTES = 64 * MiB

OVERRUN_STOP = "exceeded its promise"
"""The reasons for which the daemon stops an attempt with `overrun = "stop"` begin so."""


def tolerated_bytes(promised_bytes: int, margin: float = TOLERANCE) -> int:
    """The most that an attempt with this promise may hold without being an overrun."""
    return promised_bytes + max(MIN_TOLERANCE_BYTES, int(promised_bytes * margin))


def is_overrun(promised_bytes: int, held_bytes: int) -> bool:
    """Whether an attempt that holds so much has broken its promise; one without a promise (0) has not."""
    return promised_bytes > 0 and held_bytes > tolerated_bytes(promised_bytes)


class GpuHoldings(NamedTuple):
    """What was held on a GPU shortly before an attempt ran out of memory there.

    Attributes:
        foreign_bytes: the least that foreign processes held lately: one that has just grown is not a neighbor's fault.
        held_bytes: by attempt (job id, number), those that ended a moment ago included.
        resident_ids: jobs that are placed there.
    """

    uuid: str
    total_bytes: int
    foreign_bytes: int
    held_bytes: Mapping[tuple[int, int], int]
    resident_ids: Collection[int]


def find_overruns(gpus: Iterable[GpuHoldings], jobs: Mapping[int, Job], *, victim_id: int) -> tuple[Overrun, ...]:
    """Attempts of other jobs than the victim that held more than their promise, and so what others were promised.

    None on a GPU with room for all promises beside them: there they held memory that was promised to no attempt.
    """
    found: list[Overrun] = []
    for gpu in gpus:
        overruns = [
            Overrun(
                job_id=job_id,
                attempt=number,
                uid=jobs[job_id].spec.uid,
                gpu_uuid=gpu.uuid,
                promised_bytes=jobs[job_id].attempts[number - 1].placement.promised_bytes,
                observed_bytes=held,
            )
            for (job_id, number), held in sorted(gpu.held_bytes.items())
            if job_id != victim_id and job_id in jobs
            if is_overrun(jobs[job_id].attempts[number - 1].placement.promised_bytes, held)
        ]
        residents = [jobs[job_id].attempts[-1] for job_id in gpu.resident_ids]
        held_bytes = [
            max(attempt.placement.promised_bytes, gpu.held_bytes.get((attempt.placement.job_id, attempt.number), 0))
            for attempt in residents
        ]
        held_bytes += [overrun.observed_bytes for overrun in overruns if overrun.job_id not in gpu.resident_ids]
        if not have_room(held_bytes, gpu.total_bytes - gpu.foreign_bytes):
            found += overruns
    return tuple(found)


def have_room(held_bytes: Iterable[int], total_bytes: int) -> bool:
    """Whether all attempts of a GPU fit, each with the larger of its promise and what it holds."""
    return sum(held_bytes) <= total_bytes


def charges(
    overruns: Iterable[Overrun], usage: ResourceUsage | None, *, victim_id: int, victim_uid: int, at_s: float
) -> list[tuple[Overrun, Charge]]:
    """What each overrun is charged of the usage that its victim lost: in proportion to the excess."""
    excess = {overrun: overrun.observed_bytes - overrun.promised_bytes for overrun in overruns}
    total = sum(excess.values())
    return [
        (
            overrun,
            Charge(
                at_s=at_s,
                victim_id=victim_id,
                victim_uid=victim_uid,
                gpu_uuid=overrun.gpu_uuid,
                observed_bytes=overrun.observed_bytes,
                usage=None if usage is None else usage * (over_bytes / total),
            ),
        )
        for overrun, over_bytes in excess.items()
    ]


def job_text(job_id: int, *, same_user: bool) -> str:
    """`job 7`, `another user's job 7`: a job as the user of another one may see it."""
    return f"job {job_id}" if same_user else f"another user's job {job_id}"


def overruns_text(overruns: Iterable[Overrun], uid: int) -> str:
    """`another user's job 7 held 32.0 GiB, 4.0 GiB promised`, for the user `uid`."""
    return ", ".join(
        f"{job_text(overrun.job_id, same_user=overrun.uid == uid)} held {format_bytes(overrun.observed_bytes)}, "
        f"{format_bytes(overrun.promised_bytes)} promised"
        for overrun in overruns
    )
