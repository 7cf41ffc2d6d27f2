"""Restarts MPS control daemons that ended, and remembers when an MPS server failed.

A client that faults takes down the server of its GPU and user, and with it all other clients; the error that each of
them reports does not say who caused it. The state of the server does, as long as one client is still alive.

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
"""A client notices a dead server at its next CUDA call; one that fails later than this failed for another reason."""

ServerKey = tuple[str, int]
"""GPU UUID and uid of a control daemon."""


class MpsMonitor:
    """`MpsServers` with a lock and a thread that checks the servers. `now`: monotonic seconds."""

    def __init__(self, mps: MpsServers, *, now: Callable[[], float] = time.monotonic) -> None:
        self._mps = mps
        self._now = now
        self._lock = threading.Lock()
        self._failed_at_s: dict[ServerKey, float] = {}
        self._stopping: set[ServerKey] = set()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="mps", daemon=True)

    @property
    def available(self) -> bool:
        """Whether MPS is installed on this machine."""
        return self._mps.available

    @property
    def nowhere(self) -> str:
        """Pipe folder without a control daemon: a process that gets it runs without MPS."""
        return str(self._mps.folder / "nobody")

    def is_ours(self, pipe: str) -> bool:
        """Whether `pipe` is the pipe folder of one of our control daemons."""
        return pipe.startswith(f"{self._mps.folder}/")

    def start(self) -> None:
        """Start checking."""
        self._thread.start()

    def close(self) -> None:
        """Stop checking; control daemons and their clients go on."""
        self._closing.set()
        if self._thread.is_alive():
            self._thread.join(timeout=2 * CHECK_INTERVAL_S)

    def client_env(
        self, gpu_uuid: str, uid: int, *, memory_limit_bytes: int | None = None, thread_percent: float | None = None
    ) -> dict[str, str]:
        """See `MpsServers.client_env`."""
        with self._lock:
            self._stopping.discard((gpu_uuid, uid))
            return self._mps.client_env(
                gpu_uuid, uid, memory_limit_bytes=memory_limit_bytes, thread_percent=thread_percent
            )

    def known(self) -> set[ServerKey]:
        """See `MpsServers.known`."""
        with self._lock:
            return self._mps.known()

    def stop_all_but(self, in_use: Collection[ServerKey]) -> None:
        """See `MpsServers.stop_all_but`."""
        with self._lock:
            self._stopping |= self._mps.known() - set(in_use)
            self._mps.stop_all_but(in_use)

    def server_failed_under(self, key: ServerKey, *, ran_s: float, has_other_clients: bool) -> bool:
        """Whether the server of `key` failed during the last `ran_s` seconds, the lifetime of a client that failed.

        Without other clients that are still alive, the failed server is taken for the client's own doing.
        """
        with self._lock:
            if has_other_clients:
                self._check_server(key)
            since_s = self._now() - self._failed_at_s.get(key, -math.inf)
            return since_s <= min(ran_s, RECENT_S)

    def check(self) -> None:
        """Check every control daemon once."""
        with self._lock:
            known = self._mps.known()
            for gone in self._failed_at_s.keys() - known:
                del self._failed_at_s[gone]
            for key in known - self._stopping:
                self._check_server(key)

    def _check_server(self, key: ServerKey) -> None:
        state = self._mps.state(*key)
        if state.is_running and not state.faulted:
            return
        if self._now() - self._failed_at_s.get(key, -math.inf) > RECENT_S:
            what = "a client took down the MPS server" if state.is_running else "the MPS control daemon ended"
            logger.warning(what, extra={"fields": {"gpu": key[0], "uid": key[1]}})
        self._failed_at_s[key] = self._now()
        if not state.is_running:
            try:
                self._mps.client_env(*key)
            except BackendError as error:
                logger.warning("cannot restart the MPS control daemon", extra={"fields": {"why": error.message}})

    def _run(self) -> None:
        while not self._closing.wait(CHECK_INTERVAL_S):
            try:
                self.check()
            except Exception:  # a bug here must not end the checks
                logger.exception("cannot check the MPS servers")
