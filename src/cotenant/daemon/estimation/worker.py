"""A worker process that estimates jobs of one user, reused from one request to the next."""

from __future__ import annotations

import contextlib
import os
import selectors
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO

from cotenant.daemon.auth import impersonation

WATCHDOG = Path(__file__).with_name("parent_watchdog.py")


MAX_ANSWER_BYTES = 2**20


class AnswerTooLongError(Exception):
    """The process wrote more than `MAX_ANSWER_BYTES` without ending the line; it was ended."""


class WorkerExited(Exception):
    """The process ended without an answer. `code`: its exit code, 128 + N for signal N."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


class EstimatorWorker:
    """At most one process at a time, of one user at a time.

    `lifeline`: descriptor of a pipe; when its other end closes, the watchdog ends the process. `log`: file with the
    stderr of the last request.
    """

    def __init__(self, command: Sequence[str], *, lifeline: int, log: Path) -> None:
        self._command = tuple(command)
        self._lifeline = lifeline
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None
        self._uid: int | None = None
        self._lock = threading.Lock()
        self._stopped = False

    def exchange(self, request: bytes, *, uid: int, timeout_s: float) -> bytes:
        """Send the line `request`; returns the line that answers it.

        Raises:
            WorkerExited: there was none.
            TimeoutError: not within `timeout_s`; the process has been ended.
            AnswerTooLongError: the answer exceeds `MAX_ANSWER_BYTES`; the process has been ended.
            OSError: it cannot be started.
            KeyError: there is no user `uid`.
        """
        with self._lock:
            if self._stopped:
                raise WorkerExited(128 + signal.SIGTERM)
            used = self._uid == uid and self._process is not None and self._process.poll() is None
            process = self._process if used else self._start(uid)
            with contextlib.suppress(OSError):
                os.truncate(self._log, 0)
        assert process is not None
        answer = self._send_and_read(process, request, timeout_s)
        if (
            answer is None and used and not self._stopped
        ):  # it ended before it read the request: retry with a new process
            self.close()
            return self.exchange(request, uid=uid, timeout_s=timeout_s)
        if answer is None:
            raise WorkerExited(process.wait())
        return answer

    def copy_log(self, path: Path) -> None:
        """Copy the stderr of the last request; skipped on a full disk."""
        with contextlib.suppress(OSError):
            shutil.copyfile(self._log, path)

    def stop(self) -> None:
        """End the process and the request in progress, from any thread; the next `exchange` is refused."""
        with self._lock:
            self._stopped = True
            self._end()

    def allow(self) -> None:
        """Accept requests again after `stop`."""
        with self._lock:
            self._stopped = False

    def close(self) -> None:
        """End the process and wait for its end."""
        with self._lock:
            self._end()
            process, self._process, self._uid = self._process, None, None
        if process is not None:
            process.wait()
            _close(process.stdin)
            _close(process.stdout)

    def _end(self) -> None:
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(signal.SIGTERM)  # the watchdog then kills its descendants

    def _start(self, uid: int) -> subprocess.Popen[bytes]:
        """Start the process as the submitter, whose code it runs."""
        other = impersonation.identity(uid)
        home = impersonation.home_of(uid) if other else {}
        previous, self._process = self._process, None
        if previous is not None:
            with contextlib.suppress(ProcessLookupError):
                previous.send_signal(signal.SIGTERM)
            previous.wait()
            _close(previous.stdin)
            _close(previous.stdout)
        with contextlib.ExitStack() as stack:
            try:
                log = stack.enter_context(self._log.open("ab"))
            except OSError:  # on a full disk, estimate without a log
                log = stack.enter_context(Path(os.devnull).open("ab"))
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", str(WATCHDOG), str(self._lifeline), *self._command],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                cwd="/" if other else self._log.parent,  # other users cannot enter the log folder
                # No GPU is visible, and modules in the working folder do not shadow installed ones.
                env={**os.environ, **home, "CUDA_VISIBLE_DEVICES": "", "PYTHONSAFEPATH": "1"},
                pass_fds=(self._lifeline,),
                start_new_session=True,
                **other,
            )
        self._uid = uid
        return self._process

    def _send_and_read(self, process: subprocess.Popen[bytes], request: bytes, timeout_s: float) -> bytes | None:
        """Write a line and read one; returns None if the process ended first."""
        assert process.stdin is not None
        assert process.stdout is not None
        deadline_s = time.monotonic() + timeout_s
        unsent, heard = memoryview(request + b"\n"), bytearray()
        for end in (process.stdin, process.stdout):
            os.set_blocking(end.fileno(), False)
        with selectors.DefaultSelector() as ends:
            ends.register(process.stdin, selectors.EVENT_WRITE)
            ends.register(process.stdout, selectors.EVENT_READ)
            while b"\n" not in heard:
                ready = ends.select(max(0.0, deadline_s - time.monotonic()))
                if not ready:
                    self.close()
                    raise TimeoutError
                for key, _ in ready:
                    if key.fileobj is process.stdout:
                        piece = os.read(process.stdout.fileno(), 1 << 16)
                        if not piece:
                            return bytes(heard) or None
                        heard += piece
                        if len(heard) > MAX_ANSWER_BYTES:
                            self.close()
                            raise AnswerTooLongError
                        continue
                    try:
                        unsent = unsent[os.write(process.stdin.fileno(), unsent) :]
                    except BrokenPipeError:
                        unsent = unsent[:0]
                    if not unsent:
                        ends.unregister(process.stdin)
        return bytes(heard)


def _close(pipe: IO[bytes] | None) -> None:
    if pipe is not None:
        with contextlib.suppress(OSError):
            pipe.close()
