"""Overruns in a simulation: `pause` and `stop` by the daemon's rule, at the reading at which the daemon acts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cotenant.core.events import Stop
from cotenant.scheduling.overrun_watch import OverrunPolicy
from cotenant.sim import cluster
from cotenant.sim.simulate import simulate
from managers import Life
from worlds import NO_DELAY, Eager, Halves, a_profile, a_trace


class RetriesAlone(Eager):
    """Starts jobs at once, but one that was stopped only on an empty GPU; `reasons`: why those were queued again."""

    def __init__(self):
        super().__init__()
        self.reasons = []

    def decide(self, queue, server):
        again = [job for job in queue if job.attempts]
        self.reasons += [job.state.reason for job in again if job.state.reason not in self.reasons]
        return super().decide([job for job in queue if job not in again or not server.gpus[0].residents], server)


def run(trace, action):
    policy = RetriesAlone()
    config = replace(NO_DELAY, overrun=OverrunPolicy(action=action))
    gpus = cluster.parse("1xA100-40GB")
    found = simulate(trace, gpus, policy, estimator="horus", interference=Halves(), config=config)
    return found.columns, policy.reasons


def promised_16_and_8(honest_gib, liar_gib):
    """Two jobs of 100 and 50 s; the second comes at 10 s and takes the first value at once, the second one later."""
    return a_trace(
        (0.0, 100.0, 1, a_profile("honest", *honest_gib, reported_gib=16)),
        (10.0, 50.0, 1, a_profile("liar", *liar_gib, reported_gib=8)),
    )


def test_who_outgrows_a_promise_is_stopped_at_the_sample_at_which_the_daemon_stops_it():
    columns, reasons = run(promised_16_and_8((16, 2), (36,)), "stop")
    daemon = Life(overrun=OverrunPolicy(action="stop"))
    for job_id, gib in ((1, 16), (2, 8)):
        daemon.submit(job_id, gib=gib)
        daemon.start(job_id)
    commands = {}
    for at_s in (10.0, 11.0, 12.0):
        observed = ((1, 1, 0, 2), (2, 1, 0, 36))
        commands[at_s] = [
            command for command in daemon.sample(used=(38,), observed=observed, at_s=at_s) if isinstance(command, Stop)
        ]
    assert [len(found) for found in commands.values()] == [0, 0, 1]
    assert reasons == [f"retry: it {commands[12.0][0].cause}"]
    assert reasons[0].endswith("held 36.0 GiB, 8.0 GiB promised, neighbors miss 12.0 GiB")
    assert columns.lost_s[1] == pytest.approx(2.0)
    # The first job has the GPU to itself again: 10 s alone, 1 of 2 s, and 89 more.
    assert list(columns.end_s) == pytest.approx([101.0, 151.0])
    assert list(columns.ooms) == [0, 0]


def test_without_a_stop_the_neighbor_that_stays_within_its_promise_runs_out_of_memory():
    columns, _ = run(promised_16_and_8((16, 2), (36,)), "report")
    assert list(columns.ooms) == [1, 0]


@pytest.mark.parametrize(
    ("action", "ends_s"),
    [
        # Both at half speed from 10 s on, until the second has done its 50 s.
        pytest.param("report", [150.0, 110.0], id="report"),
        # Paused from 12 s, with 1 of 50 s done, until the first ends.
        pytest.param("pause", [101.0, 150.0], id="pause"),
    ],
)
def test_a_paused_attempt_holds_its_memory_and_goes_on_when_all_promises_fit(action, ends_s):
    columns, reasons = run(promised_16_and_8((4,), (36, 34)), action)
    assert list(columns.end_s) == pytest.approx(ends_s)
    assert (list(columns.attempts), reasons) == ([1, 1], [])


def test_a_growth_where_nobody_misses_memory_is_no_offense():
    alone = a_trace((0.0, 100.0, 1, a_profile("liar", 36, reported_gib=8)))
    beside = promised_16_and_8((2,), (20,))
    for trace in (alone, beside):
        assert list(run(trace, "stop")[0].attempts) == [1] * len(trace)
