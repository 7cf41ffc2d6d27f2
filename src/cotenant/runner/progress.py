"""Counts the steps of a job in its output, and reports them in the way of `cotenant/progress.py`.

    python -I -S <this file> <attempt folder> <pid of the job>

It runs beside the job, as the job's user: the pattern comes from the user, and may take any time to match. The pattern
is `tqdm`, or a regular expression whose first group, or a group of that name, is

    count      steps made so far; a smaller one starts a new count, as in the next epoch
    rate       steps a second
    seconds    seconds a step
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import sys
import time
from pathlib import Path
from typing import Any, NoReturn

POLL_S = 0.5
MAX_READ_BYTES = 256 * 1024
MAX_CARRY_CHARS = 1024
RECORD_BYTES = 48
NAMED_PATTERNS = {"tqdm": r"(?P<count>\d+)/\d+ \[\d"}


def start(folder: str, pid: int) -> None:
    """Start to watch the output of the attempt in `folder`, whose job is the process `pid`; errors are ignored."""
    with contextlib.suppress(OSError):
        command = [sys.executable, "-I", "-S", str(Path(__file__).resolve()), folder, str(pid)]
        os.posix_spawn(sys.executable, command, {"PATH": os.defpath}, setsigmask=(), setpgroup=0)


class StepCounter:
    """Counts all steps in pieces of output."""

    def __init__(self, pattern: str) -> None:
        self._pattern = re.compile(NAMED_PATTERNS.get(pattern, pattern))
        named = self._pattern.groupindex
        self._kind = next((kind for kind in ("count", "rate", "seconds") if kind in named), "count")
        self._group = named.get(self._kind, 1)
        self._rest = ""
        self._last: float | None = None
        self._reported_s: float | None = None
        self.total = 0.0

    def read(self, text: str, now_s: float) -> bool:
        """Read a piece of output that was there by `now_s`; whether it had a match.

        A match at the very end waits for the next piece: `step 12` may become `step 123`.
        """
        text = self._rest + text
        end, is_new = 0, False
        for found in self._pattern.finditer(text):
            if found.end() == len(text):
                break
            end = found.end()
            is_new = self._take(found[self._group], now_s) or is_new
        self._rest = text[end:][-MAX_CARRY_CHARS:]
        return is_new

    def _take(self, word: str | None, now_s: float) -> bool:
        try:
            value = float((word or "").replace(",", ""))
        except ValueError:
            return False
        if not 0 <= value < 1e15:
            return False
        if self._kind == "count":
            if self._last is not None:
                self.total += value - self._last if value >= self._last else value
            self._last = value
            return True
        hz = value if self._kind == "rate" else 1.0 / value if value else 0.0
        if self._reported_s is not None:
            self.total += hz * (now_s - self._reported_s)
        self._reported_s = now_s
        return True


class OutputTail:
    """What is appended to a file from now on."""

    def __init__(self, path: str) -> None:
        # The submitter chose the name: without O_NONBLOCK a named pipe would block this process.
        self._descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        self._at = 0

    def new(self) -> str:
        """The text appended since the last call, at most its last `MAX_READ_BYTES`."""
        size = os.fstat(self._descriptor).st_size
        if size < self._at:
            self._at = 0  # it was truncated
        self._at = max(self._at, size - MAX_READ_BYTES)
        data = os.pread(self._descriptor, MAX_READ_BYTES, self._at)
        self._at += len(data)
        return data.decode(errors="replace")


def main(argv: list[str]) -> int:
    """Watch until the job has ended."""
    folder, pid = Path(argv[0]), int(argv[1])
    spec = json.loads((folder / "spec.json").read_text())
    ours = {str(folder / "stdout.log"), str(folder / "stderr.log")}
    paths = sorted({str(spec["stdout"]), str(spec["stderr"])})
    streams = [OutputTail(path) for path in paths if path in ours]
    if spec.get("uid") is not None:
        _become(int(spec["uid"]))
    streams += [OutputTail(path) for path in paths if path not in ours]
    target = os.open(spec["progress_file"], os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    fcntl.flock(target, fcntl.LOCK_EX | fcntl.LOCK_NB)
    counters = [StepCounter(str(spec["progress"])) for _ in streams]
    while True:
        over = not Path(f"/proc/{pid}").exists()
        _poll(streams, counters, target)
        if over:
            return 0
        time.sleep(POLL_S)


def _poll(streams: list[OutputTail], counters: list[StepCounter], target: int) -> None:
    """Read new output, and report the count if it changed."""
    now_s = time.monotonic()
    is_new = [counter.read(stream.new(), now_s) for stream, counter in zip(streams, counters, strict=True)]
    if any(is_new):
        total = sum(counter.total for counter in counters)
        os.pwrite(target, f"{total:.3f} {now_s:.6f}\n".rjust(RECORD_BYTES).encode(), 0)


def _become(uid: int) -> None:
    import pwd

    account: Any = pwd.getpwuid(uid)
    os.initgroups(account.pw_name, account.pw_gid)
    os.setresgid(account.pw_gid, account.pw_gid, account.pw_gid)
    os.setresuid(uid, uid, uid)


def _run() -> NoReturn:
    try:
        code = main(sys.argv[1:])
    except (OSError, ValueError, TypeError, KeyError, re.error):
        code = 1  # the job's speed is not known then, which must not disturb the job
    sys.exit(code)


if __name__ == "__main__":
    _run()
