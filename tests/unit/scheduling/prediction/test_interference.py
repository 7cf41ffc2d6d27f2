from __future__ import annotations

import csv
import math
import random
import statistics

import pytest

from cotenant.core.units import GiB, MiB
from cotenant.scheduling.prediction.interference import (
    ASSUMED_SMACT,
    MAX_TOTAL_SPEED,
    MEASUREMENT_STD,
    GpuActivity,
    LearnedInterference,
    PriorInterference,
    expected_smact,
    limit_to_all_sms,
    prior_slowdowns,
)
from cotenant.scheduling.prediction.interference_table import InterferenceTable, SharingTable
from cotenant.sim.traces.carma import measured_a100
from shared_data import SHARED_DATA

PAIRS = SHARED_DATA / "carma/aegis/pairwise_a100.csv"


def a(smact, workload=None):
    return GpuActivity(workload=workload, smact=smact)


@pytest.mark.parametrize(
    ("smacts", "slowdowns"),
    [
        pytest.param([], [], id="nobody"),
        pytest.param([0.9], [1.0], id="alone"),
        pytest.param([0.1, 0.5], [1.0894, 1.0001], id="the partner's activity counts, not one's own"),
        pytest.param([0.2, 0.3, 0.3], [1.0769, 1.0687, 1.0687], id="three, up to the most that was measured"),
        pytest.param([0.1, None], [1.0894, 1.0001], id="unknown is taken for one half"),
        pytest.param([1.0, 1.0], [2.94, 2.94], id="two that fill all SMs"),
    ],
)
def test_prior_slowdowns_follow_from_activity(smacts, slowdowns):
    found = PriorInterference().slowdowns([a(smact) for smact in smacts])
    assert found == pytest.approx(slowdowns, abs=2e-4)
    assert LearnedInterference().slowdowns([a(smact) for smact in smacts]) == found


@pytest.mark.parametrize(
    ("needed_mib", "smact"),
    [
        pytest.param(1, 0.06, id="small ones count as 512 MiB"),
        pytest.param(512, 0.06, id="the least"),
        pytest.param(2048, 0.38, id="twice the memory, 0.16 more"),
        pytest.param(8192, 0.70, id="the most"),
        pytest.param(40_000, 0.70, id="beyond 8 GiB it says no more"),
    ],
)
def test_expected_activity_grows_with_memory(needed_mib, smact):
    assert expected_smact(needed_mib * MiB) == pytest.approx(smact)


def test_a_co_runner_with_more_memory_slows_more_at_equal_activity():
    small, large = (GpuActivity(None, 0.8, memory_bytes=gib * GiB) for gib in (4, 16))
    assert PriorInterference().slowdowns([a(0.1), small])[0] == pytest.approx(1 + 0.868 * 0.8**2.565 * 0.5**0.791)
    assert PriorInterference().slowdowns([a(0.1), large])[0] == pytest.approx(1 + 0.868 * 0.8**2.565 * 2**0.791)
    assert PriorInterference().slowdowns([a(0.1), a(0.8)])[0] == pytest.approx(1 + 1.94 * 0.8**4.44), "memory not known"


def test_memory_counts_relative_to_the_size_of_the_gpu():
    """The same batch has longer kernels on a smaller GPU. It is enough that one of them tells which GPU it is."""
    on_small = GpuActivity(None, 0.8, memory_bytes=4 * GiB, gpu_memory_bytes=10 * GiB)
    on_large = GpuActivity(None, 0.8, memory_bytes=16 * GiB)
    assert PriorInterference().slowdowns([a(0.1), on_small]) == PriorInterference().slowdowns([a(0.1), on_large])
    newcomer = GpuActivity(None, 0.8, memory_bytes=4 * GiB)
    resident = GpuActivity(None, 0.1, memory_bytes=GiB, gpu_memory_bytes=10 * GiB)
    assert PriorInterference().slowdowns([resident, newcomer])[0] == pytest.approx(1 + 0.868 * 0.8**2.565 * 2**0.791)


def test_expected_activity_matches_the_measured_workloads():
    """On the workloads that ship: far closer than one number for all."""
    known = [(measured.profile.peak_bytes, measured.profile.smact) for measured in measured_a100().values()]
    missed = statistics.mean(abs(expected_smact(size) - smact) for size, smact in known)
    assert missed < 0.4 * statistics.mean(abs(ASSUMED_SMACT - smact) for _, smact in known)


def test_slowdowns_are_raised_until_the_sms_suffice():
    slowed = limit_to_all_sms([1.1, 1.1], [0.9, 0.9])
    assert sum(0.9 / slowdown for slowdown in slowed) == pytest.approx(1.0)
    assert limit_to_all_sms([1.1, 1.0], [0.3, 0.3]) == (1.1, 1.0)


def test_costs_of_two_neighbors_add_up():
    assert prior_slowdowns([a(0.2), a(0.3), a(0.3)], [0.2, 0.3, 0.3]) == pytest.approx(
        [1.0185, 1.0108, 1.0108], abs=2e-4
    )


@pytest.mark.parametrize("predictor", [PriorInterference(), LearnedInterference()])
def test_small_jobs_are_together_no_faster_than_any_were_measured(predictor):
    def total(count, sharing="time-sliced"):
        return sum(1.0 / slowdown for slowdown in predictor.slowdowns([a(0.05)] * count, sharing))

    assert total(2) == pytest.approx(2.0, abs=0.01)
    assert total(4) == pytest.approx(MAX_TOTAL_SPEED)
    assert total(7) == pytest.approx(MAX_TOTAL_SPEED)
    assert total(4, "mps") > 3.9, "measured of time-sliced jobs only"


def test_a_job_that_is_hit_harder_stays_slower_below_the_most_that_jobs_do_together():
    known = LearnedInterference()
    known.learn([a(0.1, "fragile"), a(0.1, "tough")], [1.6, 1.0], spread=0.01)
    found = known.slowdowns([a(0.1, "fragile"), *[a(0.1, "other")] * 3])
    assert sum(1.0 / slowdown for slowdown in found) == pytest.approx(MAX_TOTAL_SPEED)
    assert found[0] > 1.2 * found[1]


def test_measured_groups_count_more_than_the_most_that_others_did():
    ways = {
        "time-sliced": SharingTable(
            effects={}, pair_speeds={}, group_factors={3: 1.0}, median_error=0.0, p90_error=0.0, rows=9
        )
    }
    table = InterferenceTable(gpu="GPU", is_simulated=False, provenance={}, workloads={}, ways=ways)
    assert sum(1.0 / s for s in LearnedInterference(table).slowdowns([a(0.05)] * 4)) > 3.9


def test_an_observed_slowdown_updates_sensitivity_and_aggressiveness():
    known = LearnedInterference()
    pair = [a(0.5, "mild"), a(0.5, "bully")]
    before = known.slowdowns(pair)
    known.learn(pair, [2.0, 1.05], spread=MEASUREMENT_STD)
    after = known.slowdowns(pair)
    assert before[0] < after[0] < 2.0
    elsewhere = known.slowdowns([a(0.5, "other"), a(0.5, "bully")])
    assert elsewhere[0] > PriorInterference().slowdowns([a(0.5), a(0.5)])[0], "the bully is known to others too"
    assert elsewhere[1] < elsewhere[0]


def test_many_observations_outweigh_one_outlier():
    known = LearnedInterference()
    pair = [a(0.5, "x"), a(0.5, "y")]
    for _ in range(50):
        known.learn(pair, [1.6, None], spread=MEASUREMENT_STD)
    settled = known.slowdowns(pair)[0]
    assert settled == pytest.approx(1.6, rel=0.02)
    known.learn(pair, [4.0, None], spread=MEASUREMENT_STD)
    assert known.slowdowns(pair)[0] == pytest.approx(settled, rel=0.05)


@pytest.mark.parametrize("reading", [None, 0.0, -1.0, math.inf, math.nan])
def test_invalid_slowdowns_teach_nothing(reading):
    known = LearnedInterference()
    known.learn([a(0.5, "x"), a(0.5, "y")], [reading, None], spread=MEASUREMENT_STD)
    assert known.state() == {}
    assert known.version == 0


def test_predicted_slowdowns_are_at_least_1():
    known = LearnedInterference()
    for _ in range(20):
        known.learn([a(0.1, "x"), a(0.1, "y")], [0.5, 0.5], spread=MEASUREMENT_STD)
    found = known.slowdowns([a(0.1, "x"), a(0.1, "y")])
    assert min(found) >= 1.0
    assert found == pytest.approx((1.0, 1.0), abs=1e-6)
    assert all(abs(value) < 0.01 for effects in known.state().values() for value in effects[::2])


def test_workloads_without_a_key_are_not_learned():
    known = LearnedInterference()
    known.learn([a(0.5), a(0.5, "y")], [3.0, None], spread=MEASUREMENT_STD)
    assert list(known.state()) == ["y"]


def test_the_state_comes_back():
    known = LearnedInterference()
    known.learn([a(0.5, "x"), a(0.7, "y")], [1.5, 1.1], spread=MEASUREMENT_STD)
    again = LearnedInterference.restored(known.state())
    pair = [a(0.4, "y"), a(0.6, "x")]
    assert again.slowdowns(pair) == known.slowdowns(pair)
    assert again.state() == known.state()


@pytest.mark.skipif(not PAIRS.exists(), reason="the measured pairs are not on this machine")
def test_measured_pairs_improve_predictions_of_held_out_pairs():
    """Published on the same rows: partner's SMACT alone 6 % and 22 %, fitted effects 4 % and 12 % (median, P90)."""
    with PAIRS.open() as file:
        rows = [
            (
                a(float(row["smact_a"]), row["spec_a"]),
                a(float(row["smact_b"]), row["spec_b"]),
                1 / float(row["overlap_speed_a"]),
                1 / float(row["overlap_speed_b"]),
            )
            for row in csv.DictReader(file)
        ]
    cold, learned = [], []
    for seed in range(5):
        random.Random(seed).shuffle(rows)
        known = LearnedInterference()
        for first, second, *observed in rows[20:]:
            known.learn([first, second], observed, spread=MEASUREMENT_STD)
        for first, second, *observed in rows[:20]:
            for errors, predictor in ((cold, PriorInterference()), (learned, known)):
                found = predictor.slowdowns([first, second])
                errors += [abs(max(1.0, true) / predicted - 1) for predicted, true in zip(found, observed, strict=True)]
    assert statistics.median(learned) < 0.85 * statistics.median(cold)
    assert statistics.quantiles(learned, n=10)[-1] < 0.65 * statistics.quantiles(cold, n=10)[-1]
