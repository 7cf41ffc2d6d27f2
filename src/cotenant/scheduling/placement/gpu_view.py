"""A GPU as a policy at work follows it: what was last told of it, and what was given away since."""

from __future__ import annotations

import math
from collections.abc import Hashable

from cotenant.core.gpu import GpuSnapshot, Resident, Sharing
from cotenant.scheduling.prediction.interference import GpuActivity

MAX_IDLE_BYTES = 2**30
"""A GPU without residents is empty up to this much of strangers' use: a display server, a driver's own share."""

SHARED, EMPTY = 1, 2
"""What a GPU may take, as bits: somebody who shares, somebody who is to be alone."""

_MEASURES = ("smact", "smocc", "drama", "utilization")


class NewResident:
    """A resident that was placed here since the GPU was last told of; read like a `Resident`."""

    __slots__ = (
        "attempt",
        "first_active_at_s",
        "gpus",
        "held_bytes",
        "job_id",
        "max_slowdown",
        "observed_bytes",
        "placed_at_s",
        "promised_bytes",
        "sharing",
        "smact",
        "workload",
    )

    def __init__(
        self,
        job_id: int,
        promised_bytes: int,
        sharing: Sharing,
        placed_at_s: float,
        max_slowdown: float | None = None,
    ) -> None:
        self.job_id = job_id
        self.attempt = 0
        self.promised_bytes = self.held_bytes = promised_bytes
        self.observed_bytes: int | None = None
        self.sharing: Sharing = sharing
        self.placed_at_s = placed_at_s
        self.first_active_at_s: float | None = None
        self.max_slowdown = max_slowdown
        self.gpus = 1
        self.workload: str | None = None
        self.smact: float | None = None


AnyResident = Resident | NewResident


class GpuView:
    """What filters, scores and matches look at.

    Attributes:
        place: in display order, from 0.
        at_s: of the newest thing that is known of it.
        signature: what the match of the policy sees in it, as of the last change.
        available_bytes: may still be promised; None while strangers' use is unknown.
        residents: attempts here, with those placed since.
        is_closed: somebody has it alone.
        is_empty: nobody is here, but for what a display server may hold; False while that is not known.
        reserved_for: job for which this GPU is being emptied, or None.
        filed: what it may take now, of `SHARED` and `EMPTY`, as of the last change.
        opens_at_s: until then a gate is closed; infinite while only a change here can open it.
    """

    __slots__ = (
        "_has_smact",
        "_measured",
        "_smact",
        "at_s",
        "available_bytes",
        "eligible_modes",
        "gpu_class",
        "is_closed",
        "is_empty",
        "measured_activity",
        "opens_at_s",
        "place",
        "reserved_for",
        "residents",
        "server",
        "snapshot",
        "total_bytes",
        "uuid",
    )

    def __init__(self, snapshot: GpuSnapshot, place: int = 0) -> None:
        self.place = place
        self.uuid = snapshot.gpu.uuid
        self.server = snapshot.gpu.server
        self.reserved_for: int | None = None
        self.opens_at_s = -math.inf
        self.eligible_modes = 0
        self.gpu_class: Hashable = None
        self.at_s = -math.inf
        self.refresh(snapshot)

    def refresh(self, snapshot: GpuSnapshot) -> None:
        """Forget what was given away; `snapshot` has it."""
        self.snapshot = snapshot
        if snapshot.samples:
            self.at_s = max(self.at_s, snapshot.samples[-1].at_s)
        self.total_bytes = snapshot.gpu.memory_total_bytes
        self.available_bytes = snapshot.available_bytes
        self.residents: tuple[AnyResident, ...] = snapshot.residents
        self.measured_activity: GpuActivity | None = None
        self._measured: dict[str, float | None] = {}
        self._has_smact = False
        self._smact: float | None = None
        self._look()

    def _look(self) -> None:
        residents = self.residents
        self.is_closed = False
        for each in residents:
            if each.sharing == "exclusive":
                self.is_closed = True
        strangers = self.snapshot.foreign_bytes
        self.is_empty = not residents and strangers is not None and strangers <= MAX_IDLE_BYTES

    def take(self, mate: AnyResident) -> None:
        """Count a newcomer in."""
        self.residents = (*self.residents, mate)
        at_s = mate.placed_at_s
        self.at_s = at_s if at_s > self.at_s else self.at_s
        self.available_bytes = (self.available_bytes or 0) - mate.promised_bytes
        self.is_closed = mate.sharing == "exclusive"
        self.is_empty = False

    def leave(self, job_id: int) -> None:
        """Count a resident out; nothing if it is not here."""
        residents = self.residents
        for index, each in enumerate(residents):  # noqa: B007 (used below)
            if each.job_id == job_id:
                break
        else:
            return
        if self.available_bytes is not None:
            available = self.available_bytes + each.held_bytes
            self.available_bytes = available if available < self.total_bytes else self.total_bytes
        self.residents = residents[:index] + residents[index + 1 :]
        self.measured_activity = None
        if each.first_active_at_s is not None:
            self._measured = {}
            self._has_smact = False
        if self.is_closed or not self.residents:
            self._look()

    def see(self, job_id: int, at_s: float) -> None:
        """A newcomer was seen to be at work; nothing if it was seen before, or was told of with the GPU."""
        for each in self.residents:
            if each.job_id == job_id and isinstance(each, NewResident) and each.first_active_at_s is None:
                each.first_active_at_s = at_s
                self._measured = {}
                self._has_smact = False

    @property
    def smact(self) -> float | None:
        """Mean SM activity since the newest resident was first seen; None where the newest sample lacks it.

        Samples from before that resident's first kernel would hide it. An average over about 30 s after it
        predicts the next minutes within a few percent (AEGIS, observation window).
        """
        measured_activity = self.measured_activity
        if measured_activity is not None:
            return measured_activity.smact
        if not self._has_smact:
            readings = self.window("smact")
            self._smact = sum(readings) / len(readings) if readings else None
            self._has_smact = True
        return self._smact

    def mean(self, measure: str) -> float | None:
        """The same for any measure of a sample that is a ratio."""
        if self.measured_activity is not None and hasattr(self.measured_activity, measure):
            value: float | None = getattr(self.measured_activity, measure)
            return value
        if measure not in self._measured:
            readings = self.window(measure)
            self._measured[measure] = sum(readings) / len(readings) if readings else None
        return self._measured[measure]

    def window(self, measure: str) -> list[float]:
        """Readings since the newest resident was first seen, oldest first, or the newest alone where there is none.

        Empty where the newest sample lacks it.
        """
        if measure not in _MEASURES:
            raise ValueError(f"no measure `{measure}`")
        samples = self.snapshot.samples
        newest: float | None = getattr(samples[-1], measure) if samples else None
        if newest is None or math.isnan(newest):
            return []
        if len(samples) == 1:
            return [newest]
        since_s = max(
            [each.first_active_at_s for each in self.residents if each.first_active_at_s is not None], default=-math.inf
        )
        if samples[-1].at_s < since_s:
            return [newest]
        found = ((each.at_s, getattr(each, measure)) for each in samples)
        since = [value for at_s, value in found if at_s >= since_s and value is not None and not math.isnan(value)]
        return since or [newest]
