"""Operators without a meta kernel: results and saved tensors, counted by hand."""

from __future__ import annotations

import pytest

from traced_scripts import allocations, failing, traced

torch = pytest.importorskip("torch", reason="tracing needs torch")

HEAD = """
import torch
from torch import nn
model = nn.Linear(16, 16).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
def check(found, *shapes):
    assert [tuple(tensor.shape) for tensor in found] == list(shapes), [tensor.shape for tensor in found]
"""
TRAINS = """
for _ in range(3):
    x = model(torch.randn(64, 16, device="cuda"))
    step(x).sum().backward()
    optimizer.step()
"""


@pytest.mark.parametrize(
    "lines",
    [
        pytest.param(
            "grid = torch.zeros(4, 6, 5, 2, device='cuda', requires_grad=True)\n"
            "    out = torch.cudnn_grid_sampler(x.reshape(4, 4, 8, 8), grid)\n"
            "    check([out, *torch.autograd.grad(out.sum(), [grid], retain_graph=True)], (4, 4, 6, 5), (4, 6, 5, 2))\n"
            "    return out",
            id="sampling from a grid by cuDNN",
        ),
        pytest.param(
            "out = nn.FractionalMaxPool3d(2, output_size=2)(x.reshape(2, 1, 8, 8, 8))\n"
            "    check([out], (2, 1, 2, 2, 2))\n"
            "    return out",
            id="fractional pooling",
        ),
        pytest.param(
            "one, zero = torch.ones(1, device='cuda'), torch.zeros(1, device='cuda')\n"
            "    return torch.fake_quantize_per_tensor_affine(x, one, zero.int(), 0, 255)",
            id="rounded by known scales",
        ),
        pytest.param(
            "scales, zeros = torch.ones(16, device='cuda'), torch.zeros(16, device='cuda')\n"
            "    return torch.fake_quantize_per_channel_affine(x, scales, zeros.int(), 1, 0, 255)",
            id="rounded by channel",
        ),
        pytest.param(
            "scale, zero = torch.ones(1, device='cuda', requires_grad=True), torch.zeros(1, device='cuda')\n"
            "    out = torch._fake_quantize_learnable_per_tensor_affine(x, scale, zero, 0, 255, 1.0)\n"
            "    check(torch.autograd.grad(out.sum(), [x, scale], retain_graph=True), (64, 16), (1,))\n"
            "    return out",
            id="rounded by learned scales",
        ),
        pytest.param(
            "is_zero = (x == 0).prod(-1, keepdim=True, dtype=torch.uint8)\n"
            "    out = torch.where(is_zero, torch.zeros(1, device='cuda'), x)\n"
            "    check([out], (64, 16))\n"
            "    return out",
            id="a choice by bytes",
        ),
        pytest.param(
            "assert x.is_set_to(x.detach()) and x.data.is_set_to(x)\n"
            "    assert not x.is_set_to(x[:1]) and not x.is_set_to(x.clone())\n"
            "    return x",
            id="parts of a storage are told apart",
        ),
        pytest.param(
            "found = torch.geqrf(x.detach())\n"
            "    check(found, (64, 16), (16,))\n"
            "    assert found[0].stride() == (1, 64)\n"
            "    return x",
            id="reflections of a matrix",
        ),
        pytest.param(
            "_, change = torch.func.jvp(nn.functional.glu, (x,), (x.detach(),))\n"
            "    check([change], (64, 8))\n"
            "    return x",
            id="forward through a gate",
        ),
        pytest.param(
            "places = torch.zeros(3, dtype=torch.long, device='cuda')\n    return x.index_fill(0, places, x.sum())",
            id="filled with a value that is trained",
        ),
    ],
)
def test_operators_without_a_meta_kernel_have_the_shapes_of_their_results(tmp_path, lines):
    source = HEAD + f"def step(x):\n    {lines}\n" + TRAINS
    assert not traced(tmp_path, source).partial


def test_synchronized_batch_norm_saves_its_input(tmp_path):
    source = """
    import torch, torch.distributed as dist
    from torch import nn
    dist.init_process_group("nccl")
    model = nn.Sequential(nn.Conv2d(3, 32, 1, bias=False), nn.BatchNorm2d(32)).cuda()
    model = nn.SyncBatchNorm.convert_sync_batchnorm(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        with torch.autocast("cuda", torch.float16):
            out = model(torch.randn(4, 3, 16, 16, device="cuda"))
        assert out.shape == (4, 32, 16, 16) and out.dtype is torch.float16
        out.float().square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    """
    trace = traced(tmp_path, source, launcher=["torchrun", "--nproc-per-node", "4"])
    assert not trace.partial
    half = 2 * 4 * 32 * 16 * 16
    assert allocations(trace, "forward").count(half) == 3 * 2  # the convolution's result and its own, in each step
    assert allocations(trace, "forward").count(4 * 4 * (2 * 32 + 1)) == 3  # statistics of all processes, in fp32
    assert allocations(trace, "backward").count(half) == 3 * 2  # gradients of both


def test_untraceable_is_not_a_not_implemented_error(tmp_path):
    operator = "library = torch.library.Library('mine', 'DEF')\nlibrary.define('same(Tensor x) -> Tensor')\n"
    call = "try:\n    torch.ops.mine.same(torch.ones(3).cuda())\nexcept NotImplementedError:\n    pass\n"
    source = HEAD + operator + "library.impl('same', lambda x: x.clone(), 'CPU')\n" + call
    with failing("unsupported", "`mine::same` cannot be traced"):
        traced(tmp_path, source)
