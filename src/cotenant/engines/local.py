"""Attempts as processes of this machine, each wrapped by a runner that outlives the daemon."""

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
from cotenant.core.job import AttemptExit, JobSpec, ProcessId
from cotenant.core.placement import Placement
from cotenant.core.ports import AttemptRef, RecoveredAttempt
from cotenant.engines import processes
from cotenant.engines.attempt_dir import AttemptDir
from cotenant.engines.forkserver import ReusableRunner, RunnerForkServer
from cotenant.engines.runner_spec import GRACE_S, RUNNER_PATH, runner_spec

logger = logging.getLogger(__name__)

EventListener = Callable[[AttemptStarted | AttemptExited], None]

CAUSE = "local engine"
RUNNER_REPLY_TIMEOUT_S = 30.0  # a runner that has not ended this long after the grace does not answer
START_TIMEOUT_S = 30.0  # a runner gets from claim to start in milliseconds; one that takes longer hangs
POLL_S = 1.0  # how often an adopted runner is looked at where the kernel has no pidfd


@dataclass(slots=True, kw_only=True)
class _WatchedAttempt:
    """An attempt whose end is awaited.

    Attributes:
        runner_pid: also the id of the session that the job's processes are born into.
        runner: the runner that we gave it to; None where it is one that we found.
        descriptor: the channel to a runner of ours, the pidfd of one that we found, or -1 without either.
        start_reported: AttemptStarted has been given to the listener, or to the caller of `find`.
        kill_at_s: monotonic time when a stop that was asked for is forced, or None.
    """

    folder: AttemptDir
    runner_pid: int
    runner: ReusableRunner | None
    descriptor: int
    start_reported: bool = False
    stop_reason: str = ""
    kill_at_s: float | None = None


class LocalEngine:
    """Runs attempts on this machine; everything about them is in `<state_dir>/attempts/<job>/<attempt>/`."""

    name = "local"

    def __init__(self, state_dir: Path) -> None:
        self._root = Path(state_dir).resolve() / "attempts"
        self._lock = threading.Lock()
        self._watched: dict[AttemptRef, _WatchedAttempt] = {}
        self._on_event: EventListener | None = None
        self._thread: threading.Thread | None = None
        self._closing = False
        self._zygote = RunnerForkServer(RUNNER_PATH)
        self._wake_read, self._wake_write = os.pipe()
        self._poller = select.epoll()
        self._poller.register(self._wake_read, select.EPOLLIN)
        self._by_descriptor: dict[int, _WatchedAttempt] = {}
        self._looked_at: dict[AttemptRef, _WatchedAttempt] = {}  # those of which no descriptor tells all
        try:
            self._root.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise BackendError(f"cannot create `{self._root}`: {error.strerror}") from error

    def start(self, on_event: EventListener) -> None:
        """Begin to watch."""
        self._on_event = on_event
        self._thread = threading.Thread(target=self._watch, name="local-engine", daemon=True)
        self._thread.start()

    def launch(self, spec: JobSpec, attempt: int, placement: Placement, env: Mapping[str, str]) -> None:
        """Start the runner of an attempt.

        Raises:
            BackendError: no folder, no process, or not the right to become the submitter.
        """
        folder = AttemptDir(self._root, AttemptRef(job_id=placement.job_id, attempt=attempt))
        if spec.uid != os.geteuid() and os.geteuid() != 0:
            raise BackendError(
                f"cannot run a job of user `{spec.user}` (uid {spec.uid}) as uid {os.geteuid()}",
                hint="start the daemon as root to serve several users",
            )
        try:
            folder.path.mkdir(mode=0o700, parents=True)
        except FileExistsError:
            return
        except OSError as error:
            raise BackendError(f"cannot create `{folder.path}`: {error.strerror}") from error
        try:
            folder.write("spec.json", runner_spec(spec, folder, attempt, placement, env), durable=False)
            with self._lock:
                runner = self._zygote.start_runner(folder.path)
                self._follow(
                    _WatchedAttempt(
                        folder=folder,
                        runner_pid=runner.process.pid,
                        runner=runner,
                        descriptor=runner.channel.fileno(),
                    )
                )
        except OSError as error:
            shutil.rmtree(folder.path, ignore_errors=True)
            raise BackendError(f"cannot start a runner for job {placement.job_id}: {error.strerror}") from error

    def stop(self, ref: AttemptRef, *, reason: str, grace_s: float) -> None:
        """Tell the runner to stop, and be ready to do it without the runner."""
        folder = AttemptDir(self._root, ref)
        if not folder.path.is_dir() or folder.read("result.json") is not None:
            return
        with contextlib.suppress(OSError):  # on a full disk the runner stops without knowing why
            folder.write("stop.json", {"reason": reason, "grace_s": grace_s}, durable=False)
        with self._lock:
            watched = self._watched.get(ref)
            if watched is not None:
                due_s = time.monotonic() + grace_s + RUNNER_REPLY_TIMEOUT_S
                watched.kill_at_s = due_s if watched.kill_at_s is None else min(due_s, watched.kill_at_s)
                watched.stop_reason = watched.stop_reason or reason
                self._looked_at[ref] = watched
                # Under the lock: once it is no longer watched, its runner may be at another attempt.
                self._signal(watched, signal.SIGTERM)
            elif (runner := folder.runner()) is not None and runner.pid not in self._runner_pids():
                processes.send_signal(runner, signal.SIGTERM)
        self._wake()

    def find(self, refs: Iterable[AttemptRef]) -> tuple[RecoveredAttempt, ...]:
        """What became of attempts of an earlier daemon; those that still run are watched from now on."""
        return tuple(self._find(AttemptDir(self._root, ref)) for ref in refs)

    def owners(self, pids: Iterable[int]) -> Mapping[int, AttemptRef]:
        """By the session of the process or of an ancestor: orphans of a job are children of its runner."""
        with self._lock:
            runners = {each.runner_pid: each.folder.ref for each in self._watched.values()}
        wanted = set(pids)
        found: dict[int, AttemptRef | None] = {}
        for pid in wanted:
            line: list[int] = []
            owner: AttemptRef | None = None
            for each in processes.ancestors(pid):
                if each.pid in found:
                    owner = found[each.pid]
                    break
                line.append(each.pid)
                if each.session in runners:
                    owner = runners[each.session]
                    break
            found.update(dict.fromkeys(line, owner))
        return {pid: ref for pid, ref in found.items() if ref is not None and pid in wanted}

    def log_paths(self, ref: AttemptRef) -> tuple[Path, Path]:
        """Where the attempt's output and errors go."""
        folder = AttemptDir(self._root, ref)
        spec = folder.read("spec.json") or {}
        return Path(spec.get("stdout", folder.stdout_path)), Path(spec.get("stderr", folder.stderr_path))

    def close(self) -> None:
        """Stop watching; runners go on by themselves."""
        self._closing = True
        self._wake()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()
        self._zygote.close()
        with self._lock:
            for each in self._watched.values():
                self._let_go(each)
            self._watched.clear()
        self._poller.close()
        for descriptor in (self._wake_read, self._wake_write):
            os.close(descriptor)
        self._wake_write = -1

    def _runner_pids(self) -> set[int]:
        """Runners that are at an attempt. To be called under the lock."""
        return {each.runner_pid for each in self._watched.values()}

    # -- finding

    def _find(self, folder: AttemptDir) -> RecoveredAttempt:
        with self._lock:
            known = folder.ref in self._watched
        watched = known or (folder.exited(CAUSE) is None and self._settle(folder))
        # The exit of a watched attempt is told to the listener, and only there.
        return RecoveredAttempt(
            ref=folder.ref, started=folder.started(CAUSE), exited=None if watched else folder.exited(CAUSE)
        )

    def _settle(self, folder: AttemptDir) -> bool:
        """Bring an attempt that nobody watches into one of three states: never starts, ended, or watched (True)."""
        try:
            voided = folder.tombstone()
        except OSError as error:
            raise BackendError(f"cannot read or write `{folder.path}`: {error.strerror}") from error
        runner = folder.runner()
        if voided or runner is None:
            return False
        if not _await_start(folder, runner):
            self._kill_remains(folder)
            if folder.read("started.json") is not None:
                self._end_without_runner(folder, "")
            return False
        descriptor = processes.open_pidfd(runner)
        with self._lock:
            self._follow(
                _WatchedAttempt(
                    folder=folder,
                    runner_pid=runner.pid,
                    runner=None,
                    descriptor=-1 if descriptor is None else descriptor,
                    start_reported=True,
                )
            )
        self._wake()
        return True

    def _kill_remains(self, folder: AttemptDir) -> int:
        return processes.kill_leftovers(folder.recorded_processes(), folder.env_tag(), timeout_s=GRACE_S)

    def _end_without_runner(self, folder: AttemptDir, stop_reason: str) -> AttemptExited:
        """What is told of an attempt whose runner is gone, after making sure that nothing of it is left."""
        told = folder.exited(CAUSE)
        if told is not None:
            return told
        left = self._kill_remains(folder)
        told = folder.exited(CAUSE)  # the runner's last act may have come in between
        if told is not None:
            return told
        ended = _exit_without_runner(stop_reason, started=folder.read("started.json") is not None, left=left)
        at_s = time.time()
        try:
            folder.write_result(ended, at_s)
        except OSError as error:
            logger.warning("cannot write the result of %s: %s", folder.ref, error)
        return folder.exit_event(ended, at_s, CAUSE)

    # -- watching

    def _follow(self, watched: _WatchedAttempt) -> None:
        """Watch it from now on. To be called under the lock."""
        self._watched[watched.folder.ref] = watched
        if watched.descriptor < 0:
            self._looked_at[watched.folder.ref] = watched
            return
        self._by_descriptor[watched.descriptor] = watched
        self._poller.register(watched.descriptor, select.EPOLLIN)

    def _let_go(self, watched: _WatchedAttempt, *, reusable: bool = False) -> None:
        """Watch it no longer. To be called under the lock."""
        self._looked_at.pop(watched.folder.ref, None)
        if watched.descriptor < 0:
            return
        del self._by_descriptor[watched.descriptor]
        self._poller.unregister(watched.descriptor)
        if watched.runner is None:
            os.close(watched.descriptor)
        elif reusable:
            self._zygote.release(watched.runner)
        else:
            watched.runner.channel.close()

    def _watch(self) -> None:
        while not self._closing:
            for descriptor, _ in self._poller.poll(self._timeout_s()):
                if descriptor == self._wake_read:
                    os.read(self._wake_read, 4096)
                elif (watched := self._by_descriptor.get(descriptor)) is not None:
                    self._heard(watched)
            if self._looked_at:
                with self._lock:
                    looked_at = list(self._looked_at.values())
                for each in looked_at:
                    self._check(each)

    def _timeout_s(self) -> float | None:
        """Until the next forced stop or, for runners without a descriptor or without work, the next look."""
        with self._lock:
            waits_s = (_next_poll_s(self._looked_at.values()), self._zygote.trim_idle())
        return min((each for each in waits_s if each is not None), default=None)

    def _heard(self, watched: _WatchedAttempt) -> None:
        """Our runner spoke or is gone, or an adopted one ended."""
        if watched.runner is None:
            self._ended(watched)
            return
        try:
            told = watched.runner.receive()
        except BlockingIOError:
            return
        if told == b"started\n":
            self._tell_start(watched)
        else:
            self._ended(watched, reusable=told == b"ended")

    def _check(self, watched: _WatchedAttempt) -> None:
        """What no descriptor tells: a runner that does not answer, and runners without a pidfd."""
        if watched.kill_at_s is not None and time.monotonic() >= watched.kill_at_s:
            watched.kill_at_s = None
            self._signal(watched, signal.SIGKILL)
        elif watched.descriptor < 0:
            runner = watched.folder.runner()
            if runner is None or not processes.is_alive(runner):
                self._ended(watched)

    def _signal(self, watched: _WatchedAttempt, number: signal.Signals) -> None:
        """Signal the runner of a watched attempt; whether it has claimed it yet is no matter."""
        runner = watched.folder.runner() if watched.runner is None else watched.runner.process
        if runner is not None:
            processes.send_signal(runner, number)

    def _tell_start(self, watched: _WatchedAttempt) -> None:
        started = None if watched.start_reported else watched.folder.started(CAUSE)
        if started is not None:
            watched.start_reported = True
            self._emit(started)

    def _ended(self, watched: _WatchedAttempt, *, reusable: bool = False) -> None:
        folder = watched.folder
        with self._lock:
            if self._watched.pop(folder.ref, None) is None:
                return
            self._let_go(watched, reusable=reusable)
        self._tell_start(watched)
        self._emit(self._end_without_runner(folder, watched.stop_reason))

    def _emit(self, event: AttemptStarted | AttemptExited) -> None:
        if self._on_event is None:
            return
        try:
            self._on_event(event)
        except Exception:  # a listener's bug must not end the watch over all other attempts
            logger.exception("listener failed on %s", type(event).__name__)

    def _wake(self) -> None:
        with contextlib.suppress(OSError):
            os.write(self._wake_write, b"\0")


def _exit_without_runner(stop_reason: str, *, started: bool, left: int) -> AttemptExit:
    """The end of an attempt whose runner left no result; `left` processes could not be killed."""
    remains = f"; {left} processes could not be killed" if left else ""
    if stop_reason:
        number = signal.SIGKILL if started else None
        return AttemptExit(exit_code=None, signal=number, reason="stopped", detail=stop_reason + remains)
    if not started:
        return AttemptExit(exit_code=None, signal=None, reason="not-started", detail="its runner ended too early")
    detail = "its runner was killed, or the machine restarted"
    return AttemptExit(exit_code=None, signal=None, reason="lost", detail=detail + remains)


def _await_start(folder: AttemptDir, runner: ProcessId) -> bool:
    """Whether the runner lives and has started its job; it is between the two for milliseconds only."""
    give_up_s = time.monotonic() + START_TIMEOUT_S
    while processes.is_alive(runner):
        if folder.read("started.json") is not None:
            return True
        if time.monotonic() > give_up_s:
            processes.send_signal(runner, signal.SIGKILL)
            return False
        time.sleep(0.002)
    return False


def _next_poll_s(looked_at: Iterable[_WatchedAttempt]) -> float | None:
    now_s = time.monotonic()
    waits_s = [each.kill_at_s - now_s for each in looked_at if each.kill_at_s is not None]
    waits_s += [POLL_S for each in looked_at if each.descriptor < 0]
    return max(0.0, min(waits_s)) + 0.001 if waits_s else None
