from __future__ import annotations

import math
from dataclasses import replace

import pytest

from builders import a_resident, a_snapshot
from cotenant.core.errors import UsageError
from cotenant.core.gpu import GpuSample
from cotenant.core.units import GiB
from cotenant.scheduling.placement import gates
from cotenant.scheduling.placement.gpu_view import GpuView
from cotenant.scheduling.placement.memory_demand import MemoryDemand

AT_S = 100.0
NEED = MemoryDemand(1, 8 * GiB)
ALONE = MemoryDemand(1, 8 * GiB, alone=True, exclusive_reason="it was submitted as exclusive")


def view(snapshot):
    return GpuView(snapshot)


@pytest.mark.parametrize(
    ("snapshot", "reason"),
    [
        pytest.param(a_snapshot(), None, id="known"),
        pytest.param(replace(a_snapshot(strangers=None), samples=()), "no reading yet", id="never read"),
        pytest.param(a_snapshot(strangers=None, at_s=99), "memory in use could not be read", id="no number"),
        pytest.param(
            a_snapshot(strangers=None, at_s=88, used_bytes=1),
            "no trustworthy reading of the memory in use, the last one 12s ago",
            id="stale",
        ),
    ],
)
def test_fresh_telemetry(snapshot, reason):
    assert gates.stale_telemetry(view(snapshot), AT_S) == reason


@pytest.mark.parametrize(
    ("need", "changes", "reason"),
    [
        pytest.param(NEED, {"residents": (a_resident(8),)}, None, id="shared beside shared"),
        pytest.param(NEED, {"residents": (a_resident(8, sharing="exclusive"),)}, "job 100 has it alone", id="taken"),
        pytest.param(ALONE, {}, None, id="empty"),
        pytest.param(ALONE, {"strangers": 1}, None, id="what counts as idle"),
        pytest.param(
            ALONE,
            {"strangers": 1.1},
            "must be empty (it was submitted as exclusive), 1.1 GiB in use by others",
            id="strangers",
        ),
        pytest.param(
            ALONE,
            {"residents": (a_resident(1), a_resident(1, job_id=7))},
            "must be empty (it was submitted as exclusive), jobs 100, 7 on it",
            id="residents",
        ),
        pytest.param(
            replace(ALONE, min_gpu_bytes=80 * GiB), {}, "has 40.0 GiB, must be a GPU of 80.0 GiB", id="too small"
        ),
    ],
)
def test_honors_exclusive(need, changes, reason):
    assert gates.honors_exclusive(need, view(a_snapshot(**changes))) == reason


@pytest.mark.parametrize(
    ("gib", "strangers", "reason"),
    [
        pytest.param(8, 32, None, id="just"),
        pytest.param(13.1, 30.2, "needs 13.1 GiB, 9.8 GiB available", id="not"),
        pytest.param(None, 39, None, id="any amount"),
    ],
)
def test_fits_memory(gib, strangers, reason):
    need = MemoryDemand(1, None if gib is None else int(gib * GiB))
    assert gates.insufficient_memory(need, view(a_snapshot(strangers=strangers))) == reason


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
def test_smact_below(smact, residents, reason):
    snapshot = a_snapshot(smact=smact, residents=(a_resident(1),) * residents)
    assert gates.smact_too_high(0.80).refuses(view(snapshot), AT_S) == reason


@pytest.mark.parametrize("limit", [0, -1, 1.01, 80, math.nan])
def test_a_smact_limit_is_a_ratio(limit):
    with pytest.raises(UsageError, match="no ratio"):
        gates.smact_too_high(limit)


@pytest.mark.parametrize(
    ("placed_ago_s", "seen_ago_s", "reason"),
    [
        pytest.param(3.2, None, "job 100 was placed 3.2s ago and is not at work yet", id="just placed"),
        pytest.param(59, None, "job 100 was placed 59s ago and is not at work yet", id="slow to start"),
        pytest.param(60, None, None, id="not expected to start soon"),
        pytest.param(20, 14, "job 100 is at work for 14s, settles in 15s", id="settling"),
        pytest.param(20, 15, None, id="settled"),
    ],
)
def test_settled(placed_ago_s, seen_ago_s, reason):
    seen = None if seen_ago_s is None else AT_S - seen_ago_s
    resident = a_resident(1, placed_at_s=AT_S - placed_ago_s, first_active_at_s=seen)
    assert gates.warming_up(15).refuses(view(a_snapshot(residents=(resident,))), AT_S) == reason


def test_zero_turns_settling_off():
    resident = a_resident(1, placed_at_s=AT_S)
    assert gates.warming_up(0).refuses(view(a_snapshot(residents=(resident,))), AT_S) is None


@pytest.mark.parametrize("warmup_s", [-1, math.inf, math.nan])
def test_settling_takes_a_duration(warmup_s):
    with pytest.raises(UsageError, match="cannot settle"):
        gates.warming_up(warmup_s)


def test_kept_free():
    kept = view(a_snapshot())
    kept.reserved_for = 12
    assert gates.reserved(1, kept) == "kept free for job 12, which has waited long"
    assert gates.reserved(12, kept) is None


def smact_of(readings, *residents):
    samples = tuple(GpuSample(at_s=at_s, used_bytes=0, smact=smact) for at_s, smact in readings)
    return view(replace(a_snapshot(residents=residents), samples=samples)).smact


def test_smact_is_the_mean_since_the_newest_resident_was_seen():
    readings = [(70.0, 0.0), (80.0, 0.4), (90.0, None), (100.0, 0.8)]
    assert smact_of(readings) == pytest.approx(0.4)
    old, young = a_resident(1, first_active_at_s=10.0), a_resident(1, first_active_at_s=80.0)
    assert smact_of(readings, old, young) == pytest.approx(0.6)


def test_smact_is_unknown_where_the_newest_sample_lacks_it():
    assert smact_of([(90.0, 0.5), (100.0, None)]) is None
    assert smact_of([(90.0, 0.5), (100.0, math.nan)]) is None
    assert smact_of([]) is None
