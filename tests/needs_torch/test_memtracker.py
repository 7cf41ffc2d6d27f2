"""The `memtracker` estimator gives the maximum that MemTracker itself reports on the CPU."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys

import pytest

from cotenant.core.ports import EstimateRequest
from cotenant.estimators import create

pytestmark = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")

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
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(script), "cpu"], capture_output=True, text=True, check=True, timeout=300
    )
    request = EstimateRequest(
        command=("train.py", "cuda"), workdir=str(tmp_path), env=dict(os.environ), gpu="A100-40GB", timeout_s=300
    )
    ours = create("memtracker").estimate(request).device_bytes
    assert ours == pytest.approx(int(done.stdout), abs=SCALARS_BYTES)
