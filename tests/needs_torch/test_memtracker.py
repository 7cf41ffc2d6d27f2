"""The `memtracker` estimator gives the maximum that MemTracker itself reports on the CPU."""

from __future__ import annotations

import contextlib
import os
import runpy
import sys
import warnings

import pytest

from apart import apart
from cotenant.core.ports import EstimateRequest
from cotenant.estimators import create

torch = pytest.importorskip("torch", reason="MemTracker is torch's")

# All sizes are multiples of 512 bytes, since MemTracker rounds on GPUs only.
SCRIPT = """
import contextlib, sys
import torch
device = sys.argv[1]
tracker = contextlib.nullcontext()
model = torch.nn.Sequential(torch.nn.Linear(512, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 256)).to(device)
optimizer = torch.optim.{optimizer}(model.parameters(), lr=1e-3, foreach={foreach})
if device == "cpu":
    from torch.distributed._tools.mem_tracker import MemTracker
    tracker = MemTracker()
    tracker.track_external(model, optimizer)
with tracker:
    for _ in range(3):
        batch = torch.ones({batch}, 512, device=device)
        loss = model(batch).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if device == "cpu":
            tracker.reset_mod_stats()  # it refuses a second step otherwise; the peak stays
if device == "cpu":
    print(tracker.get_tracker_snapshot("peak")[torch.device("cpu")]["Total"])
"""
SCALARS_BYTES = 16 * 1024
"""Losses and step counters: a few bytes each there, 512 here."""


@pytest.mark.parametrize(
    ("optimizer", "foreach", "batch"),
    [
        pytest.param("Adam", False, 128, id="weights dominate"),
        pytest.param("Adam", True, 128, id="foreach temporaries"),
        pytest.param("SGD", False, 8192, id="activations dominate"),
    ],
)
def test_the_estimate_equals_the_maximum_of_memtracker(tmp_path, optimizer, foreach, batch):
    script = tmp_path / "train.py"
    script.write_text(SCRIPT.format(optimizer=optimizer, foreach=foreach, batch=batch))
    request = EstimateRequest(
        command=("train.py", "cuda"), workdir=str(tmp_path), env=dict(os.environ), gpu="A100-40GB", timeout_s=300
    )
    ours = create("memtracker").estimate(request).device_bytes
    run_on_the_cpu(script=script)
    assert ours == pytest.approx(int((tmp_path / "maximum").read_text()), abs=SCALARS_BYTES)


@apart
def run_on_the_cpu(script):
    """Run the script in a fork, where torch is imported."""
    torch.set_num_threads(1)
    with warnings.catch_warnings(), (script.parent / "maximum").open("w") as out, contextlib.redirect_stdout(out):
        warnings.simplefilter("ignore")
        sys.argv = [str(script), "cpu"]
        runpy.run_path(str(script), run_name="__main__")
