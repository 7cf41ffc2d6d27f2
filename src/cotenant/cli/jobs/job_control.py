"""Verbs that change the state of jobs: `cancel`, `hold`, `release` and `requeue`."""

from __future__ import annotations

from collections.abc import Sequence

from cotenant.cli.common import (
    Connection,
    change_jobs,
    connection_options,
    job_ids_argument,
    jobs_argument,
    report_changes,
)
from cotenant.cli.jobs.ls import JobSelection
from cotenant.cli.options import cli_command, cli_option, json_option, option_group
from cotenant.cli.output import note
from cotenant.core.errors import UsageError
from cotenant.daemon.client import error_of


@cli_command()
@job_ids_argument(required=False)
@cli_option("-a", "--all", "all_jobs", is_flag=True, help="All jobs that are not over.")
@option_group("selection", JobSelection)
@json_option
@connection_options
def cancel(jobs: Sequence[str], selection: JobSelection, *, all_jobs: bool, json: bool, connection: Connection) -> int:
    """Stop running jobs, and remove pending ones from the queue.

    A running job receives SIGTERM, and after a grace period SIGKILL with its whole process tree.

      cotenant cancel 17 18
      cotenant cancel 17_[3-5]         three tasks of an array
      cotenant cancel -u ann -s PD     all pending jobs of Ann
      cotenant cancel -J "sweep-*"     all jobs of such names
      cotenant cancel --all
    """
    filters = selection.query()
    if bool(jobs) == bool(all_jobs or filters):
        found = "no jobs given" if not jobs else "both ids and filters or --all given"
        raise UsageError(found, hint="give ids, filters such as --name, or --all")
    client = connection.client()
    if not jobs:
        views, problems = client.change_many("cancel", active=1, **filters)
        if not views and not problems:
            note("no job to cancel")
        return report_changes(views, [*map(error_of, problems)], json=json)
    return change_jobs(client, jobs, "cancel", json=json)


@cli_command()
@jobs_argument
@json_option
@connection_options
def hold(jobs: Sequence[str], *, json: bool, connection: Connection) -> int:
    """Keep queued jobs from starting until they are released.

    cotenant hold 17 18
    cotenant hold 17_3      one task of an array
    """
    return change_jobs(connection.client(), jobs, "hold", json=json)


@cli_command()
@jobs_argument
@json_option
@connection_options
def release(jobs: Sequence[str], *, json: bool, connection: Connection) -> int:
    """Let held jobs start.

    cotenant release 17 18
    cotenant release 17_3      one task of an array
    """
    return change_jobs(connection.client(), jobs, "release", json=json)


@cli_command()
@jobs_argument
@json_option
@connection_options
def requeue(jobs: Sequence[str], *, json: bool, connection: Connection) -> int:
    """Run jobs again: finished ones at once, running ones after they are stopped.

    A running job receives SIGTERM, as with `cancel`, and returns to the queue. Its learned memory demand stays,
    and its attempts so far no longer count against --max-attempts.

      cotenant requeue 17 18
    """
    return change_jobs(connection.client(), jobs, "requeue", json=json)
