"""Libraries beside PyTorch, whose names begin with its name, are none of its files."""

from __future__ import annotations

import functools
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="tracing needs torch")

from cotenant.tracing.assumptions.assumed_sizes import _reading_frame
from cotenant.tracing.assumptions.data_dependent_loops import script_frame
from cotenant.tracing.torch_location import TORCH_DIR
from cotenant.tracing.training.loop_exit import _frames

OWN = str(Path(TORCH_DIR, "utils", "_device.py"))
BESIDE = str(Path(f"{TORCH_DIR[:-1]}_beside", "made_up.py"))


def caller(path):
    """A function of a file with this path, which calls another one."""
    names = {}
    exec(compile("def call(function):\n    return function()\n", path, "exec"), names)
    return names["call"]


@pytest.mark.parametrize(
    "asked", [pytest.param(_reading_frame, id="what reads a size"), pytest.param(script_frame, id="a condition")]
)
def test_what_reads_a_value_may_be_a_library_beside_pytorch(asked):
    assert caller(BESIDE)(functools.partial(caller(OWN), asked)).f_code.co_filename == BESIDE


def test_loops_of_a_library_beside_pytorch_may_be_left():
    frames = caller(BESIDE)(functools.partial(caller(OWN), lambda: list(_frames())))
    paths = [frame.f_code.co_filename for frame in frames]
    assert BESIDE in paths
    assert OWN not in paths
