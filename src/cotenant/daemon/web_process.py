"""The process of the web page: started, watched and ended by the daemon.

It is a process of its own and a client of the daemon's socket, so no page shares the interpreter, the memory or the
rights of the daemon. Under root it becomes `nobody` once it listens: it acts for users by their tokens only.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import json
import logging
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from dataclasses import asdict
from pathlib import Path
from typing import Any

from cotenant.core.errors import BackendError, UsageError
from cotenant.daemon.config.schema import WebSection
from cotenant.osutil.child_environment import python_environment

logger = logging.getLogger(__name__)

MODULE = "cotenant.web"
READY_TIMEOUT_S = 60.0
RESTART_S = 5.0
"""Pause before a process that ended by itself is started again."""
END_TIMEOUT_S = 5.0


def check_installed() -> None:
    """Check that the page's dependencies are installed.

    Raises:
        UsageError: they are not.
    """
    if importlib.util.find_spec("jinja2") is None:
        raise UsageError("the web page needs jinja2", hint="pip install 'cotenant[web]'")


class WebProcess:
    """The process that serves `[web]`. `url`: where it listens, once it is started."""

    def __init__(self, settings: WebSection, socket_file: Path, *, drop_rights: bool) -> None:
        self._options = {**asdict(settings), "socket": str(socket_file), "drop_rights": drop_rights}
        self._process: Process | None = None
        self._watching: asyncio.Task[None] | None = None
        self.url = ""

    async def start(self) -> None:
        """Start it; returns once it listens.

        Raises:
            UsageError, BackendError: it cannot listen.
        """
        await self._launch()
        self._watching = asyncio.create_task(self._watch())

    async def close(self) -> None:
        """End it."""
        if self._watching is not None:
            self._watching.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._watching
        process, self._process = self._process, None
        if process is not None:
            await _end(process)

    async def _launch(self) -> None:
        # Its stdin stays open: when the daemon dies, however it dies, the kernel closes it (pipe(7)), and it ends.
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            MODULE,
            stdin=PIPE,
            stdout=PIPE,
            stderr=None if sys.stderr is not None else DEVNULL,
            env=python_environment(),
            cwd="/",
        )
        try:
            answer = await asyncio.wait_for(_exchange(process, self._options), READY_TIMEOUT_S)
        except BaseException:
            await _end(process)
            raise
        if "url" not in answer:
            await _end(process)
            kind = UsageError if answer.get("kind") == "UsageError" else BackendError
            message = answer.get("message", "the process of the web page ended before it listened")
            raise kind(message, hint=answer.get("hint") or "see the daemon's log")
        self.url, self._process = answer["url"], process

    async def _watch(self) -> None:
        """Start it again whenever it ends by itself."""
        while self._process is not None:
            code = await self._process.wait()
            logger.error("the process of the web page ended", extra={"fields": {"code": code, "again_in_s": RESTART_S}})
            self._process = None
            while self._process is None:
                await asyncio.sleep(RESTART_S)
                try:
                    await self._launch()
                except (BackendError, UsageError, OSError, asyncio.TimeoutError) as error:
                    logger.error("no web page", extra={"fields": {"why": str(error)}})


async def _exchange(process: Process, options: dict[str, Any]) -> dict[str, Any]:
    """Send the options; returns its answer, {} if it ended without one."""
    assert process.stdin is not None
    assert process.stdout is not None
    with contextlib.suppress(ConnectionError):
        process.stdin.write(json.dumps(options).encode() + b"\n")
        await process.stdin.drain()
    answer: dict[str, Any] = json.loads(await process.stdout.readline() or b"{}")
    return answer


async def _end(process: Process) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.terminate()
    try:
        await asyncio.wait_for(process.wait(), END_TIMEOUT_S)
    except asyncio.TimeoutError:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
