"""What is known of one workload, and how an observed co-run changes it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from cotenant.core.job import CoRun
from cotenant.scheduling.demand import PROMISE_STEP_BYTES
from cotenant.scheduling.prediction.interference import GpuActivity

AGREEMENT_RATIO = 1.05
HEADROOM = 1.05
HEADROOM_ONCE = 1.10
MAX_CO_RUN_RECORDS = 16
WORKLOAD_SEPARATOR = "\n"


@dataclass(slots=True)
class WorkloadRecord:
    """What is known of one workload.

    Attributes:
        peaks_bytes, durations_s: of the newest completed runs; durations are without the time lost to neighbors.
        least_bytes: the largest observed memory of any run, completed or not; the next run needs at least this.
        solo_s: observed time alone on a GPU; `smact`, `smocc`, `drama` and `steps_hz` are means over it.
        beside: co-runs as seconds, steps per second and slowdown (None if not known), by the workload keys of the
            neighbors, joined by `WORKLOAD_SEPARATOR`. Stored in snapshots of the journal by this name.
        saves_s: of the newest stops after which its state was saved, from the signal to its end; `startups_s`: of the
            newest starts; `unsaved`: moves after which its state was not saved.
    """

    peaks_bytes: list[int] = field(default_factory=list)
    durations_s: list[float] = field(default_factory=list)
    least_bytes: int = 0
    solo_s: float = 0.0
    smact: float | None = None
    smocc: float | None = None
    drama: float | None = None
    steps_hz: float | None = None
    beside: dict[str, list[float | None]] = field(default_factory=dict)
    saves_s: list[float] = field(default_factory=list)
    startups_s: list[float] = field(default_factory=list)
    unsaved: int = 0

    def known_bytes(self) -> int | None:
        """Predicted memory of the next run in bytes; None without a completed run."""
        return self._known()[0]

    def _known(self) -> tuple[int | None, bool]:
        """`known_bytes`, and whether at least two completed runs agree."""
        if not self.peaks_bytes:
            return None, False
        most = max(self.peaks_bytes)
        sure = len(self.peaks_bytes) > 1 and most <= AGREEMENT_RATIO * min(self.peaks_bytes)
        return int(most * (HEADROOM if sure else HEADROOM_ONCE)), sure

    def summary_key(self) -> tuple[object, ...]:
        """The record at the resolution of decisions: queued jobs are reconsidered only when this changes."""
        known, sure = self._known()
        return (
            None if known is None else known // PROMISE_STEP_BYTES,
            sure,
            self.least_bytes // PROMISE_STEP_BYTES,
            None if self.smact is None else round(self.smact, 2),
            None if not self.durations_s else round(math.log2(max(1.0, self.durations_s[-1]))),
        )

    def activity(self, key: str) -> GpuActivity:
        """Solo activity on a GPU, as far as it was observed."""
        return GpuActivity(key, self.smact, self.smocc, self.drama, self.least_bytes or None)

    def is_sure(self) -> bool:
        """Whether at least two completed runs agree."""
        return self._known()[1]


def solo_rate_hz(record: WorkloadRecord | None, co_runs: Sequence[CoRun]) -> float | None:
    """Solo step rate: of this attempt if it ran alone, because steps are counted the same way, else of earlier ones."""
    own = next((co_run.steps_hz for co_run in co_runs if not co_run.neighbor_ids and co_run.steps_hz), None)
    return own if own is not None or record is None else record.steps_hz


def record_co_run(record: WorkloadRecord, neighbors: Sequence[GpuActivity], co_run: CoRun, slowdown: float) -> None:
    """Update the means of this co-run; the shortest one is dropped when there are too many."""
    key = WORKLOAD_SEPARATOR.join(sorted([neighbor.workload or "" for neighbor in neighbors]))
    seconds, hz, slower = record.beside.get(key, [0.0, None, None])
    total_s = (seconds or 0.0) + co_run.seconds
    weight = co_run.seconds / total_s
    record.beside[key] = [total_s, _updated_mean(hz, co_run.steps_hz, weight), _updated_mean(slower, slowdown, weight)]
    if len(record.beside) > MAX_CO_RUN_RECORDS:
        del record.beside[min(record.beside, key=lambda group_key: record.beside[group_key][0] or 0.0)]


def _updated_mean(old: float | None, new: float | None, weight: float) -> float | None:
    """The mean `old` after `new` with this weight; None only if both are."""
    if new is None or old is None:
        return old if new is None else new
    return old + weight * (new - old)


def record_solo(record: WorkloadRecord, co_run: CoRun) -> None:
    """Update the solo means."""
    weight = co_run.seconds / (record.solo_s + co_run.seconds)
    for name in ("smact", "smocc", "drama", "steps_hz"):
        setattr(record, name, _updated_mean(getattr(record, name), getattr(co_run, name), weight))
    record.solo_s += co_run.seconds
