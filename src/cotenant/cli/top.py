"""`cotenant top`: the server on a screen that refreshes; see `top_screen`.

A module of its own: `top_screen` needs textual, which is imported when the verb runs and not when it is listed.
"""

from __future__ import annotations

import sys

from cotenant.cli.common import Connection, connection_options
from cotenant.cli.options import cli_command, cli_option, json_option
from cotenant.cli.output import emit_json
from cotenant.cli.parameter_types import number
from cotenant.core.errors import UsageError


@cli_command()
@cli_option(
    "--interval",
    "interval_s",
    type=number(minimum=0.1, maximum=3600),
    default=1.0,
    metavar="SECONDS",
    help="Time between refreshes.",
)
@json_option
@connection_options
def command(*, interval_s: float, json: bool, connection: Connection) -> None:
    """Show GPUs, the jobs on them, and the queue with its reasons; refresh until q is pressed.

    The screen needs the extra `top`: pip install "cotenant[top]". --json prints one snapshot instead.

      cotenant top
      cotenant top --json | jq .gpus
    """
    client = connection.client()
    if json:
        emit_json({"status": client.status(), "gpus": client.gpus(), "jobs": client.jobs(active=True)})
        return
    client.status()  # without a daemon, fail before the screen is cleared
    try:
        from cotenant.cli.top_screen import Top
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "textual":
            raise
        raise UsageError("`cotenant top` needs textual", hint='pip install "cotenant[top]"') from error
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise UsageError("`cotenant top` needs a terminal", hint="`cotenant top --json` prints one snapshot")
    Top(client, interval_s=interval_s, terminal=sys.stdin.fileno()).run()
