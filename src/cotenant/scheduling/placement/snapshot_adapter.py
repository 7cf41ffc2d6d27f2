"""A placer for policies that decide over whole snapshots only, and one decision of a placer over a snapshot."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Protocol, runtime_checkable

from cotenant.core.gpu import GpuSnapshot, Resident, ServerSnapshot
from cotenant.core.job import Job
from cotenant.core.placement import Deferral, Placement
from cotenant.scheduling.placement.policy import NO_PREDICTIONS, IncrementalPolicy, JobPredictions, Placer, Policy
from cotenant.scheduling.prediction.interference import GpuActivity


def make_placer(policy: Policy, predictions: JobPredictions = NO_PREDICTIONS) -> Placer:
    """The placer of `policy`: its own if it has one, else an adapter that calls `decide`."""
    return policy.placer(predictions) if isinstance(policy, IncrementalPolicy) else SnapshotPolicyAdapter(policy)


@runtime_checkable
class _Reserving(Protocol):
    @property
    def reserved(self) -> Mapping[str, int]: ...


def reserved_gpus(placer: Placer) -> Mapping[str, int]:
    """For which job a placer reserves GPUs, by UUID; empty for one that reserves none."""
    return placer.reserved if isinstance(placer, _Reserving) else {}


def place_snapshot(placer: Placer, queue: Iterable[Job], server: ServerSnapshot) -> dict[int, Placement]:
    """The jobs of `queue` that an empty placer starts on the GPUs of `server`. It can explain the others afterwards."""
    for gpu in server.gpus:
        placer.update(gpu)
    for job in queue:
        placer.add(job)
    return {placement.job_id: placement for placement in placer.decide(server.at_s)}


class SnapshotPolicyAdapter:
    """Calls `Policy.decide` with all pending jobs and all GPUs, for every decision."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._jobs: dict[int, Job] = {}
        self._gpus: dict[str, GpuSnapshot] = {}
        self._deferrals: dict[int, Deferral] = {}

    @property
    def waiting(self) -> int:
        """The number of pending jobs."""
        return len(self._jobs)

    @property
    def wakes_at_s(self) -> float | None:
        """Not known: None, and `decide` may still answer differently later."""
        return None

    def add(self, job: Job) -> None:
        """`job` is pending and may start. A job that is pending already has changed."""
        self._jobs[job.id] = job

    def remove(self, job_id: int) -> None:
        """The job is no longer pending; nothing if it is not."""
        self._jobs.pop(job_id, None)
        self._deferrals.pop(job_id, None)

    def update(self, gpu: GpuSnapshot) -> None:
        """Replace the state of one GPU. The order of the first updates is the display order of the GPUs."""
        self._gpus[gpu.gpu.uuid] = gpu

    def release(self, job_id: int) -> None:
        """A job that this placer placed has left its GPUs."""
        for uuid, gpu in self._gpus.items():
            if any(resident.job_id == job_id for resident in gpu.residents):
                staying = tuple(resident for resident in gpu.residents if resident.job_id != job_id)
                self._gpus[uuid] = replace(gpu, residents=staying)

    def mark_active(self, job_id: int, at_s: float) -> None:
        """A job that this placer placed has used its GPUs for the first time."""
        for uuid, gpu in self._gpus.items():
            if any(resident.job_id == job_id and resident.first_active_at_s is None for resident in gpu.residents):
                residents = tuple(
                    replace(resident, first_active_at_s=at_s) if resident.job_id == job_id else resident
                    for resident in gpu.residents
                )
                self._gpus[uuid] = replace(gpu, residents=residents)

    def set_activity(self, gpu_uuid: str, activity: GpuActivity) -> None:
        """Set the mean activity of a GPU since its newest resident was first active; replaces its samples by one."""
        gpu = self._gpus[gpu_uuid]
        if gpu.samples:
            sample = replace(gpu.samples[-1], smact=activity.smact, smocc=activity.smocc, drama=activity.drama)
            self._gpus[gpu_uuid] = replace(gpu, samples=(sample,))

    def decide(self, at_s: float) -> list[Placement]:
        """Which jobs start now, and where. Does not call the policy while no job is pending."""
        if not self._jobs:
            return []
        queue = sorted(self._jobs.values(), key=lambda job: (job.submitted_at_s, job.id))
        placements = []
        for answer in self._policy.decide(queue, ServerSnapshot(at_s=at_s, gpus=tuple(self._gpus.values()))):
            if isinstance(answer, Deferral):
                self._deferrals[answer.job_id] = answer
                continue
            placements.append(answer)
            self._deferrals.pop(answer.job_id, None)
            if self._jobs.pop(answer.job_id, None) is not None:
                self._assign(answer, at_s)
        return placements

    def _assign(self, placement: Placement, at_s: float) -> None:
        resident = Resident(
            job_id=placement.job_id,
            attempt=0,
            promised_bytes=placement.promised_bytes,
            observed_bytes=None,
            sharing=placement.sharing,
            placed_at_s=at_s,
        )
        for uuid in placement.gpu_uuids:
            if uuid in self._gpus:
                gpu = self._gpus[uuid]
                self._gpus[uuid] = replace(gpu, residents=(*gpu.residents, resident))

    def explain(self, job_id: int, at_s: float) -> Deferral:  # noqa: ARG002 -- the answer of the newest `decide`
        """What the policy answered last.

        Raises:
            KeyError: the job is not pending.
        """
        if job_id not in self._jobs:
            raise KeyError(job_id)
        return self._deferrals.get(job_id) or Deferral(job_id=job_id, reason="not considered yet")
