"""A limit by time in which a process is not kept waiting for a CPU."""

from __future__ import annotations

import os
import time

from cotenant.tracing.process import work_clock
from cotenant.tracing.process.work_clock import WorkClock, WorkLimit


def test_waiting_for_a_cpu_is_not_counted(monkeypatch):
    waited = [7.0]  # before the clock began
    monkeypatch.setattr(work_clock, "_waited_s", lambda tasks: waited[0])
    monkeypatch.setattr(work_clock.time, "monotonic", lambda: 100.0)
    clock = WorkClock(began_s=70.0)
    assert clock.now_s() == 30.0
    waited[0] = 27.0
    assert clock.now_s() == 10.0
    waited[0] = 12.0  # the thread that waited has ended
    assert clock.now_s() == 10.0
    waited[0] = 57.0
    assert clock.now_s() == 0.0


def test_the_wait_of_this_process_is_read():
    first = work_clock._waited_s(f"/proc/{os.getpid()}/task")
    assert 0 <= first <= work_clock._waited_s("/proc/self/task") + 1e-9
    assert work_clock._waited_s("/proc/0/task") == 0.0


def test_a_step_renews_the_limit(tmp_path, monkeypatch):
    now = [0.0]
    monkeypatch.setattr(WorkClock, "now_s", lambda self: now[0])
    renewed = tmp_path / "renewed"
    limit = WorkLimit(time.monotonic(), 10.0, os.getpid(), renewed)
    now[0] = 9.0
    assert not limit.is_over()
    renewed.touch()
    now[0] = 12.0  # noticed now, so it ends at 22
    assert not limit.is_over()
    now[0] = 21.0
    assert not limit.is_over()
    now[0] = 22.0
    assert limit.is_over()
