"""Runs a launcher of several processes, such as `torchrun`, so that it can be moved.

    python -m cotenant.checkpoint torchrun --nproc-per-node 2 train.py

A launcher passes SIGTERM on and exits with a code of its own (torch/distributed/elastic/agent). This program sends the
signal to the processes that the launcher has started, but to nothing that these have started, waits until all of them
have noted by `exit_saved` that they saved, and exits with code 85. Otherwise its exit code is the launcher's.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType

from cotenant.checkpoint.signals import EXIT_SAVED, SAVED_DIR_ENV, all_saved, checkpoint_signal
from cotenant.osutil import procfs

POLL_S = 0.1
LAUNCHER_GRACE_S = 5.0
"""How long a launcher may go on after its processes have ended; one that would start them again is ended."""
RANK_ENV = b"LOCAL_RANK="


def main(argv: Sequence[str]) -> int:
    """Run the command `argv`; returns its exit code, or 85."""
    if not argv:
        sys.stderr.write("error: no command; write e.g. `python -m cotenant.checkpoint torchrun train.py`\n")
        return 2
    with tempfile.TemporaryDirectory(prefix="cotenant-saved-") as folder:
        number = checkpoint_signal()
        # A handler that does nothing yet: the signal may come before there is a process to pass it on to.
        signal.signal(number, lambda *_: None)
        launcher = subprocess.Popen(argv, env={**os.environ, SAVED_DIR_ENV: folder})

        def pass_on(_number: int, _frame: FrameType | None) -> None:
            for pid in list(_workers(launcher.pid)) or [launcher.pid]:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, number)

        signal.signal(number, pass_on)
        end_at_s: float | None = None
        while launcher.poll() is None:
            time.sleep(POLL_S)
            if end_at_s is None and all_saved(folder):
                end_at_s = time.monotonic() + LAUNCHER_GRACE_S
            if end_at_s is not None and time.monotonic() >= end_at_s:
                launcher.kill()
        if all_saved(folder):
            return EXIT_SAVED
        return launcher.returncode if launcher.returncode >= 0 else 128 - launcher.returncode


def _workers(launcher: int) -> Iterator[int]:
    """The processes that the launcher gave a rank. What they start, such as data loaders, has it by inheritance."""
    ranked = {pid for pid in procfs.descendants(launcher) if _has_rank(pid)}
    for pid in ranked:
        stat = procfs.read_stat(pid)
        if stat is not None and stat.parent not in ranked:
            yield pid


def _has_rank(pid: int) -> bool:
    try:
        return any(word.startswith(RANK_ENV) for word in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"))
    except OSError:
        return False


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
