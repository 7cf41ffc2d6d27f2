"""Order of results, copies and temporaries of CUDA kernels, as PyTorch's CUDA build makes them on a null GPU."""

from __future__ import annotations

import pytest

from traced_scripts import traced

torch = pytest.importorskip("torch", reason="tracing needs torch")

HEAD = """
import torch
from torch import nn
from torch.nn import functional as F
one = torch.ones(1, device="cuda", requires_grad=True)
optimizer = torch.optim.SGD([one], lr=0.1)
def made(*shape, **kind):
    return torch.randn(*shape, device="cuda", **kind).requires_grad_()
def marked(call):
    torch.empty(MARK, device="cuda", dtype=torch.uint8)
    return call()
"""
MARK = 7777  # a size that nothing else has; it stands before each call


@pytest.fixture(scope="module")
def requests_of(tmp_path_factory):
    """Sizes in the order of their allocation, for each call by its name; one process traces all."""
    lines = [HEAD.replace("MARK", str(MARK))]
    for setup, call in CALLS.values():
        lines += [setup, f"kept = marked(lambda: {call})", "del kept", "marked(lambda: None)"]
    lines.append("one.sum().backward()\noptimizer.step()")
    trace = traced(tmp_path_factory.mktemp("order"), "\n".join(lines))
    found: dict[str, list[int]] = {}
    names = iter(CALLS)
    inside = False
    for event in trace.events:
        if event.action == "alloc" and event.bytes == MARK:
            inside = not inside
            if inside:
                sizes = found[next(names)] = []
        elif event.action == "alloc" and event.bytes and inside:
            sizes.append(event.bytes)
    return found


IMAGE = 4 * 8 * 6 * 6 * 4
BN = "torch.autograd.grad(y, (x, *bn.parameters()), g)"
CALLS = {
    "softmax": (
        "x = made(50, 77); y = F.softmax(x, 1); g = torch.ones(50, 77, device='cuda')",
        "torch.autograd.grad(y, x, g)",
    ),
    "log-softmax": (
        "x = made(50, 77); y = F.log_softmax(x, 1); g = torch.ones(77, 50, device='cuda').t()",
        "torch.autograd.grad(y, x, g)",
    ),
    "layer norm": (
        "x = made(50, 77); norm = nn.LayerNorm(77).cuda(); y = norm(x); g = torch.ones(77, 50, device='cuda').t()",
        "torch.autograd.grad(y, (x, *norm.parameters()), g)",
    ),
    "channels-last convolution": (
        "x = made(4, 8, 6, 6).to(memory_format=torch.channels_last); conv = nn.Conv2d(8, 5, 2, 2, bias=False).cuda()",
        "conv(x)",
    ),
    "gradient of its weight": (
        "y = conv(x); g = torch.ones_like(y); x = x.detach()",
        "torch.autograd.grad(y, (conv.weight,), g)",
    ),
    "convolution, slice as gradient": (
        ("x = made(4, 8, 6, 6); conv = nn.Conv2d(8, 5, 2, 2, bias=False).cuda(); y = conv(x)\n"
         "g = torch.ones(4, 9, 3, 3, device='cuda')[:, :5]"),
        "torch.autograd.grad(y, (x, conv.weight), g)",
    ),
    "cuDNN's batch norm, other layout": (
        ("x = made(4, 8, 6, 6); bn = nn.BatchNorm2d(8).cuda(); y = bn(x)\n"
         "g = torch.ones_like(y).to(memory_format=torch.channels_last)"),
        BN,
    ),
    "channels-last batch norm in bfloat16": (
        ("x = torch.randn(8, 64, 28, 28, device='cuda', dtype=torch.bfloat16).to(memory_format=torch.channels_last)\n"
         "x.requires_grad_(); bn = nn.BatchNorm2d(64).cuda(); y = bn(x); g = torch.ones_like(y)"),
        BN,
    ),
    "its forward pass": ("", "bn(x)"),
    "batch norm of vectors": (
        "x = made(512, 1024); bn = nn.BatchNorm1d(1024).cuda(); y = bn(x); g = torch.ones_like(y)", BN,
    ),
    "frozen batch norm": (
        "x = made(8, 64, 28, 28, dtype=torch.bfloat16); bn = nn.BatchNorm2d(64).cuda().eval()", "bn(x)",
    ),
    "group norm": ("x = made(8, 64, 28, 28, dtype=torch.float16); norm = nn.GroupNorm(8, 64).cuda().half()", "norm(x)"),
    "its gradients, other layout": (
        "y = norm(x); g = torch.ones_like(y).to(memory_format=torch.channels_last)",
        "torch.autograd.grad(y, (x, *norm.parameters()), g)",
    ),
    "upsampling, slice as gradient": (
        ("x = made(4, 8, 3, 3); y = F.interpolate(x, scale_factor=2, mode='bilinear')\n"
         "g = torch.ones(4, 9, 6, 6, device='cuda')[:, :8]"),
        "torch.autograd.grad(y, x, g)",
    ),
    "roll": ("x = made(4, 8, 6, 6)", "x.roll((1, 1), (2, 3))"),
    "index gradient": (
        "x = made(500, 3); i = torch.zeros(777, dtype=torch.long, device='cuda'); y = x[i]; g = torch.ones_like(y)",
        "torch.autograd.grad(y, x, g)",
    ),
    "index_put": (
        "x = torch.zeros(500, 3, device='cuda')", "x.index_put((i,), g, accumulate=True)",
    ),
    "scaled heads": (
        "x = made(2, 5, 3 * 4 * 6); q, k, v = x.view(2, 5, 3, 4, 6).permute(2, 0, 3, 1, 4); q = q * 2",
        "q @ k.transpose(2, 3)",
    ),
    "few embeddings": (
        ("w = made(2, 40); i = torch.zeros(4096, dtype=torch.long, device='cuda'); y = F.embedding(i, w)\n"
         "g = torch.ones_like(y)"),
        "torch.autograd.grad(y, w, g)",
    ),
    "hardswish": (
        ("x = made(4, 8, 6, 6).to(memory_format=torch.channels_last); y = F.hardswish(x)\n"
         "g = torch.ones(4, 8, 6, 6, device='cuda')"),
        "torch.autograd.grad(y, x, g)[0].view(4, 8, 36).mul(1)",
    ),
}  # fmt: skip
WANTED = {
    "softmax": [50 * 77 * 4] * 2,
    "log-softmax": [50 * 77 * 4] * 2,
    "layer norm": [50 * 77 * 4, 77 * 4, 77 * 4, 50 * 77 * 4],
    "channels-last convolution": [4 * 5 * 9 * 4, 5 * 8 * 4 * 4],
    "gradient of its weight": [5 * 8 * 4 * 4],
    "convolution, slice as gradient": [IMAGE, 4 * 5 * 9 * 4, 4 * 5 * 9 * 4, 5 * 8 * 4 * 4],
    "cuDNN's batch norm, other layout": [IMAGE, IMAGE, 32, 32],
    "channels-last batch norm in bfloat16": [256, 256, 256, 256, 12_800, 8, 802_816],
    "its forward pass": [802_816, 256, 256, 25_600, 8],
    "batch norm of vectors": [4096, 4096, 4096, 4096, 2_097_152],
    "frozen batch norm": [802_816, 256, 256],
    "group norm": [802_816, 128, 128, 256, 256, 2048, 2048],
    "its gradients, other layout": [802_816, 802_816, 128, 128, 2048, 2048, 256, 256, 2048],
    "upsampling, slice as gradient": [4 * 8 * 9 * 4, IMAGE],
    "roll": [IMAGE, IMAGE],
    "index gradient": [500 * 3 * 4, 777 * 8, 777 * 8, 777 * 8, 777 * 8, 777 * 8, 1],
    "scaled heads": [2 * 4 * 5 * 6 * 4, 2 * 4 * 5 * 6 * 4, 2 * 4 * 5 * 5 * 4],
    "hardswish": [IMAGE, IMAGE],
}


@pytest.mark.parametrize("name", WANTED)
def test_requests_are_those_of_a_cuda_build(requests_of, name):
    assert requests_of[name] == WANTED[name]


def test_accumulating_by_index_makes_a_result_where_a_script_calls_it(requests_of):
    assert requests_of["index_put"][:2] == [500 * 3 * 4, 777 * 8]


def test_tables_of_few_rows_need_no_partial_sums(requests_of):
    """4,096 indices of 2 rows: 411 parts, by number instead of by content."""
    assert requests_of["few embeddings"][-2:] == [411 * 8, 411 * 8]
