"""A policy that only decides over whole snapshots, at work: it is asked anew each time."""

from __future__ import annotations

from dataclasses import replace

from cotenant.core.gpu import GpuSnapshot, Resident, ServerSnapshot
from cotenant.core.job import Job
from cotenant.core.placement import Deferral, Placement
from cotenant.scheduling.placement.policy import NO_PREDICTIONS, IncrementalPolicy, JobPredictions, Placer, Policy
from cotenant.scheduling.prediction.interference import GpuActivity


def make_placer(policy: Policy, facts: JobPredictions = NO_PREDICTIONS) -> Placer:
    """`policy` on state that it follows: its own way if it has one, else by asking it."""
    return policy.placer(facts) if isinstance(policy, IncrementalPolicy) else SnapshotPolicyAdapter(policy)


class SnapshotPolicyAdapter:
    """Costs a look at all jobs and all GPUs for every decision."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._jobs: dict[int, Job] = {}
        self._gpus: dict[str, GpuSnapshot] = {}
        self._waits: dict[int, Deferral] = {}

    @property
    def waiting(self) -> int:
        """How many jobs wait."""
        return len(self._jobs)

    @property
    def wakes_at_s(self) -> float | None:
        """Nobody knows: None, and `decide` may still answer differently later."""
        return None

    def add(self, job: Job) -> None:
        """`job` waits from now on."""
        self._jobs[job.id] = job

    def remove(self, job_id: int) -> None:
        """The job waits no longer."""
        self._jobs.pop(job_id, None)
        self._waits.pop(job_id, None)

    def update(self, gpu: GpuSnapshot) -> None:
        """The truth about one GPU."""
        self._gpus[gpu.gpu.uuid] = gpu

    def release(self, job_id: int) -> None:
        """A job has left its GPUs."""
        for uuid, gpu in self._gpus.items():
            if any(each.job_id == job_id for each in gpu.residents):
                staying = tuple(each for each in gpu.residents if each.job_id != job_id)
                self._gpus[uuid] = replace(gpu, residents=staying)

    def seen(self, job_id: int, at_s: float) -> None:
        """A job has touched its GPUs."""
        for uuid, gpu in self._gpus.items():
            if any(each.job_id == job_id and each.first_active_at_s is None for each in gpu.residents):
                told = tuple(
                    replace(each, first_active_at_s=at_s) if each.job_id == job_id else each for each in gpu.residents
                )
                self._gpus[uuid] = replace(gpu, residents=told)

    def activity(self, gpu_uuid: str, activity: GpuActivity) -> None:
        """What a GPU was seen to do, as if by its newest sample alone."""
        gpu = self._gpus[gpu_uuid]
        if gpu.samples:
            told = replace(gpu.samples[-1], smact=activity.smact, smocc=activity.smocc, drama=activity.drama)
            self._gpus[gpu_uuid] = replace(gpu, samples=(told,))

    def decide(self, at_s: float) -> list[Placement]:
        """Who starts now, and where; nobody is asked while nobody waits."""
        if not self._jobs:
            return []
        queue = sorted(self._jobs.values(), key=lambda job: (job.submitted_at_s, job.id))
        placements = []
        for answer in self._policy.decide(queue, ServerSnapshot(at_s=at_s, gpus=tuple(self._gpus.values()))):
            if isinstance(answer, Deferral):
                self._waits[answer.job_id] = answer
                continue
            placements.append(answer)
            self._waits.pop(answer.job_id, None)
            if self._jobs.pop(answer.job_id, None) is not None:
                self._count(answer, at_s)
        return placements

    def _count(self, placement: Placement, at_s: float) -> None:
        newcomer = Resident(
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
                self._gpus[uuid] = replace(gpu, residents=(*gpu.residents, newcomer))

    def explain(self, job_id: int, at_s: float) -> Deferral:  # noqa: ARG002 -- what it said when it was asked
        """What the policy last said."""
        if job_id not in self._jobs:
            raise KeyError(job_id)
        return self._waits.get(job_id) or Deferral(job_id=job_id, reason="not looked at yet")
