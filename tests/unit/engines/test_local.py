"""What the local engine refuses, and whom it signals."""

from __future__ import annotations

import errno
import os
import queue
from dataclasses import replace

import pytest

from builders import a_spec
from cotenant.core.errors import BackendError, DiskFullError
from cotenant.core.events import AttemptExited, AttemptStarted
from cotenant.core.placement import Placement
from cotenant.core.ports import AttemptRef
from cotenant.engines.attempt_dir import AttemptDir
from cotenant.engines.local import LocalEngine
from cotenant.osutil import procfs

PLACEMENT = Placement(job_id=1, gpu_uuids=("GPU-a",), sharing="exclusive", promised_bytes=0)


def test_a_job_of_another_user_needs_root(tmp_path, monkeypatch):
    engine = LocalEngine(tmp_path)
    monkeypatch.setattr(os, "geteuid", lambda: 1234)
    with pytest.raises(BackendError, match=r"cannot run a job of user `ann` \(uid 1000\) as uid 1234"):
        engine.launch(a_spec(uid=1000), 1, PLACEMENT, {})
    engine.close()


def test_a_state_folder_that_cannot_be_created_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(BackendError, match="cannot create"):
        LocalEngine(tmp_path / "file")


def test_failed_launch_leaves_nothing_behind(tmp_path, monkeypatch):
    engine = LocalEngine(tmp_path)
    monkeypatch.setattr("sys.executable", "/no/such/python")
    with pytest.raises(BackendError, match="cannot start a runner for job 1"):
        engine.launch(a_spec(uid=os.getuid()), 1, PLACEMENT, {})
    assert list((tmp_path / "attempts").rglob("*.json")) == []
    assert not AttemptDir(tmp_path / "attempts", AttemptRef(job_id=1, attempt=1)).path.exists()
    engine.close()


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_launch_on_a_full_disk_says_so(tmp_path, monkeypatch, number):
    def write(*_, **__):
        raise OSError(number, os.strerror(number))

    engine = LocalEngine(tmp_path)
    monkeypatch.setattr(AttemptDir, "write", write)
    with pytest.raises(DiskFullError, match="cannot start a runner for job 1: "):
        engine.launch(a_spec(uid=os.getuid()), 1, PLACEMENT, {})
    engine.close()


def test_a_stop_reaches_the_attempt_that_the_runner_is_at_and_no_other(tmp_path, monkeypatch):
    signals, really = [], procfs.send_signal
    monkeypatch.setattr(procfs, "send_signal", lambda *args: signals.append(args) or really(*args))
    events = queue.SimpleQueue()
    engine = LocalEngine(tmp_path)
    engine.start(events.put)

    def launch(job_id, *command):
        spec = a_spec(command=command, uid=os.getuid(), env={"PATH": os.environ["PATH"]})
        engine.launch(spec, 1, replace(PLACEMENT, job_id=job_id), {})

    def next_event(kind):
        event = events.get(timeout=60)
        assert isinstance(event, kind)
        return event

    launch(1, "true")
    first = next_event(AttemptStarted)
    assert next_event(AttemptExited).exit.exit_code == 0
    launch(2, "sleep", "1000")
    assert next_event(AttemptStarted).process == first.process, "the runner is used again"
    (tmp_path / "attempts/1/1/result.json").unlink()  # as if it had not been there when the stop looked
    engine.stop(AttemptRef(job_id=1, attempt=1), reason="late", grace_s=0)
    assert signals == []
    engine.stop(AttemptRef(job_id=2, attempt=1), reason="in time", grace_s=10)
    assert next_event(AttemptExited).exit.detail == "in time"
    engine.close()
