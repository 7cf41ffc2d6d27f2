"""Fragments: free capacity of GPUs that typical jobs cannot use. A job is placed where they grow least.

Source: Weng et al., Beware of Fragmentation (FGD, ATC 2023). `benchmarks/reproductions/fragmentation.py` compares this
rule with their published allocations.
A module of its own: the policy `fgd` and that benchmark share it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple


class TypicalDemand(NamedTuple):
    """What a part of all jobs demands: `room` on each of `gpus` GPUs. `share`: of all jobs, 0..1."""

    room: int
    gpus: int
    share: float


def unusable_room(free: Sequence[int], room: int, gpus: int = 1) -> int:
    """What a job of `gpus` x `room` cannot use of the `free` room of a server's GPUs.

    All of it if the job does not fit; else what is free on GPUs with less than `room`.
    """
    too_small = [left for left in free if left < room]
    return sum(free) if len(free) - len(too_small) < gpus else sum(too_small)


def fragments(free: Sequence[int], typical: Iterable[TypicalDemand]) -> float:
    """Expected unusable room of a server's GPUs, in the unit of `free`, over the typical jobs."""
    return sum([share * unusable_room(free, room, gpus) for room, gpus, share in typical])


def placement_score(gradient: float) -> int:
    """0..100, larger where fragments grow less: by `gradient` GPUs' worth of room.

    In whole percents of a sigmoid, as FGD's own simulator has it. The exact gradient allocates up to one point less of
    the published clusters (decision 0078).
    """
    return int(100.0 / (1.0 + math.exp(gradient)))
