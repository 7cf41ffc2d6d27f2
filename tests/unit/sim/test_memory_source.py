"""What a simulated scheduler is told of a job before it runs."""

from __future__ import annotations

import pytest

from cotenant.core.estimate import SmactInterval
from cotenant.core.units import GiB
from cotenant.sim.memory_source import JobFactory
from cotenant.sim.trace import JobProfile, Trace, TraceJob

PROFILE = JobProfile(
    workload="w",
    first_peak_bytes=8 * GiB,
    peak_bytes=8 * GiB,
    smact=0.7,
    reported_bytes={"cotenant": 9 * GiB, "horus": 5 * GiB},
    reported_smact=SmactInterval(0.4, 0.6, 0.7),
)


@pytest.mark.parametrize(
    ("estimator", "gib", "smact"),
    [
        pytest.param("cotenant", 9, 0.6, id="our estimate, not the truth"),
        pytest.param("oracle", 8, None, id="the true memory, and nothing else"),
        pytest.param("horus", 5, None, id="as published"),
    ],
)
def test_the_traced_estimate_includes_activity(estimator, gib, smact):
    estimate = JobFactory(Trace("t", [TraceJob(submit_s=0.0, duration_s=1.0, profile=PROFILE)]), estimator)(0).estimate
    assert (estimate.bound_bytes, estimate.smact) == (gib * GiB, smact)
    assert estimate.smact_interval == (None if smact is None else SmactInterval(0.4, 0.6, 0.7))
