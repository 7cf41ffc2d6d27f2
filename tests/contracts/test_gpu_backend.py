"""What every registered GPU backend honors: NVML over a driver that does not exist, and the simulated server."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from cotenant.core.errors import BackendError, UnknownName
from cotenant.gpus import NAMES, create
from cotenant.simserver.backend import SimulatedServer
from fake_pynvml import FakeDriver, FakeGpu

GIB = 2**30


class NvmlCase:
    """Two GPUs; a child process holds 3 GiB on the second."""

    def __init__(self, monkeypatch, folder):
        self.gpus = [FakeGpu(uuid="GPU-a"), FakeGpu(uuid="GPU-b")]
        monkeypatch.setitem(sys.modules, "pynvml", FakeDriver(*self.gpus))
        self.backend = create("nvml")

    def hold(self, pid, size_bytes):
        self.gpus[1].processes = [(pid, size_bytes)]
        self.gpus[1].free_bytes = self.gpus[1].total_bytes - size_bytes

    def lose(self):
        self.gpus[0].broken.add("*")


class SimulatedCase:
    """The same on the simulated server."""

    def __init__(self, monkeypatch, folder):
        self.server = SimulatedServer.create(folder, "2xH100-80GB")
        self.backend = create("simulated", simulated_dir=folder)

    def hold(self, pid, size_bytes):
        assert pid == os.getpid()
        attached = self.server.attach(self.server.uuids[1], context_bytes=GIB)
        attached.allocate(size_bytes - GIB)

    def lose(self):
        self.server.set_failed(self.server.uuids[0], failed=True)


CASES = {"nvml": NvmlCase, "simulated": SimulatedCase}


@pytest.fixture(params=[name for name in NAMES if name != "auto"])
def case(request, monkeypatch, tmp_path):
    case = CASES[request.param](monkeypatch, tmp_path / "server")
    yield case
    case.backend.close()


def test_inventory(case):
    gpus = case.backend.inventory()
    assert [each.index for each in gpus] == [0, 1]
    assert len({each.uuid for each in gpus}) == 2
    assert {each.memory_total_bytes for each in gpus} == {81559 * 2**20}
    assert all(each.name and each.mig_parent is None for each in gpus)
    assert case.backend.inventory() == gpus


def test_sample(case):
    _, second = case.backend.inventory()
    case.hold(os.getpid(), 3 * GIB)
    samples = case.backend.sample(12.5)
    assert set(samples) == {each.uuid for each in case.backend.inventory()}
    assert {each.at_s for each in samples.values()} == {12.5}
    held = samples[second.uuid]
    assert held.used_bytes == 3 * GIB
    assert [(each.pid, each.used_bytes) for each in held.processes] == [(os.getpid(), 3 * GIB)]
    for ratio in (held.smact, held.smocc, held.drama, held.utilization):
        assert ratio is None or 0 <= ratio <= 1
    assert held.power_w > 0
    assert held.energy_j >= 0


def test_sample_without_inventory(case):
    assert len(case.backend.sample(0.0)) == 2


def test_a_lost_gpu_is_left_out(case):
    _first, second = case.backend.inventory()
    case.lose()
    assert list(case.backend.sample(1.0)) == [second.uuid]


def test_unknown_name():
    with pytest.raises(UnknownName, match="no GPU backend named `nvlm`"):
        create("nvlm")


def test_auto_prefers_a_gpu(monkeypatch, tmp_path):
    SimulatedServer.create(tmp_path / "server", "1xL4-24GB")
    monkeypatch.setitem(sys.modules, "pynvml", FakeDriver(FakeGpu(uuid="GPU-a")))
    assert create("auto", simulated_dir=tmp_path / "server").name == "nvml"


@pytest.mark.parametrize(
    "driver", [pytest.param(FakeDriver(no_driver=True), id="no driver"), pytest.param(FakeDriver(), id="no GPU")]
)
def test_auto_without_a_gpu(monkeypatch, tmp_path, driver):
    monkeypatch.setitem(sys.modules, "pynvml", driver)
    with pytest.raises(BackendError, match="no GPU here: NVML"):
        create("auto")
    SimulatedServer.create(tmp_path / "server", "1xL4-24GB")
    assert create("auto", simulated_dir=tmp_path / "server").name == "simulated"
    assert not driver.is_open


def test_nvml_without_its_library(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", None)
    with pytest.raises(BackendError, match="`nvidia-ml-py` is missing"):
        create("nvml")


@pytest.mark.parametrize("folder", [pytest.param(None, id="unnamed"), pytest.param("absent", id="absent")])
def test_simulated_without_a_server(tmp_path, folder):
    with pytest.raises(BackendError, match="no simulated server"):
        create("simulated", simulated_dir=None if folder is None else tmp_path / folder)


def test_room_does_not_load_the_driver_library():
    code = "import sys, cotenant.gpus, cotenant.simserver.backend; assert 'pynvml' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
