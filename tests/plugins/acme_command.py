"""A verb of another distribution: how many jobs each user has."""

from __future__ import annotations

from collections import Counter

from cotenant.cli.common import Connection, connection_options
from cotenant.cli.options import cli_command, cli_option, json_option
from cotenant.cli.output import emit_json, print_line

ENTRY_POINTS = {"cotenant.commands": {"acme-users": "acme_command:command"}}


@cli_command()
@cli_option("--least", type=int, default=1, metavar="N", help="Only users with at least N jobs.")
@json_option
@connection_options
def command(*, least: int, json: bool, connection: Connection) -> None:
    """Count the jobs of each user.

    cotenant acme-users --least 2
    """
    counts = Counter(job["user"] for job in connection.client().jobs())
    users = {user: count for user, count in sorted(counts.items()) if count >= least}
    if json:
        emit_json({"users": users})
        return
    for user, count in users.items():
        print_line(f"{user} {count}")
