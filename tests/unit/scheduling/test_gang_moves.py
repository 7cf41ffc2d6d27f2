"""Moves of jobs of several GPUs, of jobs beside them, and of jobs on MIG instances."""

from __future__ import annotations

from dataclasses import replace

import pytest

from builders import a_job, a_resident, a_snapshot
from cotenant.core.job import Attempt, AttemptExit
from cotenant.core.placement import Placement
from cotenant.scheduling import policies
from cotenant.scheduling.checkpoints import MOVE_STOP
from cotenant.scheduling.moves import RunningJob, move_planner
from cotenant.scheduling.prediction.history import WorkloadHistory
from cotenant.scheduling.prediction.interference_table import InterferenceTable, WorkloadAlone
from cotenant.scheduling.prediction.workloads import workload_key
from cotenant.sim import cluster
from cotenant.sim.engine.config import SimulationConfig
from cotenant.sim.metrics import metrics_of
from cotenant.sim.simulate import simulate
from worlds import a_profile, a_trace

RAN_S = 600.0
CONFIG = SimulationConfig(delay_median_s=0.0, delay_p95_s=0.0)


def running(job_id, *, gpus=1, left_s=None, history=None, **spec):
    job = a_job(job_id, 10, **{"checkpoint_signal": "TERM", "gpus": gpus, "command": (f"job-{job_id}",), **spec})
    if history is not None:
        history.learn(replace(job, attempts=(completed(RAN_S + left_s),)), {})
    return RunningJob(job, RAN_S, lambda: RAN_S)


def completed(ran_s):
    return Attempt(
        number=1,
        placement=Placement(job_id=1, gpu_uuids=("GPU-0",), sharing="time-sliced", promised_bytes=2**33),
        placed_at_s=0.0,
        started_at_s=0.0,
        ended_at_s=ran_s,
        exit=AttemptExit(exit_code=0, signal=None, reason="exited"),
    )


def gpu(index, *residents, server=""):
    found = a_snapshot(index, residents=residents, at_s=RAN_S, smact=0.5)
    return replace(found, gpu=replace(found.gpu, server=server))


def resident(job_id, *, gib=10, smact=0.6, sharing="time-sliced", gpus=1):
    return a_resident(gib, gib, job_id=job_id, smact=smact, sharing=sharing, first_active_at_s=1.0, gpus=gpus)


def plan(gpus, jobs, waiting=(), *, history=None, one_node=False, reserved=None):
    policy = replace(policies.create("marginal-gain", {}), one_node=one_node)
    found = move_planner(policy, history or WorkloadHistory())
    return found.plan(gpus, {job.job.id: job for job in jobs}, waiting, reserved or {}, RAN_S)


GANG = resident(1, smact=0.9, gpus=2)
FIXED = {"checkpoint_signal": None}


def test_a_gang_leaves_heavy_neighbors_as_one():
    crowded = (gpu(0, GANG, resident(2, smact=0.9)), gpu(1, GANG, resident(3, smact=0.9)))
    jobs = [running(1, gpus=2), running(2, **FIXED), running(3, **FIXED)]
    move = plan((*crowded, gpu(2), gpu(3)), jobs)
    assert move is not None
    assert move.job_id == 1
    assert move.reason.endswith("jobs' worth of speed on other GPUs")
    assert plan((*crowded, gpu(2)), jobs) is None, "half of it would be as slow as before"


def test_a_gang_that_gets_one_idle_gpu_may_stay_on_the_other_of_its_gpus():
    crowded = (gpu(0, GANG, resident(2, smact=0.9)), gpu(1, GANG), gpu(2))
    assert plan(crowded, [running(1, gpus=2), running(2, **FIXED)]) is not None
    full = (crowded[0], crowded[1], gpu(2, resident(3, smact=0.9, gib=39)))
    assert plan(full, [running(1, gpus=2), running(2, **FIXED), running(3, **FIXED)]) is None


def test_a_neighbor_of_a_gang_frees_all_of_it():
    """A gang is as slow as on the slowest of its GPUs, so its neighbor on one of them costs two GPUs."""
    light = resident(2, smact=0.5)
    alone = (gpu(0, resident(1, smact=0.4), light), gpu(1), gpu(2))
    assert plan(alone, [running(1, **FIXED), running(2)]) is None
    gang = resident(1, smact=0.4, gpus=2)
    move = plan((gpu(0, gang, light), gpu(1, gang), gpu(2)), [running(1, gpus=2, **FIXED), running(2)])
    assert move is not None
    assert move.job_id == 2


@pytest.mark.parametrize(("left_s", "is_moved"), [(300.0, False), (900.0, True)])
def test_the_cost_of_a_gang_counts_for_all_of_its_gpus(left_s, is_moved):
    """A gain of 1 must exceed twice 60 s on each of three GPUs."""
    history = WorkloadHistory()
    gang = resident(1, sharing="exclusive", gpus=3)
    gpus = (gpu(0, gang), gpu(1, gang), gpu(2, gang), gpu(3))
    jobs = [running(1, gpus=3, left_s=left_s, history=history)]
    move = plan(gpus, jobs, [a_job(9, 10, gpus=4, exclusive=True)], history=history)
    assert (move is not None) == is_moved


def test_a_gang_makes_room_for_a_larger_one():
    gang = resident(1, sharing="exclusive", gpus=2)
    gpus = (gpu(0, gang), gpu(1, gang), gpu(2), gpu(3))
    waiting = [a_job(9, 10, gpus=4, exclusive=True)]
    move = plan(gpus, [running(1, gpus=2)], waiting)
    assert move is not None
    assert (move.job_id, move.reason) == (1, f"{MOVE_STOP}: room for job 9, +2.00 of speed")
    assert plan(gpus[:3], [running(1, gpus=2)], waiting) is None, "there are too few GPUs"
    assert plan(gpus, [running(1, gpus=2)], [a_job(9, 10, gpus=2, exclusive=True)]) is None, "it can start as it is"


def test_a_gang_stays_if_a_neighbor_keeps_one_of_the_gpus_that_it_would_free():
    gang = resident(1, smact=0.1, gpus=2)
    jobs, waiting = [running(1, gpus=2), running(2, **FIXED)], [a_job(9, 30, gpus=4)]
    gpus = (gpu(0, gang), gpu(1, gang), gpu(2), gpu(3))
    assert plan(gpus, jobs[:1], waiting) is not None
    assert plan((gpu(0, gang, resident(2, gib=25, smact=0.1)), *gpus[1:]), jobs, waiting) is None


@pytest.mark.parametrize(
    ("waiting", "started"),
    [
        pytest.param([a_job(number, 2) for number in range(9, 13)], 4, id="four alike"),
        pytest.param([a_job(9, 2), a_job(11, 3), a_job(10, 2)], 3, id="of two sizes"),
        pytest.param([a_job(number, 2) for number in range(9, 20)], 6, id="no more than their bounds allow"),
        pytest.param([a_job(9, 2)], 0, id="one gains less than the gang loses"),
        pytest.param([a_job(9, 30), a_job(10, 30)], 0, id="two that need a GPU each gain as much"),
        pytest.param(
            [a_job(9, 10, exclusive=True), a_job(10, 2), a_job(11, 2)], 0, id="exclusive jobs are not counted"
        ),
    ],
)
def test_a_gang_leaves_its_gpus_to_several_jobs_that_gain_more_together(waiting, started):
    held = replace(GANG, sharing="exclusive")
    move = plan((gpu(0, held), gpu(1, held)), [running(1, gpus=2)], waiting)
    if not started:
        assert move is None
        return
    assert move is not None
    assert move.job_id == 1
    assert move.reason.startswith(f"{MOVE_STOP}: room for {started} jobs that wait, +")


@pytest.mark.parametrize(("left_s", "is_moved"), [(245.0, False), (400.0, True)])
def test_what_several_jobs_gain_is_worth_the_cost_on_all_gpus_of_the_gang(left_s, is_moved):
    held, waiting = replace(GANG, sharing="exclusive"), [a_job(number, 2) for number in range(9, 12)]
    history = WorkloadHistory()
    job = running(1, gpus=2, left_s=left_s, history=history)
    assert (plan((gpu(0, held), gpu(1, held)), [job], waiting, history=history) is not None) == is_moved


def test_gpus_of_a_gang_that_are_reserved_are_left_to_no_other():
    held, waiting = replace(GANG, sharing="exclusive"), [a_job(number, 2) for number in range(9, 13)]
    gpus = (gpu(0, held), gpu(1, held))
    reserved = {found.gpu.uuid: 99 for found in gpus}
    assert plan(gpus, [running(1, gpus=2)], waiting, reserved=reserved) is None


def test_where_a_gang_must_be_on_one_host_the_gpus_that_it_frees_count_by_host():
    gang = resident(1, sharing="exclusive", gpus=2)
    apart = (gpu(0, gang, server="a"), gpu(1, gang, server="b"))
    waiting = [a_job(9, 10, gpus=3, exclusive=True)]
    spread = (*apart, gpu(2, server="c"), gpu(3, server="c"))
    assert plan(spread, [running(1, gpus=2)], waiting) is not None
    assert plan(spread, [running(1, gpus=2)], waiting, one_node=True) is None
    together = (*apart, gpu(2, server="a"), gpu(3, server="a"))
    assert plan(together, [running(1, gpus=2)], waiting, one_node=True) is not None


def test_a_job_that_has_room_elsewhere_gives_way_to_one_that_needs_a_whole_gpu():
    gpus = (gpu(0, resident(1, smact=0.2)), gpu(1, resident(2, smact=0.2, gib=5)))
    waiting = [a_job(9, 38)]
    jobs = [running(1), running(2, **FIXED)]
    move = plan(gpus, jobs, waiting)
    assert move is not None
    assert move.job_id == 1
    assert plan((gpus[0], gpu(1, resident(2, smact=0.2, gib=39))), jobs, waiting) is None, "no room elsewhere"


# On MIG instances.


def instance(index, profile, gib, *residents):
    found = a_snapshot(index, gib=gib, residents=residents, at_s=RAN_S, smact=0.5)
    return replace(found, gpu=replace(found.gpu, mig_profile=profile, mig_parent="GPU-whole"))


@pytest.mark.parametrize(("speed", "is_moved"), [(0.3, True), (0.9, False)])
def test_a_job_leaves_a_small_instance_for_a_larger_one_by_what_was_measured_of_it(speed, is_moved):
    job = running(1)
    key = workload_key(job.job.spec)
    alone = WorkloadAlone(name=key, step_s=0.1, smact=0.6, slice_speeds={"1g.5gb": speed, "3g.20gb": 1.0})
    table = InterferenceTable(gpu="A100", is_simulated=False, provenance={}, workloads={key: alone}, ways={})
    there = replace(resident(1, gib=4), workload=key)
    gpus = (instance(0, "1g.5gb", 5, there), instance(1, "3g.20gb", 20))
    move = plan(gpus, [job], history=WorkloadHistory(table=table))
    assert (move is not None) == is_moved


def test_a_job_frees_an_instance_for_a_job_that_fits_no_other():
    gpus = (instance(0, "3g.20gb", 20, resident(1, gib=4, sharing="exclusive")), instance(1, "1g.5gb", 5))
    move = plan(gpus, [running(1, sharing="mig")], [a_job(9, 15, sharing="mig")])
    assert move is not None
    assert move.reason == f"{MOVE_STOP}: room for job 9, +1.00 of speed"
    whole = replace(gpus[1], gpu=replace(gpus[1].gpu, mig_profile=None))
    assert plan((gpus[0], whole), [running(1, sharing="mig")], [a_job(9, 15, sharing="mig")]) is None, "no instance"


# In simulated time.


def replayed(trace, gpus):
    config = replace(CONFIG, movable_share=1.0, save_s=40.0, startup_s=20.0)
    return simulate(trace, cluster.parse(gpus), "marginal-gain", config=config)


def test_a_gang_is_moved_in_simulated_time_and_loses_no_work():
    heavy, other = (a_profile(name, gib=30, smact=0.9) for name in ("heavy", "other"))
    trace = a_trace((0, 8000, 2, heavy), (0, 1000, 2, other), (10, 1000, 4, other))
    run = replayed(trace, "4xA100-40GB")
    ends_s = [*run.columns.end_s]
    assert ends_s[2] == pytest.approx(1000 + 15 + 40 + 1000, abs=2), "15 s after GPUs were left, 40 s to save"
    assert ends_s[0] == pytest.approx(8000 + 40 + 20 + 1000, abs=5)
    assert [*run.columns.attempts] == [2, 1, 1]
    assert metrics_of(run).lost_gpu_s == 0


def test_an_exclusive_job_is_moved_in_simulated_time():
    heavy, other = (a_profile(name, gib=40, smact=0.9) for name in ("heavy", "other"))
    trace = a_trace((0, 8000, 1, heavy), (0, 2000, 1, other), (10, 1000, 2, other))
    run = replayed(trace, "2xA100-40GB")
    assert [*run.columns.attempts] == [2, 1, 1]


def test_a_job_frees_a_mig_instance_in_simulated_time():
    small, other, large = (a_profile(name, gib=gib, smact=0.9) for name, gib in (("s", 4), ("o", 4), ("l", 15)))
    trace = a_trace((0, 8000, 1, small), (0, 500, 1, other), (10, 1000, 1, large))
    run = replayed(trace, "1xA100-40GB/3g.20gb+1g.5gb")
    assert [*run.columns.attempts] == [2, 1, 1]
    assert run.columns.start_s[2] == pytest.approx(run.columns.end_s[1] + 15 + 40, abs=2)
    assert metrics_of(run).lost_gpu_s == 0
