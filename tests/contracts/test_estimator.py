"""What every registered estimator must honor."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys

import pytest

from cotenant.core.codec import decode, encode
from cotenant.core.errors import CotenantError, UnknownName
from cotenant.core.estimate import Estimate
from cotenant.core.ports import EstimateRequest
from cotenant.core.units import GiB
from cotenant.estimators import ESTIMATORS, create

# Numbered blocks and `lm_head` make it a language model, to those who know nothing else.
SCRIPT = """
import torch
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = torch.nn.ModuleList(torch.nn.ModuleDict({"fc": torch.nn.Linear(512, 512)}) for _ in range(2))
        self.lm_head = torch.nn.Linear(512, 64)
    def forward(self, hidden):
        for block in self.blocks:
            hidden = block["fc"](hidden)
        return self.lm_head(hidden)
model = Model().cuda()
optimizer = torch.optim.SGD(model.parameters())
for _ in range(4):
    model(torch.ones(8, 512, device="cuda")).sum().backward()
    optimizer.step()
"""

SUMMARY = """
Layer (type)               Output Shape         Param #
================================================================
            Linear-1                  [-1, 512]         262,656
            Linear-2                   [-1, 64]          32,832
================================================================
"""


@pytest.fixture(scope="module", params=sorted(ESTIMATORS))
def name(request):
    if request.param != "declared" and importlib.util.find_spec("torch") is None:
        pytest.skip("torch is not installed")
    return request.param


@pytest.fixture(scope="module")
def request_(tmp_path_factory):
    folder = tmp_path_factory.mktemp("job")
    (folder / "train.py").write_text(SCRIPT)
    (folder / "model.txt").write_text(SUMMARY)
    return EstimateRequest(
        command=(sys.executable, "train.py"),
        workdir=str(folder),
        gpu="A100-40GB",
        declared_bytes=3 * GiB,
        model_summary="model.txt",
        batch_size=8,
    )


@pytest.fixture(scope="module")
def estimate(name, request_):
    """Asked for once: most estimators run the script each time."""
    return create(name).estimate(request_)


@pytest.fixture(scope="module")
def separate_answers(request_):
    """What one separate process answers for all estimators, and for one that does not exist."""
    without_torch = importlib.util.find_spec("torch") is None
    names = ["nobody", *(["declared"] if without_torch else sorted(ESTIMATORS))]
    lines = "".join(json.dumps({**encode(request_), "estimator": name}) + "\n" for name in names)
    done = subprocess.run(
        [sys.executable, "-m", "cotenant.estimators"], input=lines, capture_output=True, text=True, check=True
    )
    return dict(zip(names, map(json.loads, done.stdout.splitlines()), strict=True))


def test_the_estimate_carries_the_estimators_name(name):
    assert create(name).name == name
    assert create(name).version


def test_estimate_bytes_are_in_order(name, estimate):
    assert 0 < (estimate.peak_allocated_bytes or 1) <= estimate.peak_reserved_bytes
    assert estimate.peak_reserved_bytes <= estimate.device_bytes <= estimate.bound_bytes
    assert 0 < estimate.coverage <= 1
    assert estimate.estimator == name


def test_the_breakdown_adds_up(estimate):
    if estimate.breakdown_bytes:
        assert sum(estimate.breakdown_bytes.values()) == estimate.peak_allocated_bytes


def test_an_estimate_round_trips_through_the_journal(estimate):
    assert decode(Estimate, json.loads(json.dumps(encode(estimate)))) == estimate


def test_an_estimate_without_input_is_refused(name, tmp_path):
    nothing = EstimateRequest(command=("nope.py",), workdir=str(tmp_path), gpu="A100-40GB")
    with pytest.raises(CotenantError) as caught:
        create(name).estimate(nothing)
    assert caught.value.hint


def test_estimates_repeat_in_a_separate_process(name, separate_answers, estimate):
    assert decode(Estimate, separate_answers[name]["estimate"]) == estimate


def test_errors_are_reported_from_a_separate_process(separate_answers):
    assert "no estimator named `nobody`" in separate_answers["nobody"]["error"]["message"]


def test_an_unknown_name_lists_the_known_ones():
    with pytest.raises(UnknownName, match="accelerate, boosting, declared"):
        create("tracd")
