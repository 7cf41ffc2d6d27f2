"""Estimators of other distributions beyond the contract: their reports, their errors, and the comparison."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from distributions import a_distribution

CONSTANT = (Path(__file__).parents[1] / "plugins" / "acme_estimator.py").read_text()

FROM_TRACE = '''
"""A fixed number of bytes per event of the trace."""

from cotenant.estimators.base import RawEstimate, TraceBasedEstimator


class PerEvent(TraceBasedEstimator):
    name = "per-event"
    leaves_out = "everything"

    def figures(self, recorded, features, gpu):
        return RawEstimate(reserved_bytes=1000 * len(recorded.events))
'''

BROKEN = "raise RuntimeError('no licence')"


@pytest.fixture
def environment(tmp_path):
    """The environment of a process that has the three plug-ins installed."""
    for module, source, target, name in (
        ("constant", CONSTANT, "constant:Constant", "acme-constant"),
        ("per_event", FROM_TRACE, "per_event:PerEvent", "per-event"),
        ("broken", BROKEN, "broken:Broken", "broken"),
    ):
        plugins = {"cotenant.estimators": {name: target}}
        a_distribution(tmp_path, module=module, source=source, entry_points=plugins, name=f"acme-{name}")
    (tmp_path / "train.py").write_text(
        "import torch\n"
        "model = torch.nn.Linear(8, 8).cuda()\n"
        "optimizer = torch.optim.SGD(model.parameters())\n"
        "for _ in range(4):\n"
        "    model(torch.ones(2, 8, device='cuda')).sum().backward()\n"
        "    optimizer.step()\n"
    )
    return {**os.environ, "PYTHONPATH": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path / "cache")}


def run(environment, *command, code=0):
    done = subprocess.run(
        [sys.executable, "-m", *command],
        env=environment,
        cwd=environment["PYTHONPATH"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done


def test_reports_are_refused_for_a_plug_in_that_explains_nothing(environment):
    done = run(environment, "cotenant", "estimate", "train.py", "--estimator", "acme-constant", "--fits-on", code=2)
    assert "not for `acme-constant`" in done.stderr


def test_a_plug_in_that_cannot_be_imported_names_its_distribution(environment):
    done = run(environment, "cotenant", "estimate", "train.py", "--estimator", "broken", code=1)
    assert "`broken` of acme-broken 1.0 cannot be loaded: no licence" in done.stderr


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")
def test_compare_lists_plug_ins_that_answer_from_a_trace(environment):
    done = run(environment, "cotenant", "compare", "train.py", "--json")
    found = {row["name"]: row for row in json.loads(done.stdout)["estimators"]}
    assert found["per-event"]["peak_reserved_bytes"] % 1000 == 0
    assert found["per-event"]["leaves_out"] == "everything"
    assert "no licence" in found["broken"]["problem"]
    assert "acme-constant" not in found
