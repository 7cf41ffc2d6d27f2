"""Advice from the run of a job: when it is given, and what it says."""

from __future__ import annotations

from dataclasses import replace

import pytest

from builders import a_job
from cotenant.core.job import Attempt, CoRun, ResourceUsage
from cotenant.core.placement import Placement
from cotenant.core.units import GiB
from cotenant.scheduling.advice import advice_for

A100 = {"1g.5gb": (int(4.75 * GiB), 14 / 108), "2g.10gb": (int(9.75 * GiB), 28 / 108), "7g.40gb": (39 * GiB, 0.9)}


def ended(
    peak_gib=0.0, *, declared_gib=None, smact=None, run_s=600.0, sharing="time-sliced", exclusive=False, co_runs=()
):
    job = a_job(1, 8)
    declared = None if declared_gib is None else int(declared_gib * GiB)
    usage = None if smact is None else ResourceUsage(gpu_s=run_s, sm_s=smact * run_s, sm_known_s=run_s)
    attempt = Attempt(
        number=1,
        placement=Placement(job_id=1, gpu_uuids=("GPU-0",), sharing=sharing, promised_bytes=8 * GiB),
        placed_at_s=0.0,
        started_at_s=0.0,
        ended_at_s=run_s,
        peak_observed_bytes={"GPU-0": int(peak_gib * GiB)} if peak_gib else {},
        usage=usage,
        co_runs=co_runs,
    )
    return replace(job, spec=replace(job.spec, declared_bytes=declared, exclusive=exclusive), attempts=(attempt,))


@pytest.mark.parametrize(
    ("run", "sentences"),
    [
        pytest.param(
            ended(1.44, declared_gib=24),
            ("held 6% of the 24.0 GiB it declared: `--gpu-mem 2G` leaves the rest to others",),
            id="declared too much",
        ),
        pytest.param(ended(12, declared_gib=24), (), id="declared twice as much"),
        pytest.param(ended(1.44), (), id="declared nothing"),
        pytest.param(
            ended(3, smact=0.10),
            ("would fit a 1g.5gb instance (4.8 GiB): it held 3.0 GiB and kept 10% of the SMs active",),
            id="small instance",
        ),
        pytest.param(
            ended(3, smact=0.20),
            ("would fit a 2g.10gb instance (9.8 GiB): it held 3.0 GiB and kept 20% of the SMs active",),
            id="as many SMs as it needs",
        ),
        pytest.param(ended(4.5, smact=0.95), (), id="no instance with its SMs"),
        pytest.param(ended(3, smact=0.6), (), id="only the instance that is the whole GPU"),
        pytest.param(ended(3), (), id="activity not known"),
        pytest.param(
            ended(smact=0.12, exclusive=True, sharing="exclusive"),
            ("had its GPU to itself and kept 12% of the SMs active: without `--exclusive` it could share",),
            id="alone for nothing",
        ),
        pytest.param(ended(smact=0.6, exclusive=True, sharing="exclusive"), (), id="alone and busy"),
        pytest.param(ended(1, declared_gib=24, run_s=59.0), (), id="too short to say"),
    ],
)
def test_sentences(run, sentences):
    assert advice_for(run, instances=A100) == sentences


def test_neighbors_that_it_bore_well_and_badly():
    co_runs = (
        CoRun(neighbor_ids=(7,), seconds=300.0, slowdown=1.04),
        CoRun(neighbor_ids=(8,), seconds=100.0, slowdown=1.01),
        CoRun(neighbor_ids=(9, 10), seconds=120.0, slowdown=1.83),
        CoRun(neighbor_ids=(11,), seconds=59.0, slowdown=3.0),
        CoRun(neighbor_ids=(), seconds=900.0, slowdown=1.0),
    )
    job = ended(co_runs=co_runs)
    assert advice_for(job, instances={}) == (
        "shared well with job 7: slowed 1.04 times in 5m00s",
        "was slowed 1.83 times beside job 9, job 10: `--max-slowdown` would prevent that",
    )
    hidden = advice_for(job, instances={}, name_of=lambda job_id: "job 9" if job_id == 9 else None)
    assert hidden[0].startswith("shared well with jobs of others")
    assert "beside job 9:" in hidden[1]


def test_a_job_that_never_ran_gets_none():
    assert advice_for(a_job(1, 8), instances=A100) == ()
    running = ended(1, declared_gib=24)
    unfinished = replace(running, attempts=(replace(running.attempts[0], ended_at_s=None),))
    assert advice_for(unfinished, instances=A100) == ()
