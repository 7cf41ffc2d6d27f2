"""`cotenant prune`: removes the output and the environments of jobs that ended long ago.

One file for each verb.
"""

from __future__ import annotations

from cotenant.cli.common import Connection, connection_options
from cotenant.cli.options import cli_command, cli_option, json_option
from cotenant.cli.output import emit_json, print_line
from cotenant.cli.parameter_types import Parsed
from cotenant.core.units import counted, format_bytes, parse_duration


def _parse_age(text: str) -> float:
    return 0.0 if text == "0" else parse_duration(text)


@cli_command()
@cli_option(
    "--older-than",
    "older_than_s",
    type=Parsed("duration", _parse_age),
    required=True,
    metavar="TIME",
    help="Jobs that ended longer ago: 30-0 is 30 days, 0 takes all.",
)
@cli_option("--all-users", is_flag=True, help="Jobs of all users. For admins.")
@cli_option("--dry-run", is_flag=True, help="Count, and remove nothing.")
@json_option
@connection_options
def command(*, older_than_s: float, all_users: bool, dry_run: bool, json: bool, connection: Connection) -> None:
    """Remove the output of finished jobs from the daemon's folder, and their environments from its journal.

    The jobs stay in `history` and `events`, but cannot be requeued. Output files that a job named itself stay.

      cotenant prune --older-than 30-0
      cotenant prune --older-than 7-0 --all-users --dry-run
    """
    answer = connection.client().prune(older_than_s, all_users=all_users, dry_run=dry_run)
    if json:
        emit_json({"jobs": answer["jobs"], "bytes": answer["bytes"]})
        return
    done = "would be pruned" if dry_run else "pruned"
    print_line(f"{counted(answer['jobs'], 'job')} {done}: {format_bytes(answer['bytes'])}")
