"""Dry runs: what would happen to a job if it were submitted now.

A module of its own: it answers by a placer that it makes for the purpose, and changes nothing.
"""

from __future__ import annotations

from cotenant.core.estimate import Estimate
from cotenant.core.job import Job, JobSpec, Queued
from cotenant.core.placement import Deferral, Placement
from cotenant.daemon.api.schemas.json_objects import Preview, StartPreview, WaitPreview
from cotenant.daemon.api.views.job_views import JsonViews, estimate_view
from cotenant.scheduling.demand import demand_bytes
from cotenant.scheduling.dependencies import dependency_text, open_dependencies
from cotenant.scheduling.explain import without_strangers
from cotenant.scheduling.manager import Manager
from cotenant.scheduling.placement.policy import Policy
from cotenant.scheduling.placement.snapshot_adapter import make_placer, place_snapshot


def preview(
    manager: Manager, policy: Policy, spec: JobSpec, estimate: Estimate | None, error: str | None, *, at_s: float
) -> StartPreview | WaitPreview:
    """The estimate, and a placement or the reason to wait, after all queued jobs have been placed."""
    job = Job(
        id=max(manager.jobs, default=0) + 1,
        spec=spec,
        submitted_at_s=at_s,
        state=Queued(since_s=at_s),
        estimate=estimate,
        estimate_error=error,
    )
    views = JsonViews(manager, at_s)
    answer = _answer(manager, policy, job, at_s)
    fields: Preview = {
        "name": spec.name,
        "command": list(spec.command),
        "gpus": spec.gpus,
        "need_bytes": demand_bytes(job),
        "estimate": None if estimate is None else estimate_view(estimate),
        "estimate_error": error,
    }
    older_singletons = manager.older_singletons(job)
    if older_singletons or open_dependencies(job, manager.jobs):
        return {
            **fields,
            "decision": "wait",
            "reason": dependency_text(job, manager.jobs, older_singletons),
            "rule": "dependency",
            "rejections": [],
        }
    if isinstance(answer, Placement):
        return {**fields, "decision": "start", **views.placement(answer)}
    return {**fields, "decision": "wait", **views.wait(without_strangers(answer, spec.uid, manager.jobs))}


def _answer(manager: Manager, policy: Policy, job: Job, at_s: float) -> Placement | Deferral:
    """The decision of the policy now, with the manager's history."""
    placer = make_placer(policy, manager.history)
    placed = place_snapshot(placer, (*manager.queue(), job), manager.server_snapshot(at_s))
    return placed.get(job.id) or placer.explain(job.id, at_s)
