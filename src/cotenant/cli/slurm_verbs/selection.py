"""Which jobs Slurm's commands mean: the options that select them, and how they are read."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from cotenant.cli.common import Connection
from cotenant.cli.options import flag, option
from cotenant.cli.parameter_types import Parsed
from cotenant.cli.slurm_verbs import fields
from cotenant.cli.slurm_verbs.times import parse_past_until_now
from cotenant.core.errors import CotenantError, NoSuchJob
from cotenant.daemon.client import Client
from cotenant.engines.slurm_environment import PARTITION

CONTEXT: dict[str, Any] = {"help_option_names": ["--help"]}
"""-h is --noheader, as in Slurm."""

STATES = Parsed("states", fields.parse_slurm_states)
PAST = Parsed("time", parse_past_until_now)


def _words(text: str) -> frozenset[str]:
    return frozenset(filter(None, map(str.strip, text.split(","))))


NAMES = Parsed("list", _words)


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Which jobs are meant; a job must pass all that is given."""

    SECTION = "Filters"

    users: frozenset[str] | None = option(
        "-u", "--user", "--users", type=NAMES, metavar="NAME,...", help="Of these users."
    )
    me: bool = flag("--me", help="Only your own jobs.")
    names: frozenset[str] | None = option("-n", "--name", type=NAMES, metavar="NAME,...", help="With these names.")
    states: frozenset[str] | None = option(
        "-t", "--state", "--states", type=STATES, metavar="STATE,...", help="In these states: PD, RUNNING, all."
    )
    partitions: frozenset[str] | None = option(
        "-p", "--partition", type=NAMES, metavar="NAME,...", help=f"Of these partitions; there is one, {PARTITION}."
    )

    @property
    def is_empty(self) -> bool:
        """Whether it takes all jobs."""
        return not self.me and all(part is None for part in (self.users, self.names, self.states, self.partitions))

    def of(self, jobs: Sequence[fields.Job]) -> list[fields.Job]:
        """The jobs that pass."""
        users = self.users
        if self.me:
            users = frozenset((own_name(),)) | (users or frozenset())
        return [
            job
            for job in jobs
            if (users is None or job["user"] in users)
            and (self.names is None or job["name"] in self.names)
            and (self.states is None or job["state"] in self.states)
            and (self.partitions is None or PARTITION in self.partitions)
        ]


def own_name() -> str:
    """The name of the user of this process; the uid without one."""
    import pwd

    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())


def node_name(connection: Connection) -> str:
    """The name of the daemon's machine, the only node."""
    host = connection.host or os.environ.get("COTENANT_HOST", "")
    return host.rpartition(":")[0] or host if connection.is_remote else os.uname().nodename


def jobs_on_node(
    client: Client, connection: Connection, refs: Sequence[str] | None, **filters: Any
) -> list[fields.Job]:
    """Jobs by id, or all that the daemon's filters pass, with the name of their node.

    Raises:
        CotenantError: there is no such job.
    """
    try:
        wanted = None if refs is None else set(client.ids(fields.expand_refs(refs)))
    except NoSuchJob as error:
        raise CotenantError("invalid job id specified", hint=error.hint) from error
    node = node_name(connection)
    found = client.jobs(**filters)
    return [{**job, "node": node} for job in found if wanted is None or job["id"] in wanted]


def with_specs(client: Client, jobs: Sequence[fields.Job], **filters: Any) -> list[fields.Job]:
    """`jobs` with the fields of their specs, which lists of jobs leave out, without one request for each job.

    A job that no longer passes `filters`, because it has ended meanwhile, is left out.
    """
    if not jobs:
        return []
    after = min(job["id"] for job in jobs) - 1
    specs = {record["id"]: record["spec"] for record in client.jobs(records=1, after=after, **filters)}
    return [{**specs[job["id"]], **job} for job in jobs if job["id"] in specs]
