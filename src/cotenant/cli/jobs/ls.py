"""`cotenant ls`, also `ps` and `queue`: the jobs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cotenant.cli.common import Connection, TableOptions, connection_options, gpu_names, table_options
from cotenant.cli.completion import complete_states
from cotenant.cli.options import cli_command, cli_option, json_option, option, option_group
from cotenant.cli.output import Column, emit_json, hint
from cotenant.cli.parameter_types import Parsed
from cotenant.core.errors import UnknownName
from cotenant.core.units import format_bytes, format_duration
from cotenant.daemon.api.views.states import DONE, SHORT

MAX_DONE = 20
MAX_WAITING = 200
"""Finished and waiting jobs that are shown without --all."""

WAITING = ("PENDING", "HELD")
COLUMNS = (
    Column(key="id", title="JOB", right=True),
    Column(key="name", title="NAME"),
    Column(key="user", title="USER"),
    Column(key="state", title="ST"),
    Column(key="gpu", title="GPU"),
    Column(key="promised", title="PROMISED", right=True),
    Column(key="peak", title="PEAK", right=True),
    Column(key="time", title="TIME", right=True),
    Column(key="reason", title="REASON"),
)
FIELDS = (
    "id,label,name,user,state,state_short,gpu_uuids,gpu_indices,promised_bytes,need_bytes,observed_bytes,running_s,"
    "reason"
)
"""Of a view, those that the table is made of: a third of all."""


def parse_states(text: str) -> str:
    """Long names of the states in `R,PD,FAILED`, sorted, with commas.

    Raises:
        UnknownName: there is no such state.
    """
    return ",".join(sorted({_state_named(word.strip()) for word in text.split(",")}))


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSelection:
    """Which jobs a verb is about."""

    SECTION = "Filters"

    states: str | None = option(
        "-s",
        "--state",
        type=Parsed("states", parse_states),
        metavar="S,...",
        shell_complete=complete_states,
        help="Only jobs in these states: PD, R, FAILED, ...",
    )
    user: str | None = option("-u", "--user", metavar="NAME", help="Only jobs of this user.")
    name: str | None = option("-J", "--name", metavar="NAME", help="Only jobs of this name; * and ? match any text.")

    def query(self) -> dict[str, str]:
        """The filters as the daemon takes them."""
        given = {"states": self.states, "user": self.user, "name": self.name}
        return {key: value for key, value in given.items() if value is not None}


@cli_command()
@cli_option(
    "-a",
    "--all",
    "all_jobs",
    is_flag=True,
    help=f"All jobs, not only {MAX_WAITING} waiting and {MAX_DONE} finished ones.",
)
@cli_option("--active", is_flag=True, help="Only jobs that are not over.")
@option_group("selection", JobSelection)
@table_options
@json_option
@connection_options
def command(
    selection: JobSelection,
    *,
    all_jobs: bool,
    active: bool,
    table: TableOptions,
    json: bool,
    connection: Connection,
) -> None:
    """List jobs, oldest first.

    ST is PD (pending), H (held), ST (starting), R (running), CD (completed), F (failed), OOM, TO (time limit),
    CA (cancelled) or LO (lost). PROMISED is the memory reserved on each GPU, PEAK the most that was in use.

      cotenant ls                         running, waiting and recently finished jobs
      cotenant ls -s R,PD                 only running and pending jobs
      cotenant ls -u ann -J "sweep-*"     only Ann's jobs of such names
      cotenant ls --no-header --format id,state
    """
    filters = selection.query()
    is_limited = not all_jobs and not filters
    overview = connection.client().overview(
        active=active,
        fields=None if json else FIELDS,
        **filters,
        max_waiting=MAX_WAITING if is_limited else None,
        max_done=MAX_DONE if is_limited else None,
    )
    if json:
        emit_json({"jobs": overview["jobs"], "counts": overview["counts"]})
        return
    table.print([_row(job) for job in overview["jobs"]], COLUMNS)
    if is_limited:
        _hint_at_hidden(overview["jobs"], overview["counts"], done=not active)


def _hint_at_hidden(shown: Sequence[Mapping[str, Any]], counts: Mapping[str, int], *, done: bool) -> None:
    for states, words in ((WAITING, "waiting"), (DONE if done else (), "finished")):
        hidden = sum(counts.get(state, 0) for state in states) - sum(job["state"] in states for job in shown)
        if hidden > 0:
            hint(f"{hidden} more {words} jobs; --all lists them")


def _state_named(text: str) -> str:
    for name, short in SHORT.items():
        if text.upper() in (name, short):
            return name
    raise UnknownName("state", text, [*SHORT, *sorted(set(SHORT.values()) - set(SHORT))])


def _row(job: Mapping[str, Any]) -> dict[str, str]:
    return {
        "id": job["label"],
        "name": job["name"],
        "user": job["user"],
        "state": job["state_short"],
        "gpu": gpu_names(job),
        "promised": format_bytes(job["promised_bytes"] or job["need_bytes"]),
        "peak": format_bytes(job["observed_bytes"]),
        "time": format_duration(job["running_s"]),
        "reason": job["reason"],
    }
