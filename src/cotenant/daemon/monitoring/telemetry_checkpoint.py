"""Checkpoints the telemetry of unfinished attempts to a file, so that a restart does not lose it.

The journal holds decisions, and the usage of attempts that ended (decision 0041). Telemetry accumulated for running
attempts is only in this file, which is rewritten whole. Without it, accumulation starts again from zero.
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
    """The checkpoint file `path`."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._saved = ""

    def restore(self, manager: Manager) -> None:
        """Load the checkpoint into `manager`, which must have replayed its events."""
        try:
            manager.restore_telemetry(json.loads(self._path.read_text()))
        except FileNotFoundError:
            return
        except (OSError, ValueError, TypeError, LookupError, AttributeError, OverflowError, RecursionError) as error:
            logger.warning("the telemetry of running jobs is lost", extra={"fields": {"why": repr(error)}})

    def save(self, state: Mapping[str, Any]) -> None:
        """Replace the file. On a full disk the previous one stays."""
        text = json.dumps(state, separators=(",", ":"))
        if text == self._saved:
            return
        try:
            atomic.write_text(self._path, text)
            self._saved = text
        except OSError as error:
            logger.info("cannot save the telemetry of running jobs", extra={"fields": {"why": str(error)}})


class PeriodicSaver:
    """Saves `state()` every `every_s` seconds, from a thread of its own."""

    def __init__(self, file: TelemetryFile, state: Callable[[], Mapping[str, Any]], *, every_s: float) -> None:
        self._file = file
        self._state = state
        self._every_s = every_s
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="telemetry-saver", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def close(self) -> None:
        """Stop, after a save in progress."""
        self._closing.set()
        if self._thread.is_alive():
            self._thread.join(timeout=10.0)

    def _run(self) -> None:
        while not self._closing.wait(self._every_s):
            try:
                self._file.save(self._state())
            except Exception as error:  # noqa: BLE001 (the control loop is busy or ends: retry at the next interval)
                logger.info("cannot save the telemetry of running jobs", extra={"fields": {"why": repr(error)}})
