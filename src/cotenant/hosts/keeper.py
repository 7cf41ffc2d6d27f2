"""What the allocation of a pilot runs: `python -m cotenant.hosts.keeper --state-dir DIR --note FILE ...`.

It waits. When the allocation is about to end (SIGTERM), its note is gone, or the pilot requests its end, it stops the
attempts of this allocation. Where Slurm does not track processes by cgroup (proctrack/linuxproc), a runner outlives the
allocation, and its job would run twice. An agent comes and goes with the daemon; the keeper outlives both.

It is no descendant of the process that the workload manager started, whose end it sees by the end of its stdin: the
manager may kill without a warning. A file beside the note is there until the keeper has finished, and is touched while
it lives, so that a pilot can distinguish a running allocation from one that is gone with its node. With `--held` its
stdin and stdout are pipes of the process that it outlives; otherwise it makes that process itself.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from cotenant.core.ports import AttemptRef
from cotenant.engines.attempt_dir import AttemptDir
from cotenant.engines.local import LocalEngine

ALLOCATION_ENDED = "its allocation ended"
"""Why the attempts were stopped; the daemon requeues them by it."""
NOTE_CHECK_S = 5.0
SLOW_END_S = 10.0
"""After the grace of an attempt, until its runner has written its end on a machine that is busy."""
POLL_S = 0.05
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGCONT)


def main(argv: Sequence[str] | None = None) -> int:
    """Keep an allocation until it ends."""
    parser = argparse.ArgumentParser(prog="python -m cotenant.hosts.keeper", allow_abbrev=False)
    parser.add_argument("--state-dir", type=Path, required=True)
    parser.add_argument("--note", type=Path, required=True)
    parser.add_argument("--host-suffix", required=True)
    parser.add_argument("--grace-s", type=float, default=10.0)
    parser.add_argument("--held", action="store_true", help="its stdin and stdout are pipes of what holds the GPUs")
    options = parser.parse_args(argv)
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    if not options.held and (pipes := _fork_held()) is not None:
        return _wait_for_keeper(*pipes)
    _leave_parent()
    mark = mark_of(options.note)
    mark.write_text(options.host_suffix.removeprefix("."))
    threading.Thread(target=_touch, args=(mark,), name="mark", daemon=True).start()
    if options.held:
        os.write(1, b"kept\n")
    absent = 0
    while (
        absent < 2 and not end_of(options.note).exists()
    ):  # a network file system may miss a note while it is replaced
        got = signal.sigtimedwait(SIGNALS, NOTE_CHECK_S)
        if got is not None and got.si_signo != signal.SIGCONT:  # scancel sends SIGCONT first
            break
        absent = 0 if _exists(options.note) else absent + 1
    stop_attempts(options.state_dir, options.host_suffix, grace_s=options.grace_s)
    mark.unlink(missing_ok=True)
    return 0


def mark_of(note: Path) -> Path:
    """The file that is there until the keeper of an allocation has finished; it has the allocation's number."""
    return note.with_suffix(".kept")


def end_of(note: Path) -> Path:
    """The file by which a pilot ends the keeper of an allocation that the workload manager has forgotten."""
    return note.with_suffix(".end")


def stop_attempts(state_dir: Path, host_suffix: str, *, grace_s: float) -> None:
    """Stop all attempts on hosts whose names end so, and wait until they have ended, at most for `grace_s`."""
    engine = LocalEngine(state_dir)
    root = state_dir.resolve() / "attempts"
    refs = list(_open_attempts(root, host_suffix))
    for ref in refs:
        AttemptDir(root, ref).tombstone()  # what has not started does not start
        engine.stop(ref, reason=ALLOCATION_ENDED, grace_s=grace_s)
    give_up_s = time.monotonic() + grace_s + SLOW_END_S
    while refs and time.monotonic() < give_up_s:
        time.sleep(POLL_S)
        refs = [ref for ref in refs if _is_open(AttemptDir(root, ref))]
    engine.close()


def _open_attempts(root: Path, host_suffix: str) -> Iterator[AttemptRef]:
    for note in root.glob("*/*.host"):
        if note.parent.name.isdecimal() and note.stem.isdecimal():
            ref = AttemptRef(job_id=int(note.parent.name), attempt=int(note.stem))
            if note.read_text().endswith(host_suffix) and _is_open(AttemptDir(root, ref)):
                yield ref


def _is_open(attempt_dir: AttemptDir) -> bool:
    return attempt_dir.read("result.json") is None and (
        attempt_dir.runner() is not None or not attempt_dir.claim_path.exists()
    )


def _fork_held() -> tuple[int, int] | None:
    """Fork: None in the child, whose stdin is a pipe of the parent; to the parent that pipe, and one of the child."""
    (stdin, held), (finished, kept) = os.pipe(), os.pipe()
    if os.fork():
        os.close(stdin)
        os.close(kept)
        return held, finished
    os.close(held)
    os.close(finished)
    os.dup2(stdin, 0)
    os.close(stdin)
    return None


def _wait_for_keeper(held: int, finished: int) -> int:
    """Wait until the keeper has finished; a signal of the workload manager begins that."""
    threading.Thread(target=_follow, args=(finished,), name="keeper", daemon=True).start()
    while signal.sigwait(SIGNALS) == signal.SIGCONT:
        pass
    os.close(held)
    os.read(finished, 1)
    return 0


def _leave_parent() -> None:
    """Outlive the parent: Ray kills the children of a worker that it ends, Slurm the descendants of a step."""
    if os.fork():
        os._exit(0)
    os.setsid()
    threading.Thread(target=_follow, args=(0,), name="stdin", daemon=True).start()


def _follow(pipe: int) -> None:
    """The end of a pipe acts as SIGTERM."""
    while os.read(pipe, 4096):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


def _touch(mark: Path) -> None:
    """Show that this process lives."""
    while True:
        time.sleep(NOTE_CHECK_S)
        with contextlib.suppress(OSError):  # a network file system that does not answer; it is gone at the end
            os.utime(mark)


def _exists(path: Path) -> bool:
    try:
        os.stat(path)  # noqa: PTH116 (`Path.exists` hides errors of a network file system)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return True


if __name__ == "__main__":
    sys.exit(main())
