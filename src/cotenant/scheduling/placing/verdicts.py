"""Why a job waits, in words: a verdict for each GPU, and a sentence for all."""

from __future__ import annotations

from collections.abc import Sequence

from cotenant.core.placement import Verdict, Wait
from cotenant.scheduling import filters
from cotenant.scheduling.placing.rules import Rules
from cotenant.scheduling.placing.views import GpuView
from cotenant.scheduling.placing.waiting import Kind


def verdict(policy: Rules, kind: Kind, job_id: int, view: GpuView, at_s: float) -> Verdict | None:
    """The first rule by which this GPU will not take the job, or None."""
    need = kind.need
    for rule, reason in (
        ("fresh_telemetry", filters.fresh_telemetry(view, at_s)),
        ("kept_free", filters.kept_free(job_id, view)),
        ("honors_share", filters.honors_share(need, view)),
        ("honors_exclusive", filters.honors_exclusive(need, view)),
        ("fits_memory", filters.fits_memory(need, view)),
    ):
        if reason is not None:
            return Verdict(gpu_uuid=view.uuid, rule=rule, reason=reason)
    for gate in policy.gates:
        if need.at_once and gate.of_activity:
            continue
        reason = gate.refuses(view, at_s)
        if reason is not None:
            return Verdict(gpu_uuid=view.uuid, rule=gate.rule, reason=reason)
    match = policy.match
    if match is not None and not need.alone and match.cost(kind.profile, view.signature) is None:
        return Verdict(gpu_uuid=view.uuid, rule=match.rule, reason=match.reason(kind.profile, view.signature))
    return None


def wait(policy: Rules, kind: Kind, job_id: int, views: Sequence[GpuView], at_s: float) -> Wait:
    """What a job is told that finds no place."""
    need = kind.need
    found = [verdict(policy, kind, job_id, each, at_s) for each in views]
    qualify = sum(1 for each in found if each is None)
    tally = f"{qualify} of {len(views)} qualif{'y' if qualify > 1 else 'ies'}"
    if not views:
        tally = "no GPU is known"
    elif not qualify:
        tally = f"none of {len(views)} qualifies"
    short = f"qualifies, but {need.gpus} GPUs are needed at once"
    every = tuple(
        each or Verdict(gpu_uuid=view.uuid, rule="gang", reason=short) for view, each in zip(views, found, strict=True)
    )
    return Wait(job_id=job_id, reason=f"{need.text}, {tally}", verdicts=every)


def behind(job_id: int, head: int, views: Sequence[GpuView]) -> Wait:
    """What a job is told whose policy lets nobody pass the first."""
    reason = f"job {head} is ahead and this policy lets nobody pass"
    every = tuple(Verdict(gpu_uuid=view.uuid, rule="in_order", reason=reason) for view in views)
    return Wait(job_id=job_id, reason=reason, verdicts=every)
