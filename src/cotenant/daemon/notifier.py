"""Telling a job's owner that it is over: by a command of theirs, or a message to an address of theirs.

Off unless the configuration turns it on. It is done by a process of the owner's, with limits on its time, its memory
and the size of its files, what it says included; nothing waits for it, and what fails is logged and forgotten. After a
crash of the daemon it may not be told at all; it is never told twice. Owners take turns, one message of each at a time,
so that whose addresses are slow keeps nobody else waiting but by being one of `THREADS`.

Run as a script, on the standard library alone, it sends what stdin says as JSON: `url`, `message`, `timeout_s`.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import logging
import os
import re
import signal
import subprocess
import sys
import threading
import urllib.error
import urllib.parse
import urllib.request
from collections import deque
from typing import IO, Any

logger = logging.getLogger(__name__)

MAX_QUEUED = 1000
"""Messages of one owner; those beyond are dropped."""

MAX_STDERR_BYTES = 4096
"""Of what a process says on stderr, the end."""

THREADS = 4
LIMITS = "ulimit -t 20; ulimit -v 2097152; ulimit -f 20480; "
"""20 s of processor time, 2 GiB of address space, 10 MiB a file (blocks of 512 bytes). Source: ulimit in POSIX sh."""


class Notifier:
    """Tells owners, a few at a time, from threads of its own. `timeout_s` is the longest that one may take."""

    def __init__(self, *, enabled: bool, timeout_s: float) -> None:
        self._enabled = enabled
        self._timeout_s = timeout_s
        self._turns = FairQueue()
        self._threads = [threading.Thread(target=self._work, name=f"notify-{i}", daemon=True) for i in range(THREADS)]
        if enabled:
            for each in self._threads:
                each.start()

    def tell(self, how: str, uid: int, message: dict[str, Any]) -> None:
        """Have `message` told to the user `uid`. Returns at once."""
        if not self._enabled:
            return
        if not self._turns.put(uid, (how, message)):
            logger.warning("too many notifications, one is dropped", extra={"fields": {"job": message["id"]}})

    def close(self) -> None:
        """Tell nobody any more; waits for those that are being told."""
        if not self._enabled:
            return
        self._turns.close()
        for each in self._threads:
            each.join(timeout=self._timeout_s + 5.0)

    def _work(self) -> None:
        while (turn := self._turns.take()) is not None:
            uid, (how, message) = turn
            try:
                failure = self._run(how, uid, message)
            except Exception as error:  # noqa: BLE001 - whatever it was, the owner's turn ends and the thread goes on
                failure = str(error) or type(error).__name__
            self._turns.over(uid)
            if failure:
                fields = {"job": message["id"], "why": failure[-300:]}
                logger.warning("the owner of a job could not be told", extra={"fields": fields})

    def _run(self, how: str, uid: int, message: dict[str, Any]) -> str:
        """Do it; why it failed, or nothing."""
        from cotenant.daemon.auth import impersonation

        home = impersonation.home_of(uid)
        if home["USER"] != message.get("user", home["USER"]):
            return f"the id {uid} was that of user `{message['user']}` and is `{home['USER']}`'s now"
        command = ["sh", "-c", how]
        told = b""
        if is_url(how):
            command = [sys.executable, "-I", "-S", __file__]
            told = json.dumps({"url": how, "message": message, "timeout_s": self._timeout_s}).encode()
        # A file, which the limits keep small: of a pipe we would have to take whatever it says.
        with os.fdopen(os.memfd_create("words"), "r+b", buffering=0) as words:
            process = self._started(command, words, {**home, **variables(message)}, uid)
            try:
                process.communicate(told, timeout=self._timeout_s)
            except subprocess.TimeoutExpired:
                return f"not done after {self._timeout_s:g} s"
            finally:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            if not process.returncode:
                return ""
            size = words.seek(0, os.SEEK_END)
            words.seek(max(0, size - MAX_STDERR_BYTES))
            return words.read(MAX_STDERR_BYTES).decode(errors="replace").strip() or f"exit code {process.returncode}"

    def _started(
        self, command: list[str], words: IO[bytes], environment: dict[str, str], uid: int
    ) -> subprocess.Popen[bytes]:
        """The process of the user `uid` that tells, in a session of its own."""
        from cotenant.daemon.auth import impersonation

        return subprocess.Popen(
            ["sh", "-c", LIMITS + 'exec "$@"', "sh", *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=words,
            cwd="/",
            env={"PATH": os.defpath, "LC_ALL": "C.UTF-8", **environment},
            start_new_session=True,
            **impersonation.identity(uid),
        )


class FairQueue:
    """Messages that wait, by owner. Owners take turns, and none has two."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._waiting: dict[int, deque[tuple[str, dict[str, Any]]]] = {}  # in the order of their turns
        self._busy: set[int] = set()
        self._closed = False

    def put(self, uid: int, message: tuple[str, dict[str, Any]]) -> bool:
        """Add one; False if too many of this owner wait."""
        with self._changed:
            waiting = self._waiting.setdefault(uid, deque())
            if len(waiting) >= MAX_QUEUED:
                return False
            waiting.append(message)
            self._changed.notify()
            return True

    def take(self) -> tuple[int, tuple[str, dict[str, Any]]] | None:
        """The next owner and message, once there is one; None at the end. The owner has the turn until `over`."""
        with self._changed:
            while not self._closed:
                uid = next((each for each in self._waiting if each not in self._busy), None)
                if uid is None:
                    self._changed.wait()
                    continue
                waiting = self._waiting.pop(uid)
                message = waiting.popleft()
                if waiting:
                    self._waiting[uid] = waiting  # behind the others
                self._busy.add(uid)
                return uid, message
            return None

    def over(self, uid: int) -> None:
        """The message of this owner has been told."""
        with self._changed:
            self._busy.discard(uid)
            self._changed.notify()

    def close(self) -> None:
        """Drop what waits."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()


def is_url(how: str) -> bool:
    """Whether to send a message there instead of running it."""
    return how.lower().startswith(("http://", "https://"))


def why_invalid_url(how: str) -> str | None:
    """Why nothing can be sent to `how`, which looks like an address; None if it may, or is a command."""
    scheme = re.match(r"([A-Za-z][A-Za-z0-9+.-]*)://", how)
    if scheme is None:
        return None
    if not is_url(how):
        return f"`{scheme[1]}` is neither http nor https"
    try:
        parts = urllib.parse.urlsplit(how)
        host, port = parts.hostname, parts.port
        if host:
            host.encode("idna")
    except ValueError as error:
        return str(error).lower()
    if not host or port == 0:
        return "it names no host" if not host else "it names no port"
    if not re.fullmatch(r"[!-~]+", how):
        return "it has spaces or other characters that must be written as `%20`"
    if parts.username is not None:
        return "it names a user, which is not supported"
    return None


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
    except (OSError, ValueError, http.client.HTTPException) as error:
        # Of the address only the host: what follows it may be a secret, as Slack's is.
        reason = error.reason if isinstance(error, urllib.error.URLError) else error
        code = f"{error.code} " if isinstance(error, urllib.error.HTTPError) else ""
        words = " ".join(str(reason).split()) or type(error).__name__
        print(f"{urllib.parse.urlsplit(told['url']).hostname}: {code}{words}"[:300], file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
