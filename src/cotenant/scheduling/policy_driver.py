"""Drives the policy of a manager: passes it ready jobs and changed GPUs, and validates its placements."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from cotenant.core.gpu import Gpu, GpuSample, GpuSnapshot, Resident, ServerSnapshot
from cotenant.core.job import Job
from cotenant.core.placement import Deferral, Placement
from cotenant.core.units import format_bytes, format_duration
from cotenant.scheduling.job_table import JobTable
from cotenant.scheduling.placement.policy import NO_PREDICTIONS, JobPredictions, Policy
from cotenant.scheduling.placement.snapshot_adapter import make_placer, reserved_gpus
from cotenant.scheduling.prediction.workloads import workload_key
from cotenant.scheduling.telemetry.samples import Telemetry


class GpuOccupancy(NamedTuple):
    """What a GPU holds: its newest sample, or None, and the jobs that are placed there."""

    gpu: Gpu
    latest: GpuSample | None
    promised_bytes: int
    residents: Sequence[Job]


class PolicyDriver:
    """Synchronizes a placer with the jobs of `table` and the samples of `telemetry`.

    Attributes:
        changes: how often a job came to GPUs, left them or was offered, or the GPUs were others.
    """

    def __init__(
        self, policy: Policy, table: JobTable, telemetry: Telemetry, predictions: JobPredictions = NO_PREDICTIONS
    ) -> None:
        self._policy = policy
        self._predictions = predictions
        self._table = table
        self._telemetry = telemetry
        self._placer = make_placer(policy, predictions)
        self.changes = 0
        self._gpus: dict[str, Gpu] = {}
        self._inventory: tuple[Gpu, ...] = ()
        self._residents: dict[str, dict[int, None]] = {}  # ids of jobs, by GPU
        self._gpus_of: dict[int, tuple[str, ...]] = {}  # by job
        self._offered: dict[int, Job] = {}
        self._unconsidered: set[int] = set()
        self._changed: dict[str, None] = {}  # GPUs to update in the placer
        self._rejected: dict[int, Deferral] = {}  # jobs whose placement was invalid
        self._by_workload: dict[str, dict[int, None]] = {}  # offered jobs
        self._decided_at_s = -math.inf
        self._fresh_until_s = math.inf

    # Updates.

    def follow(self, job: Job) -> None:
        """Update the residents of the GPUs that `job` has left or entered."""
        uuids = job.attempts[-1].placement.gpu_uuids if job.id in self._table.live else ()
        before = self._gpus_of.get(job.id, ())
        if uuids == before:
            return
        self.changes += 1
        for uuid in before:
            self._residents[uuid].pop(job.id, None)
            self._changed[uuid] = None
        for uuid in uuids:
            self._residents.setdefault(uuid, {})[job.id] = None
            self._changed[uuid] = None
        if uuids:
            self._gpus_of[job.id] = uuids
        else:
            self._gpus_of.pop(job.id, None)

    def offer(self, offered: Iterable[Job], withdrawn: Iterable[int]) -> None:
        """Offer new and changed jobs to the policy, and withdraw jobs by id."""
        for job_id in withdrawn:
            gone = self._offered.pop(job_id, None)
            if gone is not None:
                self._by_workload[workload_key(gone.spec)].pop(job_id, None)
                self._placer.remove(job_id)
                self._rejected.pop(job_id, None)
        for job in offered:
            known = self._offered.get(job.id)
            if known is not job:
                if known is not None:
                    self._by_workload[workload_key(known.spec)].pop(job.id, None)
                self._offered[job.id] = job
                self.changes += 1
                self._by_workload.setdefault(workload_key(job.spec), {})[job.id] = None
                self._placer.add(job)
                self._unconsidered.add(job.id)
                self._rejected.pop(job.id, None)

    def sampled(self) -> None:
        """Take over the newest sample of all GPUs, and a changed inventory."""
        gpus = self._telemetry.gpus
        if gpus is not self._inventory and gpus != self._inventory:
            self._reset(gpus)
        self._inventory = gpus
        self._changed.update(dict.fromkeys(self._gpus))
        self._fresh_until_s = self._telemetry.fresh_until_s()

    def _reset(self, gpus: tuple[Gpu, ...]) -> None:
        self.changes += 1
        self._gpus = {gpu.uuid: gpu for gpu in gpus}
        self._placer = make_placer(self._policy, self._predictions)
        for job in self._offered.values():
            self._placer.add(job)

    def learned(self, key: str) -> None:
        """Offer the jobs of a workload again: new predictions may change their demand and their best GPUs."""
        for job_id in self._by_workload.get(key, ()):
            self._placer.add(self._offered[job_id])

    # Placement.

    @property
    def waiting(self) -> int:
        """The number of jobs that wait only for GPUs."""
        return len(self._offered)

    def decide(self, at_s: float) -> list[Placement]:
        """Placements of the jobs to start now; the caller passes each to `admit` before it launches."""
        if at_s > self._fresh_until_s or at_s < self._decided_at_s:
            # Samples went stale, or the clock was set back. Available memory depends on both.
            self._changed.update(dict.fromkeys(self._gpus))
            self._fresh_until_s = math.inf if at_s > self._fresh_until_s else self._telemetry.fresh_until_s()
        for uuid in self._changed:
            gpu = self._gpus.get(uuid)
            if gpu is not None:
                self._placer.update(self.gpu_at(gpu, at_s))
        self._changed.clear()
        self._decided_at_s = at_s
        self._unconsidered.clear()
        placements = self._placer.decide(at_s)
        for placement in placements:
            self._changed.update(dict.fromkeys(placement.gpu_uuids))
        return placements

    def admit(self, placement: Placement, at_s: float) -> bool:
        """Whether `placement` is valid. If not, the job stays pending and `explain` gives the reason."""
        job = self._offered.pop(placement.job_id, None)
        if job is not None:
            self._by_workload[workload_key(job.spec)].pop(job.id, None)
        gpus = [self._gpus[uuid] for uuid in placement.gpu_uuids if uuid in self._gpus]
        server = ServerSnapshot(at_s=at_s, gpus=tuple(self.gpu_at(gpu, at_s) for gpu in gpus))
        broken = "placed twice" if job is None else broken_promise(server, placement, job.spec.gpus)
        if broken is None and job is not None and job.spec.time_limit_s is not None:
            broken = _too_short(gpus, job.spec.time_limit_s, at_s)
        if broken is None:
            return True
        if job is not None:
            self.offer([job], ())
            self._unconsidered.discard(job.id)
            reason = f"placement by policy `{self._policy.name}` refused: {broken}"
            self._rejected[job.id] = Deferral(job_id=job.id, reason=reason)
        return False

    def explain(self, job_id: int) -> Deferral | None:
        """The answer of the policy for a pending job; None if it has not considered the job yet."""
        if job_id not in self._offered or job_id in self._unconsidered or math.isinf(self._decided_at_s):
            return None
        return self._rejected.get(job_id) or self._placer.explain(job_id, self._decided_at_s)

    # The GPUs.

    @property
    def reserved(self) -> Mapping[str, int]:
        """For which job GPUs are reserved, by UUID."""
        return reserved_gpus(self._placer)

    def neighbor_ids(self, job: Job) -> tuple[int, ...]:
        """Ids of the jobs placed on the first GPU of `job`, which stands for all of its GPUs."""
        uuids = self._gpus_of.get(job.id, ())
        return tuple(sorted(set(self._residents.get(uuids[0], ())) - {job.id})) if uuids else ()

    def resident_ids(self, uuid: str) -> frozenset[int]:
        """Ids of the jobs placed on a GPU."""
        return frozenset(self._residents.get(uuid, ()))

    def snapshot(self, at_s: float) -> ServerSnapshot:
        """All GPUs as a policy would see them at `at_s`."""
        return ServerSnapshot(at_s=at_s, gpus=tuple(self.gpu_at(gpu, at_s) for gpu in self._telemetry.gpus))

    def occupancies(self) -> Iterator[GpuOccupancy]:
        """What each GPU holds: cheaper than `snapshot`, without what policies need to know of residents."""
        jobs = self._table.jobs
        for gpu in self._telemetry.gpus:
            residents = [jobs[job_id] for job_id in sorted(self._residents.get(gpu.uuid, ()))]
            promised_bytes = sum(job.attempts[-1].placement.promised_bytes for job in residents)
            yield GpuOccupancy(gpu, self._telemetry.latest(gpu.uuid), promised_bytes, residents)

    def gpu_at(self, gpu: Gpu, at_s: float) -> GpuSnapshot:
        """One GPU as a policy would see it at `at_s`."""
        residents = tuple(self._resident(job_id, gpu.uuid) for job_id in sorted(self._residents.get(gpu.uuid, ())))
        return self._telemetry.gpu_snapshot(gpu, at_s, residents)

    def _resident(self, job_id: int, uuid: str) -> Resident:
        job = self._table.jobs[job_id]
        attempt = job.attempts[-1]
        activity = self._predictions.activity(job)
        smact = activity.smact if activity is not None else None
        if smact is None:
            smact = self._telemetry.solo_smact(job_id, attempt.number)
        resident = Resident(
            job_id=job_id,
            attempt=attempt.number,
            promised_bytes=attempt.placement.promised_bytes,
            observed_bytes=None,
            sharing=attempt.placement.sharing,
            placed_at_s=attempt.placed_at_s,
            max_slowdown=job.spec.max_slowdown,
            gpus=len(attempt.placement.gpu_uuids),
            workload=activity.workload if activity is not None else None,
            smact=smact,
            expected_smact=None if job.estimate is None else job.estimate.smact_interval,
        )
        return self._telemetry.observed(resident, uuid)


def broken_promise(server: ServerSnapshot, placement: Placement, gpus: int) -> str | None:
    """Why `placement` is invalid for a job of `gpus` GPUs; None if valid. Guards against faulty policies."""
    uuids = placement.gpu_uuids
    if len(set(uuids)) != gpus or len(uuids) != gpus:
        return f"{gpus} different GPUs wanted, {len(set(uuids))} given"
    snapshots = {snapshot.gpu.uuid: snapshot for snapshot in server.gpus}
    for uuid in uuids:
        snapshot = snapshots.get(uuid)
        available = None if snapshot is None else snapshot.available_bytes
        if snapshot is None or available is None:
            return f"nothing may be promised on {uuid}"
        if not 0 < placement.promised_bytes <= available:
            promised = format_bytes(placement.promised_bytes)
            return f"{promised} promised on {uuid}, {format_bytes(available)} available"
        is_held = any(resident.sharing == "exclusive" for resident in snapshot.residents)
        if is_held or (placement.sharing == "exclusive" and snapshot.residents):
            return f"{uuid} cannot be shared with job {placement.job_id}"
    return None


def _too_short(gpus: Sequence[Gpu], limit_s: float, at_s: float) -> str | None:
    """Why a job with a time limit would not end before its GPUs are gone; None if it would."""
    end_s = min((gpu.available_until_s for gpu in gpus if gpu.available_until_s is not None), default=math.inf)
    if at_s + limit_s <= end_s:
        return None
    return f"its time limit is {format_duration(limit_s)}, and its GPUs have {format_duration(end_s - at_s)} left"
