"""What `cotenant show` says of an attempt."""

from __future__ import annotations

import pytest

from cotenant.cli import show

USAGE = {"gpu_s": 3600.0, "mean_bytes": 2**30, "smact": 0.5, "energy_j": 36e5, "idle_energy_j": 9e5, "power_w": 1000.0}


@pytest.mark.parametrize(
    ("uuids", "note"),
    [
        pytest.param(["GPU-1", "GPU-2"], "", id="whole GPUs"),
        pytest.param(["MIG-1"], "; assumed, by its MIG instance's share of the card's SMs", id="an instance"),
    ],
)
def test_energy_that_is_assumed_is_called_so(uuids, note):
    told = dict(show._usage_fields({"usage": USAGE, "co_runs": [], "gpu_uuids": uuids}))
    assert told["energy"] == f"1.00 kWh, 1000 W in the mean, 25% of it for idling{note}"
