"""Starts a program in the place of this process: signals that this process gets go on to it.

Jobs of Slurm and containers of Kubernetes run commands this way. Slurm signals one process (`scancel --batch`), or each
of a job (`scancel`, the time limit). Then the program has the signal already: a second SIGTERM would interrupt the
handler that writes its checkpoint. A witness, a process that does nothing else, shows which of the two it is.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import struct
import subprocess
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGQUIT)
WITNESS_WAIT_S = 0.2
"""Within this the witness gets a signal that goes to all, too: Slurm signals one process after the other."""
RECENT_S = 1.0
"""Several signals of one kind may be one to us and two to the witness: the second is of no later one."""
PR_SET_PDEATHSIG = 1  # prctl(2)
_REPORT = struct.Struct("id")


def popen_with_signals(
    command: Sequence[str], on_signal: Callable[[int], object] = lambda _: None, **options: Any
) -> subprocess.Popen[bytes]:
    """Start `command`, and from now on send it what this process alone receives of `FORWARDED`; main thread only.

    Signals that arrive while it starts are sent to it then. `on_signal` is called with each that this process receives.
    `options` are those of `subprocess.Popen`.

    Raises:
        OSError: it cannot be started.
    """
    process: subprocess.Popen[bytes] | None = None
    early: list[int] = []
    witness = Witness()

    def forward(number: int, _: object) -> None:
        on_signal(number)
        if process is None:
            early.append(number)
        elif not witness.has_seen(number):
            process.send_signal(number)

    for number in FORWARDED:
        signal.signal(number, forward)
    process = subprocess.Popen(command, **options)
    for received in early:
        process.send_signal(received)
    return process


class Witness:
    """A process `pid` beside this one that notes the signals it gets; it ends with this one."""

    def __init__(self) -> None:
        self._reports, write_end = os.pipe()
        os.set_blocking(self._reports, False)
        self._seen: defaultdict[int, list[float]] = defaultdict(list)
        self._has_ended = False
        parent = os.getpid()
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, FORWARDED)  # before it is there: it must not miss one
        self.pid = os.fork()
        if self.pid == 0:
            with suppress(BaseException):
                _note_signals(write_end, parent)
            os._exit(0)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        os.close(write_end)

    def has_seen(self, number: int) -> bool:
        """Whether it got a signal that this process got now."""
        give_up_s = time.monotonic() + WITNESS_WAIT_S
        while True:
            self._read()
            now_s = time.monotonic()
            recent = [at_s for at_s in self._seen[number] if now_s - at_s <= RECENT_S]
            self._seen[number] = recent[1:]
            if recent or self._has_ended or now_s >= give_up_s:
                return bool(recent)
            select.select([self._reports], [], [], give_up_s - now_s)

    def _read(self) -> None:
        with suppress(BlockingIOError):
            data = os.read(self._reports, 100 * _REPORT.size)
            self._has_ended = not data
            for number, at_s in _REPORT.iter_unpack(data):
                self._seen[number].append(at_s)


def _note_signals(write_end: int, parent: int) -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    while os.getppid() == parent:
        os.write(write_end, _REPORT.pack(signal.sigwait(FORWARDED), time.monotonic()))
