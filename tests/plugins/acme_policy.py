"""A policy of another distribution: jobs in order of submission, each exclusively on the first GPUs that will do."""

from __future__ import annotations

from cotenant.core.placement import Deferral, Placement, Rejection
from cotenant.scheduling.demand import demand_bytes

ENTRY_POINTS = {"cotenant.policies": {"acme": "acme_policy:InOrder"}}


class InOrder:
    """Has `decide` alone; the scheduler calls it with all pending jobs and all GPUs."""

    name = "acme"

    def decide(self, queue, server):
        taken = set()
        answers = []
        for job in sorted(queue, key=lambda job: (job.submitted_at_s, job.id)):
            rules = {snapshot.gpu.uuid: _refused_by(job, snapshot, taken) for snapshot in server.gpus}
            chosen = [snapshot for snapshot in server.gpus if rules[snapshot.gpu.uuid] is None][: job.spec.gpus]
            if len(chosen) == job.spec.gpus:
                uuids = tuple(snapshot.gpu.uuid for snapshot in chosen)
                promised_bytes = min(snapshot.available_bytes for snapshot in chosen)
                answers.append(
                    Placement(job_id=job.id, gpu_uuids=uuids, sharing="exclusive", promised_bytes=promised_bytes)
                )
                taken.update(uuids)
            else:
                reasons = {uuid: rule or "too_few_gpus" for uuid, rule in rules.items()}
                rejections = tuple(
                    Rejection(gpu_uuid=uuid, rule=rule, reason=f"acme: {rule}") for uuid, rule in reasons.items()
                )
                answers.append(
                    Deferral(job_id=job.id, reason=f"{len(chosen)} of {job.spec.gpus} GPUs", rejections=rejections)
                )
        return answers


def _refused_by(job, snapshot, taken):
    """The name of a rule, or None."""
    if snapshot.available_bytes is None:
        return "stale_telemetry"
    if job.spec.sharing == "mig" and snapshot.gpu.mig_profile is None:
        return "no_mig_instance"
    if snapshot.residents or snapshot.gpu.uuid in taken:
        return "not_empty"
    return "insufficient_memory" if snapshot.available_bytes < (demand_bytes(job) or 1) else None
