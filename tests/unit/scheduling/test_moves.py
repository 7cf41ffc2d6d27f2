"""Which running job a policy moves, and when none is worth it; then the same in simulated time."""

from __future__ import annotations

from dataclasses import replace

import pytest

from builders import a_job, a_resident, a_snapshot
from cotenant.core.errors import UsageError
from cotenant.core.job import Attempt, AttemptExit
from cotenant.core.placement import Placement
from cotenant.scheduling import policies
from cotenant.scheduling.checkpoints import EXIT_SAVED, MOVE_STOP
from cotenant.scheduling.moves import RunningJob, move_planner
from cotenant.scheduling.prediction.history import WorkloadHistory
from cotenant.sim import cluster
from cotenant.sim.engine.config import SimulationConfig
from cotenant.sim.metrics import metrics_of
from cotenant.sim.simulate import simulate
from worlds import a_profile, a_trace

RAN_S = 600.0


def planner(**options):
    found = move_planner(policies.create("marginal-gain", options), WorkloadHistory())
    assert found is not None
    return found


def a_move(number=1, code=EXIT_SAVED):
    return Attempt(
        number=number,
        placement=Placement(job_id=1, gpu_uuids=("GPU-0",), sharing="time-sliced", promised_bytes=2**33),
        placed_at_s=0.0,
        exit=AttemptExit(exit_code=code, signal=None, reason="stopped", detail=MOVE_STOP),
    )


def running(job_id, ran_s=RAN_S, *, attempts=(), **spec):
    job = a_job(job_id, 10, **{"checkpoint_signal": "TERM", **spec})
    return RunningJob(replace(job, attempts=attempts), ran_s, lambda: ran_s)


def gpu(index, *residents):
    return a_snapshot(index, residents=residents, at_s=RAN_S, smact=0.5)


def resident(job_id, *, gib=10, smact=0.6, sharing="time-sliced"):
    return a_resident(gib, gib, job_id=job_id, smact=smact, sharing=sharing, first_active_at_s=1.0)


def plan(gpus, jobs, waiting=(), *, reserved=None, **options):
    return planner(**options).plan(gpus, {job.job.id: job for job in jobs}, waiting, reserved or {}, RAN_S)


# One of two heavy neighbors goes to an empty GPU.


CROWDED = (gpu(0, resident(1, smact=0.9), resident(2, smact=0.9)), gpu(1))


def test_a_job_leaves_a_heavy_neighbor_for_an_empty_gpu():
    move = plan(CROWDED, [running(1), running(2)])
    assert move is not None
    assert move.job_id in (1, 2)
    assert move.reason.startswith(f"{MOVE_STOP}: +")


def test_the_least_gain_of_the_policy_is_that_of_a_move_too():
    move = plan(CROWDED, [running(1), running(2)], min_gain=0.8)
    assert move is not None
    assert move.reason == f"{MOVE_STOP}: +0.89 jobs' worth of speed on another GPU"
    assert plan(CROWDED, [running(1), running(2)], min_gain=0.9) is None


def test_only_a_job_that_can_save_its_state_is_moved():
    move = plan(CROWDED, [running(1, checkpoint_signal=None), running(2)])
    assert move is not None
    assert move.job_id == 2
    assert plan(CROWDED, [running(1, checkpoint_signal=None), running(2, checkpoint_signal=None)]) is None


@pytest.mark.parametrize(
    "change",
    [
        {"ran_s": 299.0},
        {"attempts": tuple(a_move(number) for number in (1, 2, 3, 4))},
        {"attempts": (a_move(code=1),)},
    ],
    ids=["it is too young", "its budget is spent", "it did not save"],
)
def test_a_job_stays_where_it_is_if(change):
    fixed = running(2, checkpoint_signal=None)
    assert plan(CROWDED, [running(1), fixed]) is not None
    assert plan(CROWDED, [running(1, **change), fixed]) is None


def test_a_job_that_is_nearly_done_stays():
    found = planner()
    job = running(1).job
    ended = replace(
        a_move(), started_at_s=0.0, ended_at_s=800.0, exit=AttemptExit(exit_code=0, signal=None, reason="exited")
    )
    found._history.learn(replace(job, attempts=(ended,)), {})
    jobs = {item.job.id: item for item in (running(1), running(2, checkpoint_signal=None))}
    assert found.plan(CROWDED, jobs, (), {}, RAN_S) is None, "200 s are left, and a move costs 60"


def test_light_neighbors_stay_together():
    light = (gpu(0, resident(1, smact=0.2), resident(2, smact=0.2)), gpu(1))
    assert plan(light, [running(1), running(2)]) is None


def test_a_gpu_with_a_job_that_is_being_stopped_is_left_alone():
    assert plan(CROWDED, [running(1)]) is None


def ending(snapshot, left_s):
    return replace(snapshot, gpu=replace(snapshot.gpu, available_until_s=RAN_S + left_s))


def test_no_job_is_moved_to_a_gpu_that_is_gone_before_its_time_limit():
    jobs = [running(1, time_limit_s=7200.0), running(2, checkpoint_signal=None)]
    assert plan((CROWDED[0], ending(CROWDED[1], 7199.0)), jobs) is None
    assert plan((CROWDED[0], ending(CROWDED[1], 7200.0)), jobs) is not None


def test_a_policy_may_move_nothing():
    assert move_planner(policies.create("marginal-gain", {"moves": False}), WorkloadHistory()) is None
    assert move_planner(policies.create("most-memory", {}), WorkloadHistory()) is None
    with pytest.raises(UsageError, match="`max_moves` must be >= 1, got 0"):
        policies.create("marginal-gain", {"max_moves": 0})


# Room for a job that waits.


def test_a_job_makes_room_for_a_gang_that_lacks_one_gpu():
    gang = a_job(9, 10, gpus=2, exclusive=True)
    gpus = (gpu(0, resident(1, sharing="exclusive")), gpu(1))
    move = plan(gpus, [running(1)], [gang])
    assert move is not None
    assert (move.job_id, move.reason) == (1, f"{MOVE_STOP}: room for job 9, +1.00 of speed")
    assert plan(gpus, [running(1)], [a_job(9, 10, gpus=3, exclusive=True)]) is None, "it lacks more than one"
    assert plan((*gpus, gpu(2)), [running(1)], [gang]) is None, "it can start as it is"


def test_a_job_makes_room_for_a_gang_on_its_own_host_only():
    def of(server, snapshot):
        return replace(snapshot, gpu=replace(snapshot.gpu, server=server))

    found = move_planner(replace(policies.create("marginal-gain", {}), one_node=True), WorkloadHistory())
    gang = a_job(9, 10, gpus=2, exclusive=True)
    held, jobs = of("n1", gpu(0, resident(1, sharing="exclusive"))), {1: running(1)}
    assert found.plan((held, of("n2", gpu(1)), of("n3", gpu(2))), jobs, [gang], {}, RAN_S) is None
    small = a_snapshot(2, gib=16, at_s=RAN_S)
    large = of("n1", gpu(0, resident(1, gib=30, sharing="exclusive")))
    move = found.plan((large, of("n1", gpu(1)), of("n2", small)), jobs, [gang], {}, RAN_S)
    assert move is not None
    assert move.reason == f"{MOVE_STOP}: room for job 9, +1.00 of speed", "it gets the two GPUs of that host"
    assert planner().plan((held, of("n2", gpu(1))), jobs, [gang], {}, RAN_S) is not None, "gangs may span hosts"


def test_no_job_leaves_a_gpu_that_would_take_the_waiting_job_beside_it():
    """What the gang lacks is the other GPU, whose job cannot be moved."""
    gpus = (gpu(0, resident(1, gib=4, smact=0.1)), gpu(1, resident(2, sharing="exclusive")))
    jobs = [running(1), running(2, checkpoint_signal=None)]
    small = a_job(9, 1, gpus=2)
    assert plan(gpus, jobs, [small]) is None
    assert plan((gpus[0], gpu(1)), jobs[:1], [a_job(9, 1)]) is None, "it can start as it is"
    elsewhere = gpu(2, resident(3, gib=35, smact=0.1))
    others = [*jobs, running(3, checkpoint_signal=None)]
    assert plan((*gpus, elsewhere), others, [a_job(9, 10, gpus=2)]) is None, "it would have room, but for nothing"


def test_a_job_does_not_give_way_to_one_that_gains_as_much_as_it_loses():
    whole = (gpu(0, resident(1, sharing="exclusive")),)
    assert plan(whole, [running(1)], [a_job(9, 10, exclusive=True)]) is None


@pytest.mark.parametrize(
    ("duration_s", "sharing", "is_moved"),
    [
        pytest.param(100.0, "exclusive", True, id="short: a turn"),
        pytest.param(2000.0, "exclusive", False, id="not so short"),
        pytest.param(None, "exclusive", False, id="of unknown duration"),
        pytest.param(100.0, "time-sliced", False, id="short, but it would slow down a neighbor that stays"),
    ],
)
def test_a_job_gives_a_turn_to_one_that_needs_much_less_time(duration_s, sharing, is_moved):
    found, short = planner(), a_job(9, 10, exclusive=sharing == "exclusive", command=("python", "short.py"))
    if duration_s is not None:
        ended = replace(a_move(), started_at_s=0.0, ended_at_s=duration_s)
        ended = replace(ended, exit=AttemptExit(exit_code=0, signal=None, reason="exited"))
        found._history.learn(replace(short, attempts=(ended,)), {})
    residents = (
        [resident(1, gib=30, sharing=sharing)]
        if sharing == "exclusive"
        else [resident(1, gib=20, smact=0.1), resident(2, gib=15, smact=0.5)]
    )
    jobs = {1: running(1), 2: running(2, checkpoint_signal=None)}
    move = found.plan((gpu(0, *residents),), jobs, [short], {}, RAN_S)
    assert (move is not None) == is_moved
    if move is not None:
        assert move.reason == f"{MOVE_STOP}: room for job 9, +0.00 of speed"


# GPUs that are reserved for a job that has waited for long.


def test_no_job_is_moved_to_a_gpu_that_is_reserved_for_another():
    jobs = [running(1), running(2)]
    assert plan(CROWDED, jobs, reserved={"GPU-1": 9}) is None
    assert plan(CROWDED, jobs, reserved={"GPU-0": 9}) is not None, "it leaves the reserved one"


def test_a_job_leaves_a_reserved_gpu_for_the_job_that_it_is_reserved_for_and_no_other():
    gpus = (gpu(0, resident(1, sharing="exclusive")), gpu(1))
    gang, other = (a_job(job_id, 10, gpus=2, exclusive=True) for job_id in (9, 8))
    reserved = {"GPU-0": 9, "GPU-1": 9}
    assert plan(gpus, [running(1)], [other], reserved=reserved) is None
    assert plan(gpus, [running(1)], [other], reserved={"GPU-0": 9}) is None
    assert plan(gpus, [running(1)], [other]) is not None
    move = plan(gpus, [running(1)], [other, gang], reserved=reserved)
    assert move is not None
    assert move.reason == f"{MOVE_STOP}: room for job 9, +1.00 of speed"


# In simulated time.


CONFIG = SimulationConfig(delay_median_s=0.0, delay_p95_s=0.0)


def replayed(trace, **settings):
    config = replace(CONFIG, **settings)
    return simulate(trace, cluster.parse("2xA100-40GB"), "marginal-gain", config=config)


def test_a_moved_job_pays_its_cost_and_loses_no_work():
    heavy = a_profile("heavy", gib=30, smact=0.9)
    other = a_profile("other", gib=30, smact=0.9)  # a run of its own work would say that the first job is near its end
    trace = a_trace((0, 8000, 1, heavy), (0, 2000, 1, other), (10, 1000, 2, other))
    stays = replayed(trace)
    assert [round(end_s) for end_s in stays.columns.end_s] == [8000, 2000, 9000]
    moves = replayed(trace, movable_share=1.0, save_s=40.0, startup_s=20.0)
    ends_s = [*moves.columns.end_s]
    first_look_s = 2015  # 15 s after a GPU was left
    assert ends_s[2] == pytest.approx(first_look_s + 40 + 1000, abs=2)
    assert ends_s[0] == pytest.approx(8000 + 40 + 20 + 1000, abs=5)
    assert [*moves.columns.attempts] == [2, 1, 1]
    metrics = metrics_of(moves)
    assert metrics.lost_gpu_s == 0
    assert metrics.slowdown_mean == pytest.approx((8060 / 8000 + 1 + 1) / 3, abs=1e-3)


def test_without_movable_jobs_nothing_changes():
    light = a_profile("light", gib=5, smact=0.3)
    trace = a_trace(*[(60 * n, 900, 1, light) for n in range(12)])
    still = simulate(trace, cluster.parse("1xA100-40GB"), "marginal-gain", options={"moves": False}, config=CONFIG)
    assert simulate(trace, cluster.parse("1xA100-40GB"), "marginal-gain", config=CONFIG).digest() == still.digest()


def test_which_jobs_can_be_moved_is_drawn_by_the_seed():
    half = replace(CONFIG, movable_share=0.5)
    movable = half.movable()
    assert movable is not None
    drawn = [movable(number) for number in range(400)]
    assert 150 < sum(drawn) < 250
    assert drawn == [movable(number) for number in range(400)]
    assert CONFIG.movable() is None
    with pytest.raises(UsageError, match="`movable_share` must be 0 to 1"):
        SimulationConfig(movable_share=1.5)
