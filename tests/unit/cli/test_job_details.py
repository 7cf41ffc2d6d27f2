"""What `cotenant show` says of an attempt."""

from __future__ import annotations

import pytest

from cotenant.cli import job_details

USAGE = {"gpu_s": 3600.0, "mean_bytes": 2**30, "smact": 0.5, "energy_j": 36e5, "idle_energy_j": 9e5, "power_w": 1000.0}


@pytest.mark.parametrize(
    ("uuids", "note"),
    [
        pytest.param(["GPU-1", "GPU-2"], "", id="whole GPUs"),
        pytest.param(["MIG-1"], "; assumed from its MIG instance's share of the GPU's SMs", id="an instance"),
    ],
)
def test_energy_of_mig_instances_is_marked_as_assumed(uuids, note):
    fields = dict(job_details._usage_fields({"usage": USAGE, "co_runs": [], "gpu_uuids": uuids}))
    assert fields["energy"] == f"1.00 kWh, 1000 W on average, 25% of it idle power{note}"
