"""What `cotenant show` says of an attempt."""

from __future__ import annotations

import pytest

from cotenant.cli.jobs import job_details

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


@pytest.mark.parametrize(("estimator", "shown"), [("traced", True), ("declared", False)])
def test_what_was_declared_is_not_shown_as_an_estimate(estimator, shown):
    estimate = {
        "estimator": estimator,
        "version": "1",
        "gpu": "A100-40GB",
        "partial": False,
        "smact": None,
        "warnings": (),
        **dict.fromkeys(("bound_bytes", "peak_reserved_bytes", "context_bytes", "margin_bytes"), 2**30),
    }
    rest = dict.fromkeys(("estimate_error", "estimate_log_path", "min_memory_bytes", "exclusive_retry"))
    fields = dict(job_details._estimate_fields({"estimate": estimate, **rest}))
    assert ("estimate" in fields) == shown


def an_attempt(gpu, *, moved=True, saved=True, stopping_s=31.0, startup_s=None, why="room for job 3, +1.00 of speed"):
    return {
        "gpu_indices": [gpu],
        "gpu_uuids": [f"GPU-{gpu}"],
        "moved": moved,
        "saved": saved,
        "stopping_s": stopping_s,
        "startup_s": startup_s,
        "ended_at": "12:00",
        "exit": {"detail": f"moved: {why}"},
    }


@pytest.mark.parametrize(
    ("before", "after", "text"),
    [
        pytest.param(
            an_attempt(0),
            an_attempt(1, moved=False, startup_s=28.0),
            "12:00: GPU 0 -> GPU 1, 31s to save, 28s to start: room for job 3, +1.00 of speed",
            id="from, to, cost and why",
        ),
        pytest.param(
            an_attempt(0), None, "12:00: GPU 0 -> it waits, 31s to save: room for job 3, +1.00 of speed", id="it waits"
        ),
        pytest.param(
            an_attempt(0, saved=False, stopping_s=120.0),
            an_attempt(0, moved=False),
            "12:00: GPU 0 -> GPU 0, 2m00s to save, not saved: room for job 3, +1.00 of speed",
            id="not saved",
        ),
    ],
)
def test_a_move_is_shown_with_its_cost(before, after, text):
    assert job_details._move(before, after) == text
