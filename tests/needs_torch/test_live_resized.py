"""Blocks on a simulated GPU: of a storage that changes its size in place, and of workspaces."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch", reason="fake tensors need torch")

from cotenant.estimators.lowering import BlasWorkspaces  # noqa: E402 - torch may be absent
from cotenant.simserver.torch.recorder import AllocatingRecorder  # noqa: E402 - torch may be absent


class Gpu:
    """Blocks by their addresses."""

    def __init__(self):
        self.blocks = {}
        self.allocator = self

    def malloc(self, size_bytes, stream):
        address = max(self.blocks, default=0) + 1
        self.blocks[address] = size_bytes
        return address

    def free(self, address):
        del self.blocks[address]

    @property
    def allocated_bytes(self):
        return sum(self.blocks.values())


def test_a_resize_frees_the_old_block_and_allocates_a_new_one():
    gpu = Gpu()
    recorder = AllocatingRecorder([gpu], blas=SimpleNamespace(), conv=lambda op: 0, pace=None)
    tensor, unrelated = torch.empty(100), torch.empty(5)
    recorder.record_storage(tensor)
    assert list(gpu.blocks.values()) == [400]
    tensor.untyped_storage().resize_(0)
    recorder.record_resize(tensor.untyped_storage())
    tensor.untyped_storage().resize_(1000)
    recorder.record_resize(tensor.untyped_storage())
    recorder.record_resize(unrelated.untyped_storage())
    assert recorder.live_bytes[0] == gpu.allocated_bytes == 1000
    del tensor
    assert gpu.allocated_bytes == 0


@pytest.mark.parametrize(("per_call", "held"), [(False, [100]), (True, [])])
def test_workspaces_of_products_are_held_by_their_handle_or_by_the_call(per_call, held):
    gpu = Gpu()
    blas = BlasWorkspaces(handle_bytes=100, lt_bytes=7, per_call=per_call)
    recorder = AllocatingRecorder([gpu], blas=blas, conv=lambda op: 0, pace=None)
    for _ in range(2):
        recorder.record_call("gemm", "main", {}, 0)
    assert list(gpu.blocks.values()) == held
    assert recorder.peak_bytes[0] == 100
