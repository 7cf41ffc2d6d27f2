"""Which empty GPU in MIG mode gets another layout, and which stays as it is."""

from __future__ import annotations

from dataclasses import replace

import pytest

from builders import a_gpu, a_job, a_resident, a_snapshot
from cotenant.core.errors import UsageError
from cotenant.core.gpu import Gpu, GpuProcess, GpuSample
from cotenant.core.mig import MigGpu, layout_texts, parse_layout, parse_profiles
from cotenant.core.units import GiB
from cotenant.scheduling.policies import create
from cotenant.scheduling.prediction.history import WorkloadHistory
from cotenant.scheduling.repartition import RepartitionPlanner, RepartitionRule

A100 = parse_profiles(
    [
        ("1g.5gb", int(4.75 * GiB)),
        ("2g.10gb", int(9.75 * GiB)),
        ("3g.20gb", int(19.5 * GiB)),
        ("4g.20gb", int(19.5 * GiB)),
        ("7g.40gb", int(39.5 * GiB)),
    ]
)
SEVEN = tuple(f"1g.5gb:{start}" for start in range(7))


def a_mig_gpu(*texts, uuid="GPU-0", foreign=""):
    return MigGpu(uuid=uuid, index=0, profiles=A100, layout=parse_layout(texts, A100), foreign=foreign)


def instances(gpu, **changes):
    """The instances of a GPU, empty and sampled."""
    found = []
    for number, instance in enumerate(gpu.layout):
        profile = instance.profile
        view = Gpu(
            uuid=f"MIG-{gpu.uuid}-{number}",
            index=gpu.index,
            name=f"A100-40GB MIG {profile.name}",
            memory_total_bytes=profile.memory_bytes,
            mig_parent=gpu.uuid,
            mig_profile=profile.name,
        )
        sample = GpuSample(at_s=0.0, used_bytes=0)
        found.append(replace(a_snapshot(), gpu=view, samples=(sample,), **changes))
    return found


def planner(**rule):
    return RepartitionPlanner(create("most-memory"), RepartitionRule(**rule), WorkloadHistory())


def planned(gpu, waiting, *, others=(), excluded=(), snapshots=None, **rule):
    seen = [*(instances(gpu) if snapshots is None else snapshots), *others]
    return planner(**rule).plan([gpu], seen, waiting, excluded=excluded)


def test_a_job_that_fits_on_no_instance_gets_one():
    found = planned(a_mig_gpu(*SEVEN), [a_job(7, gib=15)])
    assert (found.job_id, layout_texts(found.layout)) == (7, ("4g.20gb:0", "3g.20gb:4"))
    assert found.reason == "+1.00 jobs' worth of speed for 1 waiting job"


def test_small_jobs_get_small_instances():
    found = planned(a_mig_gpu("7g.40gb:0"), [a_job(number, gib=3) for number in range(1, 8)])
    # Unknown activity counts as 0.5: a seventh of the SMs gives 2/7 of the speed, seven of them that of two jobs.
    # Three sevenths and twice two sevenths do as much with fewer instances.
    assert layout_texts(found.layout) == ("2g.10gb:0", "2g.10gb:2", "3g.20gb:4")
    assert found.reason == "+1.00 jobs' worth of speed for 3 waiting jobs"


def test_no_layout_is_better_than_one_that_serves_the_queue_as_well():
    assert planned(a_mig_gpu("4g.20gb:0", "3g.20gb:4"), [a_job(1, gib=15)]) is None


@pytest.mark.parametrize(
    ("rule", "is_worth"),
    [
        pytest.param({"min_gain": 1.0}, True, id="gains just enough"),
        pytest.param({"min_gain": 1.01}, False, id="gains too little"),
        pytest.param({"hysteresis": 2.0, "cost_s": 1800.0}, True, id="costs half of what it gains"),
        pytest.param({"hysteresis": 2.0, "cost_s": 1801.0}, False, id="costs more"),
    ],
)
def test_the_gain_must_exceed_the_cost(rule, is_worth):
    """One job of an unknown time, an hour is assumed, runs at full speed on half of the GPU, and before on nothing."""
    assert (planned(a_mig_gpu(*SEVEN), [a_job(1, gib=15)], **rule) is not None) == is_worth


def used(**changes):
    def change(found):
        return [replace(found[0], **changes), *found[1:]]

    return change


def with_process(found):
    sample = GpuSample(at_s=0.0, used_bytes=GiB, processes=(GpuProcess(pid=1, used_bytes=GiB),))
    return [replace(found[0], samples=(sample,)), *found[1:]]


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(used(residents=(a_resident(1),)), id="a job"),
        pytest.param(with_process, id="another process"),
        pytest.param(used(foreign_bytes=None), id="memory that cannot be read"),
        pytest.param(used(samples=()), id="no sample yet"),
        pytest.param(lambda found: found[1:], id="an instance that is not listed"),
    ],
)
def test_a_gpu_that_is_not_empty_stays_as_it_is(change):
    gpu = a_mig_gpu(*SEVEN)
    assert planned(gpu, [a_job(1, gib=15)]) is not None
    assert planned(gpu, [a_job(1, gib=15)], snapshots=change(instances(gpu))) is None


def test_a_foreign_layout_and_an_excluded_gpu_stay_as_they_are():
    assert planned(a_mig_gpu(*SEVEN, foreign="an instance is divided"), [a_job(1, gib=15)]) is None
    assert planned(a_mig_gpu(*SEVEN), [a_job(1, gib=15)], excluded={"GPU-0"}) is None


def test_a_gpu_without_any_instance_gets_some():
    found = planned(a_mig_gpu(), [a_job(1, gib=15)])
    assert layout_texts(found.layout) == ("4g.20gb:0", "3g.20gb:4")


def test_jobs_that_other_empty_gpus_serve_as_well_need_no_repartition():
    other = a_snapshot(1)
    assert planned(a_mig_gpu(*SEVEN), [a_job(1, gib=15)], others=[other]) is None
    assert planned(a_mig_gpu(*SEVEN), [a_job(1, gib=15), a_job(2, gib=15)], others=[other]).reason.startswith("+1.00 ")
    taken = replace(other, residents=(a_resident(8),))
    assert planned(a_mig_gpu(*SEVEN), [a_job(1, gib=15)], others=[taken]).job_id == 1


def test_of_two_gpus_that_with_the_larger_gain_is_repartitioned():
    small, halves = a_mig_gpu(*SEVEN, uuid="GPU-0"), a_mig_gpu("4g.20gb:0", uuid="GPU-1")
    seen = [*instances(small), *instances(halves)]
    waiting = [a_job(number, gib=15) for number in (1, 2, 3)]
    assert planner().plan([halves, small], seen, waiting).gpu.uuid == "GPU-0"


def test_a_job_of_unknown_memory_is_not_considered_and_stops_others_only_in_strict_order():
    waiting = [a_job(1, gib=None), a_job(2, gib=15)]
    assert planned(a_mig_gpu(*SEVEN), waiting[:1]) is None
    assert planned(a_mig_gpu(*SEVEN), waiting).job_id == 2
    strict = RepartitionPlanner(create("exclusive"), RepartitionRule(), WorkloadHistory())
    assert strict.plan([a_mig_gpu(*SEVEN)], instances(a_mig_gpu(*SEVEN)), waiting) is None


def test_a_gang_gets_an_instance_for_each_of_its_gpus():
    found = planned(a_mig_gpu(*SEVEN), [a_job(1, gib=15, gpus=2)])
    assert layout_texts(found.layout) == ("4g.20gb:0", "3g.20gb:4")
    assert found.reason == "+1.86 jobs' worth of speed for 1 waiting job"


def test_a_job_nearly_as_large_as_an_instance_gets_a_larger_one():
    """The instance shows memory in use while it is empty: the job would not be admitted there."""
    assert layout_texts(planned(a_mig_gpu(*SEVEN), [a_job(1, gib=19.4)]).layout) == ("7g.40gb:0",)
    assert layout_texts(planned(a_mig_gpu(*SEVEN), [a_job(1, gib=39.4)]).layout) == ("7g.40gb:0",)
    assert planned(a_mig_gpu(*SEVEN), [a_job(1, gib=45)]) is None


def test_only_the_first_jobs_are_looked_at_in_the_order_of_the_policy():
    many = [a_job(number, gib=60, at_s=float(number)) for number in range(1, 33)]
    assert planned(a_mig_gpu(*SEVEN), [a_job(40, gib=15, at_s=99.0), *many]) is None
    assert planned(a_mig_gpu(*SEVEN), [*many, a_job(40, gib=15, at_s=0.0)]).job_id == 40


@pytest.mark.parametrize("name", ["min_gain", "hysteresis", "cost_s", "period_s"])
@pytest.mark.parametrize("value", [-1.0, float("inf"), float("nan")])
def test_wrong_values_of_the_rule_are_refused(name, value):
    with pytest.raises(UsageError, match=f"`{name}` of MIG repartitioning must be >= 0"):
        RepartitionRule(**{name: value})


def test_a_whole_gpu_is_no_candidate():
    assert planner().plan([], [replace(a_snapshot(), gpu=a_gpu())], [a_job(1, gib=15)]) is None


@pytest.mark.parametrize(("policy", "first"), [("exclusive", 1), ("most-memory", None)])
def test_where_jobs_may_not_overtake_the_first_one_is_served(policy, first):
    """Two small jobs would use the halves that there are; behind a large job they wait for it."""
    gpu = a_mig_gpu("4g.20gb:0", "3g.20gb:4")
    waiting = [a_job(1, gib=30), a_job(2, gib=15), a_job(3, gib=15)]
    found = RepartitionPlanner(create(policy), RepartitionRule(), WorkloadHistory())
    plan = found.plan([gpu], instances(gpu), waiting)
    assert (None if plan is None else plan.job_id) == first
