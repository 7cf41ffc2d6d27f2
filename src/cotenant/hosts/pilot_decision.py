"""How many allocations a pilot requests, and which it gives back: by the jobs that wait, what there is, and the time.

It does no I/O. A trial as in HyperQueue's automatic allocator: until an allocation has given GPUs, and after a refusal,
one is under way at a time.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Phase = Literal["requested", "pending", "starting", "ready", "released"]
"""Of an allocation: it may or may not have been submitted; Slurm queues it; it runs and its agent has not answered; its
GPUs can be used; it was given back and has not ended yet."""
QUEUED: tuple[Phase, ...] = ("requested", "pending", "starting")
MAX_FAILURES = 3
"""In a row; then the pilot pauses until its daemon is started again."""
START_TIMEOUT_S = 300.0
"""From the start of an allocation to the first answer of its agent; Python may come from a slow file system."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PilotLimits:
    """The limits of a configuration.

    Attributes:
        backlog: allocations that may be under way, i.e. not usable yet.
        idle_s: an allocation without attempts is given back after it.
        retry_s: after a failure nothing is requested for so long; twice as long after the next.
    """

    min_allocations: int
    max_allocations: int
    backlog: int
    idle_s: float
    retry_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocationStatus:
    """One allocation.

    Attributes:
        since_s: when it got into its phase.
        idle_since_s: since when nobody has needed it: it has no attempts, or, while under way, no job waits; None: it
            is needed.
        left_s: how long it goes on; infinite if it has no end, or has not started.
    """

    name: str
    phase: Phase
    since_s: float
    idle_since_s: float | None
    left_s: float = math.inf

    @property
    def is_empty(self) -> bool:
        """Whether its GPUs can be used, and nobody uses them."""
        return self.phase == "ready" and self.idle_since_s is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """What has become of allocations so far.

    Attributes:
        is_tried: one has given GPUs.
        failures: in a row, refused or ended before they gave GPUs.
        failed_at_s: the time of the last one.
    """

    is_tried: bool = False
    failures: int = 0
    failed_at_s: float = 0.0

    @property
    def is_paused(self) -> bool:
        """Whether nothing more is requested."""
        return self.failures >= MAX_FAILURES


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What to do now.

    Attributes:
        requests: how many more allocations to request.
        give_back: names of allocations that nobody needs.
        silent: names of allocations whose agents never answered: these are failures, and given back.
        too_short: names of empty allocations that end before any waiting job would, and are given back for others.
    """

    requests: int = 0
    give_back: tuple[str, ...] = ()
    silent: tuple[str, ...] = ()
    too_short: tuple[str, ...] = ()


def decide(
    limits: PilotLimits,
    waiting: Sequence[float],
    allocations: Sequence[AllocationStatus],
    record: Record,
    now_s: float,
) -> Decision:
    """What to do at `now_s` with jobs that could be placed if there were GPUs.

    `waiting`: the time limit of each job; 0 for one without, which may start in an allocation that is about to end.
    """
    silent = tuple(
        item.name for item in allocations if item.phase == "starting" and now_s - item.since_s >= START_TIMEOUT_S
    )
    held = [item for item in allocations if item.phase != "released" and item.name not in silent]
    idle = [
        (item.idle_since_s, item.name)
        for item in held
        # One that may not have been submitted has no id to cancel it by.
        if item.idle_since_s is not None and item.phase != "requested" and now_s - item.idle_since_s >= limits.idle_s
    ]
    surplus = max(0, len(held) - limits.min_allocations)
    give_back = tuple(name for _, name in sorted(idle)[:surplus])
    # What waits although an allocation is empty, with time enough, would not start in another one either.
    empty = [item for item in held if item.is_empty]
    short_of_time = [limit_s for limit_s in waiting if all(item.left_s < limit_s for item in empty)]
    requests = _new_requests(limits, len(short_of_time), allocations, held, record, now_s)
    too_short: list[str] = []
    if short_of_time and len(allocations) >= limits.max_allocations:
        too_short = [item.name for item in empty if item.left_s < min(waiting) and item.name not in give_back]
    return Decision(requests=requests, give_back=give_back, silent=silent, too_short=tuple(too_short))


def _new_requests(
    limits: PilotLimits,
    waiting: int,
    allocations: Sequence[AllocationStatus],
    held: Sequence[AllocationStatus],
    record: Record,
    now_s: float,
) -> int:
    if record.is_paused or (record.failures and now_s < record.failed_at_s + _pause_s(limits, record)):
        return 0
    under_way = sum(1 for item in held if item.phase in QUEUED)
    wanted = max(waiting - under_way, limits.min_allocations - len(held))
    backlog = limits.backlog if record.is_tried and not record.failures else 1
    return max(0, min(wanted, backlog - under_way, limits.max_allocations - len(allocations)))


def _pause_s(limits: PilotLimits, record: Record) -> float:
    return limits.retry_s * float(2 ** (record.failures - 1))
