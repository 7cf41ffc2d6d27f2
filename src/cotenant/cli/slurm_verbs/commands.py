"""`cotenant squeue`, `sinfo` and `sacct`: Slurm's commands with the formats that scripts parse."""

from __future__ import annotations

import os
from datetime import datetime
from typing import Any

from cotenant.cli.common import Connection, connection_options
from cotenant.cli.options import cli_command, cli_option, json_option, option_group
from cotenant.cli.output import emit_json, print_line
from cotenant.cli.slurm_verbs import fields
from cotenant.cli.slurm_verbs import json_output as slurm_json
from cotenant.cli.slurm_verbs.formats import parse_format, parse_long_format, render, render_sacct, sacct_fields
from cotenant.cli.slurm_verbs.selection import (
    CONTEXT,
    NAMES,
    PAST,
    STATES,
    Selection,
    jobs_on_node,
    node_name,
    own_name,
    with_specs,
)
from cotenant.cli.slurm_verbs.target import RoutedCommand, target_option
from cotenant.cli.slurm_verbs.times import parse_past_until_now
from cotenant.core.errors import UsageError
from cotenant.core.units import MiB
from cotenant.engines.slurm_environment import PARTITION

SQUEUE_FORMAT = "%.18i %.9P %.8j %.8u %.2t %.10M %.6D %R"
SQUEUE_LONG_FORMAT = "%.18i %.9P %.8j %.8u %.8T %.10M %.9l %.6D %R"
SINFO_FORMAT = "%9P %.5a %.10l %.6D %.6t %N"
SINFO_LONG_FORMAT = "%9P %.5a %.10l %.10s %.9h %.6D %.11T %N"
SINFO_NODE_FORMAT = "%10N %.6D %.9P %6t"
SINFO_SUMMARY_FORMAT = "%9P %.5a %.10l %.16F %N"
SACCT_FORMAT = "JobID,JobName,Partition,Account,AllocCPUS,State,ExitCode"


@cli_command(context_settings=CONTEXT, cls=RoutedCommand)
@target_option
@cli_option("-j", "--jobs", "refs", type=NAMES, metavar="ID,...", help="Only these jobs.")
@option_group("selection", Selection)
@cli_option("-h", "--noheader", is_flag=True, help="Print no titles.")
@cli_option("-o", "--format", "short_format", metavar="FORMAT", help='Fields by letter, e.g. "%.18i %.8j %T".')
@cli_option("-O", "--Format", "long_format", metavar="FIELDS", help='Fields by name, e.g. "JobID:10,Name,State".')
@cli_option("-l", "--long", is_flag=True, help="Print the full state and the time limit as well.")
@cli_option("-r", "--array", is_flag=True, help="Print every task of an array.")
@cli_option("-S", "--sort", metavar="FIELDS", help='Order by letters of fields, e.g. "-t,i"; a minus reverses.')
@cli_option("-a", "--all", is_flag=True, hidden=True, expose_value=False)
@json_option
@connection_options
def squeue(
    refs: frozenset[str] | None,
    selection: Selection,
    *,
    noheader: bool,
    short_format: str | None,
    long_format: str | None,
    long: bool,
    array: bool,
    sort: str | None,
    json: bool,
    connection: Connection,
) -> None:
    """List jobs as Slurm's squeue does.

    Pending, held and running jobs are listed, others with -t. Held jobs are PD (JobHeldUser); REASON is Slurm's word,
    `cotenant explain` has the numbers. --json prints Slurm's own JSON, as its data_parser/v0.0.41 makes it.

      cotenant squeue --me
      cotenant squeue -h -o "%i %T" -t R,PD
      cotenant squeue -O JobID:10,Name,State,TimeLeft
    """
    pieces = (
        parse_long_format(long_format, fields.SQUEUE_FIELDS.values())
        if long_format is not None
        else parse_format(short_format or (SQUEUE_LONG_FORMAT if long else SQUEUE_FORMAT), fields.SQUEUE_FIELDS)
    )
    keys = _sort_keys(sort)
    client = connection.client()
    listed = None if refs is None else sorted(refs)
    jobs = selection.of(jobs_on_node(client, connection, listed, active=selection.states is None))
    if json or any(piece.field is not None and piece.field.title in fields.DETAIL_TITLES for piece in pieces):
        jobs = with_specs(client, jobs, active=selection.states is None)
    if not array:
        jobs = fields.collapse_arrays(jobs)
    if json:
        emit_json(slurm_json.queue_output(jobs, "squeue"))
        return
    for letter, reverse in reversed(keys):
        jobs.sort(key=lambda job: _sort_key(fields.SQUEUE_FIELDS[letter].value(job)), reverse=reverse)
    if long and not noheader:
        print_line(datetime.now().astimezone().strftime("%a %b %d %H:%M:%S %Y"))
    for line in render(pieces, jobs, header=not noheader):
        print_line(line)


def _sort_keys(text: str | None) -> list[tuple[str, bool]]:
    """Letters and whether they are reversed; by default pending before running jobs, each by priority."""
    keys = []
    for part in (text or "-Q").split(","):
        letter = part.strip().lstrip("+-")
        if letter not in fields.SQUEUE_FIELDS:
            raise UsageError(f"invalid sort specification: {part}", hint=f"letters: {' '.join(fields.SQUEUE_FIELDS)}")
        keys.append((letter, part.strip().startswith("-")))
    return [("t", False), *keys] if text is None else keys


def _sort_key(text: str) -> tuple[int, float | str]:
    return (0, float(text)) if text.lstrip("-").isdigit() else (1, text)


@cli_command(context_settings=CONTEXT, cls=RoutedCommand)
@target_option
@cli_option("-h", "--noheader", is_flag=True, help="Print no titles.")
@cli_option("-o", "--format", "short_format", metavar="FORMAT", help='Fields by letter, e.g. "%N %t %G".')
@cli_option("-O", "--Format", "long_format", metavar="FIELDS", help='Fields by name, e.g. "NodeList,StateLong,Gres".')
@cli_option("-N", "--Node", "by_node", is_flag=True, help="One line for each node.")
@cli_option("-l", "--long", is_flag=True, help="Print more columns.")
@cli_option("-s", "--summarize", is_flag=True, help="Print numbers of nodes in place of their state.")
@cli_option("-p", "--partition", type=NAMES, metavar="NAME,...", help="Only these partitions.")
@cli_option("-t", "--states", type=NAMES, metavar="STATE,...", help="Only a node in these states: idle, mix, alloc.")
@json_option
@connection_options
def sinfo(
    *,
    noheader: bool,
    short_format: str | None,
    long_format: str | None,
    by_node: bool,
    long: bool,
    summarize: bool,
    partition: frozenset[str] | None,
    states: frozenset[str] | None,
    json: bool,
    connection: Connection,
) -> None:
    """Show this machine as Slurm's sinfo shows a cluster: one partition with one node.

    The node is idle without jobs, mix while a GPU is empty, and alloc if every GPU has a job; `cotenant gpus` has the
    memory that is left. --json prints what the fields are made of.

      cotenant sinfo
      cotenant sinfo -h -N -o "%N %t %G"
    """
    default = SINFO_LONG_FORMAT if long else SINFO_SUMMARY_FORMAT if summarize else SINFO_FORMAT
    pieces = (
        parse_long_format(long_format, fields.SINFO_FIELDS.values())
        if long_format is not None
        else parse_format(short_format or (SINFO_NODE_FORMAT if by_node else default), fields.SINFO_FIELDS)
    )
    gpus = connection.client().gpus()
    node: dict[str, Any] = {
        "name": node_name(connection),
        "state": fields.node_state(gpus),
        "cpus": os.cpu_count() or 1,
        "memory_mib": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // MiB,
        "gpus": len(gpus),
    }
    takes = (partition is None or PARTITION in partition) and (
        states is None or not {state.lower() for state in states}.isdisjoint((*node["state"], "all"))
    )
    nodes = [node] if takes else []
    if json:
        emit_json({"nodes": nodes})
        return
    for line in render(pieces, nodes, header=not noheader):
        print_line(line)


@cli_command(context_settings=CONTEXT, cls=RoutedCommand)
@target_option
@cli_option("-j", "--jobs", "refs", type=NAMES, metavar="ID,...", help="Only these jobs, of any time.")
@cli_option(
    "-u", "--user", "--uid", "users", type=NAMES, metavar="NAME,...", help="Of these users; by default your own."
)
@cli_option("-a", "--allusers", is_flag=True, help="Of all users; root's default.")
@cli_option("--name", "names", type=NAMES, metavar="NAME,...", help="With these names.")
@cli_option("-s", "--state", "states", type=STATES, metavar="STATE,...", help="In these states: CD, F, OOM, R.")
@cli_option("-S", "--starttime", type=PAST, metavar="TIME", help="Not over before TIME; by default today, 00:00.")
@cli_option("-E", "--endtime", type=PAST, metavar="TIME", help="Submitted before TIME; by default now.")
@cli_option("-X", "--allocations", is_flag=True, help="Print jobs without their batch step.")
@cli_option("-o", "--format", "chosen", metavar="FIELDS", default=SACCT_FORMAT, help='E.g. "JobID%20,State,Elapsed".')
@cli_option("-n", "--noheader", is_flag=True, help="Print no titles.")
@cli_option("-p", "--parsable", is_flag=True, help="Separate fields by |, also after the last.")
@cli_option("-P", "--parsable2", is_flag=True, help="Separate fields by |.")
@cli_option("--delimiter", metavar="TEXT", default="|", help="What -p and -P separate by.")
@cli_option("-e", "--helpformat", is_flag=True, help="Print the names of all fields.")
@json_option
@connection_options
def sacct(
    *,
    refs: frozenset[str] | None,
    users: frozenset[str] | None,
    allusers: bool,
    names: frozenset[str] | None,
    states: frozenset[str] | None,
    starttime: float | None,
    endtime: float | None,
    allocations: bool,
    chosen: str,
    noheader: bool,
    parsable: bool,
    parsable2: bool,
    delimiter: str,
    helpformat: bool,
    json: bool,
    connection: Connection,
) -> None:
    """List jobs, finished ones too, as Slurm's sacct does.

    TRESUsageInMax holds the peak of GPU memory, gres/gpumem; MaxRSS is empty, because the memory of the host is not
    watched. Times are those of the newest attempt. --json prints Slurm's own JSON, as its data_parser/v0.0.41 makes it.

      cotenant sacct -X -S now-2days
      cotenant sacct -n -P -j 17 -o JobID,State,ExitCode,Elapsed,TRESUsageInMax
    """
    if helpformat:
        for field in fields.SACCT_FIELDS:
            print_line(field.names[0])
        return
    columns = sacct_fields(chosen, fields.SACCT_FIELDS)
    client = connection.client()
    jobs = jobs_on_node(client, connection, None if refs is None else sorted(refs))
    if refs is None:
        if users is None and not allusers and os.getuid() != 0:
            users = frozenset((own_name(),))
        since = parse_past_until_now("today") if starttime is None else starttime
        jobs = [job for job in jobs if _overlaps(job, since, endtime)]
    found = [
        job
        for job in jobs
        if (users is None or job["user"] in users)
        and (names is None or job["name"] in names)
        and (states is None or job["state"] in states)
    ]
    if json or any(field.names[0] == "WorkDir" for field, _ in columns):
        found = with_specs(client, found)
    if json:
        emit_json(slurm_json.accounting_output(found, "sacct", steps=not allocations))
        return
    records = found if allocations else fields.with_steps(found)
    separator = delimiter if parsable or parsable2 else ""
    for line in render_sacct(columns, records, header=not noheader, separator=separator, ends=not parsable2):
        print_line(line)


def _overlaps(job: fields.Job, since_s: float, until_s: float | None) -> bool:
    """Whether a job was there in the interval."""
    ended, submitted = job["ended_at"], job["submitted_at"]
    return (ended is None or _timestamp(ended) >= since_s) and (until_s is None or _timestamp(submitted) <= until_s)


def _timestamp(text: str) -> float:
    return datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()
