"""Attempts as processes of this machine, each supervised by a runner that outlives the daemon."""

from __future__ import annotations

import contextlib
import logging
import os
import select
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from cotenant.core.errors import BackendError
from cotenant.core.events import AttemptExited, AttemptStarted
from cotenant.core.job import JobSpec, ProcessId
from cotenant.core.placement import Placement
from cotenant.core.ports import AttemptRef, RecoveredAttempt, SignalTarget
from cotenant.engines import process_signals
from cotenant.engines.attempt_dir import AttemptDir, launch_error
from cotenant.engines.cuda_suspension import CudaSuspender
from cotenant.engines.forkserver import ReusableRunner, RunnerForkServer
from cotenant.engines.leftovers import as_never_ran, exit_without_runner, kill_leftovers
from cotenant.engines.output_budget import OutputBudget
from cotenant.engines.runner_spec import GRACE_S, RUNNER_DIR, runner_spec
from cotenant.osutil import procfs

logger = logging.getLogger(__name__)

EventListener = Callable[[AttemptStarted | AttemptExited], None]

CAUSE = "local engine"
RUNNER_REPLY_TIMEOUT_S = 30.0
"""A runner that has not ended this long after the grace period hangs, and is killed."""
POLL_S = 1.0
"""How often a recovered runner is checked where the kernel has no pidfds."""


@dataclass(slots=True, kw_only=True)
class _WatchedAttempt:
    """An attempt whose end is awaited.

    Attributes:
        runner_pid: also the id of the session that the job's processes start in.
        runner: the runner that this engine assigned the attempt to; None for one recovered after a restart.
        descriptor: the channel to our runner, the pidfd of a recovered one, or -1 without either.
        start_reported: AttemptStarted has been given to the listener, or to the caller of `recover`.
        kill_at_s: monotonic time when a requested stop is forced, or None.
    """

    attempt_dir: AttemptDir
    runner_pid: int
    runner: ReusableRunner | None
    descriptor: int
    start_reported: bool = False
    stop_reason: str = ""
    kill_at_s: float | None = None


class LocalEngine:
    """Runs attempts on this machine; all that it knows of them is in `<state_dir>/attempts/<job>/<attempt>/`."""

    name = "local"

    def __init__(self, state_dir: Path) -> None:
        self.output_budget = OutputBudget()  # of the output files in attempts' folders
        self.suspender = CudaSuspender(self._with_runner, self.stop)
        self._root = Path(state_dir).resolve() / "attempts"
        self._lock = threading.Lock()
        self._watched: dict[AttemptRef, _WatchedAttempt] = {}
        self._on_event: EventListener | None = None
        self._thread: threading.Thread | None = None
        self._closing = False
        self._forkserver = RunnerForkServer(RUNNER_DIR)
        # epoll_wait(2) sees descriptors that are added while it waits, but not deadlines: those need the pipe.
        self._wake_read, self._wake_write = os.pipe()
        self._poller = select.epoll()
        self._poller.register(self._wake_read, select.EPOLLIN)
        self._by_descriptor: dict[int, _WatchedAttempt] = {}
        self._polled: dict[AttemptRef, _WatchedAttempt] = {}  # those with a deadline, or without a descriptor
        try:
            self._root.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise BackendError(f"cannot create `{self._root}`: {error.strerror}") from error

    def start(self, on_event: EventListener) -> None:
        """Start the thread that watches attempts and calls `on_event`."""
        self._on_event = on_event
        self._thread = threading.Thread(target=self._watch, name="local-engine", daemon=True)
        self._thread.start()

    def launch(self, spec: JobSpec, attempt: int, placement: Placement, env: Mapping[str, str]) -> None:
        """Start the runner of an attempt.

        Raises:
            DiskFullError: there is no room for its folder.
            BackendError: the attempt_dir or the process cannot be created, or we may not become the submitter.
        """
        attempt_dir = AttemptDir(self._root, AttemptRef(job_id=placement.job_id, attempt=attempt))
        if spec.uid != os.geteuid() and os.geteuid() != 0:
            raise BackendError(
                f"cannot run a job of user `{spec.user}` (uid {spec.uid}) as uid {os.geteuid()}",
                hint="start the daemon as root to serve several users",
            )
        try:
            if not attempt_dir.create():
                return
        except OSError as error:
            raise launch_error(f"cannot create `{attempt_dir.path}`", error) from error
        try:
            request = runner_spec(spec, attempt_dir, attempt, placement, env)
            if spec.stdout_path is None or spec.stderr_path is None:
                request["max_output_bytes"] = self.output_budget.grant(attempt_dir.ref, spec.uid)
            attempt_dir.write("spec.json", request, durable=False)
            with self._lock:
                runner = self._forkserver.start_runner(attempt_dir.text)
                self._add(
                    _WatchedAttempt(
                        attempt_dir=attempt_dir,
                        runner_pid=runner.process.pid,
                        runner=runner,
                        descriptor=runner.channel.fileno(),
                    )
                )
        except OSError as error:
            shutil.rmtree(attempt_dir.path, ignore_errors=True)
            self.output_budget.release(attempt_dir.ref, attempt_dir.path)
            raise launch_error(f"cannot start a runner for job {placement.job_id}", error) from error

    def stop(self, ref: AttemptRef, *, reason: str, grace_s: float, checkpoint: bool = False) -> None:
        """Signal the runner to stop the job, and kill the runner if it does not."""
        attempt_dir = AttemptDir(self._root, ref)
        if attempt_dir.read("result.json") is not None:
            return
        if checkpoint:
            self.suspender.resume(ref)  # off its GPU it could not save its state
        with contextlib.suppress(OSError):  # on a full disk, or in a folder that was removed: it stops without a reason
            request = {"reason": reason, "grace_s": grace_s, "checkpoint": checkpoint}
            attempt_dir.write("stop.json", request, durable=False)
        with self._lock:
            watched = self._watched.get(ref)
            if watched is not None:
                due_s = time.monotonic() + grace_s + RUNNER_REPLY_TIMEOUT_S
                watched.kill_at_s = due_s if watched.kill_at_s is None else min(due_s, watched.kill_at_s)
                watched.stop_reason = watched.stop_reason or reason
                self._polled[ref] = watched
                # Under the lock: once it is no longer watched, its runner may be at another attempt.
                self._signal(watched, signal.SIGTERM)
            elif (runner := attempt_dir.runner()) is not None and runner.pid not in self._runner_pids():
                procfs.send_signal(runner, signal.SIGTERM)
        self._wake()

    def pause(self, ref: AttemptRef) -> None:
        """Suspend the processes of an attempt, but not its runner."""
        self.suspender.pause(ref)

    def resume(self, ref: AttemptRef) -> None:
        """Let a paused attempt continue."""
        self.suspender.resume(ref)

    def send_signal(self, ref: AttemptRef, number: int, target: SignalTarget, *, uid: int) -> int:
        """Signal the processes of an attempt that the user `uid` could signal; returns how many."""
        sent: list[int] = []
        self._with_runner(ref, lambda _, runner: sent.append(process_signals.send(runner, number, target, uid)))
        return sum(sent)

    def _with_runner(self, ref: AttemptRef, function: Callable[[Path, ProcessId], None]) -> None:
        with self._lock:  # as in `stop`
            watched = self._watched.get(ref)
            if watched is not None and (runner := self._runner_of(watched)) is not None:
                function(watched.attempt_dir.path, runner)

    def recover(self, refs: Iterable[AttemptRef]) -> tuple[RecoveredAttempt, ...]:
        """What became of attempts of an earlier daemon; those that still run are watched from now on."""
        return tuple(self._recover(AttemptDir(self._root, ref)) for ref in refs)

    def owners(self, pids: Iterable[int]) -> Mapping[int, AttemptRef]:
        """By the session of the process or of an ancestor: orphans of a job become children of its runner."""
        with self._lock:
            runners = {watched.runner_pid: watched.attempt_dir.ref for watched in self._watched.values()}
        wanted = set(pids)
        found: dict[int, AttemptRef | None] = {}
        for pid in wanted:
            line: list[int] = []
            owner: AttemptRef | None = None
            for stat in procfs.ancestors(pid):
                if stat.pid in found:
                    owner = found[stat.pid]
                    break
                line.append(stat.pid)
                if stat.session in runners:
                    owner = runners[stat.session]
                    break
            found.update(dict.fromkeys(line, owner))
        return {pid: ref for pid, ref in found.items() if ref is not None and pid in wanted}

    def log_paths(self, ref: AttemptRef) -> tuple[str, str]:
        """Files with the attempt's standard output and error."""
        attempt_dir = AttemptDir(self._root, ref)
        spec = attempt_dir.read("spec.json") or {}
        return str(spec.get("stdout", attempt_dir.stdout_path)), str(spec.get("stderr", attempt_dir.stderr_path))

    def close(self) -> None:
        """Stop watching; runners and their jobs go on."""
        self._closing = True
        self._wake()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()
        self._forkserver.close()
        with self._lock:
            for watched in self._watched.values():
                self._unwatch(watched)
            self._watched.clear()
        self._poller.close()
        for descriptor in (self._wake_read, self._wake_write):
            os.close(descriptor)
        self._wake_write = -1

    def _runner_pids(self) -> set[int]:
        """Runners that run an attempt. Call with the lock held."""
        return {watched.runner_pid for watched in self._watched.values()}

    # -- recovery

    def _recover(self, attempt_dir: AttemptDir) -> RecoveredAttempt:
        with self._lock:
            known = attempt_dir.ref in self._watched
        watched = known or (attempt_dir.exited(CAUSE) is None and self._resolve(attempt_dir))
        # The exit of a watched attempt is reported to the listener only.
        return RecoveredAttempt(
            ref=attempt_dir.ref,
            started=attempt_dir.started(CAUSE),
            exited=None if watched else attempt_dir.exited(CAUSE),
        )

    def _resolve(self, attempt_dir: AttemptDir) -> bool:
        """Bring an unwatched attempt into one of three states: never starts, ended, or watched (True)."""
        try:
            buried = attempt_dir.tombstone()
        except OSError as error:
            raise BackendError(f"cannot read or write `{attempt_dir.path}`: {error.strerror}") from error
        runner = attempt_dir.runner()
        if buried or runner is None:
            return False
        if not attempt_dir.await_start(runner):
            self._kill_leftovers(attempt_dir)
            if attempt_dir.read("started.json") is not None:
                self._end_without_runner(attempt_dir, "")
            return False
        # A recovered runner is no child of this daemon, so waitpid(2) cannot wait for it; a pidfd can be polled for its
        # end.
        descriptor = procfs.open_pidfd(runner)
        with self._lock:
            self._add(
                _WatchedAttempt(
                    attempt_dir=attempt_dir,
                    runner_pid=runner.pid,
                    runner=None,
                    descriptor=-1 if descriptor is None else descriptor,
                    start_reported=True,
                )
            )
        self._wake()
        return True

    def _kill_leftovers(self, attempt_dir: AttemptDir) -> int:
        uid = (attempt_dir.read("spec.json") or {}).get("uid")
        return kill_leftovers(attempt_dir.recorded_processes(), attempt_dir.env_tag(), uid=uid, timeout_s=GRACE_S)

    def _end_without_runner(self, attempt_dir: AttemptDir, stop_reason: str) -> AttemptExited:
        """The exit of an attempt whose runner is gone, after killing what is left of it."""
        exited = attempt_dir.exited(CAUSE)
        if exited is not None:
            return exited
        left = self._kill_leftovers(attempt_dir)
        if (exited := attempt_dir.exited(CAUSE)) is not None:  # the runner may have written it as its last act
            return exited
        attempt_exit = exit_without_runner(stop_reason, started=attempt_dir.read("started.json") is not None, left=left)
        at_s = time.time()
        try:
            attempt_dir.write_result(attempt_exit, at_s)
        except OSError as error:
            logger.warning("cannot write the result of %s: %s", attempt_dir.ref, error)
            attempt_exit = as_never_ran(attempt_exit, error)
        return attempt_dir.exit_event(attempt_exit, at_s, CAUSE)

    # -- watching

    def _add(self, watched: _WatchedAttempt) -> None:
        """Watch it from now on. Call with the lock held."""
        self._watched[watched.attempt_dir.ref] = watched
        if watched.descriptor < 0:
            self._polled[watched.attempt_dir.ref] = watched
            return
        self._by_descriptor[watched.descriptor] = watched
        self._poller.register(watched.descriptor, select.EPOLLIN)

    def _unwatch(self, watched: _WatchedAttempt, *, reusable: bool = False) -> None:
        """Watch it no longer. Call with the lock held."""
        self._polled.pop(watched.attempt_dir.ref, None)
        if watched.descriptor < 0:
            return
        del self._by_descriptor[watched.descriptor]
        self._poller.unregister(watched.descriptor)
        if watched.runner is None:
            os.close(watched.descriptor)
        elif reusable:
            self._forkserver.release(watched.runner)
        else:
            watched.runner.channel.close()

    def _watch(self) -> None:
        while not self._closing:
            for descriptor, _ in self._poller.poll(self._timeout_s()):
                if descriptor == self._wake_read:
                    os.read(self._wake_read, 4096)
                elif (watched := self._by_descriptor.get(descriptor)) is not None:
                    self._on_ready(watched)
            if self._polled:
                with self._lock:
                    polled = list(self._polled.values())
                for watched in polled:
                    self._check(watched)

    def _timeout_s(self) -> float | None:
        """Seconds until the next forced stop, check of a runner without a descriptor, or end of idle runners."""
        with self._lock:
            waits_s = (_next_poll_s(self._polled.values()), self._forkserver.trim_idle())
        return min((wait_s for wait_s in waits_s if wait_s is not None), default=None)

    def _on_ready(self, watched: _WatchedAttempt) -> None:
        """Our runner sent a message or ended, or a recovered one ended."""
        if watched.runner is None:
            self._on_end(watched)
            return
        try:
            # End of file says that the runner has ended, like SIGCHLD, and reaches the thread that polls.
            message = watched.runner.receive()
        except BlockingIOError:
            return
        if message == b"started\n":
            self._report_start(watched)
        else:
            self._on_end(watched, reusable=message == b"ended")

    def _check(self, watched: _WatchedAttempt) -> None:
        """Kill a runner that does not stop in time; notice the end of one that has no descriptor."""
        if watched.kill_at_s is not None and time.monotonic() >= watched.kill_at_s:
            watched.kill_at_s = None
            self._signal(watched, signal.SIGKILL)
        elif watched.descriptor < 0:
            runner = watched.attempt_dir.runner()
            if runner is None or not procfs.is_alive(runner):
                self._on_end(watched)

    def _signal(self, watched: _WatchedAttempt, number: signal.Signals) -> None:
        """Signal the runner of a watched attempt, whether it has claimed it yet or not."""
        if (runner := self._runner_of(watched)) is not None:
            procfs.send_signal(runner, number)

    def _runner_of(self, watched: _WatchedAttempt) -> ProcessId | None:
        return watched.attempt_dir.runner() if watched.runner is None else watched.runner.process

    def _report_start(self, watched: _WatchedAttempt) -> None:
        started = None if watched.start_reported else watched.attempt_dir.started(CAUSE)
        if started is not None:
            watched.start_reported = True
            self._emit(started)

    def _on_end(self, watched: _WatchedAttempt, *, reusable: bool = False) -> None:
        attempt_dir = watched.attempt_dir
        with self._lock:
            if self._watched.pop(attempt_dir.ref, None) is None:
                return
            self._unwatch(watched, reusable=reusable)
        self.output_budget.release(attempt_dir.ref, attempt_dir.path)
        self._report_start(watched)
        self._emit(self._end_without_runner(attempt_dir, watched.stop_reason))

    def _emit(self, event: AttemptStarted | AttemptExited) -> None:
        if self._on_event is None:
            return
        try:
            self._on_event(event)
        except Exception:  # a bug of the listener must not end the watch over all attempts
            logger.exception("listener failed on %s", type(event).__name__)

    def _wake(self) -> None:
        with contextlib.suppress(OSError):
            os.write(self._wake_write, b"\0")


def _next_poll_s(polled: Iterable[_WatchedAttempt]) -> float | None:
    now_s = time.monotonic()
    waits_s = [watched.kill_at_s - now_s for watched in polled if watched.kill_at_s is not None]
    waits_s += [POLL_S for watched in polled if watched.descriptor < 0]
    return max(0.0, min(waits_s)) + 0.001 if waits_s else None
