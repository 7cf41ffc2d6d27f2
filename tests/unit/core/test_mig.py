"""Layouts of MIG instances: what a GPU allows, and what serves a queue."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cotenant.core import mig
from cotenant.core.errors import UnknownName, UsageError
from cotenant.core.units import GiB
from cotenant.gpu_specs import gpu_spec

A100 = mig.parse_profiles([(profile.name, profile.memory_bytes) for profile in gpu_spec("A100-40GB").mig])
A30 = mig.parse_profiles([("1g.6gb", 6 * GiB), ("2g.12gb", 12 * GiB), ("4g.24gb", 24 * GiB), ("1g.6gb+me", 6 * GiB)])


def need(job_id, gib, smact=None):
    return mig.MigDemand(job_id=job_id, bytes=int(gib * GiB), smact=smact)


def layouts_of(slices):
    return {mig.profile_names(layout) for layout in mig.layouts(slices)}


def test_instance_profiles_of_a_gpu():
    assert [(profile.name, profile.compute, profile.memory_slices) for profile in A100] == [
        ("7g.40gb", 7, 8),
        ("4g.20gb", 4, 4),
        ("3g.20gb", 3, 4),
        ("2g.10gb", 2, 2),
        ("1g.10gb", 1, 2),
        ("1g.5gb", 1, 1),
    ]
    assert [profile.fraction for profile in A30] == [1.0, 0.5, 0.25]


def test_a_gpu_without_mig_is_refused():
    for profiles in ([], [("7g.40gb", 40 * GiB)], [("whole", 40 * GiB)]):
        with pytest.raises(UsageError, match="has no MIG profiles"):
            mig.parse_profiles(profiles)


def test_layouts_of_the_user_guide():
    """Those without 1g.10gb are the ones of NVIDIA's table for A100 that cannot grow."""
    assert {layout for layout in layouts_of(A100) if "1g.10gb" not in layout} == {
        ("7g.40gb",),
        ("4g.20gb", "3g.20gb"),
        ("4g.20gb", "2g.10gb", "1g.5gb"),
        ("4g.20gb", "1g.5gb", "1g.5gb", "1g.5gb"),
        ("3g.20gb", "3g.20gb"),
        ("3g.20gb", "2g.10gb", "2g.10gb"),
        ("3g.20gb", "2g.10gb", "1g.5gb", "1g.5gb"),
        ("3g.20gb", "1g.5gb", "1g.5gb", "1g.5gb", "1g.5gb"),
        ("2g.10gb", "2g.10gb", "2g.10gb", "1g.5gb"),
        ("2g.10gb", "2g.10gb", "1g.5gb", "1g.5gb", "1g.5gb"),
        ("2g.10gb", "1g.5gb", "1g.5gb", "1g.5gb", "1g.5gb", "1g.5gb"),
        ("1g.5gb",) * 7,
    }
    assert layouts_of(A30) == {
        ("4g.24gb",),
        ("2g.12gb", "2g.12gb"),
        ("2g.12gb", "1g.6gb", "1g.6gb"),
        ("1g.6gb",) * 4,
    }


@pytest.mark.parametrize("slices", [pytest.param(A100, id="A100"), pytest.param(A30, id="A30")])
def test_instances_of_a_layout_do_not_overlap(slices):
    for layout in mig.layouts(slices):
        taken = [
            place
            for instance in layout
            for place in range(instance.start, instance.start + instance.profile.memory_slices)
        ]
        assert len(taken) == len(set(taken))
        assert max(taken) < (8 if slices is A100 else 4)
        assert sum(instance.profile.compute for instance in layout) <= layout[0].profile.of


@pytest.mark.parametrize(
    ("queue", "layout", "placed"),
    [
        pytest.param([need(1, 30, 0.9)], ("7g.40gb",), {1: "7g.40gb"}, id="one that needs the whole card"),
        pytest.param(
            [need(1, 15, 0.9), need(2, 15, 0.9)], ("4g.20gb", "3g.20gb"), {1: "4g.20gb", 2: "3g.20gb"}, id="two halves"
        ),
        pytest.param(
            [need(1, 60, 0.9), need(2, 15, 0.4)],
            ("7g.40gb",),
            {2: "7g.40gb"},
            id="one that fits nowhere is passed over",
        ),
    ],
)
def test_the_plan_has_the_highest_summed_speed(queue, layout, placed):
    found = mig.plan(queue, A100)
    assert mig.profile_names(found.layout) == layout
    assert {job_id: found.layout[place].profile.name for job_id, place in found.placed} == placed


def test_seven_small_jobs_run_at_once():
    found = mig.plan([need(job_id, 3, 0.14) for job_id in range(1, 8)], A100)
    assert (len(found.placed), found.speed) == (7, 7.0)
    assert {instance.profile.compute for instance in found.layout} == {1}


def test_idle_small_job_leaves_the_large_instance_to_others():
    found = mig.plan([need(1, 4, 0.05), need(2, 15, 0.9), need(3, 4, 0.05)], A100)
    kinds = {job_id: found.layout[place].profile.name for job_id, place in found.placed}
    assert (kinds[1][:2], kinds[2]) == ("1g", "4g.20gb")
    assert found.speed == pytest.approx(2 + 4 / 7 / 0.9)


@pytest.mark.parametrize(
    ("smact", "kind", "speed"),
    [(0.95, "3g.20gb", 0.51), (0.95, "2g.10gb", 0.30), (0.95, "1g.5gb", 0.16), (0.15, "2g.10gb", 0.90)],
)
def test_predicted_speed_is_near_what_miso_measured(smact, kind, speed):
    found = mig.predicted_speed(need(1, 1, smact), next(profile for profile in A100 if profile.name == kind))
    assert found == pytest.approx(speed, abs=0.11)


@given(st.lists(st.tuples(st.floats(0.1, 45), st.none() | st.floats(0, 1)), max_size=12))
def test_plans_give_each_instance_to_one_job_that_fits(jobs):
    queue = [need(number, gib, smact) for number, (gib, smact) in enumerate(jobs, 1)]
    found = mig.plan(queue, A100)
    needs = {demand.job_id: demand for demand in queue}
    assert len({place for _, place in found.placed}) == len(found.placed) == len({job for job, _ in found.placed})
    assert all(needs[job].bytes <= found.layout[place].profile.memory_bytes for job, place in found.placed)


def test_a_requested_layout_gets_placements():
    found = mig.layout_of(["1g.5gb", "3g.20gb"], A100)
    assert sorted(mig.profile_names(found)) == ["1g.5gb", "3g.20gb"]


def test_a_layout_that_does_not_fit_hints_at_a_similar_one():
    with pytest.raises(UsageError, match=r"do not fit on one GPU: 4g.20gb, 4g.20gb") as caught:
        mig.layout_of(["4g.20gb", "4g.20gb"], A100)
    assert caught.value.hint == "a similar layout: 4g.20gb, 3g.20gb"
    with pytest.raises(UnknownName, match=r"no MIG profile of this GPU named `5g\.20gb`"):
        mig.layout_of(["5g.20gb"], A100)


# Source: NVIDIA MIG user guide, "Supported MIG profiles": profiles of each product, and how many of each a GPU takes.
PUBLISHED = {
    "A30-24GB": {"1g.6gb": 4, "2g.12gb": 2, "4g.24gb": 1},
    "A100-40GB": {"1g.5gb": 7, "1g.10gb": 4, "2g.10gb": 3, "3g.20gb": 2, "4g.20gb": 1, "7g.40gb": 1},
    "A100-80GB": {"1g.10gb": 7, "1g.20gb": 4, "2g.20gb": 3, "3g.40gb": 2, "4g.40gb": 1, "7g.80gb": 1},
    "H100-80GB": {"1g.10gb": 7, "1g.20gb": 4, "2g.20gb": 3, "3g.40gb": 2, "4g.40gb": 1, "7g.80gb": 1},
    "H200-141GB": {"1g.18gb": 7, "1g.35gb": 4, "2g.35gb": 3, "3g.71gb": 2, "4g.71gb": 1, "7g.141gb": 1},
}

# The diagram of A100 on the same page, row by row in compute slices: a picture, written down by hand.
ROWS_OF_SEVEN = [
    [7],
    [4, 3],
    [4, 2, 1],
    [4, 1, 1, 1],
    [3, 3],
    [3, 2, 1],
    [3, 1, 1, 1],
    [2, 2, 3],
    [2, 1, 1, 3],
    [1, 1, 2, 3],
    [1, 1, 1, 1, 3],
    [2, 2, 2, 1],
    [2, 1, 1, 2, 1],
    [1, 1, 2, 2, 1],
    [2, 1, 1, 1, 1, 1],
    [1, 1, 2, 1, 1, 1],
    [1, 1, 1, 1, 2, 1],
    [2, 2, 1, 1, 1],
    [1, 1, 1, 1, 1, 1, 1],
]
ROWS_OF_FOUR = [[4], [2, 2], [2, 1, 1], [1, 1, 2], [1, 1, 1, 1]]


def published(product):
    return mig.parse_profiles([(name, int(name.partition(".")[2][:-2]) * GiB) for name in PUBLISHED[product]])


def row_texts(row, profiles):
    """The instances of a row, which are packed from the first place on; half of seven slices has four places."""
    plain = {profile.compute: profile for profile in sorted(profiles, key=lambda each: -each.memory_slices)}
    texts, place = [], 0
    for compute in row:
        profile = plain[compute]
        place = max(place, 4) if compute == 3 and place else place
        texts.append(f"{profile.name}:{place}")
        place += profile.memory_slices
    return texts


@pytest.mark.parametrize("product", PUBLISHED)
def test_every_row_of_the_user_guide_is_accepted(product):
    profiles = published(product)
    rows = ROWS_OF_FOUR if profiles[0].of == 4 else ROWS_OF_SEVEN
    for row in rows:
        texts = row_texts(row, profiles)
        layout = mig.parse_layout(texts, profiles)
        assert mig.layout_texts(layout) == tuple(texts)
        found = mig.layout_of([instance.profile.name for instance in layout], profiles)
        assert sorted(mig.profile_names(found)) == sorted(mig.profile_names(layout))


@pytest.mark.parametrize("product", PUBLISHED)
def test_a_gpu_takes_as_many_instances_of_a_profile_as_published_and_no_more(product):
    profiles = published(product)
    for name, count in PUBLISHED[product].items():
        assert len(mig.layout_of([name] * count, profiles)) == count
        with pytest.raises(UsageError, match="do not fit on one GPU"):
            mig.layout_of([name] * (count + 1), profiles)


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        pytest.param(["3g.20gb:2"], "`3g.20gb:2` starts at 2", id="not in the middle"),
        pytest.param(["4g.20gb:4"], "`4g.20gb:4` starts at 4", id="four slices only in the first half"),
        pytest.param(["2g.10gb:6"], "`2g.10gb:6` starts at 6", id="two slices not at the end"),
        pytest.param(["1g.5gb:7"], "`1g.5gb:7` starts at 7", id="the eighth place is memory only"),
        pytest.param(["3g.20gb:0", "1g.5gb:3"], "`1g.5gb:3` overlaps `3g.20gb:0`", id="a half takes four places"),
        pytest.param(["7g.40gb:0", "1g.5gb:6"], "`1g.5gb:6` overlaps `7g.40gb:0`", id="nothing beside the whole"),
        pytest.param(["1g.5gb"], "`1g.5gb` is no instance", id="no place"),
        pytest.param(["1g.5gb:-1"], "`1g.5gb:-1` is no instance", id="a place below 0"),
        pytest.param(["5g.20gb:0"], "no MIG profile of this GPU named `5g.20gb`", id="no such profile"),
    ],
)
def test_a_wrong_layout_is_refused(texts, message):
    with pytest.raises((UsageError, UnknownName)) as caught:
        mig.parse_layout(texts, A100)
    assert message in caught.value.message


def test_measured_speeds_replace_the_rule():
    demand = mig.MigDemand(job_id=1, bytes=GiB, smact=0.9, speeds={"3g.20gb": 0.8})
    speeds = {profile.name: mig.predicted_speed(demand, profile) for profile in A100}
    assert speeds["3g.20gb"] == 0.8
    assert speeds["4g.20gb"] == pytest.approx(4 / 7 / 0.9)


def test_jobs_of_a_queue_on_a_layout():
    layout = mig.parse_layout(["2g.10gb:0", "2g.10gb:2", "3g.20gb:4"], A100)
    found = mig.assignment([need(1, 15, 0.9), need(2, 15, 0.9), need(3, 4, 0.1)], layout)
    assert {job: layout[place].text for job, place in found.placed} == {1: "3g.20gb:4", 3: "2g.10gb:0"}
    assert found.speed == pytest.approx(3 / 7 / 0.9 + 1)
