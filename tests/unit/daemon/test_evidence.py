"""Reports of runners on the daemon's clock, whatever was done to the wall clock since the daemon started."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest

from builders import a_job
from cotenant.core.events import AttemptExited, AttemptStarted
from cotenant.core.job import Attempt, AttemptExit, ProcessId
from cotenant.core.placement import Placement
from cotenant.daemon.evidence import EvidenceCollector

HOUR_S = 3600.0
PLACED_S, NOW_S = 1000.0, 1100.0
END = AttemptExit(exit_code=0, signal=None, reason="exited")


def completed(report, *, wall_ahead_s, started_at_s=None):
    """`report` as the daemon journals it at `NOW_S`, with the wall clock so far ahead of the daemon's."""
    return a_collector(wall_ahead_s, started_at_s).complete(report)


def a_collector(wall_ahead_s=0.0, started_at_s=None):
    placement = Placement(job_id=1, gpu_uuids=("GPU-0",), sharing="exclusive", promised_bytes=0)
    attempt = Attempt(number=1, placement=placement, placed_at_s=PLACED_S, started_at_s=started_at_s)
    job = replace(a_job(1), attempts=(attempt,))
    manager = SimpleNamespace(jobs={1: job}, with_telemetry=lambda event: event)
    services = SimpleNamespace(ended=lambda job, attempt, event, running: event)
    return EvidenceCollector(manager, services, lambda: NOW_S, list, lambda: NOW_S + wall_ahead_s)


@pytest.mark.parametrize("wall_ahead_s", [0.0, 5 * HOUR_S, -5 * HOUR_S], ids=["as it was", "set forward", "set back"])
class TestWallClock:
    def test_an_attempt_takes_as_long_as_it_took(self, wall_ahead_s):
        report = AttemptExited(
            at_s=1090.0 + wall_ahead_s, cause="t", job_id=1, attempt=1, exit=END, peak_observed_bytes={}
        )
        assert completed(report, wall_ahead_s=wall_ahead_s, started_at_s=1010.0).at_s == 1090.0

    def test_nor_does_it_if_the_clock_was_set_while_it_ran(self, wall_ahead_s):
        report = AttemptExited(
            at_s=1090.0, cause="t", job_id=1, attempt=1, exit=replace(END, elapsed_s=80.0), peak_observed_bytes={}
        )
        assert completed(report, wall_ahead_s=wall_ahead_s, started_at_s=1010.0).at_s == 1090.0

    def test_a_start_is_when_it_was(self, wall_ahead_s):
        process = ProcessId(pid=1, start_ticks=1, boot_id="b")
        report = AttemptStarted(at_s=1010.0 + wall_ahead_s, cause="t", job_id=1, attempt=1, process=process)
        assert completed(report, wall_ahead_s=wall_ahead_s).at_s == 1010.0


@pytest.mark.parametrize(("at_s", "counted_s"), [(0.0, 1010.0), (9e9, NOW_S)])
def test_an_end_is_neither_before_its_start_nor_in_the_future(at_s, counted_s):
    report = AttemptExited(at_s=at_s, cause="t", job_id=1, attempt=1, exit=END, peak_observed_bytes={})
    assert completed(report, wall_ahead_s=0.0, started_at_s=1010.0).at_s == counted_s


def test_an_end_in_the_same_batch_is_after_its_start():
    """A program that ends at once: the batch is committed when both have their times."""
    collector = a_collector()
    process = ProcessId(pid=1, start_ticks=1, boot_id="b")
    start = AttemptStarted(at_s=1010.0, cause="t", job_id=1, attempt=1, process=process)
    end = AttemptExited(
        at_s=1010.5, cause="t", job_id=1, attempt=1, exit=replace(END, elapsed_s=0.5), peak_observed_bytes={}
    )
    assert [collector.complete(report).at_s for report in (start, end)] == [1010.0, 1010.5]
