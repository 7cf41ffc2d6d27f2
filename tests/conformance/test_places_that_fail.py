"""What becomes of a job when its daemon is killed, or its node; `places` says where jobs run."""

from __future__ import annotations

import pytest

from places import GATE, NAMES, opened, until
from running import is_running


@pytest.fixture(params=NAMES)
def place(request):
    """Opens a place of the test's own."""
    return lambda first: opened(request.param, first)


# Says that it runs, and whether another one of it does at the same time.
ONCE = (
    "exec 9>{root}/lock; flock -n 9 || echo twice >>{root}/twice; echo $$ >>{root}/runs; "
    + GATE
    + "; echo end >>{root}/ends"
)


def lines(case, name):
    path = case.root / name
    return path.read_text().splitlines() if path.exists() else []


def test_a_killed_daemon_loses_no_job_and_runs_none_twice_at_a_time(place):
    with place(ONCE) as case:
        until(lambda: lines(case, "runs"), "it runs")
        case.crash()
        if not case.adopts:
            until(lambda: len(lines(case, "runs")) == 2, "it begins again")
        (case.root / "open").touch()
        assert until(case.ended, "it has ended") == "COMPLETED"
        assert lines(case, "twice") == []
        assert (len(lines(case, "runs")), len(lines(case, "ends"))) == (1 if case.adopts else 2, 1)


def test_a_lost_node_leaves_no_process_and_its_job_has_an_end(place):
    with place(ONCE) as case:
        (pid,) = until(lambda: lines(case, "runs"), "it runs")
        case.lose_node()
        until(lambda: not is_running(pid), "its process is gone")
        (case.root / "open").touch()
        assert until(case.ended, "it has ended") == case.after_node_loss
        assert lines(case, "twice") == []
        runs = 2 if case.after_node_loss == "COMPLETED" else 1
        assert (len(lines(case, "runs")), len(lines(case, "ends"))) == (runs, runs - 1)
