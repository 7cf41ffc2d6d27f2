"""The pipeline from ranges to tables by the command line, and the training process of measured runs, on the CPU."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from contextlib import closing
from dataclasses import replace

import pytest

from cotenant.cli.main import main
from cotenant.core.gpu import Gpu, GpuSample
from cotenant.core.units import GiB, MiB
from cotenant.gpus.gpu_sampler import GpuSampler
from cotenant.learn.data_collection.configs import config_id, parse_id
from cotenant.learn.data_collection.generate import generate, read_configs
from cotenant.learn.data_collection.ranges import load_ranges
from cotenant.learn.datasets.dataset_files import read_dataset
from json_shapes import shape_problems

torch = pytest.importorskip("torch", reason="networks are traced")

from cotenant.learn.data_collection.measuring_labeler import MeasuringLabeler  # noqa: E402
from cotenant.learn.data_collection.tracing_labeler import TracingLabeler  # noqa: E402
from cotenant.learn.networks.building import layers_of  # noqa: E402

FAMILIES = {"mlp": 5, "cnn": 4, "transformer": 4}


def test_configurations_become_tables(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for family, count in FAMILIES.items():
        assert main(["learn", "generate", f"{family}-small", "--count", str(count), "--out", f"{family}.txt"]) == 0
    files = [f"{family}.txt" for family in FAMILIES]
    assert main(["learn", "run", *files, "--out", "runs", "--trace", "--steps", "2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert (len(lines), lines[-1].split()[0]) == (13, "[13/13]")
    assert main(["learn", "clean", "runs", "--out", "data", "--json"]) == 0
    out = capsys.readouterr().out
    assert shape_problems("learn clean", out) == []
    found = json.loads(out)
    assert (found["rows"], found["findings"]) == (FAMILIES, [])
    for family, count in FAMILIES.items():
        rows = read_dataset(tmp_path / "data" / f"{family}.csv")
        assert Counter(row.status for row in rows) == {"ok": count}
        configs = read_configs(tmp_path / f"{family}.txt")
        assert [row.config_id for row in rows] == [config_id(config) for config in configs]
        assert {row.source for row in rows} == {"traced"}
        assert [row.layers for row in rows[:3]] == [layers_of(config) for config in configs[:3]]
        for row in rows:
            # Weights and gradients in fp32 at least, beside a context of some hundred MiB.
            assert row.peak_bytes > 400 * MiB + 8 * row.parameters
    assert main(["learn", "run", *files, "--out", "runs", "--trace", "--resume"]) == 0
    assert capsys.readouterr().err.endswith("nothing to do in 0.0s\n")
    assert main(["learn", "run", *files, "--out", "runs", "--trace", "--resume", "--json"]) == 0
    assert shape_problems("learn run", capsys.readouterr().out) == []


def test_a_worker_of_a_killed_parent_prints_nothing(tmp_path):
    config = generate(load_ranges("mlp-small"), count=1, seed=0)[0]
    command = [
        sys.executable,
        "-m",
        "cotenant.learn.data_collection.tracing_worker",
        "--gpu",
        "A100-40GB",
        "--steps",
        "2",
    ]
    said = tmp_path / "stderr"
    with said.open("w") as errors:
        worker = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True)
        worker.stdout.close()
        worker.communicate(f"{config_id(config)}\n", timeout=120)
    assert said.read_text() == ""
    assert worker.returncode == 0


LARGE = (
    "transformer_gpt_batch128_classes200000_gelu_dropout0_adam_fp32_vocabulary200000_length1024_width768_depth2_heads12"
    "_feedforward3072"
)


@pytest.fixture
def labeler(request):
    with closing(TracingLabeler("A100-40GB", **getattr(request, "param", {}))) as made:
        yield made


def test_a_run_without_room_is_oom_with_its_peak_and_a_dead_tracer_is_replaced(labeler):
    run = labeler.label(parse_id(LARGE))
    assert (run.status, run.source) == ("oom", "traced")
    assert run.peak_bytes > 4 * 128 * 1024 * 200_000 > run.capacity_bytes
    assert "does not fit A100-40GB" in run.message
    labeler._worker.kill()
    labeler._worker.wait(60)
    assert labeler._running().poll() is None


@pytest.mark.parametrize("labeler", [{"limit_s": 0.01}], indirect=True)
def test_a_trace_that_takes_too_long_is_a_timeout(labeler):
    run = labeler.label(small())
    assert (run.status, run.peak_bytes) == ("timeout", None)
    assert run.layers


def test_a_tracer_killed_by_a_network_is_a_crash(labeler):
    labeler._command = [sys.executable, "-c", "import os, sys; sys.stdin.readline(); os._exit(5)"]
    run = labeler.label(small())
    assert (run.status, run.peak_bytes) == ("crash", None)
    assert run.message == "the tracing process ended with code 5 without an answer"


class FakeDevice:
    """A driver that names no process: 2 GiB are in use at first, 5 GiB later."""

    name = "card"

    def __init__(self):
        self.used = [2 * GiB]

    def inventory(self):
        return ()

    def sample(self, at_s):
        used = self.used.pop() if self.used else 5 * GiB
        return {"GPU-0": GpuSample(at_s=at_s, used_bytes=used, smact=0.5, smocc=0.25, drama=0.125, processes=())}

    def close(self):
        pass


@pytest.fixture
def watch():
    return GpuSampler(FakeDevice(), Gpu(uuid="GPU-0", index=0, name="A100", memory_total_bytes=40 * GiB), every_s=0.005)


def small():
    return replace(generate(load_ranges("mlp-small"), 1, 0)[0], precision="fp32")


def test_a_measured_run_has_its_own_process(watch):
    config = small()
    run = MeasuringLabeler(watch, seconds=1, device="cpu").label(config)
    assert (run.status, run.source, run.gpu) == ("ok", "measured", "A100")
    assert run.peak_bytes == 3 * GiB
    assert (run.smact, run.smocc, run.drama) == (0.5, 0.25, 0.125)
    assert run.steps >= 2  # a slow machine may not have time for more
    assert 0 < run.step_s < run.elapsed_s
    assert run.cpu_s > 0
    assert run.host_peak_bytes > 50 * MiB
    assert run.layers.startswith("linear:")


def test_a_failed_measured_run_has_its_status(watch, monkeypatch):
    config = small()
    run = MeasuringLabeler(watch, steps=2, device="no-such-device").label(config)
    assert (run.status, run.steps) == ("crash", None)
    assert "no-such-device" in run.message
    run = MeasuringLabeler(watch, steps=10**9, device="cpu", limit_s=0.05).label(config)
    assert (run.status, run.message) == ("timeout", "not done after 0.1s")
    monkeypatch.setenv("PYTHONPATH", "/dev/null/nowhere")
    monkeypatch.setattr(sys, "executable", "/bin/false")
    assert MeasuringLabeler(watch, steps=2, device="cpu").label(config).message.startswith("exit code 1")


OUT_OF_MEMORY = """
import sys, torch
from cotenant.learn.data_collection import train_one
from cotenant.learn.networks import building as networks

def fail(self):
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB.")

networks.Training.__call__ = fail
sys.exit(train_one.main(sys.argv[1:]))
"""


def test_an_out_of_memory_exception_becomes_the_status(tmp_path):
    answer = tmp_path / "answer.json"
    command = [sys.executable, "-c", OUT_OF_MEMORY, config_id(small()), "--answer", str(answer), "--device", "cpu"]
    subprocess.run(command, check=True, timeout=120, stdin=subprocess.DEVNULL)
    found = json.loads(answer.read_text())
    assert (found["status"], found["steps"]) == ("oom", 0)
    assert found["message"].startswith("CUDA out of memory.")
