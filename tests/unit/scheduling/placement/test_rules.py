"""Which rule refuses a GPU, and its sentence."""

from __future__ import annotations

from dataclasses import replace

import pytest

from builders import a_resident, a_snapshot
from cotenant.core.units import GiB
from cotenant.scheduling.demand import Demand
from cotenant.scheduling.placement import gates
from cotenant.scheduling.placement.gpu_view import GpuView
from cotenant.scheduling.placement.rules import AdmissionRules, fits, fitting

AT_S = 100.0
SHARED = Demand(1, 8 * GiB)
EXCLUSIVE = Demand(1, 8 * GiB, exclusive=True, exclusive_reason="it was submitted as exclusive")


def refused(view, demand, *, job_id=1, with_gates=()):
    """Rule and reason of the first refusal, or None."""
    refusal = AdmissionRules(with_gates, None).refusal(view, demand, job_id, AT_S)
    return None if refusal is None else (refusal.rule, refusal.reason)


@pytest.mark.parametrize(
    ("snapshot", "reason"),
    [
        pytest.param(a_snapshot(), None, id="known"),
        pytest.param(replace(a_snapshot(foreign=None), samples=()), "no sample yet", id="never read"),
        pytest.param(a_snapshot(foreign=None, at_s=99), "memory in use could not be read", id="no number"),
        pytest.param(
            a_snapshot(foreign=None, at_s=88, used_bytes=1),
            "memory in use is not known, the newest sample is 12s old",
            id="stale",
        ),
    ],
)
def test_a_gpu_with_stale_telemetry_is_refused(snapshot, reason):
    assert refused(GpuView(snapshot), SHARED) == (reason and ("stale_telemetry", reason))


@pytest.mark.parametrize(
    ("demand", "changes", "refusal"),
    [
        pytest.param(SHARED, {"residents": (a_resident(8),)}, None, id="shared beside shared"),
        pytest.param(
            SHARED,
            {"residents": (a_resident(8, sharing="exclusive"),)},
            ("held_exclusively", "job 100 has it exclusively"),
            id="taken",
        ),
        pytest.param(EXCLUSIVE, {}, None, id="empty"),
        pytest.param(EXCLUSIVE, {"foreign": 1}, None, id="what counts as idle"),
        pytest.param(
            EXCLUSIVE,
            {"foreign": 1.1},
            ("not_empty", "must be empty (it was submitted as exclusive), 1.1 GiB in use by others"),
            id="foreign",
        ),
        pytest.param(
            EXCLUSIVE,
            {"residents": (a_resident(1), a_resident(1, job_id=7))},
            ("not_empty", "must be empty (it was submitted as exclusive), jobs 100, 7 on it"),
            id="residents",
        ),
        pytest.param(
            replace(EXCLUSIVE, min_gpu_bytes=80 * GiB),
            {},
            ("gpu_too_small", "has 40.0 GiB, must be a GPU of 80.0 GiB"),
            id="too small",
        ),
    ],
)
def test_exclusive_placement_needs_an_empty_gpu_of_sufficient_size(demand, changes, refusal):
    assert refused(GpuView(a_snapshot(**changes)), demand) == refusal


@pytest.mark.parametrize(
    ("gib", "foreign", "reason"),
    [
        pytest.param(8, 32, None, id="just"),
        pytest.param(13.1, 30.2, "needs 13.1 GiB, 9.8 GiB available", id="not"),
        pytest.param(None, 39, None, id="any amount"),
    ],
)
def test_a_gpu_with_too_little_memory_is_refused_with_the_numbers(gib, foreign, reason):
    demand = Demand(1, None if gib is None else int(gib * GiB))
    refusal = reason and ("insufficient_memory", reason)
    assert refused(GpuView(a_snapshot(foreign=foreign)), demand) == refusal


def test_headroom_is_added_to_the_demand():
    view = GpuView(a_snapshot(foreign=31))
    assert refused(view, SHARED) is None
    text = "needs 8.0 GiB and 2.0 GiB of headroom, 9.0 GiB available"
    assert refused(view, replace(SHARED, headroom_bytes=2 * GiB)) == ("insufficient_memory", text)


def test_a_mig_request_is_refused_on_a_whole_gpu():
    demand = replace(EXCLUSIVE, sharing="mig")
    snapshot = a_snapshot()
    assert refused(GpuView(snapshot), demand)[0] == "no_mig_instance"
    instance = replace(snapshot, gpu=replace(snapshot.gpu, mig_profile="3g.20gb"))
    assert refused(GpuView(instance), demand) is None


def test_a_reserved_gpu_admits_the_job_it_is_reserved_for():
    view = GpuView(a_snapshot())
    view.reserved_for, view.reservation_reason = 12, "which has waited long"
    assert refused(view, SHARED) == ("reserved", "reserved for job 12, which has waited long")
    assert refused(view, SHARED, job_id=12) is None


def test_a_retry_after_oom_skips_gates_on_activity_but_not_on_counts():
    busy = GpuView(a_snapshot(smact=0.9, residents=(a_resident(1), a_resident(1, job_id=7))))
    retry = replace(SHARED, ignores_activity=True)
    on_activity, on_count = gates.smact_too_high(0.8), gates.max_jobs(2)
    assert refused(busy, SHARED, with_gates=(on_activity,))[0] == "smact_too_high"
    assert refused(busy, retry, with_gates=(on_activity,)) is None
    assert refused(busy, retry, with_gates=(on_activity, on_count))[0] == "max_jobs"


def test_gates_open_when_the_last_of_them_opens():
    residents = (a_resident(1, placed_at_s=AT_S - 10), a_resident(1, job_id=7, placed_at_s=AT_S - 50))
    view = GpuView(a_snapshot(smact=0.1, residents=residents))
    rules = AdmissionRules((gates.warming_up(15), gates.warming_up(15, first_activity_timeout_s=90)), None)
    assert rules.gates_open_at_s(view, AT_S) == AT_S + 80
    assert rules.gates_open_at_s(view, AT_S + 80) == -float("inf")
    closed = AdmissionRules((gates.warming_up(15), gates.smact_too_high(0.05)), None)
    assert closed.gates_open_at_s(view, AT_S) == float("inf")


@pytest.mark.parametrize("needed_gib", [0, 25, 26, 27])
def test_all_gpus_at_once_are_judged_as_each_alone(needed_gib):
    demand = Demand(1, needed_gib * GiB, min_gpu_bytes=30 * GiB)
    views = [GpuView(a_snapshot(gib=gib, foreign=foreign)) for gib, foreign in [(40, 14), (40, 0), (28, 0), (40, None)]]
    assert fitting(views, demand) == [view for view in views if fits(view, demand)]
    assert len(fitting(views, demand)) == {0: 3, 25: 2, 26: 2, 27: 1}[needed_gib]
