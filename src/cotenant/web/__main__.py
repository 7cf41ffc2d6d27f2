"""The process of `cotenant daemon --web`: options as JSON on stdin, the address as JSON on stdout.

It ends when stdin does, which is when the daemon has ended, and on SIGTERM.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

from cotenant.core.errors import CotenantError
from cotenant.daemon import log
from cotenant.daemon.config.schema import WebSection
from cotenant.web.server import WebServer, drop_rights


def main() -> int:
    """Serve; the exit code."""
    log.set_up("info")
    options: dict[str, Any] = json.loads(sys.stdin.buffer.readline() or b"{}")
    try:
        asyncio.run(_serve(options))
    except CotenantError as error:
        _answer(error.as_json())
        return error.exit_code
    return 0


async def _serve(options: dict[str, Any]) -> None:
    settings = WebSection(**{field.name: options[field.name] for field in fields(WebSection)})
    server = WebServer(settings, socket_file=Path(options["socket"]))
    if options["drop_rights"]:
        drop_rights()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, server.closing.set)
    loop.add_reader(sys.stdin.fileno(), _on_input, server.closing)
    _answer({"url": server.url})
    await server.serve()


def _on_input(closing: asyncio.Event) -> None:
    """The daemon sends nothing more: what arrives is the end."""
    if not os.read(sys.stdin.fileno(), 1024):
        asyncio.get_running_loop().remove_reader(sys.stdin.fileno())
        closing.set()


def _answer(value: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
