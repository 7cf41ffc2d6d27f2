"""MPS under watch: control daemons that end are started again, and a client's failure is told from its server's.

A client that faults takes the server of its GPU and user with it, and so all other clients; what each of them reports
does not say whose fault it was. The server's state does, for as long as one of them is still there.

Source: NVIDIA, Multi-Process Service, "Fatal GPU exceptions" and `get_server_status`.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Collection

from cotenant.core.errors import BackendError
from cotenant.gpus.mps import MpsServers

logger = logging.getLogger(__name__)

CHECK_INTERVAL_S = 5.0
RECENT_S = 60.0
"""A client notices at its next call; one that fails so long after the server fails for a reason of its own."""

ServerKey = tuple[str, int]
"""GPU and user of a control daemon."""


class MpsMonitor:
    """As `MpsServers`, for several threads, with a watch of its own. `now`: monotonic seconds."""

    def __init__(self, mps: MpsServers, *, now: Callable[[], float] = time.monotonic) -> None:
        self._mps = mps
        self._now = now
        self._lock = threading.Lock()
        self._failed_at_s: dict[ServerKey, float] = {}
        self._ending: set[ServerKey] = set()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="mps", daemon=True)

    @property
    def available(self) -> bool:
        """Whether MPS is installed here."""
        return self._mps.available

    @property
    def nowhere(self) -> str:
        """A pipe folder without a control daemon: a process that is given this is no client of anybody's."""
        return str(self._mps.folder / "nobody")

    def is_ours(self, pipe: str) -> bool:
        """Whether this is the pipe folder of one of our control daemons."""
        return pipe.startswith(f"{self._mps.folder}/")

    def start(self) -> None:
        """Begin to watch."""
        self._thread.start()

    def close(self) -> None:
        """Watch no more; control daemons and their clients go on."""
        self._closing.set()
        if self._thread.is_alive():
            self._thread.join(timeout=2 * CHECK_INTERVAL_S)

    def client_env(
        self, gpu_uuid: str, uid: int, *, memory_limit_bytes: int | None = None, thread_percent: float | None = None
    ) -> dict[str, str]:
        """As `MpsServers.client_env`."""
        with self._lock:
            self._ending.discard((gpu_uuid, uid))
            return self._mps.client_env(
                gpu_uuid, uid, memory_limit_bytes=memory_limit_bytes, thread_percent=thread_percent
            )

    def known(self) -> set[ServerKey]:
        """As `MpsServers.known`."""
        with self._lock:
            return self._mps.known()

    def stop_all_but(self, in_use: Collection[ServerKey]) -> None:
        """As `MpsServers.stop_all_but`."""
        with self._lock:
            self._ending |= self._mps.known() - set(in_use)
            self._mps.stop_all_but(in_use)

    def server_failed_under(self, owner: ServerKey, *, ran_s: float, mates: bool) -> bool:
        """Whether the server of `owner` failed while a client lived that has just failed, after `ran_s`.

        `mates`: it has other clients, which still live. Without any, a failed server is the client's own doing.
        """
        with self._lock:
            if mates:
                self._look_at(owner)
            since_s = self._now() - self._failed_at_s.get(owner, -math.inf)
            return since_s <= min(ran_s, RECENT_S)

    def look(self) -> None:
        """Look at every control daemon of ours once."""
        with self._lock:
            known = self._mps.known()
            for gone in self._failed_at_s.keys() - known:
                del self._failed_at_s[gone]
            for owner in known - self._ending:
                self._look_at(owner)

    def _look_at(self, owner: ServerKey) -> None:
        state = self._mps.state(*owner)
        if state.answers and not state.faulted:
            return
        if self._now() - self._failed_at_s.get(owner, -math.inf) > RECENT_S:
            what = "a client has taken the MPS server down" if state.answers else "the MPS control daemon has ended"
            logger.warning(what, extra={"fields": {"gpu": owner[0], "uid": owner[1]}})
        self._failed_at_s[owner] = self._now()
        if not state.answers:
            try:
                self._mps.client_env(*owner)
            except BackendError as error:
                logger.warning("MPS cannot be started again", extra={"fields": {"why": error.message}})

    def _run(self) -> None:
        while not self._closing.wait(CHECK_INTERVAL_S):
            try:
                self.look()
            except Exception:  # the watch goes on, whatever a driver's program does
                logger.exception("MPS could not be looked at")
