"""The lines of a script that allocate the parts of its memory, in traces and in a failed budget."""

from __future__ import annotations

import dataclasses
import re

import pytest

pytest.importorskip("torch", reason="tracing needs torch")

from cotenant.estimators.budget import budget_report, parts_at_peak
from cotenant.estimators.traced import TracedEstimator
from cotenant.gpu_specs import gpu_spec
from cotenant.tracing.process import serialization
from traced_scripts import traced

SCRIPT = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.narrow, self.wide = nn.Linear(512, 512), nn.Linear(512, {width})
    def forward(self, x):
        x = self.narrow(x)
        return self.wide(x)  # wide

model = Net().cuda()  # parameters
optimizer = torch.optim.Adam(model.parameters())
for step in range(5):
    batch = torch.zeros(4096, 512).cuda()  # batch
    loss = model(batch).square().mean()
    loss.backward()  # backward
    optimizer.step()  # step
    optimizer.zero_grad()
"""


def line_of(comment):
    found = next(i for i, line in enumerate(SCRIPT.splitlines(), 1) if line.endswith(f"# {comment}"))
    return f"train.py, line {found}"


def test_each_part_has_the_line_that_allocates_it(tmp_path):
    lines = traced(tmp_path, SCRIPT.format(width=1024)).header.lines
    wanted = {
        "parameter": "parameters", "input": "batch", "activation wide": "wide", "gradient": "backward",
        "optimizer state": "step",
    }  # fmt: skip
    assert {part: lines[part] for part in wanted} == {part: line_of(word) for part, word in wanted.items()}


def test_a_failed_budget_names_the_line_that_was_changed(tmp_path):
    estimator, gpu = TracedEstimator(), gpu_spec("A100-40GB")
    before = parts_at_peak(estimator.on(traced(tmp_path, SCRIPT.format(width=1024)), gpu))
    result = estimator.on(traced(tmp_path, SCRIPT.format(width=65536)), gpu)
    report = budget_report(result, 1 << 30, before)
    assert re.search(r"\n  \+1008\.0 MiB  activation\n", report), report
    assert f"+1008.0 MiB  activation wide  ({line_of('wide')})" in report


def test_lines_are_saved_with_a_trace(tmp_path):
    trace = traced(tmp_path, SCRIPT.format(width=1024))
    values = serialization.trace_to_dict(trace)
    assert serialization.trace_from_dict(values).header.lines == trace.header.lines
    old = {**values, "header": {name: value for name, value in values["header"].items() if name != "lines"}}
    assert serialization.trace_from_dict(old).header == dataclasses.replace(trace.header, lines={})
