"""What becomes of a job whose attempt runs out of memory in a simulation: the daemon's rules on what readings show."""

from __future__ import annotations

import pytest

from builders import a_job
from cotenant.core.placement import Placement
from cotenant.core.units import GiB
from cotenant.gpus.power_model import power_model
from cotenant.scheduling import recovery
from cotenant.sim import cluster
from cotenant.sim.engine.running_attempt import RunningAttempt, job_after_oom
from cotenant.sim.engine.sim_gpu import SimGpu


def an_attempt(gpu, job_id, promised, held, *, visible_s=0.0, uid=1000):
    place = Placement(job_id=job_id, gpu_uuids=(gpu.device.uuid,), sharing="time-sliced", promised_bytes=promised * GiB)
    attempt = RunningAttempt(job_id - 1, a_job(job_id, uid=uid), place, [gpu], 0.0)
    attempt.held_bytes, attempt.visible_s = held * GiB, visible_s
    gpu.residents.append(attempt)
    gpu.held_bytes += attempt.held_bytes
    return attempt


@pytest.mark.parametrize(
    ("promised", "visible_s", "uid", "forgiven", "first"),
    [
        pytest.param(8, 1.0, 2000, True, True, id="another user's overrun"),
        pytest.param(8, 1.0, 1000, True, False, id="the same user's overrun"),
        pytest.param(8, 60.0, 2000, False, False, id="no reading shows it yet"),
        pytest.param(32, 1.0, 2000, False, False, id="a neighbor within its promise"),
    ],
)
def test_an_attempt_is_forgiven_as_by_the_daemon(promised, visible_s, uid, forgiven, first):
    (slot,) = cluster.parse("1xA100-40GB").slots
    gpu = SimGpu(slot, power_model("A100-40GB"), record=False)
    an_attempt(gpu, 1, promised, 32, visible_s=visible_s, uid=uid)
    victim = an_attempt(gpu, 2, 20, 4)
    job = job_after_oom(victim, gpu, 8 * GiB, 30.0)
    assert [found.job_id for found in job.attempts[0].overruns] == ([1] if forgiven else [])
    assert recovery.is_forgiven(job.attempts[0]) == forgiven
    assert recovery.is_first(job) == first
    assert recovery.has_precedence(job)
    assert job.min_memory_bytes == 0, "it needed no more than it was promised"
