"""MIG layouts that change in a simulation, worked out by hand."""

from __future__ import annotations

import math

import pytest

from cotenant.core.errors import UsageError
from cotenant.scheduling.repartition import RepartitionRule
from cotenant.sim import cluster
from cotenant.sim.engine.config import SimulationConfig
from cotenant.sim.engine.layouts import with_all_instances
from cotenant.sim.engine.records import COMPLETED, NEVER_STARTED
from cotenant.sim.metrics import metrics_of
from cotenant.sim.simulate import simulate
from worlds import a_profile, a_trace

SMALL = "1xA100-40GB/" + "+".join(["1g.5gb"] * 7)


def config(rule=None, **changes):
    return SimulationConfig(delay_median_s=0.0, delay_p95_s=0.0, repartition=rule, **changes)


def run(trace, gpus=SMALL, rule=RepartitionRule(cost_s=20.0), policy="most-memory"):  # noqa: B008 - frozen
    return simulate(trace, cluster.parse(gpus), policy, config=config(rule))


def test_a_job_that_no_instance_holds_waits_for_the_cost_of_a_repartition():
    trace = a_trace((5.0, 1000.0, 1, a_profile(gib=15)))
    fixed, changed = run(trace, rule=None), run(trace)
    assert list(fixed.columns.outcome) == [NEVER_STARTED]
    assert list(changed.columns.outcome) == [COMPLETED]
    assert changed.columns.start_s[0] == 25.0
    (change,) = changed.layouts
    assert (change.begin_s, change.end_s, change.gpu) == (5.0, 25.0, 0)
    assert (change.before, change.after) == (tuple(f"1g.5gb:{start}" for start in range(7)), ("4g.20gb:0", "3g.20gb:4"))
    assert fixed.layouts is None


def test_a_gpu_with_a_job_keeps_its_layout_until_that_ends():
    trace = a_trace((0.0, 100.0, 1, a_profile("small", gib=2)), (5.0, 1000.0, 1, a_profile("large", gib=15)))
    found = run(trace, rule=RepartitionRule(cost_s=20.0, min_gain=0.9))
    end_s = found.columns.end_s[0]
    assert end_s >= 100.0
    assert [change.begin_s for change in found.layouts] == [end_s]
    assert found.columns.start_s[1] == pytest.approx(end_s + 20.0)


def test_nothing_is_placed_on_a_gpu_while_it_is_repartitioned():
    late = [(15.0 + number, 50.0, 1, a_profile("small", gib=2)) for number in range(5)]
    found = run(a_trace((5.0, 1000.0, 1, a_profile(gib=15)), *late))
    assert min(found.columns.start_s) == 25.0
    assert set(found.columns.outcome) == {COMPLETED}


def test_a_gpu_is_not_repartitioned_again_before_its_period_is_over():
    trace = a_trace((0.0, 10.0, 1, a_profile("half", gib=15)), (50.0, 1000.0, 1, a_profile("whole", gib=30)))
    rule = RepartitionRule(cost_s=20.0, period_s=400.0)
    found = run(trace, rule=rule)
    assert [change.begin_s for change in found.layouts] == [0.0, 420.0]
    assert found.columns.start_s[1] == 440.0


def test_absent_instances_take_no_power_and_do_not_count_as_empty():
    trace = a_trace(*((0.0, 1000.0, 1, a_profile(gib=15)) for _ in range(2)))
    found = run(trace, "1xA100-40GB/4g.20gb+1g.5gb", RepartitionRule(min_gain=9.0), "exclusive")
    fixed = run(trace, "1xA100-40GB/4g.20gb+1g.5gb", None, "exclusive")
    assert found.layouts == ()
    assert len(found.cluster) == len(found.totals) == 18
    assert sum(total.energy_j for total in found.totals) == pytest.approx(
        sum(total.energy_j for total in fixed.totals), rel=1e-9
    )
    assert found.idle_while_waiting_s == pytest.approx(found.columns.end_s[0])
    assert found.idle_while_waiting_s == fixed.idle_while_waiting_s
    assert list(found.columns.end_s) == pytest.approx(list(fixed.columns.end_s))


def test_means_over_gpus_that_are_not_the_same_all_the_time_are_not_given():
    metrics = metrics_of(run(a_trace((0.0, 1000.0, 1, a_profile(gib=15)))))
    assert all(map(math.isnan, (metrics.memory, metrics.smact, metrics.blocked, metrics.fairness_mean)))
    assert metrics.makespan_s > 1000.0


def test_every_instance_of_a_cluster():
    found, (first, second) = with_all_instances(cluster.parse("1xL4-24GB,2xA100-40GB/3g.20gb+1g.5gb"))
    assert [slot.gpu_type for slot in found.slots[:2]] == ["L4-24GB", "A100-40GB/7g.40gb"]
    assert len(found) == 1 + 2 * 18
    assert len({slot.gpu.uuid for slot in found.slots}) == len(found)
    assert [instance.text for instance in first.gpu.layout] == ["3g.20gb:0", "1g.5gb:4"]
    assert {found.slots[place].gpu.mig_parent for place in second.slots.values()} == {second.gpu.uuid}
    assert found.slots[first.slots["3g.20gb:0"]].gpu_type == "A100-40GB/3g.20gb"


@pytest.mark.parametrize(
    ("gpus", "changes", "message"),
    [
        ("2xA100-40GB", {}, "no GPU to repartition"),
        (SMALL, {"fault_every_s": 1000.0}, "cannot be simulated together"),
    ],
)
def test_what_cannot_be_simulated_is_refused(gpus, changes, message):
    with pytest.raises(UsageError, match=message):
        simulate(
            a_trace((0.0, 10.0, 1, a_profile())),
            cluster.parse(gpus),
            "most-memory",
            config=config(RepartitionRule(), **changes),
        )
