"""Summary of a run on a server: makespan, job completion times, and recoveries from OOM."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cotenant.core.job import Attempt, Done, Job
from cotenant.core.stats import mean
from cotenant.core.units import format_bytes, format_duration
from cotenant.scheduling.recovery import ran_out_of_memory


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSummary:
    """Jobs of one run, in the server's time.

    Attributes:
        makespan_s: first submission to last end.
        mean_jct_s: mean of submission to end, over the jobs that completed.
        mean_delay_s: mean of submission to first start.
        ooms: attempts that ran out of memory.
        recoveries: a sentence for each job with an OOM.
        unfinished: jobs that did not complete, as `NAME: OUTCOME`.
    """

    jobs: int
    makespan_s: float
    mean_jct_s: float
    mean_delay_s: float
    ooms: int
    recoveries: tuple[str, ...]
    unfinished: tuple[str, ...]


def summarize_run(jobs: Sequence[Job], *, time_scale: float = 1.0) -> RunSummary:
    """Summary of finished jobs.

    `time_scale`: seconds on the server's clock per second on the jobs' clock.

    Raises:
        ValueError: there is no job, or one is not done.
    """
    ends = [job.state.at_s for job in jobs if isinstance(job.state, Done)]
    if not jobs or len(ends) != len(jobs):
        raise ValueError(f"{len(ends)} of {len(jobs)} jobs are done, wanted all of at least one")
    completed = [job for job in jobs if _outcome(job) == "completed"]
    delays = [job.attempts[0].placed_at_s - job.submitted_at_s for job in jobs if job.attempts]
    return RunSummary(
        jobs=len(jobs),
        makespan_s=(max(ends) - min(job.submitted_at_s for job in jobs)) * time_scale,
        mean_jct_s=_mean([_end(job) - job.submitted_at_s for job in completed]) * time_scale,
        mean_delay_s=_mean(delays) * time_scale,
        ooms=sum(_ran_out(attempt) for job in jobs for attempt in job.attempts),
        recoveries=tuple(_recovery(job, time_scale) for job in jobs if any(map(_ran_out, job.attempts))),
        unfinished=tuple(f"{job.spec.name}: {_outcome(job)}" for job in jobs if _outcome(job) != "completed"),
    )


def compare_rows(first: RunSummary, second: RunSummary) -> list[tuple[str, str, str, str]]:
    """Table rows: metric, first run, second run, change."""
    rows = [
        (what, format_duration(before), format_duration(after), change_text(before, after))
        for what, before, after in (
            ("makespan", first.makespan_s, second.makespan_s),
            ("mean JCT", first.mean_jct_s, second.mean_jct_s),
            ("mean queueing delay", first.mean_delay_s, second.mean_delay_s),
        )
    ]
    before, after = (f"{run.jobs - len(run.unfinished)} of {run.jobs}" for run in (first, second))
    return [*rows, ("out of memory", str(first.ooms), str(second.ooms), ""), ("jobs completed", before, after, "")]


def _recovery(job: Job, time_scale: float) -> str:
    """One sentence about the OOMs of a job and its last attempt."""
    failed = [attempt for attempt in job.attempts if _ran_out(attempt)]
    last = job.attempts[-1]
    promised = format_bytes(failed[0].placement.promised_bytes)
    text = f"{job.spec.name} (job {job.id}): promised {promised}, {len(failed)} x out of memory"
    if _ran_out(last):
        return f"{text}, not recovered"
    ended_at_s = failed[-1].ended_at_s
    waited = "" if ended_at_s is None else f" {format_duration((last.placed_at_s - ended_at_s) * time_scale)} later"
    return (
        f"{text}; attempt {last.number} with {format_bytes(last.placement.promised_bytes)}{waited}, "
        f"{'alone on its GPU' if last.placement.sharing == 'exclusive' else last.placement.sharing}: {_outcome(job)}"
    )


def _ran_out(attempt: Attempt) -> bool:
    return attempt.exit is not None and ran_out_of_memory(attempt.exit)


def _outcome(job: Job) -> str:
    return job.state.outcome if isinstance(job.state, Done) else "not done"


def _end(job: Job) -> float:
    return job.state.at_s if isinstance(job.state, Done) else float("inf")


def _mean(values: Sequence[float]) -> float:
    return mean(values) if values else 0.0


def change_text(before: float, after: float) -> str:
    """Relative change, as `-20%`; empty if it started at 0."""
    return f"{(after - before) / before:+.0%}" if before else ""
