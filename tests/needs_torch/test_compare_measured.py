"""`benchmarks/estimator/compare_measured.py` on campaigns that equal the estimate and that differ from it."""

from __future__ import annotations

import gzip
import importlib
import json
import sys
from pathlib import Path

import pytest

from cotenant.gpu_specs import gpu_spec
from cotenant.measurement.dry_run import explain
from cotenant.measurement.job_list import read_jobs
from cotenant.measurement.probe_history import compact_history
from cotenant.measurement.result_table import COLUMNS, ResultTable

pytest.importorskip("torch")
ROOT = Path(__file__).parents[2]

SCRIPT = """
import torch
model = torch.nn.Sequential(torch.nn.Linear(512, 512), torch.nn.ReLU(), torch.nn.Linear(512, 256)).cuda()
optimizer = torch.optim.Adam(model.parameters())
for _ in range(9):
    model(torch.ones(64, 512, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.fixture
def bench(monkeypatch):
    monkeypatch.syspath_prepend(ROOT)
    return importlib.import_module("benchmarks.estimator.compare_measured")


def entries(events, *, skip=(), extra=None):
    """A recorded history in which every event of a trace has an address of its own."""
    found = []
    for number, event in enumerate(events):
        common = {"addr": 512 * event.storage_id, "stream": 0, "time_us": number, "frames": []}
        if number == extra:
            found.append({**common, "addr": 512 * 10**6, "action": "alloc", "size": 3 * 2**20})
        if event.action == "alloc" and event.bytes and number not in skip:
            found.append({**common, "action": "alloc", "size": event.bytes})
        elif event.action == "free":
            found.append({**common, "action": "free_requested", "size": 0})
    return found


def test_the_report_has_errors_bounds_and_the_first_difference_of_histories(bench, tmp_path, monkeypatch, capsys):
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "jobs.toml").write_text('[[job]]\nname = "a"\nscript = "train.py"\nsteps = 3\n')
    (job,) = read_jobs(tmp_path / "jobs.toml").jobs
    gpu = gpu_spec("H200-141GB")
    result = explain(job, gpu=gpu.name, python=sys.executable, timeout_s=120)
    estimate, events = result.estimate, result.replay_input.events
    table = ResultTable(tmp_path / "rows.csv", tuple(COLUMNS))
    table.add(
        {
            "job": "a",
            "repeat": 1,
            "outcome": "ok",
            "gpu": "NVIDIA H200",
            "torch": result.trace.header.torch_version,
            "peak_allocated_bytes": estimate.peak_allocated_bytes,
            "peak_reserved_bytes": estimate.peak_reserved_bytes * 2,
            "end_device_bytes": estimate.bound_bytes + 1,
        }
    )
    table.add({"job": "a", "repeat": 2, "outcome": "crashed"})
    middle = next(i for i, event in enumerate(events) if event.phase == "backward")
    (tmp_path / "a").mkdir()
    with gzip.open(tmp_path / "a" / "run-1.history.json.gz", "wt") as file:
        json.dump(compact_history(entries(events, extra=middle), []), file)
    argv = ["compare_measured.py", str(tmp_path), "--jobs", str(tmp_path / "jobs.toml"), "--history"]
    monkeypatch.setattr(sys, "argv", argv)
    assert bench.main() == 0
    out = capsys.readouterr().out
    assert "| a | +0.0% | -50.0% | " in out
    assert "bound exceeded: 1 of 1" in out
    assert "reserved: median 50.00%" in out
    allocs = sum(1 for event in events if event.action == "alloc" and event.bytes)
    assert f"a: {allocs} allocations match, 1 differences" in out
    assert "only recorded       3145728" in out
    # The block that only the real run took is never given back there: from then on the bytes alive differ.
    assert "live bytes diverge at an allocation" in out


def test_a_campaign_without_a_gpu_is_skipped(bench, tmp_path, monkeypatch, capsys):
    ResultTable(tmp_path / "rows.csv", tuple(COLUMNS)).add({"job": "a", "repeat": 1, "outcome": "no-cuda"})
    monkeypatch.setattr(sys, "argv", ["compare_measured.py", str(tmp_path), "--jobs", "none.toml"])
    assert bench.main() == 0
    assert "no run" in capsys.readouterr().out
