"""Runs the command of a container, and says by its exit code that it ran out of GPU memory.

Kubernetes sees of a container how it ended, and nothing else: a `podFailurePolicy` decides by the exit code whether
another pod with the same memory has a point.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Sequence

from cotenant.core.errors import UsageError
from cotenant.core.job import AttemptExit, OomEvidence
from cotenant.engines.oom_question import TAIL_BYTES, oom_evidence
from cotenant.osutil.forwarding import popen_with_signals
from cotenant.scheduling.recovery import ran_out_of_memory

EXIT_OOM = 77
"""The runner's own exit code after running out of GPU memory."""
DRAIN_S = 2.0
"""How long to read on after the command has ended: a process that it left behind may hold its stderr open."""


def run_watched(command: Sequence[str]) -> int:
    """Run `command` to its end: its exit code, 128 + N after signal N, or `EXIT_OOM`.

    Its stderr passes through a pipe, of which the end is read for the traceback; stdin and stdout are its own.

    Raises:
        UsageError: there is no such program.
    """
    try:
        process = popen_with_signals(command, stderr=subprocess.PIPE)
    except OSError as error:
        raise UsageError(f"cannot run `{command[0]}`: {(error.strerror or str(error)).lower()}") from error
    tail = bytearray()
    reader = threading.Thread(target=_copy, args=(process, tail), daemon=True)
    reader.start()
    status = process.wait()
    reader.join(DRAIN_S)
    if status == 0:
        return 0
    text = bytes(tail).decode(errors="replace")
    end = AttemptExit(
        exit_code=status if status > 0 else None,
        signal=-status if status < 0 else None,
        reason="exited",
        oom=OomEvidence(**oom_evidence([text], failed=True)),
    )
    if ran_out_of_memory(end):
        print(f"cotenant: out of GPU memory: exit code {EXIT_OOM} in place of {status}", file=sys.stderr, flush=True)
        return EXIT_OOM
    return status if status > 0 else 128 - status


def _copy(process: subprocess.Popen[bytes], tail: bytearray) -> None:
    """Pass the command's stderr on, and keep its end."""
    assert process.stderr is not None
    while piece := os.read(process.stderr.fileno(), 65536):
        os.write(2, piece)
        tail += piece
        del tail[:-TAIL_BYTES]


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit("usage: python -m cotenant.kubernetes.watched_command COMMAND [ARGS]...")
    try:
        sys.exit(run_watched(sys.argv[1:]))
    except UsageError as error:
        print(f"error: {error.message}", file=sys.stderr)
        sys.exit(127)
