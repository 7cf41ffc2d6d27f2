"""Progress of a simulated job is exact, however rarely it is updated."""

from __future__ import annotations

import pytest

from cotenant.sim.interference import PairTable
from cotenant.simserver.gpu import ActivityChange
from cotenant.simserver.job_progress import JobProgress

HALVED = PairTable({("a", "b"): 0.5, ("b", "a"): 0.5})
OWN = ("own", "a", 0.2)
GUEST = ("guest", "b", 0.2)


def history(*changes):
    return [ActivityChange(at_s, active) for at_s, active in changes]


@pytest.mark.parametrize(
    "updates_s", [pytest.param([40.0], id="once"), pytest.param([3.0, 11.0, 29.5, 40.0], id="often")]
)
def test_a_neighbor_halves_the_speed_while_it_runs(updates_s):
    changes = history((0.0, ()), (0.0, (OWN,)), (10.0, (OWN, GUEST)), (30.0, (OWN,)))
    progress = JobProgress(HALVED, ["own"], since_s=0.0)
    for at_s in updates_s:
        progress.advance([[change for change in changes if change.at_s <= at_s]], at_s)
    assert progress.done_s == pytest.approx(10 + 20 * 0.5 + 10)
    assert progress.speed == 1.0


def test_progress_begins_at_the_jobs_start():
    progress = JobProgress(HALVED, ["own"], since_s=25.0)
    progress.advance([history((0.0, (OWN, GUEST)))], 35.0)
    assert progress.done_s == pytest.approx(5.0)
    assert progress.speed == 0.5


def test_a_job_runs_at_the_speed_of_its_slowest_gpu():
    first = history((0.0, (OWN,)), (20.0, (OWN, GUEST)))
    second = history((0.0, (("too", "a", 0.2), GUEST)), (10.0, (("too", "a", 0.2),)))
    progress = JobProgress(HALVED, ["own", "too"], since_s=0.0)
    progress.advance([first, second], 30.0)
    assert progress.done_s == pytest.approx(5 + 10 + 5)


def test_time_does_not_run_backward():
    progress = JobProgress(HALVED, ["own"], since_s=10.0)
    progress.advance([history((0.0, (OWN,)))], 5.0)
    assert (progress.done_s, progress.at_s) == (0.0, 10.0)
