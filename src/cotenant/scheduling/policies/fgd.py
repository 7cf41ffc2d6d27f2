"""FGD (2023): a job goes where the room that typical jobs cannot use grows least.

For each GPU: how much of its free memory could a job not use, on average over what completed runs here held, before and
after the placement? Of GPUs where that differs by no more than a percent, the fullest is taken. Until runs have
completed, every size up to the GPU is as likely.

What differs: FGD knows the requests of its cluster, and looks at the CPUs, the memory and all GPUs of a node. Here
nodes promise GPU memory only, and a gang may get GPUs of several nodes, so each GPU counts for itself. Activity gates
as in `best-fit`.

Source: Weng et al., Beware of Fragmentation.
"""

from __future__ import annotations

from typing import NamedTuple

from cotenant.core.job import Job
from cotenant.core.units import MiB
from cotenant.scheduling.demand import demand_bytes
from cotenant.scheduling.placement import gates, orders, scores
from cotenant.scheduling.placement.fragmentation import TypicalDemand, fragments, placement_score
from cotenant.scheduling.placement.gpu_view import GpuView, NewResident
from cotenant.scheduling.placement.policy import NO_PREDICTIONS, JobPredictions
from cotenant.scheduling.placement.ranked import Collocation, Ranked
from cotenant.scheduling.policies._options import gib_to_bytes

STEP_BYTES = 256 * MiB
"""Free and demanded memory are rounded to this, so that GPUs and jobs fall into few classes."""

EIGHTHS = 8
"""One assumed run for each eighth of a GPU: what counts before any run has completed, and little after many."""

MAX_CACHED = 100_000


class Room(NamedTuple):
    """What the policy sees in a GPU, in bytes; `free` is rounded down."""

    free: int
    total: int


class FragmentationPairing:
    """The pairing rule of the policy: profiles are bytes, rounded up; None for a job that shares no GPU."""

    def __init__(self, predictions: JobPredictions = NO_PREDICTIONS) -> None:
        self._predictions = predictions
        self._learned_from: object = None
        self._typical: dict[int, list[TypicalDemand]] = {}  # by the size of the GPU
        self._costs: dict[tuple[int, Room], float] = {}

    def with_predictions(self, predictions: JobPredictions) -> FragmentationPairing:
        """The same with what completed runs held."""
        return FragmentationPairing(predictions)

    def profile(self, job: Job, predictions: JobPredictions) -> int | None:
        """What it needs of each of its GPUs."""
        needed = predictions.demand_bytes(job) or demand_bytes(job)
        return None if needed is None else -(-needed // STEP_BYTES) * STEP_BYTES

    def gpu_class(self, view: GpuView) -> Room:
        """What is free there."""
        return Room((view.available_bytes or 0) // STEP_BYTES * STEP_BYTES, view.total_bytes)

    def annotate(self, resident: NewResident, profile: int | None) -> None:
        """Nothing: residents count by the memory that they leave."""

    def judge(self, profile: int | None, gpu_class: Room) -> float:
        """The fewer fragments, the smaller."""
        if profile is None:
            return 0.0
        learned_from = self._predictions.typical_bytes
        if learned_from is not self._learned_from or len(self._costs) > MAX_CACHED:
            self._learned_from = learned_from
            self._typical.clear()
            self._costs.clear()
        key = (profile, gpu_class)
        cost = self._costs.get(key)
        if cost is None:
            cost = self._costs[key] = self._cost(profile, gpu_class)
        return cost

    def _cost(self, needed: int, room: Room) -> float:
        typical = self._typical.get(room.total)
        if typical is None:
            typical = self._typical[room.total] = self._demands(room.total)
        before, after = [fragments([free], typical) for free in (room.free, max(0, room.free - needed))]
        return -float(placement_score((after - before) / room.total))

    def _demands(self, total_bytes: int) -> list[TypicalDemand]:
        """What jobs demand of a GPU of this size; more than all of it counts as all."""
        assumed = [(total_bytes * part // EIGHTHS, 1) for part in range(1, EIGHTHS + 1)]
        runs = [*self._predictions.typical_bytes, *assumed]
        count = sum(number for _, number in runs)
        return [TypicalDemand(min(size, total_bytes), 1, number / count) for size, number in runs]


def fgd(
    *,
    smact_limit: float = 0.80,
    warmup_s: float = 15.0,
    headroom_gib: float = 0.0,
    backfill: bool = True,
    reserve_after_s: float | None = 1800.0,
    sharing: Collocation = "time-sliced",
) -> Ranked:
    """Options as in `gates.smact_too_high`, `gates.warming_up` and `Composition`.

    `headroom_gib` stays free in addition to all promises, for fragmentation inside of the GPUs' memory.
    """
    return Ranked(
        name="fgd",
        order=orders.fifo,
        gates=(gates.warming_up(warmup_s), gates.smact_too_high(smact_limit)),
        score=scores.least_available_memory,
        pairing=FragmentationPairing(),
        backfill=backfill,
        reserve_after_s=reserve_after_s,
        sharing=sharing,
        headroom_bytes=gib_to_bytes(headroom_gib, "headroom"),
    )
