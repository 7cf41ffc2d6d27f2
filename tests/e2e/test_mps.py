"""A daemon on a driver that does not exist shares its GPU by MPS: who becomes a client, of what, and for how long."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import fake_mps

TESTS = Path(__file__).parents[1]
PYNVML = f"""
import sys
sys.path.insert(0, {str(TESTS)!r})
from fake_pynvml import FakeDriver, FakeGpu
sys.modules[__name__] = FakeDriver(FakeGpu(uuid="GPU-0a8f0f2e-1111", gpm=(10.0, 10.0, 10.0)))
"""


@pytest.fixture
def notes(site):
    """What the control daemon was asked; the site's daemon finds it and the driver."""
    programs = site.root / "programs"
    programs.mkdir()
    (programs / "pynvml.py").write_text(PYNVML)
    site.env["PYTHONPATH"] = str(programs)
    site.env["PATH"] = f"{programs}:{site.env['PATH']}"
    site.env["COTENANT_POLICY__OPTIONS__SHARING"] = "mps"
    site.env["COTENANT_POLICY__OPTIONS__SETTLE_S"] = "0"
    site.env["COTENANT_MPS__THREAD_PERCENT"] = "60"
    return fake_mps.put(programs)


def test_jobs_share_by_mps(site, notes):
    site.start(simulate=None)
    gate = site.gate()
    show = f"echo $CUDA_MPS_PIPE_DIRECTORY $CUDA_MPS_PINNED_DEVICE_MEM_LIMIT $CUDA_MPS_ACTIVE_THREAD_PERCENTAGE; {gate}"
    jobs = [site.submit(show, declared_bytes=(1 + number) * 2**30) for number in range(2)]
    alone = site.submit(show, exclusive=True)
    for each in jobs:
        assert site.started(each)["sharing"] == "mps"
    site.open_gate(gate)
    told = []
    for each in (*jobs, alone):
        assert site.wait(each)["state"] == "COMPLETED"
        told.append(site.cli("logs", str(each)).stdout.split())
    pipe = f"{site.root}/mps/0a8f0f2e-1111-{os.geteuid()}/pipe"
    assert told == [[pipe, "0=1024M", "60"], [pipe, "0=2048M", "60"], []]
    asked = notes.read_text().splitlines()
    assert len([each for each in asked if each.startswith("start")]) == 1
    assert not (site.root / "mps" / f"0a8f0f2e-1111-{os.geteuid()}").exists()


def test_job_that_cannot_have_mps_says_so(site, notes):
    (notes.parent / "broken").touch()
    site.start(simulate=None)
    view = site.wait(site.submit("true"))
    assert view["state"] == "FAILED"
    assert "MPS does not start on GPU-0a8f0f2e-1111" in view["reason"]
