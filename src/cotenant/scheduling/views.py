"""A GPU during one decision: the snapshot, and what this decision has already given away."""

from __future__ import annotations

import math

from cotenant.core.gpu import GpuSnapshot, Resident
from cotenant.core.placement import Placement


class GpuView:
    """What filters and scores look at. `take` counts a placement of the decision under way.

    Attributes:
        available_bytes: may still be promised; None while strangers' use is unknown.
        residents: attempts here, with those of this decision.
        kept_for: job for which this GPU is being emptied, or None.
    """

    __slots__ = ("_smact", "at_s", "available_bytes", "kept_for", "residents", "snapshot", "total_bytes", "uuid")

    def __init__(self, snapshot: GpuSnapshot, at_s: float) -> None:
        self.snapshot = snapshot
        self.at_s = at_s
        self.uuid = snapshot.gpu.uuid
        self.total_bytes = snapshot.gpu.memory_total_bytes
        self.available_bytes = snapshot.available_bytes
        self.residents: tuple[Resident, ...] = snapshot.residents
        self.kept_for: int | None = None
        self._smact: float | None = math.nan  # NaN until first asked for

    def take(self, placement: Placement) -> None:
        """Count `placement` in."""
        newcomer = Resident(
            job_id=placement.job_id,
            attempt=0,
            promised_bytes=placement.promised_bytes,
            observed_bytes=None,
            sharing=placement.sharing,
            placed_at_s=self.at_s,
        )
        self.residents = (*self.residents, newcomer)
        self.available_bytes = (self.available_bytes or 0) - placement.promised_bytes

    @property
    def smact(self) -> float | None:
        """Mean SM activity since the newest resident was first seen; None where the newest sample lacks it.

        Samples from before that resident's first kernel would hide it. An average over about 30 s after it
        predicts the next minutes within a few percent (AEGIS, observation window).
        """
        if self._smact is not None and math.isnan(self._smact):
            self._smact = self._mean_smact()
        return self._smact

    def _mean_smact(self) -> float | None:
        samples = self.snapshot.samples
        newest = samples[-1].smact if samples else None
        if newest is None or math.isnan(newest):
            return None
        since_s = max((each.seen_at_s for each in self.residents if each.seen_at_s is not None), default=-math.inf)
        readings = [
            each.smact
            for each in samples
            if each.at_s >= since_s and each.smact is not None and not math.isnan(each.smact)
        ]
        return sum(readings) / len(readings) if readings else newest
