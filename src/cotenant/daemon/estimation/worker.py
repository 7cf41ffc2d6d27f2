"""A worker process that estimates jobs of one user, reused from one request to the next.

The process runs the user's code with the user's rights and limits. Its watchdog keeps the daemon's rights, so the
user's code cannot end it and live on. A daemon that runs as the user has no such advantage: there, what outlives the
watchdog is found by its cgroup, or by its session and `TAG` in its environment.
"""

from __future__ import annotations

import contextlib
import json
import logging
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from cotenant.daemon.auth import impersonation
from cotenant.daemon.estimation.exchange import Exchange, WorkerOutputError, has_output
from cotenant.engines.leftovers import kill_leftovers
from cotenant.osutil import cgroups

logger = logging.getLogger(__name__)

WATCHDOG = Path(__file__).with_name("parent_watchdog.py")
TAG = "COTENANT_ESTIMATOR"
"""Variable in the environment of every estimator process; its value names the daemon's state folder and the worker."""

END_TIMEOUT_S = 20.0
"""A process in uninterruptible sleep outlives SIGKILL; it is left behind then."""
LEFTOVERS_TIMEOUT_S = 2.0


class WorkerExited(Exception):
    """The process ended without an answer. `code`: its exit code, 128 + N for signal N."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


@dataclass(frozen=True, slots=True)
class Submitter:
    """Whose code a process runs, and the limits of the process that submitted it, as in `JobSpec`."""

    uid: int
    limits: Mapping[str, tuple[int, int]] | None = None


class EstimatorWorker:
    """At most one process at a time, of one submitter at a time.

    `lifeline`: descriptor of a pipe; when its other end closes, the watchdog ends the process. `folder`: its working
    folder, unless it is another user's. `name`: value of `TAG`. `cgroup`: name of the cgroup to put it in.

    Attributes:
        submitter: whose process there is, or None.
        log: the end of what it wrote to stderr during the last request.
        used_at_s: monotonic time of the end of the last request; set by the pool.
    """

    def __init__(
        self, command: Sequence[str], *, lifeline: int, folder: Path, name: str, cgroup: str | None = None
    ) -> None:
        self._command = tuple(command)
        self._lifeline = lifeline
        self._folder = folder
        self.name = name
        self._cgroup_name = cgroup
        self._cgroup: Path | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self.submitter: Submitter | None = None
        self.used_at_s = 0.0
        self.log = b""
        self._lock = threading.Lock()
        self._stopped = False

    def exchange(self, request: bytes, *, submitter: Submitter, timeout_s: float) -> bytes:
        """Send the line `request`; returns the line that answers it.

        Raises:
            WorkerExited: there was none.
            TimeoutError: not within `timeout_s`; the process has been ended.
            WorkerOutputError: it wrote too much; the process has been ended.
            OSError: it cannot be started.
            KeyError: there is no such user.
        """
        with self._lock:
            if self._stopped:
                raise WorkerExited(128 + signal.SIGTERM)
            used = self._is_ready_for(submitter)
            process = self._process if used else self._start(submitter)
            self.log = b""
        assert process is not None
        exchange = Exchange(process, request)
        try:
            answer = exchange.run(timeout_s)
        except (TimeoutError, WorkerOutputError):
            self.close()
            raise
        finally:
            self.log = exchange.log
        if answer is not None:
            return answer
        with self._lock:
            stopped = self._stopped
        self.close()
        code = process.returncode
        if used and not stopped:  # it ended before it read the request: retry with a new process
            return self.exchange(request, submitter=submitter, timeout_s=timeout_s)
        raise WorkerExited(128 - code if code < 0 else code)

    def save_log(self, path: Path) -> None:
        """Write the end of the stderr of the last request; skipped on a full disk."""
        with contextlib.suppress(OSError):
            path.write_bytes(self.log)

    def stop(self) -> None:
        """End the process and the request in progress, from any thread; the next `exchange` is refused."""
        with self._lock:
            self._stopped = True
            if self._process is not None:
                self._process.send_signal(signal.SIGTERM)  # the watchdog then kills its descendants

    def allow(self) -> None:
        """Accept requests again after `stop`."""
        with self._lock:
            self._stopped = False

    def close(self) -> None:
        """End the process and wait for its end."""
        with self._lock:
            process, self._process = self._process, None
            submitter, self.submitter = self.submitter, None
        if process is not None and submitter is not None:
            self._end(process, submitter)

    def dispose(self) -> None:
        """Close it for good."""
        self.close()
        if self._cgroup is not None:
            cgroups.remove(self._cgroup)

    def _is_ready_for(self, submitter: Submitter) -> bool:
        """Whether the process is this submitter's, alive, and has not written what would answer the request."""
        process = self._process
        if process is None or self.submitter != submitter or process.poll() is not None:
            return False
        return not has_output(process)

    def _end(self, process: subprocess.Popen[bytes], submitter: Submitter) -> None:
        process.send_signal(signal.SIGTERM)  # ignored if it has ended
        try:
            process.wait(END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            logger.warning("an estimator process cannot be killed", extra={"fields": {"uid": submitter.uid}})
            process.kill()
            process.wait()
        if process.returncode < 0:  # the watchdog was killed, by its child or by the kernel
            if self._cgroup is not None:
                with contextlib.suppress(OSError):
                    cgroups.kill(self._cgroup)
            kill_leftovers((), {TAG: self.name}, uid=submitter.uid, timeout_s=LEFTOVERS_TIMEOUT_S)
        for pipe in (process.stdin, process.stdout, process.stderr):
            _close(pipe)

    def _start(self, submitter: Submitter) -> subprocess.Popen[bytes]:
        """Start the process as the submitter, whose code it runs. Call with the lock held."""
        other = impersonation.identity(submitter.uid)
        env = impersonation.environment_of(submitter.uid)
        previous, self._process = self._process, None
        if previous is not None and self.submitter is not None:
            self._end(previous, self.submitter)
        # The watchdog of the process before removed it.
        self._cgroup = None if self._cgroup_name is None else cgroups.create(self._cgroup_name)
        settings: dict[str, object] = {"limits": submitter.limits or {}}
        if other:
            settings |= {"user": other["user"], "group": other["group"], "groups": other["extra_groups"]}
        if self._cgroup is not None:
            settings["cgroup"] = str(self._cgroup)
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", str(WATCHDOG), str(self._lifeline), json.dumps(settings), *self._command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            cwd="/" if other else self._folder,  # other users cannot enter the folder
            # No GPU is visible, and modules in the working folder do not shadow installed ones.
            env={**env, "CUDA_VISIBLE_DEVICES": "", "PYTHONSAFEPATH": "1", TAG: self.name},
            pass_fds=(self._lifeline,),
            start_new_session=True,
        )
        self.submitter = submitter
        return self._process


def _close(pipe: IO[bytes] | None) -> None:
    if pipe is not None:
        with contextlib.suppress(OSError):
            pipe.close()
