"""Reads from the output of a job how many steps it has made, and tells it as `cotenant/progress.py` does.

    python -I -S <this file> <attempt folder> <pid of the job>

It runs beside the job, as the job's user: the pattern is the user's, and may take as long as it likes. The pattern is
`tqdm`, or a regular expression whose first group, or the group named so, is

    count      steps made so far; one that falls begins anew, as in the next epoch
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
    """Begin to watch the output of the attempt in `folder`, whose job is the process `pid`; failing is no harm."""
    with contextlib.suppress(OSError):
        command = [sys.executable, "-I", "-S", str(Path(__file__).resolve()), folder, str(pid)]
        os.posix_spawn(sys.executable, command, {"PATH": os.defpath}, setsigmask=(), setpgroup=0)


class StepCounter:
    """Steps made in all, from pieces of output."""

    def __init__(self, pattern: str) -> None:
        self._pattern = re.compile(NAMED_PATTERNS.get(pattern, pattern))
        named = self._pattern.groupindex
        self._kind = next((each for each in ("count", "rate", "seconds") if each in named), "count")
        self._group = named.get(self._kind, 1)
        self._rest = ""
        self._last: float | None = None
        self._told_s: float | None = None
        self.total = 0.0

    def read(self, text: str, now_s: float) -> bool:
        """Take in a piece of output that came by `now_s`; whether it told anything.

        What the pattern finds at the very end waits for the next piece: `step 12` may be about to become `step 123`.
        """
        text = self._rest + text
        end, told = 0, False
        for found in self._pattern.finditer(text):
            if found.end() == len(text):
                break
            end = found.end()
            told = self._take(found[self._group], now_s) or told
        self._rest = text[end:][-MAX_CARRY_CHARS:]
        return told

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
        if self._told_s is not None:
            self.total += hz * (now_s - self._told_s)
        self._told_s = now_s
        return True


class OutputTail:
    """What is added to a file from now on."""

    def __init__(self, path: str) -> None:
        # The name is the submitter's: it may be that of a pipe, which would hold us.
        self._descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        self._at = 0

    def new(self) -> str:
        """The text that has come since the last call; of very much, the last part."""
        size = os.fstat(self._descriptor).st_size
        if size < self._at:
            self._at = 0  # somebody emptied it
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
    streams = [OutputTail(each) for each in paths if each in ours]
    if spec.get("uid") is not None:
        _become(int(spec["uid"]))
    streams += [OutputTail(each) for each in paths if each not in ours]
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
    """Read what is new, and tell it."""
    now_s = time.monotonic()
    told = [counter.read(stream.new(), now_s) for stream, counter in zip(streams, counters, strict=True)]
    if any(told):
        total = sum(each.total for each in counters)
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
        code = 1  # nobody learns how fast it goes: no reason to disturb the job
    sys.exit(code)


if __name__ == "__main__":
    _run()
