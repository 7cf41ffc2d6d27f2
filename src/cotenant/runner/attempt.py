"""One attempt, from claim to result: start it, wait, stop it on request or at its time limit, leave nothing behind."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import signal
import sys
import time
from typing import Any

from cotenant.runner import child, files, oom_evidence, procfs, progress
from cotenant.runner.output import CHECK_S, OutputFiles

PR_SET_CHILD_SUBREAPER = 36  # prctl(2)
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)
SIGNALS = {signal.SIGCHLD, *STOP_SIGNALS}
EXIT_OOM = 77
EXIT_TIMEOUT = 124
EXIT_NOT_STARTED = 127
EXIT_CLAIMED = 0
UNORDERED_STOP = "SIGTERM to its runner"
CLEANUP_TIMEOUT_S = 2.0  # between SIGTERM and SIGKILL for what is left of a job that ended
MAX_WAIT_S = 86400.0  # of one sigtimedwait(2), which refuses more than 292 years
UNKILLABLE_S = 20.0  # a process in uninterruptible sleep (state D) outlives SIGKILL; the result then says so
# If this runner is killed, the engine finds what is left of the job by the session, by the environment, and by the
# identity of the job's first process. A job that is over sooner than this needs none: it costs a twentieth of a launch.
RECORD_AFTER_S = 0.05
RESULT_RETRY_S = 24 * 3600.0
# Slurm without cgroups ends an allocation by signals to all its processes: a job's may die before its runner gets one.
SIGNALLED_WITHIN_S = 0.5
KILLED = (-signal.SIGTERM, -signal.SIGKILL, 128 + signal.SIGTERM, 128 + signal.SIGKILL)  # the second two by a shell


def main(argv: list[str]) -> int:
    """Run the attempt in the folder `argv[0]`; the exit code is the job's, 77 after running out of GPU memory."""
    notify = int(argv[1]) if len(argv) > 1 else None
    if notify is not None:
        os.set_inheritable(notify, False)  # noqa: FBT003 - takes no keyword
    return attempt(os.path.abspath(argv[0]), prepare(), notify)[0]


def prepare() -> dict[str, Any]:
    """Turn this process into a runner; returns its identity as in `claim`."""
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with contextlib.suppress(OSError):
        os.setsid()
    # Orphans of the job get this process as their parent, and not init: it can find, kill and reap them (prctl(2)).
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    return _identity(os.getpid())


def attempt(folder: str, me: dict[str, Any], notify: int | None, *, durable: bool = True) -> tuple[int, bool]:
    """Run the attempt in `folder`: (exit code as of `main`, whether this process can run another attempt).

    It cannot if processes are left that could not be killed, or a result that could not be written. With
    `durable=False` the caller brings the result to the disk.
    """
    spec = files.read_json(f"{folder}/spec.json")
    if spec is None:
        sys.stderr.write(f"error: no spec in `{folder}`\n")
        return EXIT_NOT_STARTED, True
    if not files.claim(f"{folder}/claim", {"by": "runner", "process": me, "at_s": time.time()}):
        return EXIT_CLAIMED, True
    supervisor = Supervisor(folder, spec, me, notify, durable=durable)
    code = supervisor.run()
    return code, supervisor.is_clean


class Supervisor:
    """Runs one attempt."""

    def __init__(
        self, folder: str, spec: dict[str, Any], me: dict[str, Any], notify: int | None, *, durable: bool
    ) -> None:
        self.folder = folder
        self.spec = spec
        self.me = me
        self.notify = notify
        self.durable = durable  # the result
        self.started_at_s = time.time()
        self.started_mono_s = time.monotonic()
        self.pid: int | None = None  # of the job's first process, until it has ended
        self.status: int | None = None  # as waitpid gave it
        self.reason = "exited"
        self.detail = ""
        self.deadline_s: float | None = None  # when the next, harder step of stopping is due
        self.stopping_since_s: float | None = None
        self.limit_at_s: float | None = None
        self.record_at_s: float | None = None  # when the identity of the first process is recorded
        self.output = OutputFiles({})
        self.output_due_s: float | None = None  # when the sizes of the output files are looked at next
        self.user_s = self.system_s = 0.0  # of what was reaped
        self.max_rss_bytes = 0
        self.is_saving = False  # stopped by its own signal, to save its state
        self.is_signalled = False  # while the job ended by itself, or by the same signal
        self.is_clean = True  # nothing of the attempt is left in this process or among its children

    def run(self) -> int:
        """Run the attempt to its end; returns the runner's exit code."""
        files.reserve(f"{self.folder}/{files.RESERVED}")
        owners = {self.spec[stream]: self._reader(stream) for stream in ("stdout", "stderr")}
        self.output = OutputFiles(owners, self.spec.get("max_output_bytes"))
        if os.path.exists(f"{self.folder}/stop.json"):
            self.reason = "stopped"
            self.detail = str(self._read_stop_request().get("reason") or "stopped before it started")
            return self._finish({})
        try:
            self._start()
        except child.NotStartable as error:
            self.reason = "never-ran" if isinstance(error, child.NoRoom) else "not-started"
            self.detail = str(error)
            return self._finish({})
        except ValueError as error:  # a NUL or a lone surrogate, which no file name and no argument can hold
            self.reason, self.detail = "not-started", f"its command or a file name cannot be used: {error}"
            return self._finish({})
        self._wait()
        self._await_own_signal()
        self._clear_leftovers()
        self.output.enforce_limit()
        return self._finish(self._oom_evidence())

    def _oom_evidence(self) -> dict[str, Any]:
        """Evidence from the output of the job; {} if that cannot be examined.

        Whatever is wrong with the output, or with the code that examines it, the exit of the job is recorded.
        """
        try:
            return oom_evidence.evidence(self.output.tails(oom_evidence.TAIL_BYTES), failed=self.status != 0)
        except Exception as error:  # noqa: BLE001 - anything: the job wrote the text
            self.detail = f"{self.detail}; its output could not be examined: {type(error).__name__}".lstrip("; ")
            return {}

    def _reader(self, stream: str) -> int | None:
        """The user as whom a log is read: the one who named the file, None for the runner's own user."""
        uid: int | None = self.spec.get("uid")
        return None if child.is_private(self.spec, self.folder, stream) else uid

    def _start(self) -> None:
        """Start the job. It counts as started once `started.json` is on disk, whatever happens next.

        Raises:
            NotStartable: it cannot be started; nothing of it is left.
        """
        started = {"runner": self.me, "session": self.me["pid"], "started_at_s": self.started_at_s}
        try:
            files.write_json(f"{self.folder}/started.json", started)
        except OSError as error:
            kind = child.NoRoom if error.errno in (errno.ENOSPC, errno.EDQUOT) else child.NotStartable
            raise kind(f"cannot write to `{self.folder}`: {error.strerror}") from error
        self.pid = child.start(self.spec, self.folder)
        limit_s = self.spec.get("time_limit_s")
        self.limit_at_s = None if limit_s is None else time.monotonic() + float(limit_s)
        self._notify("started")
        self.record_at_s = time.monotonic() + RECORD_AFTER_S
        self.output_due_s = time.monotonic() + CHECK_S if self.output.is_limited else None
        if self.spec.get("progress_file"):
            progress.start(str(self.folder), self.pid)

    def _wait(self) -> None:
        """Wait until the first process has ended, and enforce stops and the time limit."""
        while self.pid is not None:
            times_s = (self.deadline_s, self.limit_at_s, self.record_at_s, self.output_due_s)
            due = min((at_s for at_s in times_s if at_s is not None), default=None)
            got = _next_signal(due)
            self._reap()
            if self.pid is None:
                self.is_signalled = got in STOP_SIGNALS
                return
            if got in STOP_SIGNALS:
                self._stop_requested()
            now_s = time.monotonic()
            if self.record_at_s is not None and now_s >= self.record_at_s:
                self.record_at_s = None
                with contextlib.suppress(OSError):
                    files.fill(f"{self.folder}/{files.RESERVED}", {"job": _identity(self.pid)})
            if self.output_due_s is not None and now_s >= self.output_due_s:
                self.output.enforce_limit()
                self.output_due_s = now_s + CHECK_S
            if self.limit_at_s is not None and now_s >= self.limit_at_s:
                self.limit_at_s = None
                self._begin_stop("timeout", f"longer than its limit of {self.spec['time_limit_s']:g} s", None)
            if self.deadline_s is not None and now_s >= self.deadline_s:
                self._signal_all(signal.SIGKILL)
                self.deadline_s = now_s + 0.5  # forks may have escaped: repeat until it has ended

    def _stop_requested(self) -> None:
        request = self._read_stop_request()
        grace_s = request.get("grace_s")
        reason = str(request.get("reason") or UNORDERED_STOP)
        own = self.spec.get("checkpoint_signal") if request.get("checkpoint") else None
        self._begin_stop("stopped", reason, None if grace_s is None else float(grace_s), own)

    def _read_stop_request(self) -> dict[str, Any]:
        return files.read_json(f"{self.folder}/stop.json") or {}

    def _begin_stop(self, reason: str, detail: str, grace_s: float | None, own: int | None = None) -> None:
        """Begin to stop it; `own`: the signal after which it saves its state, which only its programs get."""
        due_s = time.monotonic() + (float(self.spec["grace_s"]) if grace_s is None else grace_s)
        if self.deadline_s is not None:
            self.deadline_s = min(self.deadline_s, due_s)
            if own is None and self.is_saving and reason == "stopped":  # it is cancelled while it saves
                self.is_saving = False
                self.reason, self.detail = reason, detail
                self._signal_all(signal.SIGTERM)
            return
        self.reason, self.detail, self.deadline_s = reason, detail, due_s
        self.stopping_since_s = time.monotonic()
        self.is_saving = own is not None
        if own is None or self.pid is None:
            self._signal_all(signal.SIGTERM)
            return
        for pid in procfs.programs(self.pid, own):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, own)
                os.kill(pid, signal.SIGCONT)

    def _await_own_signal(self) -> None:
        """Call it a stop, and no failure of the job, if whoever ended the job signals this runner as well.

        SIGKILL in the meantime leaves no result, and the engine calls the attempt lost.
        """
        if self.status is None or self.status == 0 or self.reason != "exited":
            return
        is_killed = os.waitstatus_to_exitcode(self.status) in KILLED
        due_s = time.monotonic() + (SIGNALLED_WITHIN_S if is_killed else 0.0)
        while not self.is_signalled and (got := _next_signal(due_s)) is not None:
            self.is_signalled = got in STOP_SIGNALS
        if self.is_signalled and not os.path.exists(f"{self.folder}/stop.json"):
            self.reason, self.detail = "stopped", UNORDERED_STOP

    def _clear_leftovers(self) -> None:
        """End what the job left running: its GPU memory must be free when the attempt is reported as ended."""
        if not self._reap():
            return  # orphans become children of this process: if it has none, /proc need not be read
        now_s = time.monotonic()
        kill_at_s = (
            now_s + CLEANUP_TIMEOUT_S if self.deadline_s is None else min(self.deadline_s, now_s + CLEANUP_TIMEOUT_S)
        )
        give_up_s = kill_at_s + UNKILLABLE_S
        self._signal_all(signal.SIGTERM)
        while left := procfs.descendants(os.getpid()):
            now_s = time.monotonic()
            if now_s >= give_up_s:
                self.is_clean = False
                self.detail = f"{self.detail}; {len(left)} processes could not be killed".lstrip("; ")
                return
            if now_s >= kill_at_s:
                self._signal_all(signal.SIGKILL)
            _next_signal(min(now_s + 0.05 if now_s >= kill_at_s else kill_at_s, give_up_s))
            self._reap()
        self._reap()

    def _signal_all(self, number: signal.Signals) -> None:
        for pid in procfs.descendants(os.getpid()):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, number)
                os.kill(pid, signal.SIGCONT)  # a paused process receives SIGTERM when it continues

    def _reap(self) -> bool:
        """Reap the children that have ended; whether others are left."""
        while True:
            try:
                pid, status, usage = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                return True
            self.user_s += usage.ru_utime
            self.system_s += usage.ru_stime
            self.max_rss_bytes = max(self.max_rss_bytes, usage.ru_maxrss * 1024)
            if pid == self.pid:
                self.pid, self.status = None, status

    def _finish(self, evidence: dict[str, Any]) -> int:
        elapsed_s = time.monotonic() - self.started_mono_s
        stopping_s = None if self.stopping_since_s is None else time.monotonic() - self.stopping_since_s
        status = self.status
        result = {
            "reason": self.reason,
            "exit_code": os.WEXITSTATUS(status) if status is not None and os.WIFEXITED(status) else None,
            "signal": os.WTERMSIG(status) if status is not None and os.WIFSIGNALED(status) else None,
            "detail": self.detail,
            "oom": evidence,
            "started_at_s": self.started_at_s,
            "ended_at_s": self.started_at_s + elapsed_s,  # independent of changes of the wall clock
            "elapsed_s": elapsed_s,
            "stopping_s": stopping_s,
            "user_s": self.user_s,
            "system_s": self.system_s,
            "max_rss_bytes": self.max_rss_bytes,
        }
        self._write_result(result)
        return _exit_code(result)

    def _write_result(self, result: dict[str, Any]) -> None:
        """Write the result; on a full or failing disk retry for `RESULT_RETRY_S`."""
        give_up_s = time.monotonic() + RESULT_RETRY_S
        pause_s = 0.25
        while True:
            try:
                # Somebody may have removed the folder; without a result the engine would call the attempt lost.
                os.makedirs(self.folder, mode=0o700, exist_ok=True)
                draft = f"{self.folder}/{files.RESERVED}"
                files.write_json(f"{self.folder}/result.json", result, via=draft, durable=self.durable)
            except OSError as error:
                if time.monotonic() >= give_up_s:
                    self.is_clean = False
                    sys.stderr.write(f"error: result lost: {error}: {result}\n")
                    return
                time.sleep(pause_s)
                pause_s = min(2 * pause_s, 30.0)
            else:
                return

    def _notify(self, word: str) -> None:
        if self.notify is not None:
            with contextlib.suppress(OSError):
                os.write(self.notify, word.encode() + b"\n")


def _exit_code(result: dict[str, Any]) -> int:
    if result["reason"] in ("not-started", "never-ran"):
        return EXIT_NOT_STARTED
    if result["reason"] == "timeout":
        return EXIT_TIMEOUT
    if result["oom"].get("exception"):
        return EXIT_OOM
    if result["signal"] is not None:
        return 128 + int(result["signal"])
    return int(result["exit_code"] or 0)


def _next_signal(due_s: float | None) -> int | None:
    """The next of `SIGNALS`; None once the monotonic clock shows `due_s`."""
    if due_s is None:
        return signal.sigwaitinfo(SIGNALS).si_signo
    got = signal.sigtimedwait(SIGNALS, min(max(0.0, due_s - time.monotonic()), MAX_WAIT_S))
    return None if got is None else got.si_signo


def _identity(pid: int) -> dict[str, Any]:
    found = procfs.stat(pid)
    return {"pid": pid, "start_ticks": found.start_ticks if found else 0, "boot_id": procfs.boot_id()}
