"""A trace answers early enough before its deadline."""

from __future__ import annotations

import threading
import time

import pytest

from cotenant.tracing.process import deadline


@pytest.mark.parametrize(
    ("timeout_s", "events", "seconds"),
    [
        pytest.param(120.0, 0, 2.0, id="few events"),
        pytest.param(5.0, 0, 1.0, id="a short limit"),
        pytest.param(120.0, 3_000_000, 14.0, id="what answering costs"),
        pytest.param(10.0, 10**9, 7.0, id="half of the time is the script's, but for the usual"),
    ],
)
def test_the_reserved_time_grows_with_the_number_of_events(timeout_s, events, seconds):
    assert deadline.reserve_s(timeout_s, events) == pytest.approx(seconds)


def test_events_recorded_meanwhile_advance_the_answer():
    called = threading.Event()
    polls = []

    def events() -> int:
        polls.append(None)
        return 0 if len(polls) < 2 else 10**9

    at_s = time.monotonic() + 3600  # half of the time is kept once there are events, and has begun
    sleeps = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(deadline.time, "sleep", sleeps.append)
        deadline.DeadlineThread(at_s, 7200.0, lambda limit_s, place: called.set(), events).run()
    assert called.is_set()
    assert len(sleeps) == 1
    assert sleeps[0] <= 1800.0


def test_no_thread_watches_without_a_deadline():
    before = threading.active_count()
    deadline.start_deadline(None, lambda limit_s, place: None, lambda: 0)
    assert threading.active_count() == before


def test_an_optimizer_step_renews_the_limit(tmp_path, monkeypatch):
    now, steps, renewed = [0.0], [0], tmp_path / "renewed"
    monkeypatch.setattr(deadline.WorkClock, "now_s", lambda self: now[0])

    def sleep(seconds: float) -> None:
        now[0] += 60.0
        steps[0] += now[0] <= 120.0  # after 60 s and after 120 s

    monkeypatch.setattr(deadline.time, "sleep", sleep)
    ends = []
    thread = deadline.DeadlineThread(
        time.monotonic() + 100.0,
        100.0,
        lambda limit_s, place: ends.append(now[0]),
        lambda: 0,
        lambda: steps[0],
        renewed,
    )
    thread.run()
    assert ends == [240.0]  # the first poll after 120 + 100 s, less the time to answer
    assert renewed.exists()
