"""Jobs as JSON for clients. Bytes and seconds as everywhere, times as RFC 3339 in UTC."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence

from cotenant.core.estimate import Estimate
from cotenant.core.job import Attempt, AttemptExit, Done, Job, Queued
from cotenant.core.placement import Deferral, Placement
from cotenant.core.ports import QuarantinedEvent
from cotenant.daemon.api.schemas.json_objects import (
    AttemptSummary,
    AttemptView,
    DeferralView,
    EstimateView,
    ExitView,
    Explanation,
    FilePaths,
    JobDetail,
    JobView,
    MoveCostView,
    PlacementView,
    QuarantinedView,
    RejectionView,
)
from cotenant.daemon.api.views.job_words import exit_code, label, rfc3339, state_name
from cotenant.daemon.api.views.states import SHORT
from cotenant.daemon.api.views.usage_json import attempt_idle_s, co_run_view, current_idle_s, usage_of, usage_view
from cotenant.gpu_specs import gpu_spec_for_nvml
from cotenant.scheduling.advice import Instances, advice_for
from cotenant.scheduling.checkpoints import is_moved, is_saved
from cotenant.scheduling.demand import demand_bytes
from cotenant.scheduling.explain import without_strangers
from cotenant.scheduling.manager import Manager
from cotenant.scheduling.recovery import is_forgiven


class JsonViews:
    """Jobs of `manager` at `at_s`, for one answer."""

    def __init__(self, manager: Manager, at_s: float) -> None:
        self._manager = manager
        self._at_s = at_s

    @functools.cached_property
    def _indices(self) -> dict[str, int]:
        return {gpu.uuid: gpu.index for gpu in self._manager.gpus}

    def job(self, job: Job) -> JobView:
        """A job in a list."""
        attempt = job.last_attempt
        started_at_s = next((run.started_at_s for run in job.attempts if run.started_at_s is not None), None)
        ended_at_s = job.state.at_s if isinstance(job.state, Done) else None
        name = state_name(job)
        array = job.spec.array
        explanation = self._explain(job)
        return {
            "id": job.id,
            "label": label(job),
            "array_id": None if array is None else array.array_id,
            "array_index": None if array is None else array.index,
            "name": job.spec.name,
            "user": job.spec.user,
            "state": name,
            "state_short": SHORT[name],
            "reason": explanation.reason,
            "rule": explanation.rule,
            "exit_code": exit_code(job),
            "gpus": job.spec.gpus,
            "gpu_uuids": [] if attempt is None else list(attempt.placement.gpu_uuids),
            "gpu_indices": self._where(attempt),
            "sharing": None if attempt is None else attempt.placement.sharing,
            "need_bytes": demand_bytes(job),
            "promised_bytes": None if attempt is None else attempt.placement.promised_bytes,
            "observed_bytes": self._observed(job),
            "attempts": len(job.attempts),
            "priority": job.spec.priority,
            "time_limit_s": job.spec.time_limit_s,
            "submitted_at": rfc3339(job.submitted_at_s),
            "started_at": rfc3339(started_at_s),
            "ended_at": rfc3339(ended_at_s),
            "queueing_s": None if started_at_s is None else max(0.0, started_at_s - job.submitted_at_s),
            "waited_s": _waited_s(job),
            "running_s": _running_s(attempt, self._at_s),
            "idle_s": current_idle_s(job, self._at_s),
            "jct_s": None if ended_at_s is None else ended_at_s - job.submitted_at_s,
            "usage": usage_view(usage_of(job, self._manager)),
            "advice": list(self._advice(job)),
        }

    def _advice(self, job: Job) -> tuple[str, ...]:
        if not isinstance(job.state, Done) or not job.attempts:
            return ()
        visible = {
            neighbor for run in job.attempts[-1].co_runs for neighbor in self._manager.redact_ids(job, run.neighbor_ids)
        }
        return advice_for(
            job,
            instances=self._instances.get(job.attempts[-1].placement.gpu_uuids[0], {}),
            name_of=lambda job_id: f"job {job_id}" if job_id in visible else None,
        )

    @functools.cached_property
    def _instances(self) -> Mapping[str, Instances]:
        """MIG profiles by UUID of the GPU, for GPUs whose model is known."""
        found = {}
        for gpu in self._manager.gpus:
            spec = None if gpu.mig_profile else gpu_spec_for_nvml(gpu.name, gpu.memory_total_bytes)
            if spec is not None:
                profiles = {mig.name: (mig.memory_bytes, mig.sm_count / spec.sm_count) for mig in spec.mig}
                found[gpu.uuid] = profiles
        return found

    def detail(self, job: Job, *, paths: FilePaths, quarantined: Sequence[QuarantinedEvent] = ()) -> JobDetail:
        """Everything about a job except the values in its environment, which may be secrets."""
        spec = job.spec
        return {
            **self.job(job),
            "command": list(spec.command),
            "workdir": spec.workdir,
            "environment_names": sorted(spec.env),
            "uid": spec.uid,
            "source": spec.source,
            "declared_bytes": spec.declared_bytes,
            "estimator": spec.estimator,
            "exclusive": spec.exclusive,
            "requested_sharing": spec.sharing,
            "max_slowdown": spec.max_slowdown,
            "after": list(spec.after),
            "after_any": list(spec.after_any),
            "after_failed": list(spec.after_failed),
            "singleton": spec.singleton,
            "begin_at": rfc3339(spec.begin_at_s),
            "requeue": spec.requeue,
            "retries": spec.retries,
            "time_slice_s": spec.time_slice_s,
            "checkpoint_signal": spec.checkpoint_signal,
            "checkpoint_grace_s": spec.checkpoint_grace_s,
            "move_cost": None if spec.checkpoint_signal is None else self._move_cost(job),
            "notify": spec.notify,
            "progress": spec.progress,
            "max_attempts": spec.max_attempts,
            "min_memory_bytes": job.min_memory_bytes or None,
            "exclusive_retry": job.exclusive_retry,
            "estimate": None if job.estimate is None else estimate_view(job.estimate),
            "estimate_error": job.estimate_error,
            "quarantined": [_quarantined_view(event) for event in quarantined],
            "attempt_list": [self._attempt(job, attempt) for attempt in job.attempts],
            **paths,
        }

    def _attempt(self, job: Job, attempt: Attempt) -> AttemptView:
        return {
            **attempt_view(attempt),
            "gpu_indices": self._where(attempt),
            "usage": usage_view(self._manager.usage(job, attempt.number)),
            "idle_s": attempt_idle_s(attempt, self._at_s),
            "co_runs": [
                {**co_run_view(co_run), "neighbor_ids": list(self._manager.redact_ids(job, co_run.neighbor_ids))}
                for co_run in self._manager.co_runs(job, attempt.number)
            ],
            "forgiven": is_forgiven(attempt),
            "moved": is_moved(attempt),
            "saved": is_saved(attempt),
            "stopping_s": None if attempt.exit is None else attempt.exit.stopping_s,
            "startup_s": attempt.startup_s,
            "overruns": [
                {
                    "job_id": overrun.job_id,
                    "gpu_uuid": overrun.gpu_uuid,
                    "promised_bytes": overrun.promised_bytes,
                    "observed_bytes": overrun.observed_bytes,
                }
                for overrun in attempt.overruns
            ],
            "charges": [
                {
                    "at": rfc3339(charge.at_s),
                    "victim_id": charge.victim_id,
                    "gpu_uuid": charge.gpu_uuid,
                    "observed_bytes": charge.observed_bytes,
                    "usage": usage_view(charge.usage),
                }
                for charge in attempt.charges
            ],
        }

    def _move_cost(self, job: Job) -> MoveCostView:
        cost = self._manager.history.move_cost(job)
        return {
            "seconds": cost.seconds,
            "save_s": cost.save_s,
            "startup_s": cost.startup_s,
            "saves": cost.saves,
            "unsaved": cost.unsaved,
        }

    def explanation(self, job: Job, *, quarantined: Sequence[QuarantinedEvent] = ()) -> Explanation:
        """Why a job waits, with a rejection for each GPU that was considered."""
        return {
            "id": job.id,
            "state": state_name(job),
            "quarantined": [_quarantined_view(event) for event in quarantined],
            **self.wait(self._explain(job)),
        }

    def _explain(self, job: Job) -> Deferral:
        found = self._manager.explain(job.id)
        return without_strangers(found, job.spec.uid, self._manager.jobs) if isinstance(job.state, Queued) else found

    def wait(self, wait: Deferral) -> DeferralView:
        """A deferral by the policy."""
        rejections: list[RejectionView] = [
            {
                "gpu": self._indices.get(rejection.gpu_uuid),
                "gpu_uuid": rejection.gpu_uuid,
                "rule": rejection.rule,
                "reason": rejection.reason,
            }
            for rejection in wait.rejections
        ]
        return {"reason": wait.reason, "rule": wait.rule, "rejections": rejections}

    def placement(self, placement: Placement) -> PlacementView:
        """A placement by the policy."""
        return {
            "gpu_uuids": list(placement.gpu_uuids),
            "gpu_indices": [self._indices.get(gpu_uuid) for gpu_uuid in placement.gpu_uuids],
            "sharing": placement.sharing,
            "promised_bytes": placement.promised_bytes,
        }

    def _where(self, attempt: Attempt | None) -> list[int | None]:
        return [] if attempt is None else [self._indices.get(gpu_uuid) for gpu_uuid in attempt.placement.gpu_uuids]

    def _observed(self, job: Job) -> int | None:
        """Most bytes on one GPU: at the moment for a running attempt, else the peak of the last one."""
        attempt = job.last_attempt
        if attempt is None:
            return None
        if attempt.ended_at_s is None:
            return self._manager.observed_bytes(job)
        return max(attempt.peak_observed_bytes.values(), default=None)


def _quarantined_view(event: QuarantinedEvent) -> QuarantinedView:
    return {
        "seq": event.seq,
        "type": event.type,
        "at": rfc3339(event.at_s),
        "cause": event.cause,
        "error": event.error,
    }


def estimate_view(estimate: Estimate) -> EstimateView:
    """An estimate."""
    return {
        "estimator": estimate.estimator,
        "version": estimate.version,
        "gpu": estimate.gpu,
        "peak_allocated_bytes": estimate.peak_allocated_bytes,
        "peak_reserved_bytes": estimate.peak_reserved_bytes,
        "context_bytes": estimate.context_bytes,
        "margin_bytes": estimate.margin_bytes,
        "device_bytes": estimate.device_bytes,
        "bound_bytes": estimate.bound_bytes,
        "coverage": estimate.coverage,
        "breakdown_bytes": dict(estimate.breakdown_bytes),
        "smact": estimate.smact,
        "smact_low": estimate.smact_low,
        "smact_high": estimate.smact_high,
        "smocc": estimate.smocc,
        "partial": estimate.partial,
        "warnings": list(estimate.warnings),
    }


def attempt_view(attempt: Attempt) -> AttemptSummary:
    """One run of a job."""
    place = attempt.placement
    return {
        "number": attempt.number,
        "gpu_uuids": list(place.gpu_uuids),
        "sharing": place.sharing,
        "promised_bytes": place.promised_bytes,
        "peak_observed_bytes": dict(attempt.peak_observed_bytes),
        "pid": None if attempt.process is None else attempt.process.pid,
        "placed_at": rfc3339(attempt.placed_at_s),
        "started_at": rfc3339(attempt.started_at_s),
        "ended_at": rfc3339(attempt.ended_at_s),
        "stop_reason": attempt.stop_reason,
        "exit": None if attempt.exit is None else _exit_view(attempt.exit),
    }


def _exit_view(end: AttemptExit) -> ExitView:
    oom = end.oom
    return {
        "exit_code": end.exit_code,
        "signal": end.signal,
        "reason": end.reason,
        "detail": end.detail,
        "oom": {
            "exception": oom.exception,
            "message": oom.message,
            "tried_bytes": oom.tried_bytes,
            "in_use_bytes": oom.in_use_bytes,
            "free_bytes": oom.free_bytes,
        },
    }


def counts(jobs: Iterable[Job]) -> dict[str, int]:
    """Jobs by state; states without jobs are left out."""
    found: dict[str, int] = {}
    for job in jobs:
        name = state_name(job)
        found[name] = found.get(name, 0) + 1
    return found


def _waited_s(job: Job) -> float | None:
    """Time in the queue before all attempts so far, without the time between an end and a requeue by the user."""
    waited_s: float | None = None
    since_s = job.submitted_at_s
    for attempt in job.attempts:
        if attempt.started_at_s is not None and attempt.number - 1 != (job.uncounted_attempts or -1):
            waited_s = (waited_s or 0.0) + max(0.0, attempt.started_at_s - since_s)
        since_s = since_s if attempt.ended_at_s is None else attempt.ended_at_s
    return waited_s


def _running_s(attempt: Attempt | None, at_s: float) -> float | None:
    """How long the newest attempt has run."""
    if attempt is None or attempt.started_at_s is None:
        return None
    return max(0.0, (at_s if attempt.ended_at_s is None else attempt.ended_at_s) - attempt.started_at_s)
