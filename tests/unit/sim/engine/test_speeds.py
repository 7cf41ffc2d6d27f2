"""Load of a GPU from the activities and speeds of its jobs."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from cotenant.sim.engine import speeds
from cotenant.sim.engine.speeds import busy_share, gpu_load
from cotenant.sim.interference import TrueActivity


@pytest.mark.parametrize(
    ("activities", "part"),
    [
        pytest.param([], 0.0, id="empty"),
        pytest.param([None], 0.0, id="unknown"),
        pytest.param([TrueActivity(None, 0.5, utilization=0.75)], 0.75, id="measured utilization"),
        pytest.param([TrueActivity(None, 0.25)], 0.5, id="root of SM activity"),
        pytest.param([TrueActivity(None, 0.5, utilization=0.75)] * 2, 0.9375, id="two, independent"),
    ],
)
def test_a_gpu_is_busy_unless_all_its_jobs_are_idle(activities, part):
    assert busy_share(activities) == pytest.approx(part)


def test_activities_add_up_at_the_speeds_of_their_jobs_up_to_one():
    busy, quiet = TrueActivity("a", 0.8, smocc=0.4), TrueActivity("b", 0.4, smocc=0.2, drama=0.5)
    load = gpu_load([busy, None, quiet], (0.5, 1.0, 0.75))
    assert (load.smact, load.smocc, load.drama) == pytest.approx((0.7, 0.35, 0.375))
    assert gpu_load([busy, busy], (1.0, 1.0)).smact == 1.0


def test_a_gang_runs_at_its_own_speed_on_the_slowest_of_its_gpus():
    gang = SimpleNamespace(gpus=[], network_factor=0.5)
    neighbor = object()
    gang.gpus += [
        SimpleNamespace(load=speeds.GpuLoad(speeds=(1.0,)), active=[gang]),
        SimpleNamespace(load=speeds.GpuLoad(speeds=(0.4, 0.8)), active=[neighbor, gang]),
        SimpleNamespace(load=speeds.GpuLoad(speeds=(0.9, 0.3)), active=[gang, neighbor]),
    ]
    assert speeds._slowest(gang) == pytest.approx(0.4)  # half of 0.8
