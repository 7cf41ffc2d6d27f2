"""DTensor is imported by scripts that use it, and works in C++ then."""

from __future__ import annotations

import subprocess
import sys

import pytest

torch = pytest.importorskip("torch", reason="tracing needs torch")

USE = """
import sys
import torch

from cotenant.tracing.patches import deferred_dtensor

(entry,) = deferred_dtensor.patches(None)
assert entry.register() is not None
held = "torch.distributed.tensor"
assert held not in sys.modules and not hasattr(torch.distributed, "tensor")

class Tracked(torch.Tensor):
    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return torch.full((2,), 7.0)

tracked = torch.Tensor._make_subclass(Tracked, torch.ones(2))
assert torch.ops.aten.neg.default(tracked).tolist() == [7.0, 7.0]
assert held not in sys.modules, "C++ has imported it"

import os
os.environ.update(MASTER_ADDR="localhost", MASTER_PORT="0", RANK="0", WORLD_SIZE="1")
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore
dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor, init_device_mesh

mesh = init_device_mesh("cpu", (2,))
left = distribute_tensor(torch.ones(4, 6), mesh, [Shard(0)])
right = distribute_tensor(torch.ones(6, 2), mesh, [Replicate()])
assert type(left) is DTensor
product = left @ right
assert type(product) is DTensor and product.placements == (Shard(0),)
assert product.to_local().tolist() == [[6.0, 6.0]] * 2

class Own(DTensor):
    calls = []

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        cls.calls.append(func)
        return torch.ones(2)

own = DTensor.from_local(torch.ones(2), mesh, [Shard(0)])
own.__class__ = Own
torch.ops.aten.neg.default(own)
assert Own.calls == [torch.ops.aten.neg.default]
"""


@pytest.mark.skipif(not hasattr(torch.Tensor, "_dtensor__new__"), reason="C++ knows DTensor from torch 2.10 on")
def test_dtensor_is_imported_by_scripts_that_use_it_and_dispatched_in_cpp():
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", USE], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
