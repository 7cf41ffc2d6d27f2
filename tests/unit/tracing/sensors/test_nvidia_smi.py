"""`nvidia-smi` of the simulated GPUs, run as scripts run it."""

from __future__ import annotations

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


def test_nvml_shows_the_memory_that_the_trace_has_allocated():
    gpu = SimpleNamespace(name="A100", total_bytes=39 << 30, nvml_total_bytes=40 << 30, capability=(8, 0), count=2)
    answers = nvml.nvml_functions(gpu, {0: 3 << 30, 1: 0}.__getitem__)
    assert answers["nvmlDeviceGetCount"]() == 2
    handles = [answers["nvmlDeviceGetHandleByIndex"](index) for index in (0, 1)]
    info = [answers["nvmlDeviceGetMemoryInfo"](handle) for handle in handles]
    assert [(found.used, found.free, found.total) for found in info] == [
        (3 << 30, 37 << 30, 40 << 30),
        (0, 40 << 30, 40 << 30),
    ]
    assert answers["nvmlDeviceGetHandleByUUID"](answers["nvmlDeviceGetUUID"](1)) == 1
    assert answers["nvmlDeviceGetHandleByPciBusId"](answers["nvmlDeviceGetPciInfo"](1).busId) == 1
    assert answers["nvmlDeviceGetComputeRunningProcesses_v3"](0) == []
    assert answers["nvmlDeviceGetUtilizationRates"](0).gpu == 0
