"""Properties of the null GPU follow the table of GPUs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cotenant.gpu_specs import all_gpu_specs, gpu_spec
from cotenant.nullgpu import NullGpuError, device_text
from cotenant.nullgpu.device import cudnn_device


def members(text):
    return dict(item.split("=") for item in text.split(";"))


@pytest.mark.parametrize("spec", all_gpu_specs(), ids=lambda spec: spec.name)
def test_every_gpu_of_the_table_can_be_simulated(spec):
    found = members(device_text(spec))
    assert (int(found["compute_major"]), int(found["compute_minor"])) == spec.compute_capability
    assert (int(found["sm_count"]), int(found["total_bytes"])) == (spec.sm_count, spec.usable_bytes)
    assert int(found["context_bytes"]) == spec.context.typical_bytes


def test_limits_of_an_sm_follow_the_compute_capability():
    a100, t4 = members(device_text(gpu_spec("A100-40GB"))), members(device_text(gpu_spec("T4-16GB")))
    assert (a100["threads_per_sm"], a100["blocks_per_sm"], a100["shared_bytes_per_sm"]) == ("2048", "32", "167936")
    assert (t4["threads_per_sm"], t4["blocks_per_sm"], t4["shared_bytes_per_sm"]) == ("1024", "16", "65536")


def test_memory_can_be_replaced():
    assert members(device_text(gpu_spec("A100-40GB"), total_bytes=2**30))["total_bytes"] == str(2**30)


@pytest.mark.parametrize(
    ("name", "version", "threads"), [("T4-16GB", 750, 1024), ("A10G-24GB", 860, 1536), ("H100-80GB", 900, 2048)]
)
def test_cudnn_is_asked_about_the_same_gpu(name, version, threads):
    spec = gpu_spec(name)
    found = cudnn_device(spec, cuda_major=13)
    assert (found["deviceVer"], found["maxThreadsPerSM"], found["runtimeVer"]) == (version, threads, 13000)
    assert (found["multiProcessorCount"], found["totalGlobalMem"]) == (spec.sm_count, spec.usable_bytes)


def test_unknown_compute_capability_is_refused():
    with pytest.raises(NullGpuError, match=r"no limits of compute capability 6\.0 are known"):
        device_text(replace(gpu_spec("A100-40GB"), compute_capability=(6, 0)))
