"""Dependencies between jobs, with the semantics of Slurm's `--dependency`.

`after` is `afterok`, `after_any` is `afterany`, `after_failed` is `afternotok`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from cotenant.core.job import Done, Job, JobSpec

_ENDS = {"after": "to complete", "after_any": "to end", "after_failed": "to fail"}


def all_dependencies(spec: JobSpec) -> tuple[int, ...]:
    """Ids of all dependencies, without duplicates."""
    if not (spec.after or spec.after_any or spec.after_failed):
        return ()
    return tuple(dict.fromkeys((*spec.after, *spec.after_any, *spec.after_failed)))


def open_dependencies(job: Job, jobs: Mapping[int, Job]) -> tuple[int, ...]:
    """Ids of the dependencies that are not met yet; an unknown job never ends."""
    spec = job.spec
    if not (spec.after or spec.after_any or spec.after_failed):
        return ()
    found = (
        *(needed for needed in spec.after if not _ended(jobs.get(needed), ok=True)),
        *(needed for needed in spec.after_any if not _ended(jobs.get(needed), ok=None)),
        *(needed for needed in spec.after_failed if not _ended(jobs.get(needed), ok=False)),
    )
    return tuple(dict.fromkeys(found))


def unsatisfiable_reason(spec: JobSpec, jobs: Mapping[int, Job], job_id: int) -> str | None:
    """Why the dependencies of this spec can never be met; None if they can."""
    for dependency in all_dependencies(spec):
        if dependency not in jobs or dependency == job_id:
            return f"dependency {dependency} unknown"
    for dependency in spec.after:
        state = jobs[dependency].state
        if isinstance(state, Done) and state.outcome != "completed":
            return f"dependency {dependency} {'cancelled' if state.outcome == 'cancelled' else 'failed'}"
    for dependency in spec.after_failed:
        if is_completed(jobs[dependency]):
            return f"dependency {dependency} completed"
    return None


def dependency_text(job: Job, jobs: Mapping[int, Job], older_singletons: Iterable[int]) -> str:
    """The reason shown for a job with open dependencies; `older_singletons` are the jobs that a singleton waits for."""
    spec = job.spec
    parts = []
    for field, ids, ok in (
        ("after", spec.after, True),
        ("after_any", spec.after_any, None),
        ("after_failed", spec.after_failed, False),
    ):
        still_open = [job_id for job_id in ids if not _ended(jobs.get(job_id), ok=ok)]
        if still_open:
            parts.append(f"for {_job_list(still_open)} {_ENDS[field]}")
    older = sorted(older_singletons)
    if older:
        parts.append(f"for {_job_list(older)} of the same name to end")
    return "waits " + ", and ".join(parts)


def is_completed(job: Job) -> bool:
    """Whether the job is done, with outcome `completed`."""
    return isinstance(job.state, Done) and job.state.outcome == "completed"


def _ended(job: Job | None, *, ok: bool | None) -> bool:
    if job is None or not isinstance(job.state, Done):
        return False
    return ok is None or is_completed(job) is ok


def _job_list(ids: list[int]) -> str:
    shown = ", ".join(str(job_id) for job_id in ids[:5])
    more = f" and {len(ids) - 5} more" if len(ids) > 5 else ""
    return f"job{'' if len(ids) == 1 else 's'} {shown}{more}"
