"""What was seen of attempts that are not over, kept in a file now and then, so that a restart does not forget it.

The journal keeps what was decided, and what an attempt took when it is over (decision 0041). In between there is this
file: a cache of what telemetry has added up, rewritten whole. Without it, or with one that cannot be used, adding up
begins anew.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from cotenant.osutil import atomic
from cotenant.scheduling.manager import Manager

logger = logging.getLogger(__name__)

SAVE_INTERVAL_S = 30.0


class TelemetryFile:
    """The file `path`."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._kept = ""

    def restore(self, manager: Manager) -> None:
        """Let `manager`, which has taken in its events, go on from what was kept."""
        try:
            manager.restore_telemetry(json.loads(self._path.read_text()))
        except FileNotFoundError:
            return
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            logger.warning("what was seen of running jobs is lost", extra={"fields": {"why": repr(error)}})

    def save(self, state: Mapping[str, Any]) -> None:
        """Put `state` in place of what is there; on a full disk that stays, which is no reason to worry anybody."""
        text = json.dumps(state, separators=(",", ":"))
        if text == self._kept:
            return
        try:
            atomic.write_text(self._path, text)
            self._kept = text
        except OSError as error:
            logger.info("what was seen of running jobs is not kept", extra={"fields": {"why": str(error)}})


class PeriodicSaver:
    """Keeps what `look` gives every `every_s`, from a thread of its own."""

    def __init__(self, file: TelemetryFile, look: Callable[[], Mapping[str, Any]], *, every_s: float) -> None:
        self._file = file
        self._look = look
        self._every_s = every_s
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="keeper", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def close(self) -> None:
        """Stop; a look that is under way is waited for."""
        self._closing.set()
        if self._thread.is_alive():
            self._thread.join(timeout=10.0)

    def _run(self) -> None:
        while not self._closing.wait(self._every_s):
            try:
                self._file.save(self._look())
            except Exception as error:  # noqa: BLE001 (the loop is busy or ends: the next time will do)
                logger.info("what was seen of running jobs is not kept", extra={"fields": {"why": repr(error)}})
