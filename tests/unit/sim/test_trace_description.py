"""What `simulate --describe` says of a trace."""

from __future__ import annotations

import json

import pytest

from cotenant.cli.main import main
from cotenant.sim.trace import JobProfile, Trace, TraceJob
from cotenant.sim.trace_description import describe

PROFILE = JobProfile(workload="w", first_peak_bytes=2**30, peak_bytes=2 * 2**30, smact=0.25)


def a_trace():
    """Three jobs: one GPU for an hour, four for 30 minutes, one for an hour, submitted at 0, 10 and 120 minutes."""
    jobs = ((0, 60, 1), (10, 30, 4), (120, 60, 1))
    return Trace(
        "three", [TraceJob(submit_s=60.0 * a, duration_s=60.0 * b, gpus=n, profile=PROFILE) for a, b, n in jobs]
    )


def test_every_measure():
    found = describe(a_trace())
    named = {one.name: one for one in found.distributions}
    assert (found.jobs, found.span_s, found.gpu_s, found.failed) == (3, 7200.0, 4 * 3600.0, 0.0)
    assert named["inter-arrival time"].mean == 3600.0
    assert (named["jobs submitted in an hour"].count, named["jobs submitted in an hour"].most) == (3, 2)
    assert (named["run time"].quantiles[2], named["run time"].most) == (3600.0, 3600.0)
    # 1 GPU for 10 minutes, 5 for 30, 1 for 20, none for 60, 1 for 60.
    demand = named["GPUs in demand"]
    assert demand.mean == pytest.approx((10 + 150 + 20 + 60) / 180)
    assert (demand.quantiles, demand.most) == ((0.0, 0.0, 1.0, 1.0, 5.0, 5.0), 5.0)
    assert (named["SM activity of a job alone"].mean, named["peak memory on each GPU"].most) == (0.25, 2.0)
    assert "DRAM activity of a job alone" not in named


def test_shares_of_jobs_and_of_gpu_time():
    assert [(size.text, round(size.jobs, 3), size.gpu_time) for size in describe(a_trace()).sizes] == [
        ("1", 0.667, 0.5),
        ("3 to 4", 0.333, 0.5),
    ]


def test_the_verb_prints_a_table_and_json(capsys):
    assert main(["simulate", "--describe", "t1"]) == 0
    out = capsys.readouterr().out
    assert "MEASURE" in out
    assert "GPUs in demand" in out
    assert main(["simulate", "--describe", "t1", "--head", "10", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["jobs"] == 10
    assert sum(size["gpu_time"] for size in answer["sizes"]) == pytest.approx(1.0)
