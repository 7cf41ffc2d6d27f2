"""Takes paused attempts off their GPUs: `cuda-checkpoint` brings their device memory to host memory and back.

Interface: `--get-state --pid PID` prints `running`, `locked`, `checkpointed` or `failed`; `--action lock|checkpoint|
restore|unlock --pid PID`; `--timeout MS` for `lock`. Source: README.md of github.com/NVIDIA/cuda-checkpoint, driver
570; cuCheckpointProcessLock and others in the CUDA driver API. A process without CUDA has no state. Driver 550 has
`--toggle` only, after which a daemon that was killed could not know the state, so it is not used (decision 0079).

The processes stay; threads that call CUDA block until it is restored. A file in the attempt's folder says that it may
be off its GPU, so that a later daemon restores it.
"""

from __future__ import annotations

import logging
import os
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from cotenant.core.errors import BackendError
from cotenant.core.job import ProcessId
from cotenant.core.ports import AttemptRef
from cotenant.core.text import printable
from cotenant.engines import process_signals
from cotenant.engines.runner_spec import GRACE_S
from cotenant.osutil import procfs
from cotenant.scheduling.overrun import OVERRUN_STOP

logger = logging.getLogger(__name__)

COMMAND = "cuda-checkpoint"
MIN_DRIVER = 570
"""The first driver whose program has `--get-state`."""
MARK = "suspended"
LOCK_TIMEOUT_S = 10.0
"""How long to wait until a process is between two CUDA calls and its work is done."""
ACTION_TIMEOUT_S = 300.0
"""A copy of 80 GiB at 0.3 GiB/s takes less."""
RESTORE_TIMEOUT_S = 60.0
"""How long a process is tried to be restored, while e.g. a neighbor holds its memory."""
RETRY_S = 0.5
REQUIRED = ("--get-state", "--action")

WithRunner = Callable[[AttemptRef, Callable[[Path, ProcessId], None]], None]
"""Calls a function with the folder and the runner of an attempt, unless it is over."""


class StopAttempt(Protocol):
    """`Engine.stop`."""

    def __call__(self, ref: AttemptRef, *, reason: str, grace_s: float) -> None: ...


class CudaCheckpointError(Exception):
    """A step failed; the text says which, and what the program printed."""


def check_program(program: str) -> None:
    """Check that `program` is a `cuda-checkpoint` that can say in which state a process is.

    Raises:
        BackendError: it is not there, or too old.
    """
    try:
        done = subprocess.run([program, "--help"], capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BackendError(f"cannot run `{program}`: {error}", hint="see `cotenant doctor`") from error
    missing = [option for option in REQUIRED if option not in done.stdout]
    if missing:
        raise BackendError(
            f"`{program}` has no {' and no '.join(missing)}",
            hint=f"install that of driver {MIN_DRIVER} or newer, or remove the setting",
        )


class CudaSuspender:
    """Pauses and resumes attempts; with a program, each in a thread of its own, because copies take seconds.

    What is requested last counts: a request that comes while another one is executed is executed after it. `stop` ends
    an attempt that could not be restored.
    """

    def __init__(self, with_runner: WithRunner, stop: StopAttempt) -> None:
        self._program: str | None = None
        self._with_runner = with_runner
        self._stop = stop
        self._lock = threading.Lock()
        self._wanted: dict[AttemptRef, bool] = {}  # whether paused, for attempts that a thread works on

    def use(self, program: str) -> None:
        """Take attempts off their GPUs by this program. Before the first request.

        Raises:
            BackendError: the program is not there, or too old.
        """
        try:
            check_program(program)
        except BackendError as error:
            raise BackendError(f"`engine.cuda_checkpoint`: {error.message}", hint=error.hint) from error
        self._program = program

    def pause(self, ref: AttemptRef) -> None:
        """Pause an attempt; with a program, in the background."""
        if self._program is None:
            self._with_runner(ref, process_signals.pause)
        else:
            self._request(ref, paused=True)

    def resume(self, ref: AttemptRef) -> None:
        """Let an attempt continue if it is paused; in the background if it is off its GPU, or is being paused."""
        folder = self._folder_of(ref)
        with self._lock:
            is_served = ref in self._wanted
        if not is_served and (folder is None or not is_suspended(folder)):
            self._with_runner(ref, process_signals.resume)  # a start of the daemon resumes every attempt
        elif self._program is None:
            self._lose(ref, "`engine.cuda_checkpoint` is no longer set")
        else:
            self._request(ref, paused=False)

    def _request(self, ref: AttemptRef, *, paused: bool) -> None:
        with self._lock:
            is_served = ref in self._wanted
            self._wanted[ref] = paused
        if not is_served:
            threading.Thread(target=self._serve, args=(ref,), name=f"suspend-{ref.job_id}", daemon=True).start()

    def _lose(self, ref: AttemptRef, why: str) -> None:
        logger.error("an attempt is lost", extra={"fields": {"job": ref.job_id, "why": why}})
        self._stop(ref, reason=f"{OVERRUN_STOP}: suspended, and not restored to its GPU: {why}", grace_s=GRACE_S)

    def _serve(self, ref: AttemptRef) -> None:
        """Execute requests of one attempt until none is new."""
        executed: bool | None = None
        while True:
            with self._lock:
                wanted = self._wanted[ref]
                if wanted is executed:
                    del self._wanted[ref]
                    return
            try:
                (self._suspend if wanted else self._resume)(ref)
            except CudaCheckpointError as error:
                self._lose(ref, str(error))
            except Exception:
                logger.exception("an attempt is neither suspended nor resumed", extra={"fields": {"job": ref.job_id}})
            executed = wanted

    def _suspend(self, ref: AttemptRef) -> None:
        """Bring device memory to host memory if all of its processes allow it, and stop the processes in any case."""
        processes = self._processes(ref)
        folder = self._folder_of(ref)
        cuda = [process for process in processes if self._state(process) == "running"]
        if cuda and folder is not None and _mark(folder):
            try:
                for action in ("lock", "checkpoint"):
                    for process in cuda:
                        self._act(action, process)
            except CudaCheckpointError as error:
                # The driver may leave a process in a bad state (README, "Functionality"): `_restore` finds out.
                logger.warning("not suspended", extra={"fields": {"job": ref.job_id, "why": str(error)}})
                for process in cuda:
                    self._restore(process)
                (folder / MARK).unlink(missing_ok=True)
        self._with_runner(ref, process_signals.pause)

    def _resume(self, ref: AttemptRef) -> None:
        """Let the processes go on and restore their device memory. One that is stopped could not be restored."""
        self._with_runner(ref, process_signals.resume)
        folder = self._folder_of(ref)
        if folder is None or not is_suspended(folder):
            return
        for process in self._processes(ref):
            self._restore(process)
        (folder / MARK).unlink(missing_ok=True)

    def _restore(self, process: ProcessId) -> None:
        """Bring a process to the state `running`, whichever it has; one without CUDA or that has ended is left alone.

        Raises:
            CudaCheckpointError: it is not running after `RESTORE_TIMEOUT_S`, or its state is one that cannot be left.
        """
        give_up_s = time.monotonic() + RESTORE_TIMEOUT_S
        steps = {"locked": "unlock", "checkpointed": "restore"}
        problem = ""
        while procfs.is_alive(process):
            if not self._is_being_changed(process.pid):  # by a program that a killed daemon has started
                state = self._state(process)
                if state is None or state == "running":
                    return
                if state not in steps:
                    raise CudaCheckpointError(f"process {process.pid} is in the state `{state}`")
                try:
                    self._act(steps[state], process)
                    continue
                except CudaCheckpointError as error:
                    problem = str(error)
            if time.monotonic() >= give_up_s:
                raise CudaCheckpointError(problem or f"another program works on process {process.pid}")
            time.sleep(RETRY_S)

    def _act(self, action: str, process: ProcessId) -> None:
        """One step for one process; nothing if it has ended."""
        if not procfs.is_alive(process):
            return
        limit = ("--timeout", str(int(LOCK_TIMEOUT_S * 1000))) if action == "lock" else ()
        code, output = self._run("--action", action, "--pid", str(process.pid), *limit)
        if code != 0 and procfs.is_alive(process):
            raise CudaCheckpointError(f"`{action}` of process {process.pid} failed: {output or f'exit code {code}'}")

    def _state(self, process: ProcessId) -> str | None:
        """The state that the driver gives a process; None for one without CUDA."""
        code, output = self._run("--get-state", "--pid", str(process.pid))
        return output.lower() if code == 0 else None

    def _run(self, *words: str) -> tuple[int, str]:
        """Exit code and last line of output."""
        try:
            done = subprocess.run(
                [self._program or "", *words],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                timeout=ACTION_TIMEOUT_S,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            return 1, str(error)
        lines = done.stdout.decode(errors="replace").strip().splitlines()
        return done.returncode, printable(lines[-1].strip()[:200]) if lines else ""

    def _is_being_changed(self, pid: int) -> bool:
        """Whether a program of ours works on a process; others may write into their command lines what they like."""
        ours = [stat.pid for stat in procfs.all_stats() if procfs.real_uid(stat.pid) == os.getuid()]
        wanted = [os.fsencode(self._program or ""), b"--action", b"--pid", str(pid).encode()]
        return any(set(wanted) <= set(_command_line(other)) for other in ours)

    def _processes(self, ref: AttemptRef) -> list[ProcessId]:
        found: list[ProcessId] = []

        def read(_: Path, runner: ProcessId) -> None:
            pids = procfs.descendants(runner.pid) if procfs.is_alive(runner) else []
            found.extend(identity for pid in pids if (identity := procfs.identity(pid)) is not None)

        self._with_runner(ref, read)
        return found

    def _folder_of(self, ref: AttemptRef) -> Path | None:
        found: list[Path] = []
        self._with_runner(ref, lambda folder, _: found.append(folder))
        return found[0] if found else None


def is_suspended(folder: Path) -> bool:
    """Whether an attempt may be off its GPU."""
    return (folder / MARK).exists()


def _command_line(pid: int) -> list[bytes]:
    try:
        return Path(f"{procfs.PROC}/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return []


def _mark(folder: Path) -> bool:
    """Note that an attempt may be off its GPU; False if that cannot be written, and so must not be done."""
    try:
        (folder / MARK).touch(mode=0o600)
    except OSError:
        return False
    return True
