"""How fast kinds of GPU are beside each other, and what a world charges for it."""

from __future__ import annotations

import csv
import math

import pytest

from cotenant.core.errors import UnknownName, UsageError
from cotenant.core.units import GiB
from cotenant.sim import cluster, gpu_speeds
from cotenant.sim.engine.config import SimulationConfig
from cotenant.sim.limits.bounds import makespan_bound
from cotenant.sim.metrics import metrics_of
from cotenant.sim.simulate import simulate
from cotenant.sim.trace import JobProfile, Trace, TraceJob
from shared_data import SHARED_DATA

GAVEL = SHARED_DATA / "traces" / "gavel_isolated.csv"


def a_trace(*jobs, workload="w"):
    """Jobs as (submit, duration, GPUs); all do the same."""
    profile = JobProfile(workload=workload, first_peak_bytes=GiB, peak_bytes=GiB, smact=0.5)
    return Trace("made", [TraceJob(submit_s=at, duration_s=run, gpus=gpus, profile=profile) for at, run, gpus in jobs])


def run_on(gpus, trace, *, reference_gpu=None, policy="exclusive", **config):
    quick = SimulationConfig(delay_median_s=0.0, delay_p95_s=0.0, reference_gpu=reference_gpu, **config)
    return simulate(trace, cluster.parse(gpus), policy, config=quick)


@pytest.mark.parametrize(
    ("gpu_type", "reference_gpu", "workload", "low", "high"),
    [
        pytest.param("V100-32GB", "V100-16GB", None, 1.0, 1.0, id="the same kind"),
        pytest.param("K80-12GB", "V100-16GB", None, 0.2, 0.3, id="the median of Gavel"),
        pytest.param("K80-12GB", "V100-16GB", "ResNet-50|64", 0.05, 0.15, id="a workload that Gavel measured"),
        pytest.param("V100-16GB", "K80-12GB", "ResNet-50|64", 1 / 0.15, 1 / 0.05, id="the other way round"),
        pytest.param("RTX2080Ti-11GB", "A100-40GB", "resnet50_imagenet_bs64", 0.35, 0.36, id="measured by AEGIS"),
        pytest.param("V100-16GB", "A100-40GB", "resnet50_imagenet_bs64", 0.5, 0.6, id="not on this kind: the median"),
        pytest.param("A100-40GB/3g.20gb", "A100-40GB", None, 1.0, 1.0, id="an instance is slowed elsewhere"),
        pytest.param("T4-16GB", "V100-16GB", None, 1.0, 1.0, id="unknown type"),
        pytest.param("V100-16GB", "T4-16GB", None, 1.0, 1.0, id="unknown reference"),
    ],
)
def test_relative_speeds_of_gpu_types(gpu_type, reference_gpu, workload, low, high):
    assert low <= gpu_speeds.relative_speed(gpu_type, reference_gpu, workload) <= high


def test_every_workload_has_a_reference_gpu_type():
    known = gpu_speeds.speeds()
    for kind, table in known.items():
        assert 0 < table.median < math.inf, kind
        for name, speed in table.by_workload.items():
            assert 0 < speed < math.inf
            assert any(other.by_workload.get(name) == 1.0 for other in known.values()), (kind, name)


@pytest.mark.skipif(not GAVEL.is_file(), reason="the shared tables are not beside this checkout")
def test_the_table_agrees_with_gavels_measurements():
    steps = {
        (row["gpu"], f"{row['job']}|{row['batch']}"): float(row["steps_per_s"])
        for row in csv.DictReader(GAVEL.open())
        if row["n_gpus"] == "1"
    }
    for name, speed in gpu_speeds.speeds()["P100"].by_workload.items():
        assert speed == pytest.approx(steps["p100", name] / steps["v100", name], rel=1e-3)


def test_a_slower_gpu_type_is_no_co_run_slowdown():
    trace = a_trace((0.0, 100.0, 1), (0.0, 100.0, 1))
    found = run_on("1xV100-16GB,1xK80-12GB", trace)
    slower_s = 100.0 / gpu_speeds.relative_speed("K80-12GB", "V100-16GB")
    assert sorted(found.columns.end_s) == pytest.approx([100.0, slower_s])
    assert sorted(found.columns.alone_s) == pytest.approx([100.0, slower_s])
    assert metrics_of(found).slowdown_mean == pytest.approx(1.0)


def test_durations_may_refer_to_a_gpu_type_outside_the_cluster():
    trace = a_trace((0.0, 100.0, 1))
    found = run_on("1xA100-40GB", trace, reference_gpu="V100-16GB")
    assert found.columns.end_s[0] == pytest.approx(100.0 / gpu_speeds.relative_speed("A100-40GB", "V100-16GB"))
    assert found.columns.end_s[0] < 60.0
    assert run_on("1xA100-40GB", trace).columns.end_s[0] == 100.0


def test_a_gang_runs_at_the_speed_of_its_slowest_gpu_type():
    found = run_on("1xV100-16GB,1xK80-12GB", a_trace((0.0, 100.0, 2)))
    assert found.columns.end_s[0] == pytest.approx(100.0 / gpu_speeds.relative_speed("K80-12GB", "V100-16GB"))


class Halves:
    """Two on a GPU run at half speed each."""

    def speeds(self, members, gpu_type="A100-40GB", sharing="time-sliced"):
        return [1.0 / len(members)] * len(members)


def test_co_run_slowdown_and_activity_are_the_same_on_a_slower_gpu_type():
    trace = a_trace((0.0, 1000.0, 1), (0.0, 1000.0, 1))
    config = SimulationConfig(delay_median_s=0.0, delay_p95_s=0.0, reference_gpu="V100-16GB")
    pace = gpu_speeds.relative_speed("P100-16GB", "V100-16GB")
    options = {"warmup_s": 0.0, "smact_limit": 1.0}
    found = simulate(
        trace, cluster.parse("1xP100-16GB"), "round-robin", options=options, interference=Halves(), config=config
    )
    assert list(found.columns.end_s) == pytest.approx([2000.0 / pace] * 2, rel=0.01)
    assert found.totals[0].smact_s / found.totals[0].active_s == pytest.approx(0.5)
    assert metrics_of(found).slowdown_mean == pytest.approx(2.0, rel=0.01)


def test_checkpointed_work_keeps_its_value_on_another_gpu_type():
    faults = {"fault_every_s": 400.0, "repair_s": 10.0, "checkpoint_s": 1.0}
    trace = a_trace((0.0, 1000.0, 1))
    found = run_on("1xV100-16GB,1xP100-16GB", trace, **faults)
    slowest_s = 1000.0 / gpu_speeds.relative_speed("P100-16GB", "V100-16GB")
    assert found.columns.attempts[0] > 1
    assert 1000.0 <= found.columns.run_s[0] <= slowest_s + found.columns.attempts[0] * 2.0


def test_there_is_no_bound_if_durations_are_of_another_gpu_type():
    trace = a_trace((0.0, 100.0, 1))
    with pytest.raises(UsageError, match="run times of `V100-16GB`"):
        makespan_bound(trace, cluster.parse("1xA100-40GB"), config=SimulationConfig(reference_gpu="V100-16GB"))


@pytest.mark.parametrize(
    ("gpus", "reference_gpu", "expected"),
    [
        pytest.param("4xA100-40GB", None, None, id="one type"),
        pytest.param("4xA100-40GB,2xA100-80GB", None, None, id="two sizes of one family"),
        pytest.param("4xA100-40GB,2xV100-16GB", None, "refer to `A100-40GB`; on other types", id="known"),
        pytest.param("4xA100-40GB,2xT4-16GB", None, "relative speeds of T4-16GB are unknown", id="not known"),
        pytest.param("4xA100-40GB", "T4-16GB", "relative speeds of A100-40GB are unknown", id="unknown reference"),
    ],
)
def test_the_note_names_types_of_unknown_speed(gpus, reference_gpu, expected):
    found = gpu_speeds.note(cluster.parse(gpus), reference_gpu)
    assert found is None if expected is None else expected in found


def test_an_unknown_gpu_type_is_an_error():
    with pytest.raises(UnknownName, match="no GPU type named `V1OO`"):
        run_on("1xA100-40GB", a_trace((0.0, 100.0, 1)), reference_gpu="V1OO")
