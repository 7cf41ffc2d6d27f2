"""Telling a job's owner that it is over: by a command of theirs, or a message to an address of theirs.

Off unless the configuration turns it on. It is done by a process of the owner's, with limits on its time, its memory
and the size of its files; nothing waits for it, and what fails is logged and forgotten. After a crash of the daemon it
may not be told at all; it is never told twice.

Run as a script, on the standard library alone, it sends what stdin says as JSON: `url`, `message`, `timeout_s`.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import queue
import signal
import subprocess
import sys
import threading
import urllib.request
from typing import Any

logger = logging.getLogger(__name__)

MOST_WAITING = 1000
THREADS = 2
LIMITS = "ulimit -t 20; ulimit -v 2097152; ulimit -f 20480; "
"""20 s of processor time, 2 GiB of address space, 10 MiB a file (blocks of 512 bytes). Source: ulimit in POSIX sh."""


class Notifier:
    """Tells owners, a few at a time, from threads of its own. `timeout_s` is the longest that one may take."""

    def __init__(self, *, enabled: bool, timeout_s: float) -> None:
        self._enabled = enabled
        self._timeout_s = timeout_s
        self._queue: queue.Queue[tuple[str, int, dict[str, Any]] | None] = queue.Queue(MOST_WAITING)
        self._threads = [threading.Thread(target=self._work, name=f"notify-{i}", daemon=True) for i in range(THREADS)]
        if enabled:
            for each in self._threads:
                each.start()

    def tell(self, how: str, uid: int, message: dict[str, Any]) -> None:
        """Have `message` told to the user `uid`. Returns at once."""
        if not self._enabled:
            return
        try:
            self._queue.put_nowait((how, uid, message))
        except queue.Full:
            logger.warning("too many notifications, one is dropped", extra={"fields": {"job": message["id"]}})

    def close(self) -> None:
        """Tell nobody any more; waits for those that are being told."""
        if not self._enabled:
            return
        with contextlib.suppress(queue.Empty):
            while True:
                self._queue.get_nowait()
        for _ in self._threads:
            self._queue.put(None)
        for each in self._threads:
            each.join(timeout=self._timeout_s + 5.0)

    def _work(self) -> None:
        while (task := self._queue.get()) is not None:
            how, uid, message = task
            try:
                failure = self._run(how, uid, message)
            except (OSError, KeyError, ValueError) as error:
                failure = str(error)
            if failure:
                fields = {"job": message["id"], "why": failure[-300:]}
                logger.warning("the owner of a job could not be told", extra={"fields": fields})

    def _run(self, how: str, uid: int, message: dict[str, Any]) -> str:
        """Do it; why it failed, or nothing."""
        from cotenant.daemon.access import users

        home = users.home_of(uid)
        command = ["sh", "-c", LIMITS + 'exec sh -c "$0"', how]
        told = b""
        if is_address(how):
            command = [sys.executable, "-I", "-S", __file__]
            told = json.dumps({"url": how, "message": message, "timeout_s": self._timeout_s}).encode()
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            cwd="/",
            env={"PATH": os.defpath, "LC_ALL": "C.UTF-8", **home, **variables(message)},
            start_new_session=True,
            **users.identity(uid),
        )
        try:
            _, words = process.communicate(told, timeout=self._timeout_s)
        except subprocess.TimeoutExpired:
            words = f"not done after {self._timeout_s:g} s".encode()
        finally:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        return words.decode(errors="replace").strip() or f"exit code {process.returncode}" if process.returncode else ""


def is_address(how: str) -> bool:
    """Whether to send a message there instead of running it."""
    return how.startswith(("http://", "https://"))


def variables(message: dict[str, Any]) -> dict[str, str]:
    """What a command finds in its environment."""
    names = {"id": "JOB_ID", "label": "JOB_LABEL", "name": "JOB_NAME", "state": "JOB_STATE", "reason": "JOB_REASON"}
    found = {f"COTENANT_{name}": str(message[key]).replace("\0", "") for key, name in names.items()}
    return {**found, "COTENANT_JOB_EXIT_CODE": "" if message["exit_code"] is None else str(message["exit_code"])}


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """An address that sends us elsewhere is not followed."""

    def redirect_request(self, *_: Any) -> None:
        return None


def main() -> int:
    """Send what stdin says; the exit code."""
    told = json.load(sys.stdin)
    request = urllib.request.Request(  # noqa: S310 (the scheme was checked)
        told["url"],
        data=json.dumps(told["message"]).encode(),
        headers={"content-type": "application/json", "user-agent": "cotenant"},
    )
    try:
        with urllib.request.build_opener(_NoRedirect).open(request, timeout=told["timeout_s"]) as answer:
            answer.read(1024)
    except OSError as error:
        print(f"{told['url']}: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
