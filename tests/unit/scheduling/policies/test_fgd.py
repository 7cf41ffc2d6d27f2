"""The policy `fgd`: what it takes for typical, and where it places a job."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from builders import a_job
from cotenant.core.units import GiB
from cotenant.scheduling.placement.fragmentation import TypicalDemand, fragments, placement_score, unusable_room
from cotenant.scheduling.policies.fgd import STEP_BYTES, FragmentationPairing, Room
from placers import Facts, busy, decided, gpu, placer


@pytest.mark.parametrize(
    ("free", "room", "gpus", "unusable"),
    [
        ([10, 4], 5, 1, 4),  # the first takes it, the second cannot
        ([10, 4], 4, 2, 0),
        ([10, 4], 5, 2, 14),  # both are needed: nothing is usable
        ([10, 0], 10, 1, 0),
        ([], 1, 1, 0),
    ],
)
def test_room_that_a_job_cannot_use(free, room, gpus, unusable):
    assert unusable_room(free, room, gpus) == unusable


def test_fragments_are_expected_over_typical_jobs():
    typical = [TypicalDemand(5, 1, 0.75), TypicalDemand(5, 2, 0.25)]
    assert fragments([10, 4], typical) == pytest.approx(0.75 * 4 + 0.25 * 14)


def test_scores_are_whole_percents():
    assert placement_score(0.0) == placement_score(-0.01) == 50, "as FGD's simulator rounds them"
    assert placement_score(-1.0) == 73 > placement_score(1.0) == 26


def facts(*typical):
    found = Facts()
    found.typical_bytes = [(gib * GiB, runs) for gib, runs in typical]
    return found


def test_a_job_leaves_room_that_typical_jobs_can_use():
    """20 and 24 GiB are free; jobs of 20 GiB are common here: 4 GiB go where 20 stay free, not to the fullest GPU."""
    half, third = gpu(0, busy(20), smact=0.1), gpu(1, busy(16, job_id=101), smact=0.1)
    assert decided(placer("best-fit", half, third), a_job(1, 4)) == {1: ("GPU-0",)}
    assert decided(placer("fgd", half, third, facts=facts((20, 200))), a_job(1, 4)) == {1: ("GPU-1",)}


def test_of_equal_gpus_the_fullest_is_taken():
    half, third = gpu(0, busy(16), smact=0.1), gpu(1, busy(20, job_id=101), smact=0.1)
    work = placer("fgd", half, third, facts=facts((40, 10_000)))
    assert decided(work, a_job(1, 4)) == {1: ("GPU-1",)}, "no GPU with a resident is of use to a typical job"


def test_what_is_typical_is_learned():
    half, third = gpu(0, busy(20), smact=0.1), gpu(1, busy(16, job_id=101), smact=0.1)
    known = facts((24, 200))
    work = placer("fgd", half, third, facts=known)
    assert decided(work, a_job(1, 4)) == {1: ("GPU-0",)}
    work.release(1)
    known.typical_bytes = [(20 * GiB, 200)]
    assert decided(work, a_job(2, 4)) == {2: ("GPU-1",)}


def test_a_job_of_unknown_memory_gets_an_empty_gpu():
    work = placer("fgd", gpu(0, busy(), smact=0.1), gpu(1))
    assert decided(work, a_job(1, None)) == {1: ("GPU-1",)}


def test_the_answer_is_the_same_on_many_gpus():
    """The sorted index judges classes of GPUs, the scan each of them."""
    gpus = [gpu(index, busy(4 + index % 30, job_id=100 + index), smact=0.1) for index in range(40)]
    known = facts((20, 50), (7, 20))
    scanned = decided(placer("fgd", *gpus[:16], facts=known), a_job(1, 3), a_job(2, 9), a_job(3, 6))
    full_gpus = [gpu(index, busy(39.9, job_id=100 + index), smact=0.1) for index in range(16, 40)]
    indexed = decided(placer("fgd", *gpus[:16], *full_gpus, facts=known), a_job(1, 3), a_job(2, 9), a_job(3, 6))
    assert scanned == indexed
    assert len(scanned) == 3


def test_demands_are_rounded_up_and_free_room_down():
    pairing, known = FragmentationPairing(), facts()
    assert pairing.profile(a_job(1, 4), known) == 4 * GiB
    assert pairing.profile(a_job(1, 4.01), known) == 4 * GiB + STEP_BYTES
    assert pairing.profile(a_job(1, None), known) is None
    view = SimpleNamespace(available_bytes=4 * GiB + STEP_BYTES - 1, total_bytes=40 * GiB)
    assert pairing.gpu_class(view) == Room(4 * GiB, 40 * GiB)
    assert pairing.gpu_class(SimpleNamespace(available_bytes=None, total_bytes=40 * GiB)) == Room(0, 40 * GiB)


def test_what_history_knows_of_a_demand_counts():
    known = facts()
    known.demand_bytes = lambda job: 9 * GiB
    assert FragmentationPairing().profile(a_job(1, 4), known) == 9 * GiB


@pytest.mark.parametrize(
    ("typical", "free_gib", "total_gib", "gradient"),
    [
        pytest.param([], 40, 40, 36 / 8 / 40, id="one assumed run of eight needs the whole GPU"),
        pytest.param([(80, 10**6)], 40, 40, 36 / 40, id="who demands more than a GPU demands all of it"),
        pytest.param([], 3, 40, -3 / 40, id="rounded, it needs more than is free"),
        pytest.param([(5, 10**6)], 8, 40, 4 / 40, id="what is left is of no use"),
        pytest.param([(4, 10**6)], 8, 40, 0.0, id="another one fits into what is left"),
    ],
)
def test_the_cost_of_4_gib_is_by_how_much_fragments_grow(typical, free_gib, total_gib, gradient):
    pairing = FragmentationPairing().with_predictions(facts(*typical))
    assert pairing.judge(4 * GiB, Room(free_gib * GiB, total_gib * GiB)) == -placement_score(gradient)


@pytest.mark.parametrize(("smact", "uuid"), [(0.79, "GPU-0"), (0.81, "GPU-1")])
def test_a_busy_gpu_is_left_alone(smact, uuid):
    work = placer("fgd", gpu(0, busy(20), smact=smact), gpu(1), facts=facts((40, 10_000)))
    assert decided(work, a_job(1, 4)) == {1: (uuid,)}
