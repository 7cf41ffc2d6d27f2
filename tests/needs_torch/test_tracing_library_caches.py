"""What libraries compile in a trace is there in the next one."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from cotenant.tracing.process.program import Program
from cotenant.tracing.process.trace_script import trace_script
from traced_scripts import A100, allocations

pytest.importorskip("torch", reason="tracing needs torch")

TRAIN = """
import os, pathlib, torch
folder = pathlib.Path(os.environ["NUMBA_CACHE_DIR"])
(folder / "audio").mkdir(exist_ok=True)
seen = (folder / "audio" / "resample.nbc").exists()
(folder / "audio" / "resample.nbc").write_bytes(b"compiled")
model = torch.nn.Linear(64 if seen else 32, 8).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    model(torch.zeros(2, model.in_features).cuda()).sum().backward()
    optimizer.step()
"""


def first_allocation(folder: Path, env: dict[str, str]) -> int:
    (folder / "train.py").write_text(TRAIN)
    program = Program(python=sys.executable, kind="script", target="train.py", args=())
    trace = trace_script(program, gpu=A100, workdir=str(folder), env=env)
    return allocations(trace)[0]


def test_functions_that_numba_compiled_are_found_by_the_next_trace(tmp_path):
    env = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache")}
    env.pop("NUMBA_CACHE_DIR", None)
    assert [first_allocation(tmp_path, env) for _ in range(2)] == [32 * 8 * 4, 64 * 8 * 4]
    assert list((tmp_path / "cache" / "cotenant" / "numba").rglob("*.nbc"))


def test_a_folder_that_the_user_has_set_stays(tmp_path):
    (tmp_path / "mine").mkdir()
    first_allocation(tmp_path, {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path / "mine")})
    assert list((tmp_path / "mine").rglob("*.nbc"))
