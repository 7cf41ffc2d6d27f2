from __future__ import annotations

from dataclasses import replace

import pytest

from builders import a_job, an_estimate
from cotenant.core.job import Attempt, AttemptExit, CoRun, OomEvidence, Queued
from cotenant.core.placement import Placement
from cotenant.core.units import GiB
from cotenant.scheduling.prediction.history import WorkloadHistory
from cotenant.scheduling.prediction.workload_record import MAX_CO_RUN_RECORDS

OK = AttemptExit(exit_code=0, signal=None, reason="exited")
FAILED = AttemptExit(exit_code=1, signal=None, reason="exited")
OOM = AttemptExit(
    exit_code=1,
    signal=None,
    reason="exited",
    oom=OomEvidence(exception=True, tried_bytes=2 * GiB, in_use_bytes=9 * GiB),
)


def ran(job_id=1, gib=8.0, seconds=600.0, end=OK, co_runs=(), script="a.py", **changes):
    """A job whose only attempt has ended."""
    placement = Placement(job_id=job_id, gpu_uuids=("GPU-0",), sharing="time-sliced", promised_bytes=10 * GiB)
    attempt = Attempt(
        number=1,
        placement=placement,
        placed_at_s=0.0,
        started_at_s=0.0,
        ended_at_s=seconds,
        exit=end,
        peak_observed_bytes={"GPU-0": int(gib * GiB)},
        co_runs=tuple(co_runs),
    )
    return replace(waits(job_id, script=script, **changes), attempts=(attempt,))


def waits(job_id=99, gib=10, script="a.py", **spec):
    return a_job(job_id, gib, command=("python", script), **spec)


def known(*jobs):
    history = WorkloadHistory()
    by_id = {job.id: job for job in jobs}
    for job in jobs:
        history.learn(job, by_id)
    return history


def gib_of(value):
    return None if value is None else round(value / GiB, 3)


@pytest.mark.parametrize(
    ("runs", "stated", "need"),  # runs as (GiB, end, seconds); stated as (estimated, declared) GiB
    [
        pytest.param([], (10, None), None, id="nothing known"),
        pytest.param([(8, OK, 600)], (10, None), None, id="one run does not lower an estimate"),
        pytest.param([(8, OK, 600)], (None, None), 8.8, id="one run and a tenth, where nothing is stated"),
        pytest.param([(8, OK, 600)] * 2, (10, None), 8.4, id="two that agree lower it"),
        pytest.param([(8, OK, 600), (8.3, OK, 600)], (10, None), 8.715, id="the larger counts"),
        pytest.param([(6, OK, 600), (8, OK, 600)], (10, None), None, id="two that do not agree do not"),
        pytest.param([(8, OK, 600)] * 2, (None, 10), None, id="what was declared is never lowered"),
        pytest.param([(8, OK, 600)], (5, None), 8.8, id="one run raises an estimate"),
        pytest.param([(8, OK, 600)], (None, 5), 8.8, id="and what was declared"),
        pytest.param([(8, FAILED, 600)], (None, 5), 8.4, id="a failed run is a lower bound"),
        pytest.param([(4, FAILED, 600)], (None, 5), None, id="below what is stated"),
        pytest.param([(8, FAILED, 600)] * 2, (None, None), None, id="of which no need follows"),
        pytest.param([(8, OK, 59)] * 2, (10, None), None, id="too short to have shown its peak"),
        pytest.param([(9, OOM, 600)], (10, None), 11.55, id="what it requested when it ran out"),
        pytest.param([(0, OK, 600)] * 2, (10, None), None, id="never seen on a GPU"),
    ],
)
def test_demand_blends_the_estimate_with_observed_peaks(runs, stated, need):
    history = known(*(ran(index, gib, seconds, end) for index, (gib, end, seconds) in enumerate(runs, start=1)))
    estimated, declared = stated
    job = waits(gib=estimated, declared_bytes=None if declared is None else declared * GiB)
    assert gib_of(history.demand_bytes(job)) == need


def test_a_partial_estimate_is_ignored():
    job = replace(waits(), estimate=an_estimate(3, partial=True))
    assert gib_of(known(ran()).demand_bytes(job)) == 8.8


def test_history_predicts_nothing_for_another_command():
    history = known(ran(1), ran(2))
    assert history.demand_bytes(waits(script="b.py")) is None
    assert history.duration_s(waits(script="b.py")) is None
    assert history.activity(waits(script="b.py")).smact is None


def test_an_attempt_is_learned_once_and_only_after_it_exited():
    history = WorkloadHistory()
    job = ran()
    assert history.learn(job, {1: job}) == "python /tmp/a.py"
    assert history.learn(job, {1: job}) is None
    assert len(history.record(job).peaks_bytes) == 1
    running = replace(job, attempts=(*job.attempts, replace(job.attempts[0], number=2, exit=None)))
    assert history.learn(running, {1: running}) is None


def test_activity_is_the_time_weighted_mean_of_solo_periods():
    long = ran(
        1,
        co_runs=[
            CoRun(neighbor_ids=(), seconds=90.0, smact=0.2, drama=0.1),
            CoRun(neighbor_ids=(7,), seconds=99, smact=1),
        ],
    )
    short = ran(
        2, co_runs=[CoRun(neighbor_ids=(), seconds=30.0, smact=0.6), CoRun(neighbor_ids=(), seconds=29.0, smact=1.0)]
    )
    activity = known(long, short).activity(waits())
    assert activity.smact == pytest.approx(0.3)
    assert activity.drama == pytest.approx(0.1)
    assert activity.smocc is None
    assert activity.workload == "python /tmp/a.py"


def test_duration_is_corrected_for_co_runs():
    alone = CoRun(neighbor_ids=(), seconds=100.0, smact=1.0)
    victim = ran(1, seconds=300.0, co_runs=[alone])
    bully = ran(2, seconds=300.0, co_runs=[alone], script="b.py")
    shared = ran(3, seconds=300.0, co_runs=[CoRun(neighbor_ids=(2,), seconds=294.0)])
    history = known(victim, bully)
    assert history.duration_s(waits()) == 300.0
    history.learn(shared, {2: bully, 3: shared})
    record = history.record(waits())
    assert record.durations_s == pytest.approx([300.0, 153.0], abs=0.1), "294 s at half the speed are 147 s alone"


@pytest.mark.parametrize(
    (
        "gib",
        "estimated",
        "lost_s",
    ),  # by the slowdown that a job of 0.1, or of what 1 GiB expects, causes on a 40 GiB GPU
    [
        pytest.param(10, {"smact": 0.1}, 0.84, id="by its estimate"),
        pytest.param(1, {}, 1.03, id="by its memory"),
    ],
)
def test_a_neighbor_that_was_never_observed_costs_what_is_expected_of_it(gib, estimated, lost_s):
    small = replace(waits(2, script="b.py"), estimate=an_estimate(gib, **estimated))
    alone = CoRun(neighbor_ids=(), seconds=100.0, smact=0.3)
    history = known(ran(1, co_runs=[alone]))
    shared = ran(3, seconds=300.0, co_runs=[CoRun(neighbor_ids=(2,), seconds=300.0)])
    history.learn(shared, {2: small, 3: shared})
    assert history.record(waits()).durations_s[-1] == pytest.approx(300.0 - lost_s, abs=0.05)


def test_the_total_activity_beside_a_neighbor_that_was_never_observed_teaches_nothing():
    history = known(ran(1, co_runs=[CoRun(neighbor_ids=(), seconds=60.0, smact=0.5)]))
    shared = ran(3, co_runs=[CoRun(neighbor_ids=(2,), seconds=60.0, smact=0.2)])
    history.learn(shared, {2: waits(2, script="b.py"), 3: shared})
    assert history.interference.state() == {}


STOPPED = AttemptExit(exit_code=None, signal=15, reason="stopped")


def half_speed(job_id, *, seconds=300.0, **changes):
    """A run beside job 2, whose steps took twice as long as alone."""
    return ran(job_id, seconds=seconds, co_runs=[CoRun(neighbor_ids=(2,), seconds=seconds, steps_hz=5.0)], **changes)


def factor_after(history, *jobs):
    history.learn(ran(1, co_runs=[CoRun(neighbor_ids=(), seconds=100.0, smact=0.5, steps_hz=10.0)]), {})
    other = waits(2, script="b.py")
    for job in jobs:
        history.learn(job, {2: other, job.id: job})
    return history.slowdown_factor


def test_predicted_slowdowns_are_raised_after_jobs_that_missed_their_bound():
    missed = [half_speed(job_id) for job_id in range(3, 8)]
    assert factor_after(WorkloadHistory(max_slowdown=1.5), *missed) == pytest.approx(1.1)
    assert factor_after(WorkloadHistory(max_slowdown=3.0), *missed) == 1.0
    assert factor_after(WorkloadHistory(), *missed) == 1.0, "the policy keeps no bound, and no job has one"


def test_the_bound_of_a_job_counts_in_place_of_the_policys():
    patient = [half_speed(job_id, max_slowdown=3.0) for job_id in range(3, 8)]
    assert factor_after(WorkloadHistory(max_slowdown=1.5), *patient) == 1.0
    strict = [half_speed(job_id, max_slowdown=1.2) for job_id in range(3, 8)]
    assert factor_after(WorkloadHistory(), *strict) == pytest.approx(1.1)


@pytest.mark.parametrize(
    ("changes", "counts"),
    [
        pytest.param({"end": FAILED}, True, id="it failed at its end"),
        pytest.param({"end": STOPPED}, False, id="it was stopped"),
        pytest.param({"seconds": 59.0}, False, id="it was short"),
    ],
)
def test_which_runs_show_whether_bounds_are_kept(changes, counts):
    jobs = [half_speed(job_id, **changes) for job_id in range(3, 8)]
    assert (factor_after(WorkloadHistory(max_slowdown=1.5), *jobs) > 1.0) == counts


def test_slowdown_is_learned_from_step_rates():
    alone = ran(1, co_runs=[CoRun(neighbor_ids=(), seconds=60.0, smact=0.5, steps_hz=10.0)])
    other = ran(2, script="b.py", co_runs=[CoRun(neighbor_ids=(), seconds=60.0, smact=0.5)])
    beside = ran(3, co_runs=[CoRun(neighbor_ids=(2,), seconds=60.0, smact=0.9, steps_hz=5.0)])
    history = known(alone, other)
    pair = [history.activity(alone), history.activity(other)]
    before = history.interference.slowdowns(pair)
    history.learn(beside, {2: other, 3: beside})
    after = history.interference.slowdowns(pair)
    assert before[0] < after[0] < 2.0


def test_learning_on_a_small_gpu_is_relative_to_its_own_prior():
    """As slow as expected there: nothing is new. On the GPU that the law is of, it would be."""
    effects = {}
    for gpu_memory_bytes in (10 * GiB, None):
        alone = ran(1, co_runs=[CoRun(neighbor_ids=(), seconds=60.0, smact=0.3, steps_hz=10.0)])
        other = ran(2, script="b.py", co_runs=[CoRun(neighbor_ids=(), seconds=60.0, smact=0.5)])
        history = known(alone, other)
        company = [history.activity(job)._replace(gpu_memory_bytes=10 * GiB) for job in (alone, other)]
        hz = 10.0 / history.interference.slowdowns(company)[0]
        beside = CoRun(neighbor_ids=(2,), seconds=60.0, smact=0.9, steps_hz=hz, gpu_memory_bytes=gpu_memory_bytes)
        shared = ran(3, co_runs=[beside])
        history.learn(shared, {2: other, 3: shared})
        effects[gpu_memory_bytes] = history.interference.effects(history.activity(alone).workload)[0]
    assert effects[10 * GiB] == pytest.approx(0.0, abs=1e-9)
    assert effects[None] > 0.05


@pytest.mark.parametrize(("smact", "slower"), [(0.5, True), (0.99, False)])
def test_without_step_rates_slowdown_is_learned_from_total_activity(smact, slower):
    first = ran(1, co_runs=[CoRun(neighbor_ids=(), seconds=60.0, smact=0.5)])
    second = ran(2, script="b.py", co_runs=[CoRun(neighbor_ids=(), seconds=60.0, smact=0.5)])
    beside = ran(3, co_runs=[CoRun(neighbor_ids=(2,), seconds=60.0, smact=smact)])
    history = known(first, second)
    pair = [history.activity(first), history.activity(second)]
    before = history.interference.slowdowns(pair)[0]
    history.learn(beside, {2: second, 3: beside})
    assert (history.interference.slowdowns(pair)[0] > before) == slower


def test_co_runs_with_unknown_neighbors_teach_nothing():
    history = known(ran(1, co_runs=[CoRun(neighbor_ids=(5,), seconds=60.0, smact=0.9, steps_hz=1.0)]))
    assert history.interference.state() == {}


def test_the_factor_of_slowdowns_comes_back_and_older_states_have_none():
    history = WorkloadHistory(max_slowdown=1.5)
    factor_after(history, *[half_speed(job_id) for job_id in range(3, 8)])
    state = history.state()
    again = WorkloadHistory.restored(state, max_slowdown=1.5)
    assert again.slowdown_factor == history.slowdown_factor > 1.0
    job = half_speed(9)
    for found in (history, again):
        found.learn(job, {2: waits(2, script="b.py"), 9: job})
    assert again.state() == history.state()
    del state["slowdown_factor"]
    assert WorkloadHistory.restored(state).slowdown_factor == 1.0


def test_the_state_comes_back():
    alone = ran(1, co_runs=[CoRun(neighbor_ids=(), seconds=60.0, smact=0.5, steps_hz=10.0)])
    other = ran(2, script="b.py", co_runs=[CoRun(neighbor_ids=(1,), seconds=60.0, smact=0.9)])
    history = known(alone, other)
    again = WorkloadHistory.restored(history.state())
    assert again.state() == history.state()
    assert again.learn(alone, {1: alone}) is None, "it knows what it has taken in"
    job = replace(waits(), state=Queued(since_s=0.0))
    assert again.demand_bytes(job) == history.demand_bytes(job)


# Step rates.


def alone(hz, job_id=1, **changes):
    return ran(job_id, co_runs=[CoRun(neighbor_ids=(), seconds=60.0, smact=0.5, steps_hz=hz)], **changes)


def test_the_solo_step_rate_of_the_same_attempt_is_the_baseline():
    """Earlier attempts may have counted something else: epochs, say."""
    other = ran(2, script="b.py", co_runs=[CoRun(neighbor_ids=(), seconds=60.0, smact=0.5)])
    co_runs = [
        CoRun(neighbor_ids=(), seconds=60.0, smact=0.5, steps_hz=9.0),
        CoRun(neighbor_ids=(2,), seconds=60.0, steps_hz=6.0),
    ]
    job = ran(3, co_runs=co_runs)
    history = known(alone(1000.0), other)
    assert [co_run.slowdown for co_run in history.measured(job, co_runs)] == [None, 1.5]
    history.learn(job, {2: other, 3: job})
    ((_, (seconds, steps_hz, slowdown)),) = history.record(job).beside.items()
    assert (seconds, steps_hz, slowdown) == (60.0, 6.0, 1.5)


@pytest.mark.parametrize("hz", [100.0, 0.1], ids=["many times as fast in company", "hundred times as slow"])
def test_implausible_step_rates_teach_nothing(hz):
    other = ran(2, script="b.py", co_runs=[CoRun(neighbor_ids=(), seconds=60.0, smact=0.5)])
    beside = ran(3, co_runs=[CoRun(neighbor_ids=(2,), seconds=60.0, smact=0.99, steps_hz=hz)])
    history = known(alone(10.0), other)
    before = history.interference.state()
    assert history.measured(beside, beside.attempts[0].co_runs)[0].slowdown is None
    history.learn(beside, {2: other, 3: beside})
    assert history.interference.state() == before
    assert history.record(beside).beside == {}


def test_co_run_records_are_means_and_the_shortest_is_evicted():
    history = known(alone(10.0))
    jobs = {}
    for number in range(2, 2 + MAX_CO_RUN_RECORDS + 3):
        mate = jobs[number] = ran(
            number, script=f"{number}.py", co_runs=[CoRun(neighbor_ids=(), seconds=60.0, smact=0.5)]
        )
        history.learn(mate, jobs)
    for round_ in range(2):
        for number in list(jobs)[: MAX_CO_RUN_RECORDS + 3]:
            co_run = CoRun(neighbor_ids=(number,), seconds=30.0 + number, smact=0.9, steps_hz=5.0 - 3 * round_)
            job = ran(100 * (round_ + 1) + number, co_runs=[co_run])
            history.learn(job, {**jobs, job.id: job})
    records = history.record(waits()).beside
    assert len(records) == MAX_CO_RUN_RECORDS
    seconds, steps_hz, slowdown = records["python /tmp/18.py"]
    assert (seconds, steps_hz, slowdown) == (96.0, 3.5, pytest.approx((2 + 5) / 2))
    assert WorkloadHistory.restored(history.state()).state() == history.state()


def test_a_faster_simulated_clock_scales_the_time_thresholds():
    brief = ran(1, seconds=2.0, co_runs=[CoRun(neighbor_ids=(), seconds=1.0, smact=0.4, steps_hz=600.0)])
    slow, fast = WorkloadHistory(), WorkloadHistory(pace=60.0)
    for history in (slow, fast):
        history.learn(brief, {1: brief})
    assert (slow.record(brief).smact, slow.record(brief).peaks_bytes) == (None, [])
    assert (fast.record(brief).smact, len(fast.record(brief).peaks_bytes)) == (0.4, 1)


def test_learned_activity_is_available_immediately():
    history = WorkloadHistory()
    assert history.activity(waits()).smact is None
    history.learn(alone(10.0), {})
    assert history.activity(waits()).smact == 0.5


def test_predictions_of_a_pair_converge_to_the_measured_slowdown():
    other = ran(2, script="b.py", co_runs=[CoRun(neighbor_ids=(), seconds=60.0, smact=0.8, steps_hz=10.0)])
    history = known(alone(10.0), other)
    errors = []
    for number in range(3, 7):
        job = ran(number, co_runs=[CoRun(neighbor_ids=(2,), seconds=60.0, smact=0.95, steps_hz=4.0)])
        history.learn(job, {2: other, number: job})
        errors.append(abs(history.predicted(job, (2,), {2: other}) / 2.5 - 1.0))
    assert errors == sorted(errors, reverse=True)
    assert errors[-1] < 0.05
    assert history.predicted(job, (99,), {}) is None
