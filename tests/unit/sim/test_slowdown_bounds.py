"""Slowdown bounds on a server that is always full."""

from __future__ import annotations

from cotenant.scheduling.prediction import bound_calibration
from cotenant.sim import cluster, traces
from cotenant.sim.metrics import metrics_of
from cotenant.sim.simulate import simulate
from cotenant.sim.traces import transforms


def within_bound(trace):
    return metrics_of(simulate(trace, cluster.parse("8xA100-40GB"), "marginal-gain")).within_bound


def test_more_jobs_keep_their_bound_where_the_policy_learns_from_those_that_missed_it(monkeypatch):
    trace = transforms.assign(transforms.window(traces.load("philly"), 600), seed=0)
    learning = within_bound(trace)
    monkeypatch.setattr(bound_calibration, "RATE", 0.0)
    assert learning > within_bound(trace) + 0.1
