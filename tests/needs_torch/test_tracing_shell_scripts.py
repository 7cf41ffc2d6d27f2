"""Estimates of shell scripts that start several Python programs."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="tracing needs torch")

from cotenant.core.errors import TraceError
from cotenant.core.ports import EstimateRequest
from cotenant.estimators.traced import TracedEstimator

TRAIN = """
import sys
import torch
if len(sys.argv) > 2:
    open("first.pt").read()
model = torch.nn.Linear(int(sys.argv[1]), 1024).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(4):
    model(torch.zeros(2, int(sys.argv[1]), device="cuda")).sum().backward()
    optimizer.step()
"""


@pytest.fixture
def estimated(tmp_path):
    (tmp_path / "train.py").write_text(TRAIN)
    (tmp_path / "prepare.py").write_text("print(1)\n")

    def run(text):
        (tmp_path / "job.sh").write_text(text)
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.defpath}"
        request = EstimateRequest(
            command=("bash", "job.sh"), workdir=str(tmp_path), gpu="A100-40GB", env={**os.environ, "PATH": path}
        )
        return TracedEstimator().estimate(request)

    return run


def test_the_program_that_needs_most_is_the_answer(estimated):
    alone = estimated("python train.py 16384\n")
    found = estimated("python prepare.py\npython train.py 16384\npython train.py 8\n")
    assert (found.peak_reserved_bytes, found.bound_bytes, found.partial) == (
        alone.peak_reserved_bytes,
        alone.bound_bytes,
        False,
    )
    (note,) = set(found.warnings) - set(alone.warnings)
    assert note.startswith("the answer is for line 2 of `job.sh`, one of 3 programs; it does not count line 1 of")
    assert "line 1 of `job.sh` (no estimate: the script ended" in note
    assert "line 3 of `job.sh` (bound " in note


def test_an_answer_without_a_program_that_may_train_is_partial(estimated):
    found = estimated("python train.py 8\npython train.py 8 resumed\n")
    assert found.partial
    assert "line 2 of `job.sh` (no estimate: the script raised FileNotFoundError" in found.warnings[0]


def test_where_no_program_has_an_answer_the_error_is_of_one_that_may_train(estimated):
    with pytest.raises(TraceError, match="FileNotFoundError"):
        estimated("python prepare.py\npython train.py 8 resumed\n")


def test_an_answer_for_four_of_six_programs_is_partial_and_says_so(estimated):
    found = estimated("".join(f"python train.py {8 * size}\n" for size in range(1, 7)))
    assert found.partial
    assert "2 that were not traced (line 5 of `job.sh`, line 6 of `job.sh`)" in found.warnings[0]
