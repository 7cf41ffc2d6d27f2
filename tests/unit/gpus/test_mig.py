"""Layouts of MIG instances: what a card allows, what serves a queue, and the commands that make one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cotenant.core.errors import BackendError, UnknownName, UsageError
from cotenant.core.units import GiB
from cotenant.gpu_specs import gpu_spec
from cotenant.gpus import mig

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
    with pytest.raises(UsageError, match="has no MIG profiles"):
        mig.parse_profiles([])


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


def test_placements_are_given_to_the_driver():
    """Put at place 0, the large one would leave room for three small ones only."""
    layout = mig.layout_of(["3g.20gb", *["1g.5gb"] * 4], A100)
    assert mig.commands(2, layout, had_instances=True) == [
        ["nvidia-smi", "mig", "-i", "2", "-dci"],
        ["nvidia-smi", "mig", "-i", "2", "-dgi"],
        ["nvidia-smi", "mig", "-i", "2", "-cgi", "3g.20gb:4,1g.5gb:0,1g.5gb:1,1g.5gb:2,1g.5gb:3", "-C"],
    ]
    assert len(mig.commands(2, layout, had_instances=False)) == 1


@pytest.fixture
def smi(tmp_path, monkeypatch):
    """An `nvidia-smi` that notes its arguments and ends as `code` says; gives the path of the notes."""

    def make(script="exit 0"):
        program = tmp_path / "nvidia-smi"
        program.write_text(f'#!/bin/sh\necho "$*" >> {tmp_path}/notes\n{script}\n')
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
        return tmp_path / "notes"

    return make


def test_apply_runs_the_commands_in_order(smi):
    notes = smi("echo Successfully created")
    commands = mig.apply(0, mig.layout_of(["7g.40gb"], A100), had_instances=True)
    assert notes.read_text().splitlines() == ["mig -i 0 -dci", "mig -i 0 -dgi", "mig -i 0 -cgi 7g.40gb:0 -C"]
    assert commands == ["Successfully created"] * 3


def test_apply_stops_at_the_first_failure(smi):
    notes = smi('case "$*" in *-dgi) echo "In use by another client" >&2; exit 19;; esac')
    with pytest.raises(BackendError, match=r"-dgi` failed: In use by another client; 1 commands succeeded before"):
        mig.apply(0, mig.layout_of(["7g.40gb"], A100), had_instances=True)
    assert len(notes.read_text().splitlines()) == 2


def test_apply_without_nvidia_smi_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(BackendError, match="does not work"):
        mig.apply(0, mig.layout_of(["7g.40gb"], A100), had_instances=False)
