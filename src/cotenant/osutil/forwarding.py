"""Starts a program in the place of this process: signals that this process gets go on to it.

A module of its own: jobs of Slurm and containers of Kubernetes run commands this way.
"""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Sequence
from typing import Any

FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGQUIT)


def popen_with_signals(command: Sequence[str], **options: Any) -> subprocess.Popen[bytes]:
    """Start `command`, and from now on send it what this process receives of `FORWARDED`; main thread only.

    Signals that arrive while it starts are sent to it then. `options` are those of `subprocess.Popen`.

    Raises:
        OSError: it cannot be started.
    """
    process: subprocess.Popen[bytes] | None = None
    early: list[int] = []

    def forward(number: int, _: object) -> None:
        if process is None:
            early.append(number)
        else:
            process.send_signal(number)

    for number in FORWARDED:
        signal.signal(number, forward)
    process = subprocess.Popen(command, **options)
    for received in early:
        process.send_signal(received)
    return process
