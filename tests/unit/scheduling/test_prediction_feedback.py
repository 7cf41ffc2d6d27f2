"""The manager and its policy at work: what attempts teach of the work they do, and how they fare together."""

from __future__ import annotations

import json

import pytest

from cotenant.core.units import GiB
from cotenant.scheduling.manager import Manager
from cotenant.scheduling.policies import create
from managers import WorkingLife, launches


def test_a_workload_that_ran_twice_is_promised_its_observed_peak():
    life = WorkingLife()
    life.run(1)
    life.run(2)
    (placed,) = life.submit(3)
    assert placed.placement.promised_bytes == 4 * 1.05 * GiB // 2**24 * 2**24 + 2**24
    assert life.submit(4, script="b.py")[0].placement.promised_bytes == 8 * GiB


def test_an_unestimated_workload_shares_after_one_run():
    life = WorkingLife()
    life.run(1, gib=None)
    assert life.manager.jobs[1].attempts[0].placement.sharing == "exclusive"
    (placed,) = life.submit(2, gib=None)
    assert (placed.placement.sharing, placed.placement.promised_bytes) == ("time-sliced", 4512 * 2**20)


def test_a_pending_job_is_placed_by_what_another_run_of_its_command_taught():
    life = WorkingLife(policy=create("first-fit", {"warmup_s": 0}))
    life.submit(1, gib=None)
    life.start(1)
    life.submit(2, gib=20, script="b.py")
    life.submit(3, gib=None)
    life.pass_(120)
    assert launches(life.end(1)) == [2, 3]
    assert life.manager.jobs[3].attempts[0].placement.sharing == "time-sliced"


def test_solo_activity_is_learned_and_applied_to_residents():
    life = WorkingLife()
    life.run(1)
    life.submit(2)
    (resident,) = life.manager.server_snapshot(life.at_s).gpus[0].residents
    assert resident.workload == "python /tmp/a.py"
    assert resident.smact == pytest.approx(0.3)
    assert life.submit(3), "no settling is needed beside work that is known"


def test_a_residents_activity_comes_from_its_own_solo_time():
    life = WorkingLife(smact=0.3)
    life.submit(1)
    life.start(1)
    life.pass_(5)
    (resident,) = life.manager.server_snapshot(life.at_s).gpus[0].residents
    assert resident.smact is None, "its start says nothing"
    life.pass_(60)
    life.submit(2, script="b.py")
    life.start(2)
    life.smact = 0.9
    life.pass_(60)
    residents = life.manager.server_snapshot(life.at_s).gpus[0].residents
    assert [resident.smact for resident in residents] == [pytest.approx(0.3), None]


def test_co_runs_are_separated_by_neighbors():
    life = WorkingLife()
    life.run(1)
    for job_id in (2, 3):
        life.submit(job_id)
        life.start(job_id)
    life.steps_hz = {2: 5.0}
    life.pass_(60)
    life.end(3)
    life.pass_(60)
    life.end(2)
    co_runs = {co_run.neighbor_ids: co_run for co_run in life.manager.jobs[2].attempts[0].co_runs}
    assert set(co_runs) == {(3,), ()}
    assert co_runs[3,].seconds == pytest.approx(45.0, abs=1.5), "the first 15 s of a resident are left out"
    assert co_runs[3,].steps_hz == pytest.approx(5.0)
    assert co_runs[()].seconds == pytest.approx(60.0, abs=1.5)


def test_a_co_run_of_a_gang_is_counted_once():
    life = WorkingLife(gpus=2)
    life.submit(1, gpus=2)
    life.start(1)
    life.pass_(60)
    life.end(1)
    (co_run,) = life.manager.jobs[1].attempts[0].co_runs
    assert co_run.seconds == pytest.approx(45.0, abs=1.5)


def test_restore_reproduces_the_learned_history():
    life = WorkingLife()
    life.run(1)
    life.run(2, gib=None, script="b.py")
    life.run(3)
    again = Manager(life.policy, life.config)
    again.restore(life.events)
    assert again.history.state() == life.manager.history.state()
    assert again.history.state()["records"]["python /tmp/a.py"]["peaks_bytes"] == [4 * GiB, 4 * GiB]


def test_jobs_that_request_no_bound_have_the_policys():
    """They ran at a third of their speed, over a bound of 1.5 and below one of 9; a snapshot keeps what that taught."""
    factors = {}
    for bound in (1.5, 9.0):
        life = WorkingLife(policy=create("marginal-gain", {"max_slowdown": bound}))
        life.steps_hz = {1: 9.0, 2: 9.0, 3: 3.0, 4: 3.0}
        life.run(1)
        life.run(2, script="b.py")
        life.submit(3)
        life.start(3)
        life.submit(4, script="b.py")
        life.start(4)
        life.pass_(200)
        life.end(3)
        middle, before = life.manager.snapshot(), len(life.events)
        life.end(4)
        again = Manager(life.policy, life.config)
        again.restore(life.events[before:], middle)
        assert again.history.slowdown_factor == life.manager.history.slowdown_factor
        factors[bound] = again.history.slowdown_factor
    assert factors == {1.5: pytest.approx(1.04), 9.0: 1.0}


def test_co_run_status_has_predicted_and_measured_slowdown():
    life = WorkingLife()
    life.steps_hz = dict.fromkeys((1, 2, 3), 10.0)
    life.run(1)
    life.run(2, script="b.py")
    life.submit(3)
    life.start(3)
    assert life.manager.explain(3).reason.endswith("8.0 GiB promised"), "alone"
    life.submit(4, script="b.py")
    life.start(4)
    reason = life.manager.explain(3).reason
    assert ", beside job 4: " in reason
    assert "predicted" in reason
    assert "measured" not in reason, "too early to say"
    life.steps_hz[3] = 8.0
    life.pass_(30)
    assert ", beside job 4: 1.25 times as long measured, " in life.manager.explain(3).reason
    life.end(4)
    (co_run,) = [found for found in life.manager.co_runs(life.manager.jobs[3], 1) if found.neighbor_ids]
    assert (co_run.neighbor_ids, co_run.slowdown) == ((4,), 1.25)
    assert co_run.gpu_memory_bytes == 40 * GiB
    life.end(3)
    last_event = life.events[-1]
    assert [co_run.slowdown for co_run in last_event.co_runs if co_run.neighbor_ids] == [1.25]
    assert last_event.usage.gpu_s == pytest.approx(31.0, abs=2.0)
    assert life.manager.usage(life.manager.jobs[3], 1) == last_event.usage


def test_telemetry_of_running_attempts_survives_a_restart():
    life = WorkingLife()
    life.steps_hz = {2: 10.0}
    life.run(1)
    life.submit(2)
    life.start(2, holds=7)
    life.pass_(60)
    life.holds[2] = 3
    life.pass_(5)
    before = life.manager
    again = Manager(life.policy, life.config)
    again.restore(life.events)
    assert again.usage(again.jobs[2], 1) is None
    again.restore_telemetry(json.loads(json.dumps(before.telemetry_state())))
    life.manager = again
    life.pass_(1)
    assert again.usage(again.jobs[2], 1).gpu_s == before.usage(before.jobs[2], 1).gpu_s + 1.0
    life.end(2)
    attempt = life.manager.jobs[2].attempts[0]
    assert attempt.peak_observed_bytes == {"GPU-0": 7 * GiB}, "not what it holds by now"
    assert attempt.co_runs[0].seconds == pytest.approx(50.0, abs=2.0)
    assert attempt.co_runs[0].steps_hz == pytest.approx(10.0)


@pytest.mark.parametrize("state", [{}, {"meter": {}}, {"meter": {"usage": [], "last": {}, "idle_w": {}}, "seen": [3]}])
def test_malformed_telemetry_is_refused(state):
    with pytest.raises((ValueError, TypeError, KeyError)):
        WorkingLife().manager.restore_telemetry(state)


def test_a_job_that_is_placed_is_charged_before_any_sample_shows_it():
    life = WorkingLife(gpus=2)
    life.submit(2, gpus=2)
    life.start(2, holds=0)
    life.pass_(5)
    assert life.manager.usage(life.manager.jobs[2], 1).gpu_s == 10.0, "two GPUs for 5 s, of which it holds nothing"
