"""What the driver says of a job, over a driver that does not exist."""

from __future__ import annotations

import sys

import pytest

from cotenant.core.gpu import Gpu, GpuProcess, GpuSample
from cotenant.gpus.gpu_sampler import GpuSampler, open_sampler
from fake_pynvml import MIB, FakeDriver, FakeGpu


class Readings:
    """A backend that gives what it was told to, in order."""

    name = "readings"

    def __init__(self, *samples):
        self.samples = list(samples)

    def inventory(self):
        return ()

    def sample(self, at_s):
        sample = self.samples.pop(0) if self.samples else None
        return {} if sample is None else {"GPU-0": sample}

    def close(self):
        pass


def a_sample(at_s, used, processes=(), **more):
    held = tuple(GpuProcess(pid=pid, used_bytes=size) for pid, size in processes)
    return GpuSample(at_s=at_s, used_bytes=used, processes=held, **more)


def a_watch(*samples):
    gpu = Gpu(uuid="GPU-0", index=0, name="NVIDIA H200", memory_total_bytes=1000)
    watch = GpuSampler(Readings(*samples), gpu, every_s=3600)
    watch.start()
    return watch


def test_processes_of_the_job_and_the_device_above_idle():
    watch = a_watch(a_sample(0, 50), a_sample(1, 250, [(7, 100), (8, 60), (9, 40)]), a_sample(2, 150, [(7, 90)]))
    watch.read()
    end = watch.read()
    watch.stop()
    usage = watch.usage({7, 8}, end, None)
    assert (usage.peak_process_bytes, usage.end_process_bytes) == (160, 90)
    assert (usage.peak_device_bytes, usage.end_device_bytes) == (200, 100)
    assert usage.samples == 2


def test_activity_counts_only_within_the_timed_steps():
    watch = a_watch(
        a_sample(0, 0),
        a_sample(1, 0, smact=0.1, power_w=100.0, energy_j=10.0),
        a_sample(2, 0, smact=0.8, smocc=0.5, drama=0.2, power_w=500.0, energy_j=20.0),
        a_sample(3, 0, smact=0.6, smocc=0.3, drama=0.4, power_w=300.0, energy_j=50.0),
    )
    for _ in range(3):
        watch.read()
    watch.stop()
    usage = watch.usage({1}, None, (1.5, 3.5))
    assert (usage.smact, usage.smocc, usage.drama) == pytest.approx((0.7, 0.4, 0.3))
    assert (usage.power_w, usage.energy_j) == (400.0, 30.0)


def test_a_driver_that_fails_is_a_missing_sample(monkeypatch):
    watch = a_watch(a_sample(0, 10), a_sample(1, 30))
    with monkeypatch.context() as patch:
        patch.setattr(Readings, "sample", lambda self, at_s: 1 / 0)
        assert watch.read() is None
    assert watch.read().used_bytes == 30
    watch.stop()
    assert watch.usage({1}, None, None).peak_device_bytes == 20


def test_values_that_the_driver_does_not_report_are_none():
    watch = a_watch(a_sample(0, None), a_sample(1, None, [(7, None)]))
    end = watch.read()
    watch.stop()
    usage = watch.usage({7}, end, (0, 9))
    assert (usage.peak_process_bytes, usage.peak_device_bytes, usage.smact, usage.energy_j) == (None,) * 4


def test_a_second_start_clears_the_samples_of_the_first_job():
    watch = a_watch(a_sample(0, 0), a_sample(1, 900), a_sample(2, 10), a_sample(3, 30))
    watch.read()
    watch.stop()
    watch.start()
    watch.read()
    watch.stop()
    assert watch.usage({1}, None, None).peak_device_bytes == 20


def test_the_first_gpu_of_the_driver(monkeypatch):
    driver = FakeDriver(FakeGpu(uuid="GPU-a", free_bytes=81559 * MIB - 5 * MIB, processes=[(7, 3 * MIB)]))
    monkeypatch.setitem(sys.modules, "pynvml", driver)
    watch, reason = open_sampler()
    assert reason == ""
    sample = watch.read()
    assert (watch.gpu.uuid, sample.used_bytes) == ("GPU-a", 5 * MIB)


@pytest.mark.parametrize(
    ("visible", "uuid"), [(None, "GPU-a1"), ("", "GPU-a1"), ("1", "GPU-b2"), ("GPU-b", "GPU-b2"), ("1,0", "GPU-b2")]
)
def test_one_of_several_gpus_is_sampled_and_named(monkeypatch, visible, uuid):
    driver = FakeDriver(FakeGpu(uuid="GPU-a1"), FakeGpu(uuid="GPU-b2"))
    monkeypatch.setitem(sys.modules, "pynvml", driver)
    watch, _ = open_sampler(visible)
    assert (watch.gpu.uuid, watch.visible) == (uuid, uuid)


def test_cuda_visible_devices_of_a_hidden_or_single_gpu(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", FakeDriver(FakeGpu(uuid="GPU-a1")))
    assert open_sampler("7") == (None, "the driver lists no GPU `7`")
    assert open_sampler()[0].visible is None


def test_without_a_driver_there_is_no_sampler_but_a_reason(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", FakeDriver(no_driver=True))
    watch, reason = open_sampler()
    assert watch is None
    assert "NVML does not start" in reason
