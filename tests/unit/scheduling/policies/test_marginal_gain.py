"""Sharing where all together gain most: whom it admits, where, and in which order."""

from __future__ import annotations

from dataclasses import replace

import pytest

from builders import a_job, a_resident, an_estimate
from cotenant.core.errors import UsageError
from cotenant.core.estimate import SmactInterval
from cotenant.core.units import GiB
from cotenant.scheduling.placement import orders
from cotenant.scheduling.placement.gpu_view import GpuView
from cotenant.scheduling.placement.pairing import CoRunner
from cotenant.scheduling.policies import create
from cotenant.scheduling.policies.marginal_gain import InstanceClass
from cotenant.scheduling.prediction.history import WorkloadHistory
from cotenant.scheduling.prediction.interference import GpuActivity, LearnedInterference, PriorInterference
from cotenant.scheduling.prediction.interference_table import InterferenceTable, WorkloadAlone
from placers import AT_S, Facts, busy, decided, gpu, placer, verdict


def test_the_gpu_with_the_largest_gain_is_taken_and_an_empty_one_gains_most():
    facts = Facts(light=0.1)
    taken = (gpu(0, busy(smact=0.6)), gpu(1, busy(smact=0.3)))
    assert decided(placer("marginal-gain", *taken, facts=facts), a_job(1, name="light")) == {1: ("GPU-1",)}
    assert decided(placer("marginal-gain", *taken, gpu(2), facts=facts), a_job(1, name="light")) == {1: ("GPU-2",)}


@pytest.mark.parametrize(
    ("resident", "newcomer", "options", "reason"),
    [
        pytest.param(0.9, 0.9, {}, "smact_sum: SMACT 1.80 in all with this job, limit 1.40", id="too much activity"),
        pytest.param(
            0.3,
            0.9,
            {},
            "max_slowdown: a job with SMACT 0.30 there would take 1.72 times as long, bound 1.50",
            id="a mate suffers",
        ),
        pytest.param(
            0.9, 0.3, {}, "max_slowdown: this job would take 1.72 times as long, bound 1.50", id="the newcomer suffers"
        ),
        pytest.param(
            0.5,
            0.5,
            {"min_gain": 0.9},
            "insufficient_gain: +0.68 jobs' worth of speed gained, 0.90 wanted",
            id="gains too little",
        ),
    ],
)
def test_a_refusal_to_share_gives_its_reason(resident, newcomer, options, reason):
    work = placer("marginal-gain", gpu(0, busy(12, smact=resident)), facts=Facts(me=newcomer), **options)
    assert decided(work, a_job(1, gib=12, name="me")) == {}
    assert verdict(work) == reason


def test_unknown_workloads_are_judged_by_the_activity_expected_from_memory():
    resident = gpu(0, busy(smact=0.6))
    assert decided(placer("marginal-gain", resident), a_job(1, gib=1, name="small")) == {1: ("GPU-0",)}
    work = placer("marginal-gain", resident, smact_sum=1.2)
    assert decided(work, a_job(1, gib=12, name="large")) == {}
    assert verdict(work) == "smact_sum: SMACT 1.30 in all with this job (0.70 expected of it), limit 1.20"


def test_activity_from_history_overrides_the_expectation_from_memory():
    work = placer("marginal-gain", gpu(0, busy(smact=0.6)), facts=Facts(large=0.1), smact_sum=1.2)
    assert decided(work, a_job(1, gib=12, name="large")) == {1: ("GPU-0",)}


def test_activity_from_the_estimate_overrides_the_expectation_from_memory():
    work = placer("marginal-gain", gpu(0, busy(smact=0.6)), smact_sum=1.2)
    estimated = replace(a_job(1, name="large"), estimate=an_estimate(12, smact=0.1))
    assert decided(work, estimated) == {1: ("GPU-0",)}
    work = placer("marginal-gain", gpu(0, busy(smact=0.6)), smact_sum=1.2)
    assert decided(work, replace(estimated, estimate=an_estimate(1, smact=0.9))) == {}
    assert "(0.90 expected of it)" in verdict(work)


def test_a_gang_shares_no_gpu_until_its_activity_is_known():
    gang = a_job(1, gib=1, name="gang", gpus=2)
    both = (gpu(0, busy(smact=0.1)), gpu(1, busy(smact=0.1)))
    work = placer("marginal-gain", *both)
    assert decided(work, gang) == {}
    rejection = work.explain(1, AT_S).rejections[0]
    assert rejection.rule == "gang_unknown"
    assert rejection.reason == "this job has several GPUs, and its activity is not known yet"
    assert decided(placer("marginal-gain", *both, facts=Facts(gang=0.1)), gang) == {1: ("GPU-0", "GPU-1")}
    assert decided(placer("marginal-gain", gpu(0), gpu(1)), gang) == {1: ("GPU-0", "GPU-1")}


@pytest.mark.parametrize(("smact", "joins"), [(0.1, True), (0.9, False)])
def test_a_job_that_was_just_placed_counts_with_the_activity_of_its_estimate(smact, joins):
    work = placer("marginal-gain", gpu(0), smact_sum=1.2, warmup_s=0.0)
    first = replace(a_job(1, name="first"), estimate=an_estimate(8, smact=smact))
    assert decided(work, first) == {1: ("GPU-0",)}
    second = replace(a_job(2, name="second"), estimate=an_estimate(8, smact=0.5))
    assert decided(work, second) == ({2: ("GPU-0",)} if joins else {})


@pytest.mark.parametrize(("gpus", "smact", "starts"), [(1, None, True), (2, None, False), (2, 0.1, True)])
def test_no_job_joins_a_gang_of_unknown_activity(gpus, smact, starts):
    resident = a_resident(1, placed_at_s=0.0, first_active_at_s=0.0, workload="w", smact=smact, gpus=gpus)
    work = placer("marginal-gain", gpu(0, resident), facts=Facts(me=0.1))
    assert bool(decided(work, a_job(1, gib=1, name="me"))) is starts


@pytest.mark.parametrize(
    ("resident_gpus", "new_gpus", "gain"),  # a SMACT of 0.5 and 8 GiB slow both down to 0.84 of their speed
    [
        pytest.param(1, 1, "+0.68", id="single"),
        pytest.param(4, 1, "+0.19", id="the resident loses it on four GPUs"),
        pytest.param(1, 4, "+0.19", id="the new job loses it on four GPUs"),
    ],
)
def test_what_a_gang_loses_on_one_gpu_counts_for_all(resident_gpus, new_gpus, gain):
    taken = gpu(0, busy(12, smact=0.5, gpus=resident_gpus))
    free = tuple(gpu(place, busy(12, smact=0.5)) for place in range(1, new_gpus))
    work = placer("marginal-gain", taken, *free, facts=Facts(me=0.5), min_gain=0.9)
    assert decided(work, a_job(1, gib=12, name="me", gpus=new_gpus)) == {}
    assert work.explain(1, AT_S).rejections[0].reason == f"{gain} jobs' worth of speed gained, 0.90 wanted"


def test_memory_from_history_overrides_the_estimate():
    facts = Facts()
    facts.demand_bytes = lambda _job: 1 * GiB
    work = placer("marginal-gain", gpu(0, busy(smact=0.6)), facts=facts, smact_sum=1.2)
    assert decided(work, a_job(1, gib=12, name="large")) == {1: ("GPU-0",)}


@pytest.mark.parametrize(
    ("order", "starts"),
    [(None, 3), ("due", 3), ("oldest", 1), ("shortest", 3), ("least-work", 3)],
)
def test_the_order_option_sets_which_job_starts_first(order, starts):
    jobs = [a_job(1, at_s=1.0, name="long"), a_job(2, at_s=2.0, name="unknown"), a_job(3, at_s=3.0, name="short")]
    facts = Facts(durations_s={"long": 9000.0, "short": 60.0}, long=0.9, unknown=0.9, short=0.9)
    assert decided(placer("marginal-gain", gpu(0), facts=facts, **({"order": order} if order else {})), *jobs) == {
        starts: ("GPU-0",)
    }


@pytest.mark.parametrize(
    ("name", "gpus", "later_s", "passes"),
    [
        pytest.param("small", 1, 5_000.0, True, id="due 3 x 100 s after it came"),
        pytest.param("small", 1, 30_000.0, False, id="came after the other was due"),
        pytest.param("unknown", 1, 15_000.0, True, id="taken for an hour"),
        pytest.param("unknown", 1, 17_000.0, False, id="an hour, and too late"),
        pytest.param("unknown", 4, 5_000.0, False, id="four GPUs for an hour"),
    ],
)
def test_jobs_are_ordered_by_due_time(name, gpus, later_s, passes):
    large, other = a_job(1, name="large"), a_job(2, at_s=later_s, name=name, gpus=gpus)
    facts = Facts(durations_s={"large": 9000.0, "small": 100.0})
    order = create("marginal-gain").order
    assert (order(other, facts) < order(large, facts)) == passes
    assert order(replace(large, spec=replace(large.spec, priority=1)), facts) < order(other, facts)


@pytest.mark.parametrize(("pace", "due_s"), [(1.0, 10_900.0), (60.0, 280.0)])
def test_the_hour_that_unknown_work_is_taken_for_is_one_of_gpu_time(pace, due_s):
    order = create("marginal-gain").order
    assert order(a_job(1, at_s=100.0, name="unknown"), WorkloadHistory(pace=pace))[1] == due_s


@pytest.mark.parametrize("patience", [-1.0, float("inf"), float("nan")])
def test_invalid_patience_is_refused(patience):
    with pytest.raises(UsageError, match="no multiple"):
        orders.due_first(patience)


def test_least_work_orders_by_gpu_time_and_shortest_by_run_time():
    jobs = [a_job(1, name="too_few_gpus", gpus=4), a_job(2, name="single")]
    facts = Facts(durations_s={"too_few_gpus": 60.0, "single": 100.0}, gang=0.9, single=0.9)
    gpus = [gpu(number) for number in range(4)]
    assert list(decided(placer("marginal-gain", *gpus, facts=facts, order="shortest"), *jobs)) == [1]
    assert list(decided(placer("marginal-gain", *gpus, facts=facts, order="least-work"), *jobs)) == [2]


def test_the_max_slowdown_of_the_job_bounds_sharing():
    tolerant = replace(busy(smact=0.3), max_slowdown=1.8)
    facts = Facts(me=0.8)
    assert decided(placer("marginal-gain", gpu(0, tolerant), facts=facts), a_job(1, name="me")) == {1: ("GPU-0",)}
    picky = a_job(1, name="me", max_slowdown=1.0)
    assert decided(placer("marginal-gain", gpu(0, tolerant), facts=facts), picky) == {}


def test_a_slowdown_bound_holds_from_placement_before_any_sample():
    work = placer("marginal-gain", gpu(0), facts=Facts(picky=0.4, me=0.4))
    jobs = (a_job(1, name="picky", max_slowdown=1.01), a_job(2, name="me"))
    assert decided(work, *jobs) == {1: ("GPU-0",)}
    assert "bound 1.01" in verdict(work, 2)


def test_learned_interference_prevents_sharing():
    facts = Facts(me=0.3)
    work = placer("marginal-gain", gpu(0, busy(smact=0.3)), facts=facts)
    pair = [GpuActivity("w0.3", 0.3), GpuActivity("me", 0.3)]
    for _ in range(20):
        facts.interference.learn(pair, [3.0, 3.0], spread=0.1)
    assert decided(work, a_job(1, name="me")) == {}
    assert "times as long" in verdict(work)


def test_interference_learned_after_profiling_is_used():
    facts = Facts(me=0.3)
    pairing = create("marginal-gain").pairing.with_predictions(facts)
    mine = pairing.profile(a_job(1, name="me"), facts)
    theirs = pairing.gpu_class(GpuView(gpu(0, busy(smact=0.3))))
    assert pairing.judge(mine, theirs) < 0
    for _ in range(20):
        facts.interference.learn([GpuActivity("w0.3", 0.3), GpuActivity("me", 0.3)], [3.0, 3.0], spread=0.1)
    assert pairing.judge(mine, theirs).rule == "max_slowdown"


def test_an_unknown_resident_must_warm_up_before_it_shares():
    unknown = a_resident(4, placed_at_s=AT_S - 5, first_active_at_s=AT_S - 5)
    work = placer("marginal-gain", gpu(0, unknown, smact=0.4), facts=Facts(me=0.2))
    assert decided(work, a_job(1, name="me")) == {}
    assert verdict(work) == "warming_up: job 100 has been active for 5.0s, warms up for 15s"
    assert work.wakes_at_s == AT_S + 10
    assert decided(work, at_s=AT_S + 10) == {1: ("GPU-0",)}


def test_unattributed_activity_is_assigned_to_the_unknown_resident():
    unknown = a_resident(24, placed_at_s=0.0, first_active_at_s=0.0)
    light, heavy = (
        placer("marginal-gain", gpu(0, unknown, busy(smact=0.1, job_id=101), smact=smact), facts=Facts(me=0.1))
        for smact in (0.2, 0.95)
    )
    assert decided(light, a_job(1, gib=4, name="me")) == {1: ("GPU-0",)}
    assert decided(heavy, a_job(1, gib=4, name="me")) == {}
    assert "a job with SMACT 0.10 there would take 2.74 times" in verdict(heavy)


def test_a_co_runner_with_more_memory_is_expected_to_slow_more():
    answers = {
        gib: decided(
            placer("marginal-gain", gpu(0, busy(gib, smact=0.8)), facts=Facts(me=0.2)), a_job(1, gib=2, name="me")
        )
        for gib in (4, 24)
    }
    assert answers == {4: {1: ("GPU-0",)}, 24: {}}


def test_a_fourth_small_job_gains_nothing():
    """Three already do nearly as much together as time-sliced jobs were ever seen to do."""
    there = [busy(1, smact=0.1, job_id=100 + number) for number in range(3)]
    work = placer("marginal-gain", gpu(0, *there), facts=Facts(me=0.1))
    assert decided(work, a_job(1, gib=1, name="me")) == {}
    assert "jobs' worth of speed gained, 0.30 wanted" in verdict(work)
    two = placer("marginal-gain", gpu(0, *there[:2]), facts=Facts(me=0.1))
    assert decided(two, a_job(1, gib=1, name="me")) == {1: ("GPU-0",)}


def test_a_safety_factor_tightens_the_slowdown_bound():
    mate = gpu(0, busy(12, smact=0.7))
    assert decided(placer("marginal-gain", mate, facts=Facts(me=0.2)), a_job(1, name="me")) == {1: ("GPU-0",)}
    careful = placer("marginal-gain", mate, facts=Facts(me=0.2), safety_factor=1.2)
    assert decided(careful, a_job(1, name="me")) == {}
    assert verdict(careful).endswith("1.37 times as long, bound 1.50 with safety factor 1.20")


def test_predicted_slowdowns_are_raised_while_jobs_miss_their_bounds():
    """By the same placer, whose judgments are cached, and only the part above 1."""
    facts, job = Facts(me=0.2), a_job(1, name="me")
    work = placer("marginal-gain", gpu(0, busy(12, smact=0.7)), facts=facts, max_slowdown=1.2)
    assert decided(work, job) == {}
    assert verdict(work).endswith("would take 1.37 times as long, bound 1.20")
    facts.slowdown_factor = 1.5
    ending = "would take 1.55 times as long, bound 1.20; slowdown factor 1.50, since jobs missed their bounds"
    assert verdict(work, at_s=AT_S + 1.0).endswith(ending)


@pytest.mark.parametrize(
    ("neighbors", "known", "slower"),
    [
        pytest.param(1, True, 0.8, id="a pair"),
        pytest.param(1, False, 0.7, id="a pair, one guessed"),
        pytest.param(2, True, 0.9, id="three"),
        pytest.param(2, False, 0.8, id="three, one guessed"),
        pytest.param(3, False, 0.8, id="four, one guessed"),
    ],
)
def test_the_predicted_slowdown_is_weighted_by_the_overlap(neighbors, known, slower):
    """Shown by the limit that is broken: that of a resident, for which a guessed activity counts with its upper end."""
    there = [busy(2, smact=0.3, job_id=100 + number) for number in range(neighbors)]
    group = [GpuActivity(None, 0.3, memory_bytes=2 * GiB)] * neighbors
    newcomer = GpuActivity(None, 0.3 if known else 0.6, memory_bytes=2 * GiB)
    predicted = PriorInterference().slowdowns([*group, newcomer])[0]
    work = placer("marginal-gain", gpu(0, *there), facts=Facts(**({"me": 0.3} if known else {})))
    job = a_job(1, gib=2, name="me", max_slowdown=5.0)
    estimate = an_estimate(2, smact=0.3, smact_low=0.1, smact_high=0.6)
    estimated = replace(job, estimate=estimate, spec=replace(job.spec, declared_bytes=None))
    work = placer("marginal-gain", gpu(0, *there), facts=Facts(**({"me": 0.3} if known else {})), max_slowdown=1.0)
    assert decided(work, estimated) == {}
    assert f"would take {1 + slower * (predicted - 1):.2f} times as long, bound 1.00" in verdict(work)


@pytest.mark.parametrize(("neighbors", "slower"), [(1, 1.0), (2, 1.2)])
def test_the_slowdown_of_the_new_job_itself_is_the_expected_one(neighbors, slower):
    """Its own bound is broken; the residents accept anything, and act as is known."""
    there = [replace(busy(2, smact=0.4, job_id=100 + number), max_slowdown=9.0) for number in range(neighbors)]
    predicted = PriorInterference().slowdowns([GpuActivity(None, 0.4, memory_bytes=2 * GiB)] * (neighbors + 1))[-1]
    job = a_job(1, gib=2, name="me", max_slowdown=1.0)
    estimate = an_estimate(2, smact=0.4, smact_low=0.1, smact_high=0.9)
    estimated = replace(job, estimate=estimate, spec=replace(job.spec, declared_bytes=None))
    work = placer("marginal-gain", gpu(0, *there), facts=Facts())
    assert decided(work, estimated) == {}
    assert f"this job would take {1 + slower * (predicted - 1):.2f} times as long, bound 1.00" in verdict(work)


def test_a_job_that_may_be_heavy_joins_no_neighbor_that_it_might_slow_down_too_much():
    answers = {}
    for high in (0.6, 0.95):
        job = a_job(1, gib=12, name="me")
        estimate = an_estimate(12, smact=0.55, smact_low=0.3, smact_high=high)
        estimated = replace(job, estimate=estimate, spec=replace(job.spec, declared_bytes=None))
        answers[high] = decided(placer("marginal-gain", gpu(0, busy(4, smact=0.3)), facts=Facts()), estimated)
    assert answers == {0.6: {1: ("GPU-0",)}, 0.95: {}}


def test_a_resident_acts_as_its_estimate_expects_until_it_was_observed():
    """With nothing but its 24 GiB, it would be expected to be busy."""
    light = SmactInterval(0.05, 0.1, 0.2)
    there = a_resident(24, placed_at_s=0.0)
    answers = [
        decided(placer("marginal-gain", gpu(0, resident), facts=Facts(me=0.5)), a_job(1, gib=4, name="me"))
        for resident in (there, replace(there, expected_smact=light))
    ]
    assert answers == [{}, {1: ("GPU-0",)}]


def test_at_most_max_jobs_share_a_gpu():
    crowd = [busy(2, smact=0.02, job_id=100 + number) for number in range(4)]
    work = placer("marginal-gain", gpu(0, *crowd), facts=Facts(me=0.02))
    assert decided(work, a_job(1, name="me")) == {}
    assert verdict(work) == "max_jobs: 4 jobs on it, at most 4 share a GPU"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"min_gain": 1.1}, "`min_gain` must be <= 1"),
        ({"max_slowdown": 0.9}, "`max_slowdown` must be >= 1 and finite, got 0.9"),
        ({"smact_sum": 0}, "must be above 0 and finite"),
        ({"safety_factor": 0.9}, "`safety_factor` must be >= 1"),
        ({"max_jobs": 1}, "`max_jobs` must be >= 2"),
        ({"order": "youngest"}, "option `order` of policy `marginal-gain`"),
    ],
)
def test_invalid_limits_are_refused(options, message):
    with pytest.raises(UsageError, match=message):
        create("marginal-gain", options)


def measured(speeds):
    """Predictions with a study's speeds of jobs on MIG instances, by job and profile."""
    workloads = {
        name: WorkloadAlone(name=name, step_s=0.1, smact=0.4, slice_speeds=found) for name, found in speeds.items()
    }
    table = InterferenceTable(gpu="A100", is_simulated=False, provenance={}, workloads=workloads, ways={})
    return Facts(interference=LearnedInterference(table))


def on_instances(facts, *profiles):
    """A placer on empty instances of `profiles`, all with 40 GiB."""
    found = [gpu(i) for i in range(len(profiles))]
    instances = [
        replace(snapshot, gpu=replace(snapshot.gpu, mig_profile=profile, mig_parent="GPU"))
        for snapshot, profile in zip(found, profiles, strict=True)
    ]
    return placer("marginal-gain", *instances, facts=facts)


@pytest.mark.parametrize(
    ("speeds", "taken"),
    [
        pytest.param({"1g.5gb": 0.97, "2g.10gb": 1.0, "3g.20gb": 1.0}, "GPU-1", id="nothing to gain on a larger one"),
        pytest.param({"1g.5gb": 0.52, "2g.10gb": 0.97, "3g.20gb": 1.0}, "GPU-2", id="the smallest that is enough"),
        pytest.param({"1g.5gb": 0.2, "2g.10gb": 0.4, "3g.20gb": 0.6}, "GPU-0", id="the fastest"),
        pytest.param({}, "GPU-0", id="not measured: the first of equal memory"),
    ],
)
def test_a_job_gets_the_smallest_instance_that_costs_it_no_speed(speeds, taken):
    work = on_instances(measured({"me": speeds}), "3g.20gb", "1g.5gb", "2g.10gb")
    assert decided(work, a_job(1, gib=2, name="me")) == {1: (taken,)}


def test_a_slow_start_is_better_than_none():
    work = on_instances(measured({"me": {"1g.5gb": 0.3}}), "1g.5gb")
    assert decided(work, a_job(1, gib=2, name="me")) == {1: ("GPU-0",)}


def test_sharing_an_instance_gains_in_proportion_to_the_speed_there():
    facts = measured({"slow": {"1g.5gb": 0.3}, "fast": {"1g.5gb": 1.0}})
    rule = create("marginal-gain", {}).pairing.with_predictions(facts)
    shared = InstanceClass("1g.5gb", (CoRunner(workload="w", smact=0.2),))
    slow, fast = (rule.judge(CoRunner(workload=name, smact=0.2), shared) for name in ("slow", "fast"))
    assert fast < 0
    assert slow == pytest.approx(0.3 * fast)


def test_the_retry_of_a_job_that_ran_out_of_memory_is_bound_by_what_users_requested_only():
    pairing = create("marginal-gain").pairing
    heavy = CoRunner("heavy", 0.9, memory_bytes=12 * GiB)
    strict = heavy._replace(max_slowdown=1.5)
    assert pairing.judge(heavy, (heavy,)).rule == "smact_sum"
    retry = heavy._replace(ignores_activity=True)
    gain = -pairing.judge(retry, (heavy, heavy, heavy))
    assert gain < 0.3, "no limit of the policy holds, its least gain neither"
    assert pairing.judge(retry, (strict,)).rule == "max_slowdown"
    assert pairing.judge(retry._replace(max_slowdown=1.5), (heavy,)).rule == "max_slowdown"
