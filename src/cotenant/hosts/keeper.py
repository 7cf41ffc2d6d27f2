"""What the allocation of a pilot runs: `python -m cotenant.hosts.keeper --state-dir DIR --note FILE ...`.

It waits. When the allocation is about to end (SIGTERM), or its note is gone, it stops the attempts of this allocation.
Where Slurm does not track processes by cgroup (proctrack/linuxproc), a runner outlives the allocation, and its job
would run twice. An agent comes and goes with the daemon; this process is there as long as the allocation is.

A manager that kills without a warning starts it with `--held`: then it outlives its parent, whose end it sees by the
end of its stdin, and a file beside the note says that it has not finished.
"""

from __future__ import annotations

import argparse
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
POLL_S = 0.05


def main(argv: Sequence[str] | None = None) -> int:
    """Keep an allocation until it ends."""
    parser = argparse.ArgumentParser(prog="python -m cotenant.hosts.keeper", allow_abbrev=False)
    parser.add_argument("--state-dir", type=Path, required=True)
    parser.add_argument("--note", type=Path, required=True)
    parser.add_argument("--host-suffix", required=True)
    parser.add_argument("--grace-s", type=float, default=10.0)
    parser.add_argument("--held", action="store_true", help="its stdin and stdout are pipes of what holds the GPUs")
    options = parser.parse_args(argv)
    numbers = {signal.SIGTERM, signal.SIGINT, signal.SIGCONT}
    signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
    if options.held:
        _leave_parent()
        mark_of(options.note).write_text(options.host_suffix.removeprefix("."))
        os.write(1, b"kept\n")
    absent = 0
    while absent < 2:  # a network file system may miss it once, while it is replaced
        got = signal.sigtimedwait(numbers, NOTE_CHECK_S)
        if got is not None and got.si_signo != signal.SIGCONT:  # scancel sends SIGCONT first
            break
        absent = 0 if _exists(options.note) else absent + 1
    stop_attempts(options.state_dir, options.host_suffix, grace_s=options.grace_s)
    if options.held:
        mark_of(options.note).unlink(missing_ok=True)
    return 0


def mark_of(note: Path) -> Path:
    """The file that is there while the keeper of an allocation is held."""
    return note.with_suffix(".kept")


def stop_attempts(state_dir: Path, host_suffix: str, *, grace_s: float) -> None:
    """Stop all attempts on hosts whose names end so, and wait until they have ended, at most for `grace_s`."""
    engine = LocalEngine(state_dir)
    root = state_dir.resolve() / "attempts"
    refs = list(_open_attempts(root, host_suffix))
    for ref in refs:
        AttemptDir(root, ref).tombstone()  # what has not started does not start
        engine.stop(ref, reason=ALLOCATION_ENDED, grace_s=grace_s)
    give_up_s = time.monotonic() + grace_s + 2.0
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


def _leave_parent() -> None:
    """Outlive the parent: Ray kills the children of a worker that it ends. The end of stdin acts as SIGTERM."""
    if os.fork():
        os._exit(0)
    os.setsid()
    threading.Thread(target=_follow_stdin, name="stdin", daemon=True).start()


def _follow_stdin() -> None:
    while os.read(0, 4096):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


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
