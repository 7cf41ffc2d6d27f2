"""The shipped measurements are complete, in range, and those of their source."""

from __future__ import annotations

import csv

import pytest

from cotenant.core.errors import UnknownName
from cotenant.core.units import MiB
from cotenant.sim.workloads import A100_CONTEXT_BYTES, pair_speeds, workload, workloads
from shared_data import SHARED_DATA

SOURCE = SHARED_DATA / "carma/aegis"


def test_published_workloads_are_complete_and_in_range():
    assert len(workloads()) == 53
    for known in workloads().values():
        assert known.gpus in (1, 2)
        assert A100_CONTEXT_BYTES < known.first_peak_bytes <= known.peak_bytes < 40960 * MiB
        assert known.solo_s > 0
        for ratio in (known.smact, known.smocc, known.drama, known.utilization):
            assert 0 < ratio < 1


def test_pairs_name_known_workloads():
    assert {name for pair in pair_speeds() for name in pair} <= set(workloads())
    assert all(0.1 < speed < 1.3 for speed in pair_speeds().values())


def test_an_unknown_workload_is_refused():
    with pytest.raises(UnknownName, match="no workload named `unet`") as caught:
        workload("unet")
    assert caught.value.hint == "did you mean `unet_voc`?"


@pytest.mark.skipif(not SOURCE.is_dir(), reason="the public measurements are not beside this checkout")
def test_workloads_and_pairs_equal_the_published_tables():
    with (SOURCE / "workload_profiles_a100.csv").open() as file:
        for row in csv.DictReader(file):
            found = workload(row["spec"])
            assert found.first_peak_bytes == int(row["peak_mem_mib_200s"]) * MiB
            assert (found.smact, found.smocc) == (float(row["smact_mean"]), float(row["smocc_mean"]))
            assert not row["solo_runtime_s"] or found.solo_s == float(row["solo_runtime_s"])
    with (SOURCE / "pairwise_a100.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 218
    for row in rows:
        first, second = (row[key].replace("unet_voc_10e", "unet_voc") for key in ("spec_a", "spec_b"))
        if first != second:
            assert pair_speeds()[first, second] == pytest.approx(float(row["overlap_speed_a"]), abs=0.1)
            assert pair_speeds()[second, first] == pytest.approx(float(row["overlap_speed_b"]), abs=0.1)
