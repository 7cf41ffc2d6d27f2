"""`nvidia-smi` of the simulated GPUs, run as scripts run it."""

from __future__ import annotations

import ctypes
import subprocess
from types import SimpleNamespace

import pytest

from cotenant.tracing.sensors import nvidia_smi, nvml

GPU = {"name": "NVIDIA A100-SXM4-40GB", "capability": [8, 0], "nvml_total_bytes": 40960 << 20}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return nvidia_smi.install(tmp_path_factory.mktemp("sensors") / "bin", GPU, 2)


def printed(folder, capsys, *arguments):
    code = nvidia_smi.main([str(folder / "gpus.json"), *arguments])
    return code, capsys.readouterr().out.splitlines()


def test_program_answers_from_path(folder):
    done = subprocess.run(
        ["nvidia-smi", "-L"], capture_output=True, text=True, check=True, env={"PATH": f"{folder}:/usr/bin:/bin"}
    )
    assert done.stdout.splitlines() == [
        f"GPU {index}: NVIDIA A100-SXM4-40GB (UUID: {nvidia_smi.uuid_of(index)})" for index in (0, 1)
    ]


def test_report_of_the_memory(folder, capsys):
    code, lines = printed(folder, capsys, "-q", "-d", "Memory")
    free = [line.split() for line in lines if "Free" in line]  # as `grep -A4 GPU | grep Free` finds it
    assert code == 0
    assert free == [["Free", ":", "40960", "MiB"]] * 2
    assert [line for line in lines if line.startswith("GPU ")] == [f"GPU {nvidia_smi.bus_id_of(at)}" for at in (0, 1)]
    assert printed(folder, capsys, "-q", "-x")[0] == 2


@pytest.mark.parametrize(
    ("arguments", "lines"),
    [
        pytest.param(
            ["--query-gpu=name,memory.total", "--format=csv"],
            ["name, memory.total [MiB]", *["NVIDIA A100-SXM4-40GB, 40960 MiB"] * 2],
            id="with header and units",
        ),
        pytest.param(
            ["--query-gpu=index,memory.free,memory.used", "--format=csv,noheader,nounits"],
            ["0, 40960, 0", "1, 40960, 0"],
            id="plain numbers",
        ),
        pytest.param(
            ["--query-gpu=gpu_name, compute_cap", "--format=csv,noheader", "-i", "1"],
            ["NVIDIA A100-SXM4-40GB, 8.0"],
            id="alias, space, one GPU",
        ),
        pytest.param(
            ["--query-gpu=index,fan.speed", "--format=csv,noheader", "--id=0"], ["0, [N/A]"], id="unknown field"
        ),
        pytest.param(["--query-compute-apps=pid,used_memory", "--format=csv"], ["pid, used_memory"], id="no processes"),
        pytest.param(
            ["--query-gpu=utilization.gpu", "--format=csv,nounits,noheader", "-l", "1", "-i", "0"],
            ["0"],
            id="a loop prints once",
        ),
    ],
)
def test_queries(folder, capsys, arguments, lines):
    assert printed(folder, capsys, *arguments) == (0, lines)


def test_table_names_each_gpu_and_its_memory(folder, capsys):
    code, lines = printed(folder, capsys)
    text = "\n".join(lines)
    assert code == 0
    assert text.count("0MiB / 40960MiB") == text.count("NVIDIA A100-SXM4-40GB") == 2
    assert len({len(line) for line in lines}) == 1, "one width"


@pytest.mark.parametrize(
    ("arguments", "code", "word"),
    [
        pytest.param(["-i", "7"], 6, "No devices were found", id="absent GPU"),
        pytest.param(["topo", "-m"], 2, "does not know `topo`", id="another report"),
        pytest.param(["--query-gpu=name"], 2, "Missing format option", id="without a format"),
    ],
)
def test_what_it_cannot_answer_is_an_exit_code_and_a_sentence(folder, capsys, arguments, code, word):
    assert nvidia_smi.main([str(folder / "gpus.json"), *arguments]) == code
    said = capsys.readouterr()
    assert word in said.out + said.err


class _Memory(ctypes.Structure):
    _fields_ = (("version", ctypes.c_uint), ("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong),
                ("used", ctypes.c_ulonglong))  # fmt: skip


class _Pci(ctypes.Structure):
    _fields_ = (("busId", ctypes.c_char * 32), ("bus", ctypes.c_uint))


def test_nvml_shows_the_memory_that_the_trace_has_allocated():
    gpu = SimpleNamespace(name="A100", total_bytes=39 << 30, nvml_total_bytes=40 << 30, capability=(8, 0), count=2)
    library = nvml.SimulatedNvml(gpu, {0: 3 << 30, 1: 0}.__getitem__)
    handles = [ctypes.c_void_p(), ctypes.c_void_p()]
    for index, handle in enumerate(handles):
        assert library.nvmlDeviceGetHandleByIndex_v2(ctypes.c_uint(index), ctypes.byref(handle)) == 0
    found = []
    for handle in handles:
        memory = _Memory()
        assert library.nvmlDeviceGetMemoryInfo_v2(handle, ctypes.byref(memory)) == 0
        found.append((memory.used, memory.free, memory.total))
    assert found == [(3 << 30, 37 << 30, 40 << 30), (0, 40 << 30, 40 << 30)]

    count, text, pci, again = ctypes.c_uint(9), ctypes.create_string_buffer(96), _Pci(), ctypes.c_void_p()
    assert library.nvmlDeviceGetCount_v2(ctypes.byref(count)) == 0
    assert count.value == 2
    assert library.nvmlDeviceGetUUID(handles[1], text, ctypes.c_uint(96)) == 0
    assert library.nvmlDeviceGetHandleByUUID(ctypes.c_char_p(text.value), ctypes.byref(again)) == 0
    assert again.value == handles[1].value
    assert library.nvmlDeviceGetPciInfo_v3(handles[0], ctypes.byref(pci)) == 0
    assert library.nvmlDeviceGetHandleByPciBusId_v2(ctypes.c_char_p(pci.busId), ctypes.byref(again)) == 0
    assert again.value == handles[0].value
    assert library.nvmlDeviceGetComputeRunningProcesses_v3(handles[0], ctypes.byref(count), None) == 0
    assert count.value == 0


@pytest.mark.parametrize(
    ("name", "args", "code"),
    [
        pytest.param("nvmlDeviceGetHandleByIndex_v2", (ctypes.c_uint(2), ctypes.c_void_p()), 2, id="absent GPU"),
        pytest.param("nvmlDeviceGetHandleByUUID", (ctypes.c_char_p(b"GPU-0"), ctypes.c_void_p()), 6, id="absent UUID"),
        pytest.param("nvmlDeviceGetFanSpeed", (ctypes.c_void_p(1), ctypes.c_uint()), 3, id="no fan"),
        pytest.param("nvmlDeviceSetPowerManagementLimit", (ctypes.c_void_p(1), 1), 4, id="a change"),
    ],
)
def test_nvml_returns_the_code_of_what_it_cannot_do(name, args, code):
    gpu = SimpleNamespace(name="A100", total_bytes=39 << 30, nvml_total_bytes=None, capability=(8, 0), count=2)
    assert nvml.SimulatedNvml(gpu, lambda index: 0).function(name)(*args) == code
