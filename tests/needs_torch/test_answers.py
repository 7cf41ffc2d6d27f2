"""`cotenant estimate` on a real script: caching, settings, tables, the batch-size search, and reports."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import sys

import pytest

pytest.importorskip("torch", reason="torch is not installed")

from cotenant.cli.main import main
from cotenant.core.units import MiB
from cotenant.estimators.api import explain

SCRIPT = """
import argparse, os, sys, torch
from width import WIDTH
parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=8)
parser.add_argument("--seed", type=int, default=0)
args = parser.parse_args()
if os.environ.get("OWN_CONF"):
    os.environ["PYTORCH_CUDA_ALLOC_CONF"] = os.environ["OWN_CONF"]
model = torch.nn.Sequential(*(torch.nn.Linear(WIDTH, WIDTH) for _ in range(4))).cuda()
optimizer = torch.optim.Adam(model.parameters())
for _ in range(4):
    model(torch.ones(args.batch_size * 1024, WIDTH, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
CONF = "PYTORCH_CUDA_ALLOC_CONF"


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """The folder of the job in all tests: a cached trace is valid only in the folder in which it was made."""
    return tmp_path_factory.mktemp("place")


@pytest.fixture
def job(place, tmp_path, monkeypatch):
    """A working folder with a script; each test has its own trace cache."""
    folder = place / "job"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    (folder / "train.py").write_text(SCRIPT)
    (folder / "width.py").write_text("WIDTH = 1024\n")
    monkeypatch.chdir(folder)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name in (CONF, "PYTORCH_ALLOC_CONF", "CUBLAS_WORKSPACE_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    return folder


@pytest.fixture
def estimate(job, capsys):
    """Run the command; its JSON."""

    def estimate_json(*args, code=0):
        os.environ.pop("PYTEST_CURRENT_TEST", None)  # any variable may decide what a script does
        assert main(["estimate", "train.py", "--json", *args]) == code
        return json.loads(capsys.readouterr().out)

    return estimate_json


@pytest.fixture
def cached_trace(estimate, place, tmp_path):
    """A trace of the script as it is, in the test's cache; made once."""
    if not (place / "cache").exists():
        estimate()
        shutil.copytree(tmp_path / "cache", place / "cache")
    else:
        shutil.copytree(place / "cache", tmp_path / "cache")


@pytest.fixture
def trials(job, place, monkeypatch):
    """A cache for all tests that search for a batch size: they try some of the same ones."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(place / "trials"))


def from_cache(answer):
    return answer["trace"]["from_cache"]


def test_a_second_estimate_of_the_same_script_uses_the_cached_trace(estimate):
    first, second = estimate(), estimate()
    assert (from_cache(first), from_cache(second)) == (False, True)
    for answer in (first, second):
        del answer["elapsed_s"], answer["trace"]["from_cache"]
    assert first == second


def test_other_estimators_accept_run_options_and_refuse_trace_options(job, capsys):
    assert main(["estimate", "train.py", "--estimator", "params16", "--python", "/absent/python"]) == 2
    assert "no interpreter `/absent/python`" in capsys.readouterr().err
    assert main(["estimate", "train.py", "--estimator", "params16", "--fits-on"]) == 2
    assert "`--fits-on` is for `--estimator traced`" in capsys.readouterr().err
    assert main(["compare", "train.py", "--sequence-lengths", "absent.csv"]) == 2
    assert "cannot read lengths from `absent.csv`" in capsys.readouterr().err


def test_utilization_is_in_the_answer_only_with_its_option(cached_trace, estimate, capsys):
    pytest.importorskip("numpy", reason="learned models need it")
    answer = estimate("--utilization")["utilization"]
    assert 0 < answer["smocc"] < answer["smact"] <= 1
    assert answer["gpu"] == "A100-40GB"
    assert "utilization" not in estimate()
    assert main(["estimate", "train.py", "--utilization"]) == 0
    shown = capsys.readouterr().out
    assert "alone on its GPU about SMACT" in shown
    assert f"of that, by layers alone: SMACT {answer['smact']:.2f}, SMOCC {answer['smocc']:.2f}; learned" in shown
    assert main(["estimate", "train.py", "--utilization", "--estimator", "horus"]) == 2
    assert "`--utilization` is for `--estimator traced`" in capsys.readouterr().err


def test_a_name_of_gpus_of_two_sizes_is_told_with_the_one_that_was_taken(cached_trace, estimate):
    warnings = [estimate("--gpu", name)["warnings"] for name in ("A100", "A100-40GB", "H100")]
    assert warnings == [["`A100` is taken as A100-40GB; write A100-80GB if it is that"], [], []]


def test_no_cache_saves_no_trace(estimate, tmp_path):
    traces = tmp_path / "cache" / "cotenant" / "traces"
    estimate("--no-cache")
    assert not traces.exists()
    estimate()
    assert traces.exists()


def test_no_cache_ignores_a_cached_trace(cached_trace, estimate):
    assert from_cache(estimate())
    assert not from_cache(estimate("--no-cache"))


def test_an_edited_module_is_traced_again(cached_trace, estimate, job):
    before = estimate()
    assert from_cache(before)
    (job / "width.py").write_text("WIDTH = 2048\n")
    after = estimate()
    assert not from_cache(after)
    assert after["peak_reserved_bytes"] > before["peak_reserved_bytes"]
    assert from_cache(estimate())


def test_other_arguments_are_traced_again(cached_trace, estimate):
    assert not from_cache(estimate("--", "--seed", "1"))


def test_another_gpu_of_the_same_capability_replays_the_cached_trace(cached_trace, estimate):
    answer = estimate("--gpu", "A100-80GB:1g.10gb")
    assert from_cache(answer)
    assert answer["gpu"] == "A100-80GB:1g.10gb"
    assert not from_cache(estimate("--gpu", "H100-80GB"))


def test_another_allocator_setting_replays_the_cached_trace(cached_trace, estimate, monkeypatch):
    before = estimate()
    monkeypatch.setenv(CONF, "roundup_power2_divisions:1,max_split_size_mb:20")
    after = estimate()
    assert from_cache(after)
    assert after["trace"]["alloc_conf"] == "roundup_power2_divisions:1,max_split_size_mb:20"
    assert after["peak_reserved_bytes"] != before["peak_reserved_bytes"]


def test_allocator_settings_made_by_the_script_are_in_force(estimate, monkeypatch):
    monkeypatch.setenv("OWN_CONF", "expandable_segments:True")
    assert estimate()["trace"]["alloc_conf"] == "expandable_segments:True"
    assert from_cache(estimate())
    monkeypatch.setenv(CONF, "max_split_size_mb:128")
    answer = estimate()
    assert not from_cache(answer)
    assert answer["trace"]["alloc_conf"] == "expandable_segments:True"


def test_an_allocator_backend_without_a_model_adds_a_warning(cached_trace, estimate, monkeypatch):
    monkeypatch.setenv(CONF, "backend:cudaMallocAsync")
    assert any("cudaMallocAsync" in warning for warning in estimate()["warnings"])


def test_a_setting_that_torch_refuses_is_an_error(estimate, monkeypatch):
    monkeypatch.setenv(CONF, "nonsense:1")
    assert "nonsense" in estimate(code=2)["error"]["message"]


def test_the_interval_contains_the_peak_and_the_bound_exceeds_it(cached_trace, estimate):
    answer = estimate()
    interval = answer["interval"]
    assert interval["low_bytes"] <= answer["peak_reserved_bytes"] <= interval["high_bytes"]
    assert answer["bound_bytes"] >= interval["high_bytes"] + answer["context_bytes"]
    assert answer["fit"]["verdict"] == "fits"
    assert answer["trace"]["workspaces"] is None


def test_fits_on_and_what_if_are_in_the_json(cached_trace, estimate):
    answer = estimate("--fits-on", "--what-if")
    assert {fit["gpu"]: fit["verdict"] for fit in answer["fits_on"]}["A100-40GB"] == "fits"
    assert answer["what_if"][0]["name"] == "expandable_segments:True"


@pytest.mark.parametrize("given", [(), ("--", "--batch-size", "3"), ("--", "--batch-size=64")])
def test_find_batch_size_returns_the_largest_that_fits(trials, estimate, given):
    limit = 2000 * MiB
    answer = estimate("--find-batch-size", "--memory-limit", "2000MiB", *given)
    found = answer["batch_size"]
    bounds = {trial["batch_size"]: trial["bound_bytes"] for trial in found["trials"]}
    assert bounds[found["largest"]] == answer["bound_bytes"] <= limit
    assert found["smallest_misfit"] == found["largest"] + 1
    assert bounds[found["smallest_misfit"]] > limit


def test_find_batch_size_refuses_an_argument_without_effect(estimate):
    answer = estimate("--find-batch-size", "--batch-arg=--seed", code=2)
    assert "`--seed` does not change the memory" in answer["error"]["message"]


def test_find_batch_size_fails_if_no_batch_fits(trials, estimate):
    assert "no batch fits" in estimate("--find-batch-size", "--memory-limit", "300MiB", code=1)["error"]["message"]


def test_the_text_report_has_all_tables(trials, job, estimate, capsys):
    estimate()
    assert main(["estimate", "train.py", "--what-if", "--fits-on", "--find-batch-size", "--memory-limit", "2G"]) == 0
    out, err = capsys.readouterr()
    assert "largest --batch-size with a bound of 2.0 GiB at most" in out
    assert "does not fit\n" in out
    assert "fits A100-40GB, " in out
    assert "trace from the cache" in out
    assert "WHAT IF" in out
    assert "(as traced for sm80)" in out
    assert err == ""


@pytest.mark.parametrize("conf", ["", "expandable_segments:True"])
def test_snapshot_is_read_by_torch(cached_trace, estimate, job, monkeypatch, conf):
    from torch.cuda import _memory_viz as viz

    monkeypatch.setenv(CONF, conf)
    answer = estimate("--snapshot", "s.pickle")
    data = pickle.loads((job / "s.pickle").read_bytes())
    # Flame graphs are drawn by a script that torch downloads; here stands what it would be given.
    stacks = {"format_flamegraph": lambda text: text}
    assert "stream_0" in viz.segments(data, **stacks)
    assert "parameter" in viz.memory(data, **stacks)
    assert ("segment_map" if conf else "cudaMalloc") in viz.trace(data)
    assert "MemoryViz" in viz.trace_plot(data)
    assert sum(segment["total_size"] for segment in data["segments"]) == answer["peak_reserved_bytes"]


def test_an_unwritable_output_file_is_refused_before_tracing(estimate, tmp_path):
    answer = estimate("--snapshot", "nowhere/s.pickle", code=2)
    assert "no folder `nowhere`" in answer["error"]["message"]
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize("option", ["--what-if", "--fits-on", "--find-batch-size", "--plot=x.png", "--snapshot=x"])
def test_options_of_a_trace_are_refused_for_other_estimators(estimate, option):
    answer = estimate("--estimator", "declared", "--gpu-mem", "3G", option, code=2)
    assert "is for `--estimator traced`" in answer["error"]["message"]


def test_a_memory_limit_needs_find_batch_size(estimate):
    assert "--find-batch-size" in estimate("--memory-limit", "3G", code=2)["error"]["message"]


def test_explain_reuses_the_cached_trace(job):
    first, second = explain("train.py"), explain("train.py")
    assert (first.from_cache, second.from_cache) == (False, True)
    assert first.estimate == second.estimate
    assert not explain("train.py", cache=False).from_cache
    explain("train.py", python=sys.executable)  # its folder is first on the PATH, which a script may read
    assert explain("train.py", python=sys.executable).from_cache


@pytest.mark.parametrize("words", [["python", "train.py"], ["bash", "run.sh"]], ids=["command", "shell script"])
def test_the_chosen_interpreter_runs_what_says_python(job, tmp_path, monkeypatch, words):
    # As where cotenant is not installed in the environment of the job: the `python` on the PATH has no torch.
    (job / "run.sh").write_text("torchrun --nproc_per_node 1 train.py\n")
    other = tmp_path / "bin"
    other.mkdir()
    for name in ("python", "torchrun"):
        (other / name).write_text("#!/bin/sh\nexit 9\n")
        (other / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{other}{os.pathsep}{os.environ['PATH']}")
    assert explain(words[0], words[1:], python=sys.executable, cache=False).estimate.peak_reserved_bytes > 16 * MiB
