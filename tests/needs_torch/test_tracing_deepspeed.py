"""DeepSpeed, by stand-ins with the structure of its modules: the library is no dependency of the tests."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="tracing needs torch")

from traced_scripts import by_category, traced

STAGE_3 = """
import torch

class DeepSpeedZeroOptimizer_Stage3:
    def __init__(self, optimizer, parts):
        self.optimizer, self.parts = optimizer, parts
        self.initialize_optimizer_states()

    def _optimizer_step(self, part):
        self.optimizer.param_groups[0]["params"] = [self.parts[part]]
        self.optimizer.step()
        self.optimizer.param_groups[0]["params"] = []

    def initialize_optimizer_states(self):
        for part, flat in enumerate(self.parts):
            flat.grad = torch.zeros_like(flat)
            self._optimizer_step(part)
            flat.grad = None

    def step(self, closure=None):
        for part, flat in enumerate(self.parts):
            flat.grad = torch.ones_like(flat)
            self._optimizer_step(part)
            flat.grad = None
"""
TRAIN_IN_PARTS = """
import torch
from torch import nn
from deepspeed.runtime.zero.stage3 import DeepSpeedZeroOptimizer_Stage3
model = nn.Linear(1024, 1024, bias=False).cuda()
parts = [nn.Parameter(torch.zeros(256, 1024, device="cuda")) for _ in range(4)]
engine = DeepSpeedZeroOptimizer_Stage3(torch.optim.Adam(parts), parts)
for _ in range(9):
    model(torch.ones(8, 1024, device="cuda")).sum().backward()
    engine.step()
"""


def installed(folder: Path, module: str, source: str) -> None:
    """Write a module of the stand-in below `folder`, where a script finds it."""
    if importlib.util.find_spec("deepspeed") is not None:
        pytest.skip("the library itself is installed, whose place a stand-in would take")
    path = folder.joinpath(*module.split(".")).with_suffix(".py")
    path.parent.mkdir(parents=True, exist_ok=True)
    for package in path.parents:
        if package == folder:
            break
        (package / "__init__.py").touch()
    path.write_text(source)


def test_steps_of_an_engine_in_parts_count_as_one_and_those_at_its_start_as_none(tmp_path):
    installed(tmp_path, "deepspeed.runtime.zero.stage3", STAGE_3)
    trace = traced(tmp_path, TRAIN_IN_PARTS)
    assert trace.header.steps == 3
    assert sum(event.phase == "backward" and event.bytes == 4 * 1024**2 for event in trace.events) >= 3
    assert by_category(trace)["optimizer state"] == 2 * 4 * 1024**2


def test_extensions_that_need_the_toolkit_are_not_compatible_and_others_answer(tmp_path):
    builder = """
import torch
class MissingCUDAException(Exception):
    pass
class Quantizer:
    def is_compatible(self, verbose=False):
        raise MissingCUDAException("CUDA_HOME does not exist, unable to compile CUDA op(s)")
class Inference:
    def is_compatible(self, verbose=False):
        return int(torch.version.cuda.split(".")[0]) >= 11
class Adam:
    def is_compatible(self, verbose=False):
        return True
class Broken:
    def is_compatible(self, verbose=False):
        raise KeyError("mine")
"""
    all_ops = """
from deepspeed.ops.op_builder.builder import *
ALL_OPS = {of.__name__: of() for of in (Quantizer, Inference, Adam, Broken)}
"""
    installed(tmp_path, "deepspeed.ops.op_builder.builder", builder)
    installed(tmp_path, "deepspeed.ops.op_builder.all_ops", all_ops)
    script = """
import torch
torch.version.cuda = None  # as of a CPU build
from deepspeed.ops.op_builder.all_ops import ALL_OPS
found = {name: ALL_OPS[name].is_compatible(verbose=True) for name in ("Quantizer", "Inference", "Adam")}
assert found == {"Quantizer": False, "Inference": False, "Adam": True}
try:
    ALL_OPS["Broken"].is_compatible()
    raise SystemExit("hidden")
except KeyError:
    pass
layer = torch.nn.Linear(8, 8).cuda()
optimizer = torch.optim.SGD(layer.parameters(), 0.1)
for _ in range(4):
    layer(torch.ones(2, 8, device="cuda")).sum().backward()
    optimizer.step()
"""
    assert not traced(tmp_path, script).partial


def test_a_library_may_script_a_function_that_calls_a_patched_operator(tmp_path):
    library = tmp_path / "site-packages"
    library.mkdir()
    (library / "sharded_moe.py").write_text(
        "import torch\nimport torch.nn.functional as F\n\n@torch.jit.script\n"
        "def one_hot_to_float(x, n: int):\n    return F.one_hot(x, num_classes=n).float()\n"
    )
    script = """
import sys
import torch
from torch.jit._builtins import _get_builtin_table
_get_builtin_table()  # TorchScript collects its operators once: before any function of the library is scripted
sys.path.insert(0, "site-packages")
from sharded_moe import one_hot_to_float
assert isinstance(one_hot_to_float, torch.jit.ScriptFunction)
layer = torch.nn.Linear(8, 8).cuda()
optimizer = torch.optim.SGD(layer.parameters(), 0.1)
for _ in range(4):
    layer(one_hot_to_float(torch.arange(4), 8).cuda()).sum().backward()
    optimizer.step()
"""
    assert not traced(tmp_path, script).partial
