"""Who is charged with what: time, memory, SM activity and energy of attempts that share a GPU."""

from __future__ import annotations

import json
import math

import pytest

from builders import a_job
from cotenant.core.events import AttemptSample
from cotenant.core.gpu import GpuProcess, GpuSample
from cotenant.scheduling.telemetry.usage import UsageMeter

JOBS = {job_id: a_job(job_id, command=("python", f"{job_id}.py")) for job_id in (1, 2, 3)}
NAN = math.nan


class MeteredGpu:
    """One GPU, read by a meter; times in seconds, power in W."""

    def __init__(self, *watched, alone=None, pace=1.0, stale_after_s=5.0):
        self.meter = UsageMeter(stale_after_s=stale_after_s, pace=pace, smact_of=lambda job: (alone or {}).get(job.id))
        for job_id in watched or (1, 2, 3):
            self.meter.watch((job_id, 1))

    def read(self, at_s, who=(), *, placed=(), sm=None, foreign=False, foreign_sm=None, **sample):
        """A reading with the jobs `who` there, 100 bytes each, and the SM shares that the driver reports."""
        sm = sm or {}
        present = [
            AttemptSample(job_id=job_id, attempt=1, gpu_uuid="GPU-0", used_bytes=100, sm=sm.get(job_id))
            for job_id in who
        ]
        processes = [GpuProcess(pid=job_id, used_bytes=100, sm=sm.get(job_id)) for job_id in who]
        processes += [GpuProcess(pid=99, used_bytes=9, sm=foreign_sm)] if foreign else []
        reading = GpuSample(at_s=at_s, used_bytes=0, processes=tuple(processes), **sample)
        keys = [(job_id, 1) for job_id in placed]
        self.meter.note("GPU-0", reading, present, JOBS, has_foreign=foreign, placed=keys)

    def energy(self, *jobs):
        return tuple(None if (u := self.meter.usage((job, 1))) is None else round(u.energy_j, 6) for job in jobs)


def test_a_lone_job_is_charged_all_time_and_energy():
    gpu = MeteredGpu()
    gpu.read(0.0, power_w=50.0, energy_j=1000.0)
    gpu.read(1.0, (1,), power_w=200.0, energy_j=1300.0, smact=0.4)
    gpu.read(3.0, (1,), power_w=200.0, energy_j=1700.0, smact=0.4)
    usage = gpu.meter.usage((1, 1))
    assert (usage.gpu_s, usage.gpu_share_s, usage.byte_s, usage.metered_s) == (3.0, 3.0, 300.0, 3.0)
    assert (usage.energy_j, usage.idle_energy_j) == (700.0, 150.0), "50 W for 3 s is what it draws without work"
    assert usage.power_w == pytest.approx(700 / 3)
    assert usage.smact == pytest.approx(0.4)
    assert usage.mean_bytes == 100.0


@pytest.mark.parametrize(
    ("reported", "alone", "shares", "smacts"),
    [
        pytest.param({1: 0.6, 2: 0.2}, {}, (0.75, 0.25), (0.6, 0.2), id="as the driver tells of the processes"),
        pytest.param({1: 0.6}, {1: 0.3, 2: 0.1}, (0.75, 0.25), (0.6, 0.2), id="by what is known of each alone"),
        pytest.param({1: 0.6}, {1: 0.3}, (0.5, 0.5), (None, None), id="equal where one is not known"),
        pytest.param({1: NAN, 2: 0.2}, {}, (0.5, 0.5), (None, None), id="not a number"),
        pytest.param({1: 0.0, 2: 0.0}, {}, (0.5, 0.5), (None, None), id="nobody did, says the driver: who then"),
    ],
)
def test_dynamic_energy_is_charged_by_sm_share_and_idle_energy_equally(reported, alone, shares, smacts):
    gpu = MeteredGpu(alone=alone)
    gpu.read(0.0, power_w=40.0, energy_j=0.0)
    gpu.read(2.0, (1, 2), sm=reported, power_w=240.0, energy_j=480.0, smact=0.8)
    usages = [gpu.meter.usage((job_id, 1)) for job_id in (1, 2)]
    assert [usage.idle_energy_j for usage in usages] == [40.0, 40.0], "40 W for 2 s, half each"
    assert [usage.energy_j for usage in usages] == pytest.approx([40.0 + 400.0 * share for share in shares])
    assert [usage.smact and round(usage.smact, 6) for usage in usages] == list(smacts)
    assert [usage.gpu_share_s for usage in usages] == [1.0, 1.0]


def test_energy_of_foreign_processes_is_charged_to_no_job():
    gpu = MeteredGpu()
    gpu.read(0.0, power_w=40.0, energy_j=0.0)
    gpu.read(1.0, (1,), sm={1: 0.3}, foreign=True, foreign_sm=0.1, power_w=240.0, energy_j=240.0)
    assert gpu.energy(1) == (20.0 + 0.75 * 200.0,)
    gpu.read(2.0, (1,), sm={1: 0.3}, foreign=True, foreign_sm=None, power_w=240.0, energy_j=480.0)
    assert gpu.energy(1) == (20.0 + 0.75 * 200.0 + 120.0,), "SM share of the foreign process unknown: half"


@pytest.mark.parametrize(
    ("first", "second", "spent"),
    [
        pytest.param((100.0, 50.0), (300.0, 50.0), 200.0, id="the counter"),
        pytest.param((300.0, 50.0), (100.0, 70.0), 120.0, id="a counter that went back: power"),
        pytest.param((None, 50.0), (None, 70.0), 120.0, id="no counter: power"),
        pytest.param((None, None), (9.0, 70.0), 140.0, id="one power"),
        pytest.param((100.0, None), (1e9, None), 0.0, id="a counter gone mad"),
        pytest.param((NAN, NAN), (NAN, -1.0), 0.0, id="nothing that is a number"),
        pytest.param((NAN, 50.0), (300.0, 70.0), 120.0, id="a counter that begins late: power"),
    ],
)
def test_energy_comes_from_the_counter_or_else_from_power(first, second, spent):
    gpu = MeteredGpu()
    gpu.read(0.0, (1,), energy_j=first[0], power_w=first[1])
    gpu.read(2.0, (1,), energy_j=second[0], power_w=second[1])
    usage = gpu.meter.usage((1, 1))
    assert usage.energy_j == spent
    assert usage.gpu_s == 2.0
    assert usage.metered_s == (2.0 if spent else 0.0), "what is not known is not nothing"
    assert (usage.power_w is None) == (spent == 0.0)


@pytest.mark.parametrize(
    ("before", "after", "charged", "seconds"),
    [
        pytest.param((1, 2), (1, 2), (300.0, 300.0), (600.0, 600.0), id="nobody came or went"),
        pytest.param((1, 2), (1,), (0.0, None), (600.0, None), id="one went, nobody knows when"),
        pytest.param((1,), (1, 2), (0.0, None), (600.0, None), id="one came, nobody knows when"),
    ],
)
def test_energy_over_a_gap_is_charged_only_if_the_same_jobs_were_there(before, after, charged, seconds):
    gpu = MeteredGpu()
    gpu.read(0.0, before, energy_j=0.0, power_w=1.0)
    gpu.read(600.0, after, energy_j=600.0, power_w=1.0)
    assert gpu.energy(1, 2) == charged
    assert tuple((u := gpu.meter.usage((job_id, 1))) and u.gpu_s for job_id in (1, 2)) == seconds


def test_energy_over_a_gap_without_a_counter_is_unknown():
    gpu = MeteredGpu()
    gpu.read(0.0, (1,), power_w=100.0)
    gpu.read(600.0, (1,), power_w=100.0)
    usage = gpu.meter.usage((1, 1))
    assert (usage.gpu_s, usage.energy_j, usage.metered_s) == (600.0, 0.0, 0.0)


def test_late_and_duplicate_samples_change_nothing():
    gpu = MeteredGpu()
    for at_s, joules in ((0.0, 0.0), (1.0, 100.0), (1.0, 100.0)):
        gpu.read(at_s, (1,), energy_j=joules)
    assert gpu.energy(1) == (100.0,)


def test_only_watched_attempts_have_usage_until_forgotten():
    gpu = MeteredGpu(1)
    gpu.read(0.0, (1, 2), energy_j=0.0)
    gpu.read(1.0, (1, 2), energy_j=100.0)
    assert gpu.energy(1, 2) == (50.0, None)
    gpu.meter.forget((1, 1))
    assert gpu.meter.usage((1, 1)) is None


def test_usage_runs_on_the_clock_of_the_simulated_server():
    gpu = MeteredGpu(pace=60.0)
    gpu.read(0.0, (1,), energy_j=0.0, power_w=100.0)
    gpu.read(1.0, (1,), energy_j=6000.0, power_w=100.0)
    usage = gpu.meter.usage((1, 1))
    assert (usage.gpu_s, usage.energy_j, usage.power_w) == (60.0, 6000.0, 100.0)


def test_state_survives_a_restart_and_the_energy_counter_covers_the_downtime():
    first = MeteredGpu(1, 2)
    first.read(0.0, power_w=50.0, energy_j=0.0)
    first.read(1.0, (1, 2), energy_j=100.0)
    second = MeteredGpu(1)
    second.meter.restore(json.loads(json.dumps(first.meter.state())))
    assert second.meter.usage((1, 1)) == first.meter.usage((1, 1))
    assert second.meter.usage((2, 1)) is None, "it is over"
    second.read(101.0, (1,), energy_j=5100.0)
    assert second.energy(1) == (50.0,), "who ended meanwhile had a part of it"
    second.read(201.0, (1,), energy_j=20100.0)
    usage = second.meter.usage((1, 1))
    assert (usage.energy_j, usage.idle_energy_j) == (15050.0, 25.0 + 5000.0)


@pytest.mark.parametrize("state", [{}, {"usage": [[1, 1, [0.0]]], "last": {}, "idle_w": {}}, {"usage": 3}])
def test_a_malformed_state_changes_nothing(state):
    gpu = MeteredGpu(1)
    with pytest.raises((ValueError, TypeError, KeyError)):
        gpu.meter.restore(state)
    assert gpu.meter.usage((1, 1)) is None


def test_charges_of_all_jobs_add_up_to_the_energy_of_the_gpu():
    gpu = MeteredGpu()
    gpu.read(0.0, power_w=50.0, energy_j=0.0)
    joules = 0.0
    for second, who in enumerate([(1,), (1, 2), (1, 2, 3), (2, 3), (3,)] * 4, start=1):
        joules += 40.0 + 20.0 * len(who)
        gpu.read(float(second), who, sm={job_id: 0.1 * job_id for job_id in who}, energy_j=joules, smact=0.5)
    usages = [gpu.meter.usage((job_id, 1)) for job_id in (1, 2, 3)]
    assert sum(usage.energy_j for usage in usages) == pytest.approx(joules)
    assert sum(usage.gpu_share_s for usage in usages) == pytest.approx(20.0)
    assert sum(usage.sm_s for usage in usages) == pytest.approx(10.0)


def test_an_attempt_that_holds_no_memory_is_charged_the_gpu_that_it_keeps():
    gpu = MeteredGpu()
    gpu.read(0.0, power_w=40.0, energy_j=0.0)
    gpu.read(2.0, placed=(1,), power_w=40.0, energy_j=80.0, smact=0.0)
    gpu.read(3.0, (2,), placed=(1, 2), power_w=240.0, energy_j=320.0, smact=0.5)
    first, second = (gpu.meter.usage((job_id, 1)) for job_id in (1, 2))
    assert (first.gpu_s, first.gpu_share_s, first.byte_s) == (3.0, 2.5, 0.0)
    assert (first.energy_j, first.idle_energy_j) == (100.0, 100.0), "40 W for 2 s, then half of them for 1 s"
    assert (first.mean_bytes, first.smact) == (None, None), "of what it never did there is no mean"
    assert (second.gpu_s, second.gpu_share_s, second.energy_j, second.smact) == (1.0, 0.5, 220.0, 0.5)


def test_idle_power_is_known_from_a_gpu_that_is_reserved_and_not_used():
    gpu = MeteredGpu()
    gpu.read(0.0, placed=(1,), power_w=40.0, energy_j=0.0)
    gpu.read(1.0, placed=(1,), power_w=60.0, energy_j=60.0)
    assert gpu.energy(1) == (40.0,), "what it draws beyond that is of no attempt"
