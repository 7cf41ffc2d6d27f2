"""Monitoring tools that run beside the jobs of a group, each with its output in the folder of the run.

Source: radT's listeners (Robroek et al., DEEM 2023). One that ends early costs no run; its file says what it said.

A module of its own: campaigns name the tools, groups run them.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from cotenant.measurement.interrupts import deferred_signals
from cotenant.osutil.procfs import session_pids

STOP_TIMEOUT_S = 5.0


@contextlib.contextmanager
def listening(commands: Mapping[str, Sequence[str]], folder: Path) -> Iterator[None]:
    """Run each command for the duration of a `with` block; `NAME.out` in `folder` has its output."""
    running: list[subprocess.Popen[bytes]] = []
    try:
        for name, command in commands.items():
            with (folder / f"{name}.out").open("wb") as sink, contextlib.suppress(OSError):
                running.append(
                    subprocess.Popen(
                        list(command), stdin=subprocess.DEVNULL, stdout=sink, stderr=subprocess.STDOUT, cwd=folder,
                        start_new_session=True,
                    )
                )  # fmt: skip
        yield
    finally:
        with deferred_signals():
            for process in running:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(process.pid, signal.SIGINT)  # the way to end top, iostat, nvidia-smi and dcgmi
            for process in running:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(STOP_TIMEOUT_S)
                for pid in session_pids(process.pid):
                    with contextlib.suppress(ProcessLookupError, PermissionError):
                        os.kill(pid, signal.SIGKILL)
                process.wait()
