from __future__ import annotations

import math
from dataclasses import replace

import pytest

from builders import a_resident, a_snapshot
from cotenant.core.errors import UsageError
from cotenant.scheduling.demand import Demand
from cotenant.scheduling.placement import gates
from cotenant.scheduling.placement.gpu_view import GpuView
from cotenant.scheduling.placement.rules import AdmissionRules

AT_S = 100.0
ANY = Demand(1, 0)


def reason_of(gate, snapshot):
    """Why a GPU is closed to a job that fits, or None."""
    refusal = AdmissionRules((gate,), None).refusal(GpuView(snapshot), ANY, job_id=1, at_s=AT_S)
    return None if refusal is None else refusal.reason


@pytest.mark.parametrize(
    ("smact", "residents", "reason"),
    [
        pytest.param(0.79, 1, None, id="below"),
        pytest.param(0.8, 1, "SMACT 0.80, limit 0.80", id="at the limit"),
        pytest.param(None, 1, "SMACT not known, limit 0.80", id="unknown beside a resident"),
        pytest.param(math.nan, 1, "SMACT not known, limit 0.80", id="nonsense beside a resident"),
        pytest.param(None, 0, None, id="unknown, empty"),
        pytest.param(0.99, 0, None, id="empty: what remains in the window of one that left"),
    ],
)
def test_smact_gate_refuses_a_gpu_above_the_limit(smact, residents, reason):
    snapshot = a_snapshot(smact=smact, residents=(a_resident(1),) * residents)
    assert reason_of(gates.smact_too_high(0.80), snapshot) == reason


@pytest.mark.parametrize("limit", [0, -1, 1.01, 80, math.nan])
def test_a_smact_limit_is_a_ratio(limit):
    with pytest.raises(UsageError, match="must be above 0 and at most 1"):
        gates.smact_too_high(limit)


@pytest.mark.parametrize(
    ("placed_ago_s", "seen_ago_s", "reason"),
    [
        pytest.param(3.2, None, "job 100 was placed 3.2s ago and has not used the GPU yet", id="just placed"),
        pytest.param(59, None, "job 100 was placed 59s ago and has not used the GPU yet", id="slow to start"),
        pytest.param(60, None, None, id="not expected to start soon"),
        pytest.param(20, 14, "job 100 has been active for 14s, warms up for 15s", id="warming up"),
        pytest.param(20, 15, None, id="warm"),
    ],
)
def test_warm_up_gate_closes_until_the_newest_resident_has_been_active_long_enough(placed_ago_s, seen_ago_s, reason):
    seen = None if seen_ago_s is None else AT_S - seen_ago_s
    resident = a_resident(1, placed_at_s=AT_S - placed_ago_s, first_active_at_s=seen)
    assert reason_of(gates.warming_up(15), a_snapshot(residents=(resident,))) == reason


def test_a_warm_up_of_0_s_never_closes_the_gate():
    assert gates.warming_up(0).never_closes
    assert not gates.warming_up(1).never_closes


@pytest.mark.parametrize(("placed_ago_s", "seen_ago_s", "opens_at_s"), [(10, None, 150.0), (20, 5, 110.0)])
def test_a_refusal_of_a_gate_has_the_time_at_which_it_opens(placed_ago_s, seen_ago_s, opens_at_s):
    seen = None if seen_ago_s is None else AT_S - seen_ago_s
    resident = a_resident(1, placed_at_s=AT_S - placed_ago_s, first_active_at_s=seen)
    gate, view = gates.warming_up(15), GpuView(a_snapshot(smact=0.5, residents=(resident,)))
    assert gate.check(view, AT_S).opens_at_s == opens_at_s
    assert gate.check(view, opens_at_s) is None
    assert gates.smact_too_high(0.1).check(view, AT_S).opens_at_s == math.inf


def test_the_reason_of_a_warm_up_names_the_resident_that_warms_up_last():
    old = a_resident(1, job_id=1, placed_at_s=AT_S - 20, first_active_at_s=AT_S - 10)
    new = a_resident(1, job_id=2, placed_at_s=AT_S - 5, first_active_at_s=AT_S - 3)
    view = GpuView(a_snapshot(residents=(old, new)))
    refusal = gates.warming_up(15).check(view, AT_S)
    assert (refusal.opens_at_s, refusal.reason) == (AT_S + 12, "job 2 has been active for 3.0s, warms up for 15s")
    known = replace(new, smact=0.5)
    refusal = gates.warming_up_unless_known(15).check(GpuView(a_snapshot(residents=(old, known))), AT_S)
    assert (refusal.opens_at_s, refusal.reason) == (AT_S + 5, "job 1 has been active for 10s, warms up for 15s")


@pytest.mark.parametrize("warmup_s", [-1, math.inf, math.nan])
def test_invalid_warm_up_durations_are_refused(warmup_s):
    with pytest.raises(UsageError, match="must be >= 0 and finite"):
        gates.warming_up(warmup_s)


@pytest.mark.parametrize(
    ("smact", "smocc", "drama", "is_open"),
    [
        pytest.param(0.9, 0.5, 0.3, False, id="filled SMs"),
        pytest.param(0.9, 0.3, 0.5, False, id="busy memory"),
        pytest.param(0.9, 0.3, 0.3, True, id="active alone"),
        pytest.param(0.7, 0.5, 0.5, True, id="not active"),
        pytest.param(0.9, None, 0.3, False, id="not known"),
    ],
)
def test_pressure_is_too_high_where_active_sms_are_filled_or_memory_is_busy(smact, smocc, drama, is_open):
    snapshot = a_snapshot(residents=(a_resident(1),), smact=smact, smocc=smocc, drama=drama)
    assert (reason_of(gates.pressure_too_high(0.80, 0.45, 0.40), snapshot) is None) == is_open
