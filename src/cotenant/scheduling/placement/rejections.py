"""Why a job waits, in words: a verdict for each GPU, and a sentence for all."""

from __future__ import annotations

from collections.abc import Sequence

from cotenant.core.placement import Deferral, Rejection
from cotenant.scheduling.placement import gates
from cotenant.scheduling.placement.gpu_view import GpuView
from cotenant.scheduling.placement.pending_queue import DemandClass
from cotenant.scheduling.placement.rules import Rules


def rejection(policy: Rules, kind: DemandClass, job_id: int, view: GpuView, at_s: float) -> Rejection | None:
    """The first rule by which this GPU will not take the job, or None."""
    need = kind.need
    for rule, reason in (
        ("stale_telemetry", gates.stale_telemetry(view, at_s)),
        ("reserved", gates.reserved(job_id, view)),
        ("honors_share", gates.honors_share(need, view)),
        ("honors_exclusive", gates.honors_exclusive(need, view)),
        ("insufficient_memory", gates.insufficient_memory(need, view)),
    ):
        if reason is not None:
            return Rejection(gpu_uuid=view.uuid, rule=rule, reason=reason)
    for gate in policy.gates:
        if need.ignores_activity and gate.of_activity:
            continue
        reason = gate.refuses(view, at_s)
        if reason is not None:
            return Rejection(gpu_uuid=view.uuid, rule=gate.rule, reason=reason)
    match = policy.match
    if match is not None and not need.alone and match.cost(kind.profile, view.gpu_class) is None:
        return Rejection(gpu_uuid=view.uuid, rule=match.rule, reason=match.reason(kind.profile, view.gpu_class))
    return None


def deferral(policy: Rules, kind: DemandClass, job_id: int, views: Sequence[GpuView], at_s: float) -> Deferral:
    """What a job is told that finds no place."""
    need = kind.need
    found = [rejection(policy, kind, job_id, each, at_s) for each in views]
    qualify = sum(1 for each in found if each is None)
    tally = f"{qualify} of {len(views)} qualif{'y' if qualify > 1 else 'ies'}"
    if not views:
        tally = "no GPU is known"
    elif not qualify:
        tally = f"none of {len(views)} qualifies"
    short = f"qualifies, but {need.gpus} GPUs are needed at once"
    every = tuple(
        each or Rejection(gpu_uuid=view.uuid, rule="gang", reason=short)
        for view, each in zip(views, found, strict=True)
    )
    return Deferral(job_id=job_id, reason=f"{need.text}, {tally}", rejections=every)


def head_of_line_wait(job_id: int, head: int, views: Sequence[GpuView]) -> Deferral:
    """What a job is told whose policy lets nobody pass the first."""
    reason = f"job {head} is ahead and this policy lets nobody pass"
    every = tuple(Rejection(gpu_uuid=view.uuid, rule="in_order", reason=reason) for view in views)
    return Deferral(job_id=job_id, reason=reason, rejections=every)
