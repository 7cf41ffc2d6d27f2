"""The actor that holds the GPUs of one allocation, and starts agents beside them. It runs in a worker of Ray.

Ray kills a worker without a warning, and its children with it. So what stops the attempts (`hosts.keeper`) is no child
of it and is held by a pipe; and the worker ends when that process has ended.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import tempfile
import threading
import time
from collections.abc import Sequence
from typing import IO, Any

from cotenant.hosts.allocations import ALLOCATION_ID
from cotenant.ray.frames import MAX_CHUNK_BYTES

CONCURRENCY = 16
"""Calls at a time: `stay`, and for each agent that was cut off a `receive` that the next `attach` ends."""
ID_CHARS = 8
"""Of an actor's id, by which people know an allocation: 32 random bits."""
MAX_COMPLAINT_BYTES = 4096
STAY_S = 60.0


class Holder:
    """`keeper`: the words of the process that stops the attempts, with `ALLOCATION_ID` for the id of this actor."""

    def __init__(self, keeper: Sequence[str], log: str) -> None:
        import ray

        self._actor_id: str = ray.get_runtime_context().get_actor_id()[:ID_CHARS]
        words = [word.replace(ALLOCATION_ID, self._actor_id) for word in keeper]
        with open(log, "ab") as output:  # noqa: PTH123 (closed with the block)
            process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=output)
        assert process.stdout is not None
        self._keeper = process  # its stdin stays open as long as this process lives
        if not process.stdout.readline():
            raise RuntimeError(f"the keeper did not start: see {log}")
        process.wait()  # it has left us
        threading.Thread(target=_end_with, args=(process.stdout,), name="keeper", daemon=True).start()
        self._lock = threading.Lock()
        self._agent: subprocess.Popen[bytes] | None = None
        self._complaints: IO[bytes] | None = None
        self._number = 0

    def where(self) -> tuple[str, str]:
        """The id by which people know this allocation, and the name of its node."""
        from cotenant.hosts.agent import node_name

        return self._actor_id, node_name()

    def stay(self) -> None:
        """Return late: who calls it sees the end of this actor. A caller that is gone holds a thread so long."""
        time.sleep(STAY_S)

    def end(self) -> None:
        """End the allocation: its attempts are stopped first."""
        if self._keeper.stdin is not None:
            self._keeper.stdin.close()

    def attach(self, command: Sequence[str]) -> int:
        """Start an agent, after the end of the one before; returns its number."""
        with self._lock:
            self._end_agent()
            self._number += 1
            self._complaints = tempfile.TemporaryFile()  # noqa: SIM115 (closed with its agent)
            self._agent = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._complaints,
                bufsize=0,
                start_new_session=True,
            )
            return self._number

    def send(self, number: int, data: bytes) -> None:
        """Write to an agent; nothing if it is gone. No data: the end of its stdin, which ends it."""
        agent = self._agent
        if agent is None or number != self._number or agent.stdin is None:
            return
        with contextlib.suppress(OSError, ValueError):
            rest = memoryview(data)
            while rest:
                rest = rest[agent.stdin.write(rest) :]
            if not data:
                agent.stdin.close()

    def receive(self, number: int) -> tuple[bytes, bytes]:
        """The next output of an agent, read on request only; empty at its end, with the last of its stderr."""
        agent, complaints = self._agent, self._complaints
        if agent is None or complaints is None or number != self._number or agent.stdout is None:
            return b"", b""
        with contextlib.suppress(OSError, ValueError):
            data = os.read(agent.stdout.fileno(), MAX_CHUNK_BYTES)
            if data:
                return data, b""
        with contextlib.suppress(OSError, ValueError):
            size = os.fstat(complaints.fileno()).st_size
            return b"", os.pread(complaints.fileno(), MAX_COMPLAINT_BYTES, max(0, size - MAX_COMPLAINT_BYTES))
        return b"", b""

    def _end_agent(self) -> None:
        agent, self._agent = self._agent, None
        if agent is not None:
            agent.kill()
            agent.wait()
        if self._complaints is not None:
            self._complaints.close()


def _end_with(stdout: IO[Any]) -> None:
    """End this worker when the keeper has ended; that gives the GPUs back."""
    while stdout.read(4096):
        pass
    os._exit(0)
