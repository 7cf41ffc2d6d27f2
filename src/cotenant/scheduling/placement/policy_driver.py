"""What the manager's policy is told, and when: the jobs that may start, and the GPUs that have changed."""

from __future__ import annotations

import math
from collections.abc import Iterable

from cotenant.core.gpu import Gpu, GpuSnapshot, Resident, ServerSnapshot
from cotenant.core.job import Job
from cotenant.core.placement import Deferral, Placement
from cotenant.scheduling.job_table import JobTable
from cotenant.scheduling.placement.memory_demand import PlacementChecker
from cotenant.scheduling.placement.policy import NO_PREDICTIONS, JobPredictions, Policy
from cotenant.scheduling.placement.snapshot_adapter import make_placer
from cotenant.scheduling.prediction.workloads import workload_key
from cotenant.scheduling.telemetry.samples import Telemetry


class PolicyDriver:
    """Keeps a policy at work in line with the jobs of `table` and the readings of `telemetry`."""

    def __init__(
        self, policy: Policy, table: JobTable, telemetry: Telemetry, facts: JobPredictions = NO_PREDICTIONS
    ) -> None:
        self._policy = policy
        self._facts = facts
        self._table = table
        self._telemetry = telemetry
        self._placer = make_placer(policy, facts)
        self._gpus: dict[str, Gpu] = {}
        self._inventory: tuple[Gpu, ...] = ()
        self._tenants: dict[str, dict[int, None]] = {}
        self._seats: dict[int, tuple[str, ...]] = {}
        self._offered: dict[int, Job] = {}
        self._new: set[int] = set()
        self._stale: dict[str, None] = {}
        self._erred: dict[int, Deferral] = {}
        self._works: dict[str, dict[int, None]] = {}  # offered jobs by the key of their work
        self._decided_at_s = -math.inf
        self._fresh_until_s = math.inf

    # What changes.

    def follow(self, job: Job) -> None:
        """`job` has changed: where it lives, perhaps."""
        seats = job.attempts[-1].placement.gpu_uuids if job.id in self._table.live else ()
        before = self._seats.get(job.id, ())
        if seats == before:
            return
        for uuid in before:
            self._tenants[uuid].pop(job.id, None)
            self._stale[uuid] = None
        for uuid in seats:
            self._tenants.setdefault(uuid, {})[job.id] = None
            self._stale[uuid] = None
        if seats:
            self._seats[job.id] = seats
        else:
            self._seats.pop(job.id, None)

    def offer(self, offered: Iterable[Job], withdrawn: Iterable[int]) -> None:
        """Jobs that may start, new or changed, and jobs that may not any longer."""
        for job_id in withdrawn:
            gone = self._offered.pop(job_id, None)
            if gone is not None:
                self._works[workload_key(gone.spec)].pop(job_id, None)
                self._placer.remove(job_id)
                self._erred.pop(job_id, None)
        for job in offered:
            if self._offered.get(job.id) is not job:
                old = self._offered.get(job.id)
                if old is not None:
                    self._works[workload_key(old.spec)].pop(job.id, None)
                self._offered[job.id] = job
                self._works.setdefault(workload_key(job.spec), {})[job.id] = None
                self._placer.add(job)
                self._new.add(job.id)
                self._erred.pop(job.id, None)

    def sampled(self) -> None:
        """There is a new reading of all GPUs."""
        gpus = self._telemetry.gpus
        if gpus is not self._inventory and gpus != self._inventory:
            self._begin_anew(gpus)
        self._inventory = gpus
        self._stale.update(dict.fromkeys(self._gpus))
        self._fresh_until_s = self._telemetry.fresh_until_s()

    def _begin_anew(self, gpus: tuple[Gpu, ...]) -> None:
        self._gpus = {each.uuid: each for each in gpus}
        self._placer = make_placer(self._policy, self._facts)
        for job in self._offered.values():
            self._placer.add(job)

    def learned(self, key: str) -> None:
        """More is known of a kind of work: its jobs that wait may need something else, and go somewhere else."""
        for job_id in self._works.get(key, ()):
            self._placer.add(self._offered[job_id])

    # What follows.

    @property
    def waiting(self) -> int:
        """How many jobs wait for nothing but a place."""
        return len(self._offered)

    def decide(self, at_s: float) -> list[Placement]:
        """Who starts now, and where. Each has to be `admit`ted before it is acted on."""
        if at_s > self._fresh_until_s or at_s < self._decided_at_s:
            # Readings went stale, or the clock was set back: what may be promised depends on that.
            self._stale.update(dict.fromkeys(self._gpus))
            self._fresh_until_s = math.inf if at_s > self._fresh_until_s else self._telemetry.fresh_until_s()
        for uuid in self._stale:
            gpu = self._gpus.get(uuid)
            if gpu is not None:
                self._placer.update(self.gpu_at(gpu, at_s))
        self._stale.clear()
        self._decided_at_s = at_s
        self._new.clear()
        placements = self._placer.decide(at_s)
        for each in placements:
            self._stale.update(dict.fromkeys(each.gpu_uuids))
        return placements

    def admit(self, placement: Placement, at_s: float) -> bool:
        """Whether `placement` keeps every promise. If not, its job goes on waiting and `explain` says why."""
        job = self._offered.pop(placement.job_id, None)
        if job is not None:
            self._works[workload_key(job.spec)].pop(job.id, None)
        gpus = [self._gpus[uuid] for uuid in placement.gpu_uuids if uuid in self._gpus]
        server = ServerSnapshot(at_s=at_s, gpus=tuple(self.gpu_at(each, at_s) for each in gpus))
        broken = "placed twice" if job is None else PlacementChecker(server).admit(placement, job.spec.gpus)
        if broken is None:
            return True
        if job is not None:
            self.offer([job], ())
            self._new.discard(job.id)
            reason = f"policy `{self._policy.name}` erred: {broken}"
            self._erred[job.id] = Deferral(job_id=job.id, reason=reason)
        return False

    def explain(self, job_id: int) -> Deferral | None:
        """What the policy says of a job that waits; None if it has not looked at it yet."""
        if job_id not in self._offered or job_id in self._new or math.isinf(self._decided_at_s):
            return None
        return self._erred.get(job_id) or self._placer.explain(job_id, self._decided_at_s)

    # The GPUs.

    def neighbor_ids(self, job: Job) -> tuple[int, ...]:
        """Ids of the jobs that were placed on the first GPU of `job`, which stands for all of them."""
        seats = self._seats.get(job.id, ())
        return tuple(sorted(set(self._tenants.get(seats[0], ())) - {job.id})) if seats else ()

    def snapshot(self, at_s: float) -> ServerSnapshot:
        """All GPUs as a policy would see them at `at_s`."""
        return ServerSnapshot(at_s=at_s, gpus=tuple(self.gpu_at(each, at_s) for each in self._telemetry.gpus))

    def gpu_at(self, gpu: Gpu, at_s: float) -> GpuSnapshot:
        """One of them."""
        residents = tuple(self._resident(job_id, gpu.uuid) for job_id in sorted(self._tenants.get(gpu.uuid, ())))
        return self._telemetry.one(gpu, at_s, residents)

    def _resident(self, job_id: int, uuid: str) -> Resident:
        job = self._table.jobs[job_id]
        attempt = job.attempts[-1]
        activity = self._facts.activity(job)
        smact = activity.smact if activity is not None else None
        if smact is None:
            smact = self._telemetry.smact_alone(job_id, attempt.number)
        blank = Resident(
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
        )
        return self._telemetry.resident(job_id, attempt.number, uuid, blank=blank)
