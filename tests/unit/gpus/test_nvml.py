"""NVML's many ways of not telling, over a driver that does not exist."""

from __future__ import annotations

import sys

import pytest

from cotenant.core.errors import BackendError
from cotenant.gpus.nvml import NvmlBackend
from fake_pynvml import MIB, FakeDriver, FakeGpu


@pytest.fixture
def backend(monkeypatch):
    def make(*gpus):
        driver = FakeDriver(*gpus)
        monkeypatch.setitem(sys.modules, "pynvml", driver)
        return NvmlBackend(), driver

    return make


def sample_of(backend, uuid="GPU-a"):
    return backend.sample(1.0)[uuid]


def sm_of(backend):
    return {process.pid: process.sm for process in sample_of(backend).processes}


def test_sm_times_of_processes_are_since_the_last_sample(backend):
    gpu = FakeGpu(uuid="GPU-a", processes=[(7, MIB), (8, MIB), (9, None)], sm_samples=[(7, 1_000, 90)])
    nvml, _ = backend(gpu)
    assert sm_of(nvml) == {7: None, 8: None, 9: None}, "the first answer is about nobody knows when"
    gpu.sm_samples += [(7, 2_000, 40), (7, 3_000, 60), (8, 3_000, 10), (9, 3_000, 4_000_000)]
    assert sm_of(nvml) == {7: 0.5, 8: 0.1, 9: 0.0}, "a driver's nonsense is not believed"
    assert sm_of(nvml) == {7: 0.0, 8: 0.0, 9: 0.0}, "nothing ran since"
    gpu.broken.add("ProcessUtilization")
    assert sm_of(nvml) == {7: None, 8: None, 9: None}


@pytest.mark.parametrize(
    ("call", "field"),
    [
        ("PowerUsage", "power_w"),
        ("TotalEnergyConsumption", "energy_j"),
        ("UtilizationRates", "utilization"),
        ("ClockInfo", "sm_clock_mhz"),
    ],
)
def test_unsupported_values_are_none(backend, call, field):
    nvml, _ = backend(FakeGpu(uuid="GPU-a", broken={call}))
    found = sample_of(nvml)
    others = {"power_w": 312.5, "energy_j": 7000.5, "utilization": 0.87, "sm_clock_mhz": 1980.0}
    assert {name: getattr(found, name) for name in others} == {**others, field: None}


def test_used_bytes_are_total_minus_free(backend):
    nvml, _ = backend(FakeGpu(uuid="GPU-a", total_bytes=1000 * MIB, free_bytes=400 * MIB))
    assert sample_of(nvml).used_bytes == 600 * MIB


def test_broken_gpu_hides_no_other(backend):
    nvml, _ = backend(FakeGpu(uuid="GPU-a", broken={"Name"}), FakeGpu(uuid="GPU-b"))
    assert [gpu.uuid for gpu in nvml.inventory()] == ["GPU-b"]


def test_gpu_whose_memory_cannot_be_read_is_left_out(backend):
    gpu = FakeGpu(uuid="GPU-a")
    nvml, _ = backend(gpu)
    nvml.inventory()
    gpu.broken.add("MemoryInfo")
    assert nvml.sample(1.0) == {}


def test_a_driver_that_goes_away_gives_no_samples(backend):
    nvml, driver = backend(FakeGpu(uuid="GPU-a"))
    driver.no_driver = True
    with pytest.raises(BackendError, match="Driver Not Loaded"):
        nvml.inventory()
    assert nvml.sample(1.0) == {}


def test_mps_clients_are_listed_once(backend):
    nvml, _ = backend(
        FakeGpu(uuid="GPU-a", processes=[(7, 100), (8, None), (9, 5)], mps_clients=[(7, 300), (8, 50), (11, None)])
    )
    found = [(process.pid, process.used_bytes) for process in sample_of(nvml).processes]
    assert found == [(7, 300), (8, 50), (9, 5), (11, None)]


def test_processes_are_listed_by_a_driver_without_mps(backend):
    nvml, _ = backend(FakeGpu(uuid="GPU-a", processes=[(7, 100)], broken={"MPSComputeRunningProcesses"}))
    assert [process.pid for process in sample_of(nvml).processes] == [7]


def test_activity_comes_from_gpm_where_the_gpu_has_it(backend):
    nvml, driver = backend(FakeGpu(uuid="GPU-a", gpm=(75.0, 30.0, 101.0)))
    for _ in range(3):
        found = sample_of(nvml)
        assert (found.smact, found.smocc, found.drama) == (0.75, 0.3, 1.0)
    nvml.inventory()
    assert driver.samples_open == 1
    nvml.close()
    assert driver.samples_open == 0
    assert not driver.is_open


def test_each_gpm_metric_is_a_field_of_the_sample(backend):
    others = {1: 98.5, 5: 40.0, 12: 20.0, 20: 3.0, 21: 1500.5}
    nvml, _ = backend(FakeGpu(uuid="GPU-a", gpm=(75.0, 30.0, 10.0), gpm_others=others))
    found = sample_of(nvml)
    assert (found.gract, found.tensor, found.fp32) == pytest.approx((0.985, 0.4, 0.2))
    assert (found.pcie_tx_bytes_s, found.pcie_rx_bytes_s) == (3 * MIB, 1500.5 * MIB)


def test_a_gpm_metric_that_this_gpu_lacks_is_none(backend):
    nvml, _ = backend(FakeGpu(uuid="GPU-a", gpm=(75.0, 30.0, 10.0), gpm_others={21: float("inf")}))
    found = sample_of(nvml)
    assert (found.smact, found.tensor, found.pcie_tx_bytes_s, found.pcie_rx_bytes_s) == (0.75, None, None, None)


@pytest.mark.parametrize(
    ("gpm", "broken"),
    [
        pytest.param(None, set(), id="older GPU"),
        pytest.param((75.0, 30.0, 10.0), {"Gpm"}, id="older driver"),
        pytest.param((75.0, 30.0, 10.0), {"GpmSample"}, id="no permission"),
        pytest.param((75.0, 30.0, 10.0), {"GpmMetric"}, id="metric not read"),
        pytest.param((float("nan"),) * 3, set(), id="not a number"),
    ],
)
def test_activity_is_none_where_gpm_fails(backend, gpm, broken):
    nvml, driver = backend(FakeGpu(uuid="GPU-a", gpm=gpm, broken=broken))
    found = sample_of(nvml)
    assert (found.smact, found.smocc, found.drama) == (None, None, None)
    assert found.used_bytes is not None
    nvml.close()
    assert driver.samples_open == 0


def test_mig_instances_replace_their_gpu(backend):
    def instance(number, free):
        return FakeGpu(
            uuid=f"MIG-{number}",
            name="NVIDIA A100-SXM4-40GB MIG 3g.20gb",
            total_bytes=20096 * MIB,
            free_bytes=free * MIB,
            gpu_instance_id=number,
            broken={"PowerUsage", "TotalEnergyConsumption", "UtilizationRates"},
        )

    parent = FakeGpu(uuid="GPU-a", mig=[instance(1, 20000), None, instance(2, 96)], gpm=(50.0, 20.0, 10.0))
    nvml, _ = backend(parent, FakeGpu(uuid="GPU-b"))
    gpus = nvml.inventory()
    assert [(gpu.uuid, gpu.index, gpu.mig_parent, gpu.mig_profile) for gpu in gpus] == [
        ("MIG-1", 0, "GPU-a", "3g.20gb"),
        ("MIG-2", 0, "GPU-a", "3g.20gb"),
        ("GPU-b", 1, None, None),
    ]
    found = nvml.sample(1.0)
    assert found["MIG-2"].used_bytes == 20000 * MIB
    assert (found["MIG-1"].power_w, found["MIG-1"].smact) == (None, 0.5)


# As an A100 tells them: 98 SMs are left for instances, 7 slices of 14.
A100_KINDS = {0: 14, 1: 28, 2: 42, 3: 56, 4: 98, 7: 14}


@pytest.mark.parametrize(
    ("kinds", "broken", "device", "watts"),
    [
        pytest.param(A100_KINDS, set(), set(), [312.5 * 3 / 7, 312.5 / 7], id="by share of the SMs"),
        pytest.param({0: 14, 3: 56}, set(), set(), [312.5 * 3 / 4, 312.5 / 4], id="a card of four slices"),
        pytest.param({}, set(), set(), [None, None], id="a driver that tells no kinds"),
        pytest.param(A100_KINDS, {"Attributes"}, set(), [None, None], id="a driver that tells no SMs"),
        pytest.param(A100_KINDS, set(), {"PowerUsage", "TotalEnergyConsumption"}, [None, None], id="no meter"),
    ],
)
def test_power_and_energy_of_instances_are_assumed(backend, kinds, broken, device, watts):
    own = {"PowerUsage", "TotalEnergyConsumption", *broken}
    instances = [
        FakeGpu(uuid=f"MIG-{sms}", name=f"A100 MIG {sms // 14}g", sms=sms, broken=own, gpu_instance_id=sms)
        for sms in (42, 14)
    ]
    nvml, _ = backend(FakeGpu(uuid="GPU-a", mig=list(instances), instance_sms=kinds, broken=device))
    found = list(nvml.sample(1.0).values())
    assert [sample.power_w for sample in found] == pytest.approx(watts)
    joules = [None if watt is None else watt / 312.5 * 7000.5 for watt in watts]
    assert [sample.energy_j for sample in found] == pytest.approx(joules)


def test_instances_get_at_most_the_power_of_their_gpu(backend):
    instances = [FakeGpu(uuid=f"MIG-{place}", sms=14, gpu_instance_id=place) for place in range(7)]
    nvml, _ = backend(FakeGpu(uuid="GPU-a", mig=list(instances), instance_sms=A100_KINDS))
    assert sum(sample.power_w for sample in nvml.sample(1.0).values()) == pytest.approx(312.5)
