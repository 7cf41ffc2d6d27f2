"""`cotenant estimate`, from a script to all that it can say of it."""

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
    """Where all tests have their job, one after the other: a trace may be kept for one in the same folder only."""
    return tmp_path_factory.mktemp("place")


@pytest.fixture
def job(place, tmp_path, monkeypatch):
    """A folder with a script, to be the working folder; traces are kept in a folder of the test's own."""
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
def ask(job, capsys):
    """Run the command; its JSON."""

    def asked(*args, code=0):
        os.environ.pop("PYTEST_CURRENT_TEST", None)  # any variable may decide what a script does
        assert main(["estimate", "train.py", "--json", *args]) == code
        return json.loads(capsys.readouterr().out)

    return asked


@pytest.fixture
def kept(ask, place, tmp_path):
    """A trace of the script as it is, in the test's cache; made once."""
    if not (place / "cache").exists():
        ask()
        shutil.copytree(tmp_path / "cache", place / "cache")
    else:
        shutil.copytree(place / "cache", tmp_path / "cache")


@pytest.fixture
def trials(job, place, monkeypatch):
    """A cache for all tests that search for a batch size: they try some of the same ones."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(place / "trials"))


def was_kept(told):
    return told["trace"]["from_cache"]


def test_the_same_question_is_answered_from_the_cache(ask):
    first, second = ask(), ask()
    assert (was_kept(first), was_kept(second)) == (False, True)
    for told in (first, second):
        del told["elapsed_s"], told["trace"]["from_cache"]
    assert first == second


def test_other_estimators_take_the_options_of_the_run(job, capsys):
    assert main(["estimate", "train.py", "--estimator", "params16", "--python", "/absent/python"]) == 2
    assert "no interpreter `/absent/python`" in capsys.readouterr().err
    assert main(["estimate", "train.py", "--estimator", "params16", "--fits-on"]) == 2
    assert "`--fits-on` is for `--estimator traced`" in capsys.readouterr().err
    assert main(["compare", "train.py", "--sequence-lengths", "absent.csv"]) == 2
    assert "cannot read lengths from `absent.csv`" in capsys.readouterr().err


def test_utilization_is_told_on_request(kept, ask, capsys):
    pytest.importorskip("numpy", reason="learned models need it")
    told = ask("--utilization")["utilization"]
    assert 0 < told["smocc"] < told["smact"] <= 1
    assert told["gpu"] == "A100-40GB"
    assert "utilization" not in ask()
    assert main(["estimate", "train.py", "--utilization"]) == 0
    assert f"alone on an A100 about SMACT {told['smact']:.2f}" in capsys.readouterr().out
    assert main(["estimate", "train.py", "--utilization", "--estimator", "horus"]) == 2
    assert "`--utilization` is for `--estimator traced`" in capsys.readouterr().err


def test_no_cache_keeps_nothing(ask, tmp_path):
    ask("--no-cache")
    assert not (tmp_path / "cache").exists()


def test_no_cache_is_not_asked_for_what_is_kept(kept, ask):
    assert was_kept(ask())
    assert not was_kept(ask("--no-cache"))


def test_an_edited_module_is_traced_again(kept, ask, job):
    before = ask()
    assert was_kept(before)
    (job / "width.py").write_text("WIDTH = 2048\n")
    after = ask()
    assert not was_kept(after)
    assert after["peak_reserved_bytes"] > before["peak_reserved_bytes"]
    assert was_kept(ask())


def test_other_arguments_are_traced_again(kept, ask):
    assert not was_kept(ask("--", "--seed", "1"))


def test_another_gpu_of_the_same_capability_is_a_replay(kept, ask):
    told = ask("--gpu", "A100-80GB:1g.10gb")
    assert was_kept(told)
    assert told["gpu"] == "A100-80GB:1g.10gb"
    assert not was_kept(ask("--gpu", "H100-80GB"))


def test_another_setting_is_a_replay(kept, ask, monkeypatch):
    before = ask()
    monkeypatch.setenv(CONF, "roundup_power2_divisions:1,max_split_size_mb:20")
    after = ask()
    assert was_kept(after)
    assert after["trace"]["alloc_conf"] == "roundup_power2_divisions:1,max_split_size_mb:20"
    assert after["peak_reserved_bytes"] != before["peak_reserved_bytes"]


def test_a_setting_of_the_script_itself_counts(ask, monkeypatch):
    monkeypatch.setenv("OWN_CONF", "expandable_segments:True")
    assert ask()["trace"]["alloc_conf"] == "expandable_segments:True"
    assert was_kept(ask())
    monkeypatch.setenv(CONF, "max_split_size_mb:128")
    told = ask()
    assert not was_kept(told)
    assert told["trace"]["alloc_conf"] == "expandable_segments:True"


def test_a_backend_that_is_not_modeled_is_told(kept, ask, monkeypatch):
    monkeypatch.setenv(CONF, "backend:cudaMallocAsync")
    assert any("cudaMallocAsync" in warning for warning in ask()["warnings"])


def test_a_setting_that_torch_refuses_is_an_error(ask, monkeypatch):
    monkeypatch.setenv(CONF, "nonsense:1")
    assert "nonsense" in ask(code=2)["error"]["message"]


def test_the_interval_holds_the_answer_and_the_margin_covers_it(kept, ask):
    told = ask()
    interval = told["interval"]
    assert interval["low_bytes"] <= told["peak_reserved_bytes"] <= interval["high_bytes"]
    assert told["bound_bytes"] >= interval["high_bytes"] + told["context_bytes"]
    assert told["fit"]["verdict"] == "fits"
    assert told["trace"]["workspaces"] is None


def test_tables(kept, ask):
    told = ask("--fits-on", "--what-if")
    assert {fit["gpu"]: fit["verdict"] for fit in told["fits_on"]}["A100-40GB"] == "fits"
    assert told["what_if"][0]["name"] == "expandable_segments:True"


@pytest.mark.parametrize("given", [(), ("--", "--batch-size", "3"), ("--", "--batch-size=64")])
def test_find_batch_size(trials, ask, given):
    limit = 2000 * MiB
    told = ask("--find-batch-size", "--memory-limit", "2000MiB", *given)
    found = told["batch_size"]
    bounds = {trial["batch_size"]: trial["bound_bytes"] for trial in found["trials"]}
    assert bounds[found["largest"]] == told["bound_bytes"] <= limit
    assert found["smallest_misfit"] == found["largest"] + 1
    assert bounds[found["smallest_misfit"]] > limit


def test_find_batch_size_needs_an_argument_that_matters(ask):
    told = ask("--find-batch-size", "--batch-arg=--seed", code=2)
    assert "`--seed` does not change the memory" in told["error"]["message"]


def test_find_batch_size_where_nothing_fits(trials, ask):
    assert "no batch fits" in ask("--find-batch-size", "--memory-limit", "300MiB", code=1)["error"]["message"]


def test_text(trials, job, ask, capsys):
    ask()
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
def test_snapshot_is_read_by_torch(kept, ask, job, monkeypatch, conf):
    from torch.cuda import _memory_viz as viz

    monkeypatch.setenv(CONF, conf)
    told = ask("--snapshot", "s.pickle")
    data = pickle.loads((job / "s.pickle").read_bytes())
    # Flame graphs are drawn by a script that torch downloads; here stands what it would be given.
    stacks = {"format_flamegraph": lambda text: text}
    assert "stream_0" in viz.segments(data, **stacks)
    assert "parameter" in viz.memory(data, **stacks)
    assert ("segment_map" if conf else "cudaMalloc") in viz.trace(data)
    assert "MemoryViz" in viz.trace_plot(data)
    assert sum(segment["total_size"] for segment in data["segments"]) == told["peak_reserved_bytes"]


def test_files_that_cannot_be_written_are_refused_at_once(ask, tmp_path):
    told = ask("--snapshot", "nowhere/s.pickle", code=2)
    assert "no folder `nowhere`" in told["error"]["message"]
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize("option", ["--what-if", "--fits-on", "--find-batch-size", "--plot=x.png", "--snapshot=x"])
def test_what_needs_a_trace_is_refused_without_one(ask, option):
    told = ask("--estimator", "declared", "--gpu-mem", "3G", option, code=2)
    assert "is for `--estimator traced`" in told["error"]["message"]


def test_limit_alone_is_refused(ask):
    assert "--find-batch-size" in ask("--memory-limit", "3G", code=2)["error"]["message"]


def test_explain_from_python(job):
    first, second = explain("train.py"), explain("train.py")
    assert (first.from_cache, second.from_cache) == (False, True)
    assert first.estimate == second.estimate
    assert not explain("train.py", cache=False).from_cache
    assert explain("train.py", python=sys.executable).from_cache
