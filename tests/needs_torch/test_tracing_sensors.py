"""A traced script reads its simulated GPU through `nvidia-smi` and `pynvml`."""

from __future__ import annotations

import pytest

import cotenant
from cotenant.core.units import GiB

pytest.importorskip("torch", reason="tracing needs torch")
pytest.importorskip("pynvml", reason="the script imports pynvml")

from traced_scripts import trained

SCRIPT = """
import subprocess, pynvml, torch
words = ["nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader,nounits"]
lines = subprocess.run(words, capture_output=True, text=True, check=True).stdout.splitlines()
assert lines == ["NVIDIA H100 80GB HBM3, 81559"] * 2, lines
pynvml.nvmlInit()
assert pynvml.nvmlDeviceGetCount() == 2
handle = pynvml.nvmlDeviceGetHandleByIndex(0)
big = torch.empty(3 << 30, dtype=torch.uint8, device="cuda")
info = pynvml.nvmlDeviceGetMemoryInfo(handle)
assert info.used >= big.numel() and info.free == info.total - info.used
try:
    pynvml.nvmlDeviceGetHandleByIndex(2)
except pynvml.NVMLError as error:
    assert error.value == pynvml.NVML_ERROR_INVALID_ARGUMENT
else:
    raise AssertionError("there is no third GPU")
model = torch.nn.Linear(8, 8).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    model(torch.ones(2, 8, device="cuda")).sum().backward()
    optimizer.step()
"""


def test_script_sees_the_simulated_gpus(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    found = cotenant.estimate(script, gpu="H100-80GB", gpus=2, timeout_s=600)
    assert not found.partial
    assert found.peak_reserved_bytes >= 3 * GiB


def test_properties_that_libraries_choose_kernels_by(tmp_path):
    source = """
    gpu = torch.cuda.get_device_properties(0)
    assert gpu.shared_memory_per_block_optin == 163 * 1024 and gpu.shared_memory_per_multiprocessor == 164 * 1024
    assert repr(gpu).startswith("_CudaDeviceProperties(name='A100', major=8, minor=0, total_memory=40960MB")
    assert gpu.memory_clock_rate * gpu.memory_bus_width and torch.cuda.can_device_access_peer(0, 0)
    low, high = torch.cuda.Stream.priority_range()
    assert high < low == torch.cuda.Stream(priority=low).priority
    """
    trained(tmp_path, source)


def test_triton_knows_the_gpu(tmp_path):
    folder = tmp_path / "triton" / "backends" / "nvidia"
    folder.mkdir(parents=True)
    for at in (folder, *folder.parents[:2]):
        (at / "__init__.py").write_text("")
    (folder / "driver.py").write_text("class CudaUtils:\n    def __init__(self):\n        raise AssertionError\n")
    source = """
    from triton.backends.nvidia import driver
    properties = driver.CudaUtils().get_device_properties(0)
    assert (properties["max_shared_mem"], properties["multiprocessor_count"]) == (163 * 1024, 108)
    """
    trained(tmp_path, source)
