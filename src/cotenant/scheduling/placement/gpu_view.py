"""A GPU as a placer tracks it: the newest snapshot, and the residents that were placed since."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Mapping
from operator import attrgetter

from cotenant.core.estimate import SmactInterval
from cotenant.core.gpu import GpuSample, GpuSnapshot, Resident, Sharing
from cotenant.scheduling.demand import MAX_IDLE_BYTES
from cotenant.scheduling.prediction.interference import GpuActivity

SHARED, EXCLUSIVE = 1, 2
"""Which jobs a GPU admits, as bits: those that share, those that need it exclusively."""

_READERS: Mapping[str, Callable[[GpuSample], float | None]] = {
    measure: attrgetter(measure) for measure in ("smact", "smocc", "drama", "utilization")
}


class NewResident:
    """A resident that was placed since the newest snapshot; has the attributes of a `Resident`."""

    attempt = 0
    observed_bytes: int | None = None

    __slots__ = (
        "expected_smact",
        "first_active_at_s",
        "gpus",
        "held_bytes",
        "job_id",
        "max_slowdown",
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
        expected_smact: SmactInterval | None = None,
    ) -> None:
        self.job_id = job_id
        self.promised_bytes = self.held_bytes = promised_bytes
        self.sharing: Sharing = sharing
        self.placed_at_s = placed_at_s
        self.first_active_at_s: float | None = None
        self.max_slowdown = max_slowdown
        self.gpus = 1
        self.workload: str | None = None
        self.smact: float | None = None
        self.expected_smact = expected_smact


AnyResident = Resident | NewResident


class GpuView:
    """What rules, scores and pairing rules see of a GPU.

    Attributes:
        place: in display order, from 0.
        at_s: time of the newest sample or placement.
        gpu_class: what the pairing rule of the policy sees in it, as of the last change.
        available_bytes: may still be promised; None while foreign use is unknown.
        residents: those of the snapshot that have not left, and those placed since.
        is_exclusive: a resident has it exclusively.
        is_open: its available memory is known, and no resident has it exclusively.
        is_empty: it has no residents and at most `MAX_IDLE_BYTES` of foreign use; False while that is unknown.
        reserved_for: the job that this GPU is reserved for, or None; `reservation_reason` is why, for people.
        eligible_modes: which jobs it admits, of `SHARED` and `EXCLUSIVE`, as of the last change.
        opens_at_s: when its closed gates open; infinite if only a change here can open them.
        measured_activity: stands in for the samples; None: the samples count.
    """

    __slots__ = (
        "_has_smact",
        "_means",
        "_means_since_s",
        "_smact",
        "at_s",
        "available_bytes",
        "eligible_modes",
        "gpu_class",
        "is_empty",
        "is_exclusive",
        "is_open",
        "measured_activity",
        "opens_at_s",
        "place",
        "reservation_reason",
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
        self.reservation_reason = ""
        self.opens_at_s = -math.inf
        self.eligible_modes = 0
        self.gpu_class: Hashable = None
        self.at_s = -math.inf
        self.snapshot = snapshot
        self._means_since_s = -math.inf  # of the residents that the means are about
        self._forget_means()
        self.refresh(snapshot)

    def refresh(self, snapshot: GpuSnapshot) -> None:
        """Replace everything by `snapshot`, which includes the residents placed until now."""
        # The means stay while only residents come and go that were never active: where jobs are short, a GPU changes
        # several times between two samples, and a window may have thousands of these.
        if (self._has_smact or self._means) and (
            self.snapshot.samples is not snapshot.samples
            or self._means_since_s != _newest_activity_s(snapshot.residents)
        ):
            self._forget_means()
        self.snapshot = snapshot
        if snapshot.samples:
            self.at_s = max(self.at_s, snapshot.samples[-1].at_s)
        self.total_bytes = snapshot.gpu.memory_total_bytes
        self.available_bytes = snapshot.available_bytes
        self.residents: tuple[AnyResident, ...] = snapshot.residents
        self.measured_activity: GpuActivity | None = None
        self._update_occupancy()

    def _forget_means(self) -> None:
        self._means: dict[str, float | None] = {}
        self._has_smact = False
        self._smact: float | None = None

    def _update_occupancy(self) -> None:
        residents = self.residents
        self.is_exclusive = False
        for resident in residents:
            if resident.sharing == "exclusive":
                self.is_exclusive = True
        self.is_open = self.available_bytes is not None and not self.is_exclusive
        foreign = self.snapshot.foreign_bytes
        self.is_empty = not residents and foreign is not None and foreign <= MAX_IDLE_BYTES

    def take(self, resident: AnyResident) -> None:
        """Add a resident and subtract its promise."""
        self.residents = (*self.residents, resident)
        at_s = resident.placed_at_s
        self.at_s = at_s if at_s > self.at_s else self.at_s
        self.available_bytes = (self.available_bytes or 0) - resident.promised_bytes
        self.is_exclusive = resident.sharing == "exclusive"
        self.is_open = not self.is_exclusive
        self.is_empty = False

    def leave(self, job_id: int) -> None:
        """Remove a resident and release its memory; nothing if it is not here."""
        residents = self.residents
        for index, leaver in enumerate(residents):  # noqa: B007 (used below)
            if leaver.job_id == job_id:
                break
        else:
            return
        if self.available_bytes is not None:
            available = self.available_bytes + leaver.held_bytes
            self.available_bytes = available if available < self.total_bytes else self.total_bytes
        self.residents = residents[:index] + residents[index + 1 :]
        self.measured_activity = None
        if leaver.first_active_at_s is not None and (self._has_smact or self._means):
            self._forget_means()
        if self.is_exclusive or not self.residents:
            self._update_occupancy()

    def mark_active(self, job_id: int, at_s: float) -> None:
        """A new resident used the GPU for the first time; nothing if that is known already."""
        for resident in self.residents:
            if resident.job_id == job_id and isinstance(resident, NewResident) and resident.first_active_at_s is None:
                resident.first_active_at_s = at_s
                if self._has_smact or self._means:
                    self._forget_means()

    @property
    def smact(self) -> float | None:
        """Mean SM activity since the newest resident was first active; None if the newest sample lacks it.

        Samples from before that resident's first kernel would hide it. An average over about 30 s after it
        predicts the next minutes within a few percent (AEGIS, observation window).
        """
        measured = self.measured_activity
        if measured is not None:
            return measured.smact
        if not self._has_smact:
            self._smact = self._new_mean("smact")
            self._has_smact = True
        return self._smact

    def mean(self, measure: str) -> float | None:
        """The same for any measure of a sample that is a ratio."""
        measured = self.measured_activity
        if measured is not None and hasattr(measured, measure):
            value: float | None = getattr(measured, measure)
            return value
        if measure not in self._means:
            self._means[measure] = self._new_mean(measure)
        return self._means[measure]

    def _new_mean(self, measure: str) -> float | None:
        samples = self.snapshot.samples
        if len(samples) == 1:  # it counts, whoever is here; the simulator has no other case
            newest = _reader(measure)(samples[0])
            return None if newest is None or newest != newest else newest  # noqa: PLR0124 -- not NaN
        since_s = -math.inf
        if samples:
            since_s = self._means_since_s = _newest_activity_s(self.residents)
        readings = self._readings(measure, since_s)
        return sum(readings) / len(readings) if readings else None

    def window(self, measure: str) -> list[float]:
        """Readings since the newest resident was first active, oldest first; the newest alone if there is none since.

        Empty if the newest sample lacks the measure.

        Raises:
            ValueError: samples have no such measure.
        """
        return self._readings(measure, _newest_activity_s(self.residents))

    def _readings(self, measure: str, since_s: float) -> list[float]:
        """As `window`; `since_s` is when the newest resident was first active."""
        read = _reader(measure)
        samples = self.snapshot.samples
        if not samples:
            return []
        newest = read(samples[-1])
        if newest is None or math.isnan(newest):
            return []
        if len(samples) == 1 or samples[-1].at_s < since_s:
            return [newest]
        since = [read(sample) for sample in samples if sample.at_s >= since_s]
        return [value for value in since if value is not None and value == value] or [newest]  # noqa: PLR0124 -- not NaN


def _reader(measure: str) -> Callable[[GpuSample], float | None]:
    try:
        return _READERS[measure]
    except KeyError:
        raise ValueError(f"no measure `{measure}` (known: {', '.join(_READERS)})") from None


def _newest_activity_s(residents: Iterable[AnyResident]) -> float:
    """When the newest of `residents` was first active; -inf if none was."""
    newest_s = -math.inf
    for resident in residents:
        first_s = resident.first_active_at_s
        if first_s is not None and first_s > newest_s:
            newest_s = first_s
    return newest_s
