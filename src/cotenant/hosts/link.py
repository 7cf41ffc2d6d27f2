"""The connection to the agent of one host: starts it, starts it again when it ends or falls silent, passes lines on."""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from cotenant.core.errors import BackendError, CotenantError
from cotenant.hosts.messages import MAX_LINE_BYTES, HostReading, line_of, node_of, parsed, reading_of
from cotenant.osutil import atomic

logger = logging.getLogger(__name__)

FIRST_PAUSE_S = 0.5
LONGEST_PAUSE_S = 30.0
"""Between two starts of an agent that ends at once; the pause doubles up to this."""
START_TIMEOUT_S = 60.0
"""Until `hello`: srun and ssh may wait for a node, Python for a network file system."""
END_TIMEOUT_S = 5.0
CLOCK_TOLERANCE_S = 1.0
"""Beyond it a difference of clocks is logged: NTP keeps hosts within milliseconds."""


class HostLink:
    """One host. All callbacks come from its one thread.

    `on_up` is called with the node that `hello` names, before anything else is read; it sends what the agent has to
    know first. `on_message` gets what the agent says of attempts.

    Attributes:
        host: its name in the configuration.
    """

    def __init__(
        self,
        host: str,
        command: Sequence[str],
        log: Path,
        *,
        silent_after_s: float,
        on_up: Callable[[HostLink, str], None],
        on_message: Callable[[HostLink, Mapping[str, Any]], None],
    ) -> None:
        self.host = host
        self._command, self._log = list(command), log
        self._silent_after_s = silent_after_s
        self._on_up, self._on_message = on_up, on_message
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._unsent: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._is_up = False
        self._heard_s = 0.0
        self._reading: HostReading | None = None
        self._read_at_s = 0.0
        self._ahead_s: float | None = None
        self._closing = threading.Event()
        self._logged_reason = ""
        self._threads = [
            threading.Thread(target=self._run, name=f"host-{host}", daemon=True),
            threading.Thread(target=self._watch, name=f"host-{host}-silence", daemon=True),
        ]

    def start(self) -> None:
        """Start the agent, and keep it running."""
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """End the agent; attempts go on."""
        self._closing.set()
        with self._lock:
            self._unsent.put(None)  # the end of its stdin ends the agent, and that ends our thread
        for thread in self._threads:
            thread.join(timeout=END_TIMEOUT_S)
        with self._lock:
            process = self._process
        if process is not None and self._threads[0].is_alive():
            _kill(process)
            self._threads[0].join(timeout=END_TIMEOUT_S)

    def send(self, order: Mapping[str, Any]) -> bool:
        """Send an order; False if the agent is away. True does not say that it arrives.

        Raises:
            BackendError: it is too long.
        """
        line = line_of(order)
        with self._lock:
            if not self._is_up:
                return False
            self._unsent.put(line)
        return True

    def reading(self) -> tuple[HostReading | None, float | None]:
        """The newest reading, and our clock when it came; None for the time while the host is silent."""
        with self._lock:
            is_fresh = self._is_up and time.monotonic() - self._heard_s < self._silent_after_s
            return self._reading, self._read_at_s if is_fresh else None

    def _run(self) -> None:
        pause_s = FIRST_PAUSE_S
        while not self._closing.is_set():
            began_s = time.monotonic()
            why = self._serve()
            if self._closing.is_set():
                return
            if why != self._logged_reason:  # not once for every try
                logger.warning("a host has no agent", extra={"fields": {"host": self.host, "why": why}})
                self._logged_reason = why
            if time.monotonic() - began_s > LONGEST_PAUSE_S:
                pause_s = FIRST_PAUSE_S
            self._closing.wait(pause_s)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)

    def _serve(self) -> str:
        """One life of the agent; returns why it ended."""
        try:
            with self._log.open("wb") as log:
                process = subprocess.Popen(
                    self._command,
                    cwd=self._log.parent,  # `python -m` finds modules in its working directory
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    start_new_session=True,
                    bufsize=0,
                )
        except OSError as error:
            return f"`{self._command[0]}` cannot be started: {error.strerror}"
        assert process.stdin is not None and process.stdout is not None  # noqa: PT018
        unsent: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        with self._lock:
            self._process, self._heard_s, self._unsent = process, time.monotonic(), unsent
            if self._closing.is_set():  # `close` woke the writer of the process before
                unsent.put(None)
        # A thread of its own: a stopped agent reads nothing, and whoever launches must not wait for it.
        writer = threading.Thread(
            target=_write, args=(unsent, process.stdin), name=f"host-{self.host}-orders", daemon=True
        )
        writer.start()
        why = "its agent ended"
        try:
            with os.fdopen(os.dup(process.stdout.fileno()), "rb") as output:
                self._listen(output)
        except CotenantError as error:
            why = f"its agent says what it must not: {error}"
        except Exception as error:  # whatever it says must not end this thread
            logger.exception("the agent of a host cannot be followed")
            why = f"{type(error).__name__}: {error}"
        finally:
            with self._lock:
                self._is_up, self._process = False, None
            unsent.put(None)
            _end(process, writer)
        return f"{why}{_last_line(self._log)}"

    def _listen(self, output: IO[bytes]) -> None:
        first = output.readline(MAX_LINE_BYTES + 1)
        if not first:
            return
        message = parsed(first)
        node = node_of(message)
        self._ahead_s = None
        self._take(reading_of(message, self.host))
        with self._lock:
            self._is_up = True
        logger.info("a host has an agent", extra={"fields": {"host": self.host}})
        self._logged_reason = ""
        self._on_up(self, node)
        while line := output.readline(MAX_LINE_BYTES + 1):
            message = parsed(line)
            if message.get("say") == "sample":
                self._take(reading_of(message, self.host))
            else:
                with self._lock:
                    self._heard_s = time.monotonic()
                self._on_message(self, message)

    def complaint(self) -> str:
        """`: ` and the last line of the launcher or the agent; empty if there is none."""
        return _last_line(self._log)

    def our_time(self, theirs_s: float, *, not_before_s: float) -> float:
        """A time of the host's clock on ours: not before our request, not after now."""
        return max(not_before_s, min(time.time(), theirs_s - (self._ahead_s or 0.0)))

    def _take(self, reading: HostReading) -> None:
        now_s = time.time()
        ahead_s = reading.clock_s - now_s
        # What was under way for the shortest time says most.
        if self._ahead_s is None and abs(ahead_s) > CLOCK_TOLERANCE_S:
            fields = {"host": self.host, "ahead_s": round(ahead_s, 3)}
            logger.warning("the clock of a host differs from ours; its times are converted", extra={"fields": fields})
        self._ahead_s = ahead_s if self._ahead_s is None else max(self._ahead_s, ahead_s)
        with self._lock:
            self._reading, self._read_at_s, self._heard_s = reading, now_s, time.monotonic()

    def _watch(self) -> None:
        """End an agent that is silent, so that another is started: its connection may be broken, or it is stopped."""
        while not self._closing.wait(self._silent_after_s / 2):
            with self._lock:
                limit_s = 4 * self._silent_after_s if self._is_up else START_TIMEOUT_S
                process = self._process if time.monotonic() - self._heard_s > limit_s else None
            if process is not None:
                _kill(process)


def note_node(path: Path, node: str, *, is_used: bool) -> None:
    """Note the node of a host. From another node the processes of an attempt look dead, and it would run twice.

    Raises:
        BackendError: attempts run on another node (`is_used`), or the note cannot be written.
    """
    try:
        before = path.read_text() if path.exists() else node
        if before == node or not is_used:
            atomic.write_bytes(str(path), node.encode(), durable=True)
            return
    except OSError as error:
        raise BackendError(f"cannot use `{path}`: {error.strerror}") from error
    raise BackendError(f"it is on node `{node}`, and jobs of this host run on `{before}`")


def _write(unsent: queue.SimpleQueue[bytes | None], stdin: IO[bytes]) -> None:
    """Write lines until None, or until nobody reads them; then close."""
    with contextlib.suppress(OSError), stdin:
        while (line := unsent.get()) is not None:
            rest = memoryview(line)
            while rest:
                rest = rest[stdin.write(rest) :]


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Kill a launcher, with what is in its session."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)


def _end(process: subprocess.Popen[bytes], writer: threading.Thread) -> None:
    """Wait for a launcher whose agent sees the end of its stdin; kill it if it stays."""
    try:
        process.wait(END_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        _kill(process)
        process.wait()
    writer.join(END_TIMEOUT_S)
    if process.stdout is not None:
        process.stdout.close()


def _last_line(log: Path) -> str:
    """What srun, ssh or the agent complained of last."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - 4096))
            lines = file.read().decode(errors="replace").split("\n")
    except OSError:
        return ""
    said = [line.strip() for line in lines if line.strip()]
    return f": {''.join(c if c.isprintable() else '?' for c in said[-1][:200])}" if said else ""
