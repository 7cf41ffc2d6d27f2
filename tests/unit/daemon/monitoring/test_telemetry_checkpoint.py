"""Accumulated telemetry is saved in a file and restored by the next daemon."""

from __future__ import annotations

import errno
import os
import threading
from types import SimpleNamespace

import pytest

from cotenant.core.events import ServerSampled
from cotenant.daemon.monitoring.telemetry_checkpoint import PeriodicSaver, TelemetryFile
from cotenant.scheduling.manager import Manager
from cotenant.scheduling.policies import create


def a_manager():
    return Manager(create("most-memory"))


def test_saved_telemetry_is_restored(tmp_path):
    manager = a_manager()
    state = {
        "seen": [],
        "spells": [],
        "meter": {"usage": [], "last": {}, "idle_w": {"GPU-0": 49.5}},
        "idle": [[1, 1, 9.0, 2.0, 7.0]],
    }
    TelemetryFile(tmp_path / "watched.json").save(state)
    TelemetryFile(tmp_path / "watched.json").restore(manager)
    assert manager.telemetry_state() == state
    assert [path.name for path in tmp_path.iterdir()] == ["watched.json"]
    assert (tmp_path / "watched.json").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("text", ["", "{", "[]", "3", "{}", '{"meter": 3}', '{"seen": [], "spells": []}', "\0"])
def test_an_unusable_file_is_ignored(tmp_path, caplog, text):
    (tmp_path / "watched.json").write_text(text)
    manager = a_manager()
    TelemetryFile(tmp_path / "watched.json").restore(manager)
    assert "the telemetry of running jobs is lost" in caplog.text
    manager.handle(ServerSampled(at_s=1.0, cause="", gpus=(), samples={}, observed=()))


def test_a_missing_file_is_not_logged(tmp_path, caplog):
    TelemetryFile(tmp_path / "watched.json").restore(a_manager())
    assert caplog.text == ""


def test_a_full_disk_leaves_the_previous_file(tmp_path, monkeypatch):
    file = TelemetryFile(tmp_path / "watched.json")
    file.save({"a": 1})
    monkeypatch.setattr(os, "fdopen", no_space)
    monkeypatch.setattr(os, "replace", no_space)
    file.save({"a": 2})
    assert (tmp_path / "watched.json").read_text() == '{"a":1}'


def no_space(*_):
    raise OSError(errno.ENOSPC, "no space left on device")


def test_saving_is_periodic_and_survives_a_failed_reading():
    saved = threading.Semaphore(0)
    looks = iter([RuntimeError("busy"), {"a": 1}])

    def look():
        found = next(looks, {"a": 2})
        if isinstance(found, Exception):
            raise found
        return found

    keeper = PeriodicSaver(SimpleNamespace(save=lambda _: saved.release()), look, every_s=0.001)
    keeper.start()
    assert saved.acquire(timeout=60)
    keeper.close()
