"""What every registered GPU backend honors."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys

import pytest

from cotenant.core.errors import BackendError, UnknownName
from cotenant.gpus import GPU_BACKENDS, BackendOptions, create
from cotenant.simserver.server import SimulatedServer
from fake_pynvml import FakeDriver, FakeGpu

GIB = 2**30


@pytest.fixture(params=GPU_BACKENDS.names())
def case(request, monkeypatch, tmp_path):
    """Two GPUs of a backend: `gpu_backend_case_NAME.Case(monkeypatch, folder)`, a module on the path of the tests.

    It has `backend`; `hold(pid, size_bytes)`, after which a process holds memory on the second GPU; and `lose()`, after
    which the first GPU cannot be read.
    """
    module = importlib.import_module(f"gpu_backend_case_{request.param.replace('-', '_')}")
    case = module.Case(monkeypatch, tmp_path / "server")
    yield case
    case.backend.close()


def test_the_inventory_lists_gpus(case):
    gpus = case.backend.inventory()
    assert [gpu.index for gpu in gpus] == [0, 1]
    assert len({gpu.uuid for gpu in gpus}) == 2
    assert all(gpu.memory_total_bytes > 0 for gpu in gpus)
    assert all(gpu.name and gpu.mig_parent is None for gpu in gpus)
    assert case.backend.inventory() == gpus


def test_samples_cover_all_gpus(case):
    _, second = case.backend.inventory()
    case.hold(os.getpid(), 3 * GIB)
    samples = case.backend.sample(12.5)
    assert set(samples) == {gpu.uuid for gpu in case.backend.inventory()}
    assert {sample.at_s for sample in samples.values()} == {12.5}
    held = samples[second.uuid]
    assert held.used_bytes == 3 * GIB
    assert [(process.pid, process.used_bytes) for process in held.processes] == [(os.getpid(), 3 * GIB)]
    for ratio in (held.smact, held.smocc, held.drama, held.utilization):
        assert ratio is None or 0 <= ratio <= 1
    assert held.power_w is None or held.power_w > 0
    assert held.energy_j is None or held.energy_j >= 0


def test_sample_without_inventory(case):
    assert len(case.backend.sample(0.0)) == 2


def test_a_lost_gpu_is_left_out(case):
    _first, second = case.backend.inventory()
    case.lose()
    assert list(case.backend.sample(1.0)) == [second.uuid]


def test_an_unknown_name_is_refused():
    with pytest.raises(UnknownName, match="no GPU backend named `nvlm`"):
        create("nvlm")


def test_auto_prefers_a_gpu(monkeypatch, tmp_path):
    SimulatedServer.create(tmp_path / "server", "1xL4-24GB")
    monkeypatch.setitem(sys.modules, "pynvml", FakeDriver(FakeGpu(uuid="GPU-a")))
    assert create("auto", BackendOptions(simulated_dir=tmp_path / "server")).name == "nvml"


@pytest.mark.parametrize(
    "driver", [pytest.param(FakeDriver(no_driver=True), id="no driver"), pytest.param(FakeDriver(), id="no GPU")]
)
def test_auto_without_a_gpu(monkeypatch, tmp_path, driver):
    monkeypatch.setitem(sys.modules, "pynvml", driver)
    with pytest.raises(BackendError, match="no GPU here: NVML"):
        create("auto")
    SimulatedServer.create(tmp_path / "server", "1xL4-24GB")
    assert create("auto", BackendOptions(simulated_dir=tmp_path / "server")).name == "simulated"
    assert not driver.is_open


def test_nvml_without_its_library(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", None)
    with pytest.raises(BackendError, match="`nvidia-ml-py` is missing"):
        create("nvml")


@pytest.mark.parametrize("folder", [pytest.param(None, id="unnamed"), pytest.param("absent", id="absent")])
def test_simulated_without_a_server(tmp_path, folder):
    with pytest.raises(BackendError, match="no simulated server"):
        create("simulated", BackendOptions(simulated_dir=None if folder is None else tmp_path / folder))


def test_room_does_not_load_the_driver_library():
    code = "import sys, cotenant.gpus, cotenant.simserver.backend; assert 'pynvml' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
