"""What a GPU is taken for after somebody came, was seen, or left."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from builders import a_resident, a_snapshot
from cotenant.core.gpu import GpuSample
from cotenant.core.units import GiB
from cotenant.scheduling.placement.gpu_view import GpuView, NewResident


def a_view(*residents, smact=(0.1, 0.9)) -> GpuView:
    """A GPU read at 0 s, 10 s, ..."""
    samples = tuple(GpuSample(at_s=10.0 * second, used_bytes=0, smact=value) for second, value in enumerate(smact))
    return GpuView(replace(a_snapshot(residents=residents), samples=samples))


def test_activity_is_averaged_since_the_newest_resident_became_active():
    view = a_view(a_resident(8, job_id=1, first_active_at_s=0.0))
    assert view.smact == pytest.approx(0.5)
    view.take(NewResident(2, 8 * GiB, "time-sliced", 5.0))
    assert view.smact == pytest.approx(0.5)
    view.mark_active(2, 10.0)
    assert view.smact == pytest.approx(0.9)
    view.leave(2)
    assert view.smact == pytest.approx(0.5)


def test_activity_follows_the_newest_sample():
    view = a_view(smact=(0.1,))
    assert view.smact == 0.1
    view.refresh(a_view(smact=(0.7,)).snapshot)
    assert view.smact == 0.7


def test_activity_of_a_new_snapshot_with_the_same_samples_follows_the_residents():
    old, young = a_resident(8, job_id=1, first_active_at_s=0.0), a_resident(8, job_id=2, first_active_at_s=10.0)
    silent = a_resident(8, job_id=3)
    snapshot = a_view(old).snapshot
    view = GpuView(snapshot)
    found = []
    for residents in ((old,), (old, silent), (old, young), (silent, old)):
        view.refresh(replace(snapshot, residents=residents))
        found.append((view.smact, view.mean("smact")))
    assert found == [(pytest.approx(mean),) * 2 for mean in (0.5, 0.5, 0.9, 0.5)]
    view.refresh(replace(snapshot, residents=(old, young)))
    view.leave(2)
    view.refresh(replace(snapshot, residents=(old,)))
    assert view.smact == pytest.approx(0.5)


def test_removing_a_resident_frees_only_its_memory():
    view = a_view(*(a_resident(8, job_id=number) for number in (1, 2, 3)))
    view.leave(2)
    view.leave(7)
    assert ([resident.job_id for resident in view.residents], view.available_bytes) == ([1, 3], 24 * GiB)
    view.leave(1)
    view.leave(3)
    assert (view.residents, view.available_bytes, view.is_empty) == ((), 40 * GiB, True)


def test_a_gpu_is_shareable_again_after_its_exclusive_resident_left():
    view = a_view(a_resident(8, job_id=1), a_resident(8, job_id=2, sharing="exclusive"))
    assert view.is_exclusive
    view.leave(2)
    assert not view.is_exclusive


def smact_of(readings, *residents):
    samples = tuple(GpuSample(at_s=at_s, used_bytes=0, smact=smact) for at_s, smact in readings)
    return GpuView(replace(a_snapshot(residents=residents), samples=samples)).smact


def test_smact_is_the_mean_since_the_newest_resident_became_active():
    readings = [(70.0, 0.0), (80.0, 0.4), (90.0, None), (100.0, 0.8)]
    assert smact_of(readings) == pytest.approx(0.4)
    old, young = a_resident(1, first_active_at_s=10.0), a_resident(1, first_active_at_s=80.0)
    assert smact_of(readings, old, young) == pytest.approx(0.6)


def test_smact_is_unknown_if_the_newest_sample_lacks_it():
    assert smact_of([(90.0, 0.5), (100.0, None)]) is None
    assert smact_of([(90.0, 0.5), (100.0, math.nan)]) is None
    assert smact_of([]) is None
