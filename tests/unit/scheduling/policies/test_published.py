"""What each composed policy adds: its gates, its match, its way with failures."""

from __future__ import annotations

from dataclasses import replace

import pytest

from builders import a_job, a_resident, a_server
from cotenant.core.errors import UsageError
from cotenant.core.gpu import GpuSample
from cotenant.core.job import Attempt, AttemptExit, OomEvidence, Queued
from cotenant.core.placement import Deferral, Placement
from cotenant.core.units import GiB
from cotenant.scheduling.demand import Demand
from cotenant.scheduling.placement import gates
from cotenant.scheduling.placement.gpu_view import GpuView
from cotenant.scheduling.policies import create
from cotenant.scheduling.policies._options import PREFERENCES
from cotenant.scheduling.policies.aegis import next_floor
from placers import AT_S, Facts, busy, decided, gpu, placer, verdict

# CARMA and AEGIS.


@pytest.mark.parametrize(
    ("measures", "admitted"),
    [
        ({"smact": 0.79, "smocc": 0.9, "drama": 0.9}, True),
        ({"smact": 0.80, "smocc": 0.44, "drama": 0.39}, True),
        ({"smact": 0.80, "smocc": 0.45, "drama": 0.0}, False),
        ({"smact": 0.80, "smocc": 0.0, "drama": 0.40}, False),
        ({"smact": 0.80, "smocc": None, "drama": 0.0}, False),
        ({"smact": None, "smocc": 0.5, "drama": 0.0}, False),
        ({"smact": None, "smocc": 0.1, "drama": 0.1}, True),
    ],
)
def test_carma_admits_below_its_pressure_limits(measures, admitted):
    work = placer("carma", gpu(0, busy(), **measures))
    assert bool(decided(work, a_job(1))) == admitted
    if not admitted:
        assert verdict(work).startswith("pressure_too_high: pressure: SMACT ")


def test_carma_requires_headroom_beyond_the_demand():
    work = placer("carma", gpu(0, busy(30.1), smact=0.1, smocc=0.0, drama=0.0))
    assert decided(work, a_job(1, 8)) == {}
    assert verdict(work) == "insufficient_memory: needs 8.0 GiB and 2.0 GiB of headroom, 9.9 GiB available"
    assert decided(work, a_job(2, 7.9)) == {}, "first come, first served"
    alone = placer("carma", gpu(0, busy(30.1), smact=0.1, smocc=0.0, drama=0.0), headroom_gib=0.0)
    assert decided(alone, a_job(1, 8)) == {1: ("GPU-0",)}


def test_carma_admits_30_s_after_the_resident_became_active():
    unseen = a_resident(4, placed_at_s=AT_S - 500, first_active_at_s=None)
    work = placer("carma", gpu(0, unseen, smact=0.0, smocc=0.0, drama=0.0))
    assert decided(work, a_job(1)) == {}
    work.update(gpu(0, replace(unseen, first_active_at_s=AT_S), smact=0.0, smocc=0.0, drama=0.0))
    assert decided(work, at_s=AT_S + 29) == {}
    assert decided(work, at_s=AT_S + 30) == {1: ("GPU-0",)}


def failed(job, *promised_gib):
    attempts = tuple(
        Attempt(
            number=number,
            placement=Placement(
                job_id=job.id, gpu_uuids=("GPU-0",), sharing="time-sliced", promised_bytes=int(gib * GiB)
            ),
            placed_at_s=0.0,
            exit=AttemptExit(exit_code=1, signal=None, reason="exited", oom=OomEvidence(exception=True)),
            peak_observed_bytes={"GPU-0": int(gib * GiB)},
        )
        for number, gib in enumerate(promised_gib, start=1)
    )
    return replace(job, attempts=attempts)


def test_carma_retries_alone_and_before_others():
    retry = failed(a_job(2, 8, at_s=5.0), 4)
    work = placer("carma", gpu(0, busy(2), smact=0.1, smocc=0.0, drama=0.0), gpu(1))
    assert decided(work, a_job(1, 8), retry) == {2: ("GPU-1",), 1: ("GPU-0",)}
    waiting = placer("carma", gpu(0, busy(2), smact=0.1, smocc=0.0, drama=0.0))
    assert decided(waiting, a_job(1, 8), retry) == {1: ("GPU-0",)}, "a retry that waits stops nobody"


@pytest.mark.parametrize(("name", "gib"), [("carma", 5), ("aegis", 5)])
def test_unknown_memory_is_shared_only_with_unknown_gib(name, gib):
    server = (gpu(0, busy(2), smact=0.1, smocc=0.0, drama=0.0),)
    assert decided(placer(name, *server), a_job(1, None)) == {}
    sharing = placer(name, *server, unknown_gib=5.0)
    sharing.add(a_job(1, None))
    (found,) = sharing.decide(AT_S)
    assert (found.promised_bytes, found.sharing) == (gib * GiB, "time-sliced")


@pytest.mark.parametrize(
    ("promised", "need"),  # GiB, on 40 GiB GPUs; None: alone
    [
        pytest.param((4,), 10, id="a quarter"),
        pytest.param((10,), 18, id="no more than 8 at once"),
        pytest.param((4, 18), 20, id="a half"),
        pytest.param((20,), 28, id="on the way to three quarters"),
        pytest.param((28,), 30, id="three quarters"),
        pytest.param((30,), None, id="then alone"),
    ],
)
def test_aegis_raises_the_floor_after_each_oom(promised, need):
    found = next_floor(failed(a_job(1, 4), *promised), [40 * GiB], Demand(1, 4 * GiB))
    assert (None if found.exclusive else found.bytes / GiB) == need


def test_aegis_does_not_lower_a_larger_learned_floor():
    assert next_floor(failed(a_job(1, 4), 4), [40 * GiB], Demand(1, 33 * GiB)).bytes == 33 * GiB


def test_aegis_judges_by_risk():
    samples = tuple(
        GpuSample(at_s=AT_S - 30 + number, used_bytes=0, smact=0.9 if number >= 20 else 0.5, smocc=0.4, drama=0.0)
        for number in range(31)
    )
    server = replace(gpu(0, busy()), samples=samples)
    view = GpuView(server)
    assert view.smact == pytest.approx(0.642, abs=1e-3), "the mean would pass"
    work = placer("aegis", server)
    assert decided(work, a_job(1)) == {}
    assert verdict(work).startswith("pressure_too_high: risk: SMACT 0.69 of 0.65, SMOCC 0.40 of 0.35")


@pytest.mark.parametrize(
    ("readings", "risk"),
    [
        ([0.5], 0.5),
        ([0.0, 1.0], 0.2 * 0.5 + 0.3 * 0.5 + 0.3 * 0.95 + 0.2 * (2 / 3)),
        ([1.0, 0.0], 0.2 * 0.5 + 0.3 * 0.5 + 0.3 * 0.95 + 0.2 * (1 / 3)),
    ],
)
def test_risk_score_of_a_series_of_readings(readings, risk):
    assert gates.risk_score(readings) == pytest.approx(risk)


def test_every_preference_is_registered_under_its_name():
    assert {create(prefer).score for prefer in PREFERENCES} == set(PREFERENCES.values())


# Horus, Lucid, Gandiva, SJF-BSBF, Tiresias, round robin and their like.


def test_horus_takes_the_least_loaded_under_a_cap():
    facts = Facts(me=0.4)
    gpus = (gpu(0, busy(smact=0.5)), gpu(1, busy(smact=0.3)))
    assert decided(placer("horus", *gpus, facts=facts), a_job(1, name="me")) == {1: ("GPU-1",)}
    full = placer("horus", gpu(0, busy(smact=0.7)), facts=facts)
    assert decided(full, a_job(1, name="me")) == {}
    assert verdict(full) == "utilization_cap: utilization 1.10 in all with this job, cap 1.00"
    empty = placer("horus", gpu(0), facts=Facts(me=1.0), utilization_cap=0.5)
    assert decided(empty, a_job(1, name="me")) == {1: ("GPU-0",)}


@pytest.mark.parametrize(
    ("residents", "newcomer", "gpus", "reason"),
    [
        pytest.param([0.3], 0.9, 1, None, id="light and heavy"),
        pytest.param([0.5], 0.5, 1, None, id="medium twice"),
        pytest.param([0.5], 0.9, 1, "label_sum: labels add up to 3, limit 2", id="medium and heavy"),
        pytest.param([0.1, 0.1], 0.1, 1, "max_jobs: 2 jobs on it, at most 2 share a GPU", id="a third"),
        pytest.param(
            [0.1], 0.1, 2, "gpu_count_mismatch: the job there has 1 GPU, this one wants 2", id="another width"
        ),
    ],
)
def test_lucid_pairs_jobs_by_the_sum_of_their_labels(residents, newcomer, gpus, reason):
    residents_there = [busy(smact=smact, job_id=100 + place) for place, smact in enumerate(residents)]
    work = placer("lucid", gpu(0, *residents_there), facts=Facts(me=newcomer))
    assert bool(decided(work, a_job(1, name="me", gpus=gpus))) == (reason is None)
    if reason is not None:
        assert verdict(work) == reason


def test_lucid_takes_the_least_work_first():
    facts = Facts({"long": 900.0, "short": 500.0}, long=0.1, short=0.1)
    work = placer("lucid", gpu(0), facts=facts, label_sum=0, warmup_s=0.0)
    jobs = (a_job(1, 30, name="long"), a_job(2, 30, name="short", gpus=1), a_job(3, 30, name="other"))
    assert decided(work, *jobs) == {2: ("GPU-0",)}


def test_gandiva_joins_the_least_active_unless_all_would_lose():
    facts = Facts(me=0.5, bully=1.0)
    work = placer("gandiva", gpu(0, busy(smact=0.5)), gpu(1, busy(smact=0.4)), facts=facts)
    assert decided(work, a_job(1, name="me")) == {1: ("GPU-1",)}
    trio = [busy(smact=1.0, job_id=100), busy(smact=0.1, job_id=101), busy(smact=0.1, job_id=102)]
    losing = placer("gandiva", gpu(0, *trio), facts=facts)
    assert decided(losing, a_job(1, name="bully")) == {}
    assert "slower than the residents are now (-" in verdict(losing)


@pytest.mark.parametrize(
    ("mine_s", "smact", "shares"),
    [
        pytest.param(100.0, 0.3, True, id="short beside light"),
        pytest.param(100.0, 1.0, True, id="short beside heavy: waiting for the other would take longer"),
        pytest.param(3000.0, 1.0, False, id="long beside heavy"),
    ],
)
def test_sjf_bsbf_shares_only_if_that_finishes_earlier_than_waiting(mine_s, smact, shares):
    facts = Facts({"me": mine_s, f"w{smact}": 3000.0}, me=1.0)
    work = placer("sjf-bsbf", gpu(0), facts=facts)
    resident = a_job(50, 4, name=f"w{smact}")
    facts.smacts[f"w{smact}"] = smact
    assert decided(work, resident) == {50: ("GPU-0",)}
    assert bool(decided(work, a_job(1, name="me"))) == shares
    if not shares:
        assert verdict(work).startswith("waiting_is_faster: shared, both would end after ")


def test_sjf_bsbf_takes_the_shortest_first():
    facts = Facts({"long": 900.0, "short": 500.0})
    jobs = (a_job(1, 30, name="long"), a_job(2, 30, name="short"), a_job(3, 30, name="unknown", priority=0))
    assert decided(placer("sjf-bsbf", gpu(0), facts=facts), *jobs) == {2: ("GPU-0",)}


@pytest.mark.parametrize("name", ["first-fit", "carma", "lucid", "sjf-bsbf", "tiresias"])
def test_a_retry_keeps_its_place_and_a_requeued_job_does_not(name):
    order = create(name).order
    retry = replace(failed(a_job(1, at_s=1.0), 4), state=Queued(since_s=50.0))
    later = failed(a_job(2, at_s=10.0), 4)
    assert order(retry, Facts()) < order(later, Facts())
    assert order(replace(retry, uncounted_attempts=1), Facts()) > order(later, Facts())


def test_tiresias_ranks_jobs_with_much_attained_service_last():
    ran = failed(a_job(1, 4), 4)
    had = replace(ran, attempts=(replace(ran.attempts[0], started_at_s=0.0, ended_at_s=3600.0),))
    work = placer("tiresias", gpu(0))
    assert decided(work, had, a_job(2, 4, at_s=5.0)) == {2: ("GPU-0",)}
    with pytest.raises(UsageError, match="must be above 0 and ascend"):
        create("tiresias", {"first_level_s": 5.0, "second_level_s": 1.0})


def test_round_robin_continues_after_the_last_gpu():
    work = placer("round-robin", *(gpu(number, smact=0.1) for number in range(3)), warmup_s=0.0)
    jobs = [a_job(number, 4) for number in range(1, 6)]
    assert list(decided(work, *jobs).values()) == [("GPU-0",), ("GPU-1",), ("GPU-2",), ("GPU-0",), ("GPU-1",)]


@pytest.mark.parametrize(
    ("name", "uuid"), [("least-utilized", "GPU-1"), ("most-utilized", "GPU-0"), ("lug", "GPU-1"), ("mug", "GPU-0")]
)
def test_policies_by_activity_choose_the_gpu_of_their_preference(name, uuid):
    server = a_server(gpu(0, busy(), smact=0.6), gpu(1, busy(), smact=0.4), gpu(2, busy(), smact=0.9), at_s=AT_S)
    (answer,) = create(name).decide([a_job(1, 4)], server)
    assert answer.gpu_uuids == (uuid,)


def test_names_from_the_literature_are_aliases():
    assert create("magm").name == create("worst-fit").name == "most-memory"
    assert create("least-utilised").name == "least-utilized"
    with pytest.raises(UsageError) as caught:
        create("carma", {"smact_limt": 0.5})
    assert caught.value.hint == "did you mean `smact_limit`?"


def test_a_gang_is_deferred_with_the_rejection_of_the_pairing_rule():
    (wait,) = create("horus").decide([a_job(1, 4, gpus=2)], a_server(gpu(0, busy(smact=0.9)), gpu(1), at_s=AT_S))
    assert isinstance(wait, Deferral)
    assert [rejection.rule for rejection in wait.rejections] == ["utilization_cap", "too_few_gpus"]
