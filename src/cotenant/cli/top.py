"""`cotenant top`."""

from __future__ import annotations

from typing import Annotated

import typer

from cotenant.cli.common import Json, Socket, new_client
from cotenant.cli.output import emit_json
from cotenant.core.errors import UsageError

Interval = Annotated[float, typer.Option("--interval", metavar="SECONDS", min=0.1, max=3600, help="Between two looks.")]


def command(*, interval: Interval = 1.0, json: Json = False, socket: Socket = None) -> None:
    """The server as it is now: GPUs, the jobs on them, and the queue with its reasons. It follows until you press q.

    The screen needs the extra: pip install "cotenant[top]". --json prints one picture instead.

      cotenant top
      cotenant top --json | jq .gpus
    """
    client = new_client(socket)
    if json:
        emit_json({"status": client.status(), "gpus": client.gpus(), "jobs": client.jobs(active=True)})
        return
    client.status()  # without a daemon, say so before there is a screen
    try:
        from cotenant.cli.top_screen import Top
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "textual":
            raise
        raise UsageError("`cotenant top` needs textual", hint='pip install "cotenant[top]"') from error
    Top(client, interval_s=interval).run()
