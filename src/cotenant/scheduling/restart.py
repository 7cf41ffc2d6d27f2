"""The commands of a daemon that starts again. A module of its own: the manager only calls it."""

from __future__ import annotations

from cotenant.core.events import Command, Resume
from cotenant.scheduling.job_table import JobTable
from cotenant.scheduling.repartition_watch import RepartitionWatch


def restart_commands(table: JobTable, repartitions: RepartitionWatch, at_s: float) -> list[Command]:
    """What a crash may have lost.

    These are requests for missing estimates, stops of attempts with a stop reason, `Resume` for all others, since who
    was paused is not journaled, and the repartitions that have no end.
    """
    commands: list[Command] = []
    for job in table.jobs.values():
        if not job.is_done and table.lacks_estimate(job):
            commands.append(table.request(job, at_s, "restart"))
        attempt = job.last_attempt
        if job.id in table.live and attempt is not None:
            why = attempt.stop_reason
            resume = Resume(at_s=at_s, cause="restart", job_id=job.id, attempt=attempt.number)
            commands.append(resume if why is None else table.stop(job, at_s, why))
    return [*commands, *repartitions.resumed(at_s)]
