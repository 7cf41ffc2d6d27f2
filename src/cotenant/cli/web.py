"""`cotenant web`: the daemon's page in the user's browser, through a local port."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import tempfile
import webbrowser
from collections.abc import Iterator
from html import escape
from pathlib import Path

from cotenant.cli.common import Connection, connection_options
from cotenant.cli.options import cli_command, cli_option, json_option
from cotenant.cli.output import emit_json, hint
from cotenant.cli.slurm_verbs.options import exported_environment
from cotenant.core.errors import UsageError
from cotenant.engines.slurm_environment import submitted_environment

SESSION_S = 7 * 86400.0


@cli_command()
@cli_option("--port", type=int, default=0, metavar="PORT", help="Local port; by default any that is free.")
@cli_option("--no-browser", is_flag=True, help="Print the address and open no browser.")
@cli_option("--read-only", is_flag=True, help="Show, but submit and change nothing.")
@json_option
@connection_options
def command(*, port: int, no_browser: bool, read_only: bool, json: bool, connection: Connection) -> None:
    """Open the web page: GPUs, queue, jobs, usage, history, and a form to submit.

    The page acts as you, as every command does: it listens on 127.0.0.1, and the address that it prints opens it once,
    in one browser. Other users of this machine cannot open it. Needs `pip install 'cotenant[web]'`.

      cotenant web
      cotenant web --no-browser --port 7412     then, elsewhere: ssh -L 7412:127.0.0.1:7412 SERVER
    """
    try:
        import jinja2  # noqa: F401
    except ImportError:
        raise UsageError("the web page needs jinja2", hint="pip install 'cotenant[web]'") from None
    if not 0 <= port <= 65535:
        raise UsageError(f"`--port` is {port}, wanted 0 to 65535")
    connection.client().status()  # says at once that no daemon answers
    asyncio.run(_serve(port, connection, opens_browser=not no_browser, read_only=read_only, json=json))


async def _serve(port: int, connection: Connection, *, opens_browser: bool, read_only: bool, json: bool) -> None:
    from cotenant.daemon.config.paths import socket_path
    from cotenant.daemon.config.schema import WebSection
    from cotenant.daemon.remote_address import remote_from_env
    from cotenant.web.server import WebServer
    from cotenant.web.sessions import OneTimeKey

    key = OneTimeKey()
    opened = asyncio.Event()
    server = WebServer(
        WebSection(listen=f"127.0.0.1:{port}", read_only=read_only, session_s=SESSION_S),
        socket_file=socket_path() if connection.socket is None else connection.socket.absolute(),
        remote=None if connection.socket is not None else remote_from_env(),
        key=key,
        environment=submitted_environment(
            exported_environment("ALL", os.environ), "job", folder=str(Path.home()), tasks=None, cpus_per_task=None
        ),
        on_open=opened.set,
    )
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, server.closing.set)
    address = f"{server.url}/open?key={key.text}"
    if json:
        emit_json({"url": address})
    else:
        print(address, flush=True)
        hint("the address works once; Ctrl-C ends the page")
    with _opened_in_browser(address) if opens_browser else contextlib.nullcontext():
        await server.serve()


@contextlib.contextmanager
def _opened_in_browser(address: str) -> Iterator[None]:
    """Open a browser on a file of ours that leads to `address`.

    The address itself would be in the browser's command line, where every user of the machine could read it first.
    """
    with tempfile.TemporaryDirectory(prefix="cotenant-web-") as folder:
        file = Path(folder) / "open.html"
        file.touch(mode=0o600)
        link = escape(address)
        file.write_text(f'<!doctype html><meta http-equiv="refresh" content="0; url={link}"><a href="{link}">Go on</a>')
        webbrowser.open(file.as_uri())
        yield
