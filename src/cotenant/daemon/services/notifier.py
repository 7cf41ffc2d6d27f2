"""Notifies the owner of a job that it is done, or idle: by a shell command of theirs, or by HTTP to a URL of theirs.

Off unless the configuration turns it on. A process of the owner does it, with limits on its time, memory and file
sizes, its own output included; nothing waits for it, and failures are logged and forgotten. A notification may get lost
when the daemon crashes; none is sent twice. Owners take turns, with one message in flight each, so an owner with slow
URLs delays the others only by occupying one of `THREADS` threads.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import secrets
import signal
import subprocess
import sys
import threading
import urllib.parse
from pathlib import Path
from typing import IO, Any

from cotenant.core.events import AttemptIdle
from cotenant.core.job import Job, JobSpec
from cotenant.daemon.api.views.job_words import end_message, idle_message
from cotenant.daemon.auth import impersonation
from cotenant.daemon.fair_queue import FairQueue
from cotenant.daemon.services.base import AttemptService
from cotenant.engines.leftovers import kill_leftovers

logger = logging.getLogger(__name__)

SENDER = Path(__file__).with_name("send_notification.py")
THREADS = 4
MAX_QUEUED = 1000
"""Messages of one owner; further ones are dropped."""
KILL_TIMEOUT_S = 2.0
MAX_STDERR_BYTES = 4096
"""Length of the end of a process's stderr that is logged."""
LIMITS = "ulimit -t 20; ulimit -v 2097152; ulimit -f 20480; "
"""20 s of CPU time, 2 GiB of address space, 10 MiB per file (in blocks of 512 bytes). Source: ulimit in POSIX sh."""


class Notifier(AttemptService):
    """Sends notifications from `THREADS` threads. `timeout_s`: time limit of one."""

    def __init__(self, *, enabled: bool, timeout_s: float) -> None:
        self._enabled = enabled
        self._timeout_s = timeout_s
        self._queue: FairQueue[tuple[str, dict[str, Any]]] = FairQueue(max_queued=MAX_QUEUED)
        self._threads = [threading.Thread(target=self._work, name=f"notify-{i}", daemon=True) for i in range(THREADS)]

    def start(self) -> None:
        if self._enabled:
            for thread in self._threads:
                thread.start()

    def job_done(self, job: Job) -> None:
        if self._enabled and job.spec.notify is not None:
            self.notify(job.spec.notify, job.spec.uid, end_message(job))

    def attempt_idle(self, spec: JobSpec, event: AttemptIdle) -> None:
        if self._enabled and spec.notify is not None:
            self.notify(spec.notify, spec.uid, idle_message(spec, event))

    def notify(self, target: str, uid: int, message: dict[str, Any]) -> None:
        """Queue `message` for the user `uid`, to be sent to the command or URL `target`."""
        if not self._queue.put(uid, (target, message)):
            logger.warning("too many notifications, one is dropped", extra={"fields": {"job": message["id"]}})

    def close(self) -> None:
        """Drop queued messages and wait for those in flight."""
        self._queue.close()
        for thread in self._threads:
            if thread.is_alive():
                thread.join(timeout=self._timeout_s + 5.0)

    def _work(self) -> None:
        while (item := self._queue.get()) is not None:
            uid, (target, message) = item
            try:
                failure = self._send(target, uid, message)
            except Exception as error:  # noqa: BLE001 (a failure of any kind is logged, and the thread goes on)
                failure = str(error) or type(error).__name__
            self._queue.task_done(uid)
            if failure:
                fields = {"job": message["id"], "why": failure[-300:]}
                logger.warning("cannot notify the owner of a job", extra={"fields": fields})

    def _send(self, target: str, uid: int, message: dict[str, Any]) -> str:
        """Run the command or the sender; returns why it failed, or an empty string."""
        home = impersonation.home_of(uid)
        if home["USER"] != message.get("user", home["USER"]):
            return f"uid {uid} belonged to user `{message['user']}` and belongs to `{home['USER']}` now"
        command = ["sh", "-c", target]
        request = b""
        if is_url(target):
            command = [sys.executable, "-I", "-S", str(SENDER)]
            request = json.dumps({"url": target, "message": message, "timeout_s": self._timeout_s}).encode()
        # stderr goes to a file, whose size the limits bound: from a pipe we would have to read all of it.
        tag = {"COTENANT_NOTIFICATION": secrets.token_hex(8)}
        with os.fdopen(os.memfd_create("stderr"), "r+b", buffering=0) as stderr:
            process = self._spawn(command, stderr, {**home, **variables(message), **tag}, uid)
            try:
                process.communicate(request, timeout=self._timeout_s)
            except subprocess.TimeoutExpired:
                return f"timed out after {self._timeout_s:g} s"
            finally:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                if not is_url(target):  # a command may have started processes in sessions of their own
                    kill_leftovers((), tag, uid=uid, timeout_s=KILL_TIMEOUT_S)
            if not process.returncode:
                return ""
            size = stderr.seek(0, os.SEEK_END)
            stderr.seek(max(0, size - MAX_STDERR_BYTES))
            return stderr.read(MAX_STDERR_BYTES).decode(errors="replace").strip() or f"exit code {process.returncode}"

    def _spawn(self, command: list[str], stderr: IO[bytes], env: dict[str, str], uid: int) -> subprocess.Popen[bytes]:
        """Start `command` as the user `uid`, in a session of its own, with `LIMITS`."""
        return subprocess.Popen(
            ["sh", "-c", LIMITS + 'exec "$@"', "sh", *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=stderr,
            cwd="/",
            env={"PATH": os.defpath, "LC_ALL": "C.UTF-8", **env},
            start_new_session=True,
            **impersonation.identity(uid),
        )


def is_url(target: str) -> bool:
    """Whether `target` is an HTTP URL, and not a shell command."""
    return target.lower().startswith(("http://", "https://"))


def why_invalid_url(target: str) -> str | None:
    """Why a message cannot be sent to `target`; None if it can, or if `target` is a shell command."""
    scheme = re.match(r"([A-Za-z][A-Za-z0-9+.-]*)://", target)
    if scheme is None:
        return None
    if not is_url(target):
        return f"`{scheme[1]}` is neither http nor https"
    try:
        parts = urllib.parse.urlsplit(target)
        host, port = parts.hostname, parts.port
        if host:
            host.encode("idna")
    except ValueError as error:
        return str(error).lower()
    if not host or port == 0:
        return "it names no host" if not host else "it names no port"
    if not re.fullmatch(r"[!-~]+", target):
        return "it contains spaces or other characters that must be percent-encoded"
    if parts.username is not None:
        return "it contains a user name, which is not supported"
    return None


def variables(message: dict[str, Any]) -> dict[str, str]:
    """Environment variables of a notification command."""
    names = ("event", "id", "label", "name", "state", "reason")
    found = {f"COTENANT_JOB_{name.upper()}": str(message[name]).replace("\0", "") for name in names}
    return {**found, "COTENANT_JOB_EXIT_CODE": "" if message["exit_code"] is None else str(message["exit_code"])}
