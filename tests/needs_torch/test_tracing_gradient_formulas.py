"""Gradients whose formulas differ for tensor subclasses, as PyTorch's CUDA build makes them on a null GPU."""

from __future__ import annotations

import pytest

from traced_calls import HEAD, MARK, requests_of_calls
from traced_scripts import traced

torch = pytest.importorskip("torch", reason="tracing needs torch")

X = 50 * 77 * 4
MASK = 50 * 77
T = 9 * 77 * 4
GRAD = "torch.autograd.grad(y, x, g)"
WRITTEN_VIEW = "y = nn.Identity()(y).sigmoid(); g = torch.ones_like(y)"
CALLS = {
    "activation in place behind instance normalization": (
        "x = made(8, 32, 16, 16); y = F.relu(nn.InstanceNorm2d(32)(x), inplace=True); " + WRITTEN_VIEW,
        "torch.autograd.grad(y, x, g)",
    ),
    "view that is written": ("y = (x * 2).transpose(0, 1); y.relu_(); " + WRITTEN_VIEW, "torch.autograd.grad(y, x, g)"),
    "piece that is written": ("y = (x * 2)[:4]; y.relu_(); " + WRITTEN_VIEW, "torch.autograd.grad(y, x, g)"),
    "largest of all": ("x = made(50, 77); y = x.max(); g = torch.ones_like(y)", GRAD),
    "median": ("y = x.median(); g = torch.ones_like(y)", GRAD),
    "largest norm": ("y = x.norm(torch.inf); g = torch.ones_like(y)", GRAD),
    "power of a tensor": ("e = made(50, 77); y = x**e; g = torch.ones_like(y)", "torch.autograd.grad(y, (x, e), g)"),
    "clamp by tensors": (
        "low, high = made(50, 77), made(50, 77); y = x.clamp(low, high); g = torch.ones_like(y)",
        "torch.autograd.grad(y, (x, low, high), g)",
    ),
    "cumulative product": ("y = x.cumprod(1); g = torch.ones_like(y)", GRAD),
    "product of rows": ("y = x.prod(1); g = torch.ones_like(y)", GRAD),
    "mean and variance": (
        "v, m = torch.var_mean(x, 1); g = torch.ones_like(v)", "torch.autograd.grad((v, m), x, (g, g))",
    ),
    "mean and variance of a result": (
        "h = x * 2; v, m = torch.var_mean(h, 1, keepdim=True); y = (h - m) / v; g = torch.ones_like(y)", GRAD,
    ),
    "angle": (
        "a, b = made(48, 1, 24), made(48, 24); y = torch.atan2(a, b); g = torch.ones_like(y)",
        "torch.autograd.grad(y, (a, b), g)",
    ),
    "trace": ("q = made(60, 60); y = q.trace(); g = torch.ones_like(y)", "torch.autograd.grad(y, q, g)"),
    "masked scatter": (
        ("m = torch.zeros(50, 1, dtype=torch.bool); m[:10] = True; m = m.cuda(); s = made(10, 77)\n"
         "y = x.masked_scatter(m, s); g = torch.ones_like(y)"),
        "torch.autograd.grad(y, s, g)",
    ),
    "masked scatter of more": (
        "s = made(20, 77); y = x.masked_scatter(m, s); g = torch.ones_like(y)", "torch.autograd.grad(y, s, g)",
    ),
    "masked scatter by unknown values": (
        ("u = torch.rand(50, 1, device='cuda') > 0.5; s = made(10, 77); y = x.masked_scatter(u, s)\n"
         "g = torch.ones_like(y)"),
        "torch.autograd.grad(y, s, g)",
    ),
    "largest of groups": (
        ("i = torch.zeros(50, 77, dtype=torch.long, device='cuda'); t = made(9, 77)\n"
         "y = t.scatter_reduce(0, i, x, 'amax'); g = torch.ones_like(y)"),
        "torch.autograd.grad(y, (t, x), g)",
    ),
    "mean of groups": ("t = t.detach()", "t.scatter_reduce(0, i, x.detach(), 'mean')"),
    "mean of rows": ("i = i[:, 0].contiguous()", "t.index_reduce(0, i, x.detach(), 'mean')"),
    "mean of rows in place": ("", "t.index_reduce_(0, i, x.detach(), 'mean')"),
    "CTC": (
        ("p = torch.randn(50, 4, 20, device='cuda').log_softmax(2).requires_grad_()\n"
         "n = torch.tensor([30, 20, 10, 5]); t = torch.ones(4, 30, dtype=torch.long, device='cuda')"),
        "F.ctc_loss(p, t, torch.full((4,), 50), n, reduction='none')",
    ),
    "gradient of CTC": (
        "y = F.ctc_loss(p, t, torch.full((4,), 50), n, reduction='sum'); g = torch.ones_like(y)",
        "torch.autograd.grad(y, p, g)",
    ),
    "infinite": ("", "torch.isinf(x)"),
    "infinite integers": ("", "torch.isinf(torch.ones(50, 77, device='cuda', dtype=torch.long))"),
    "distance": ("z = made(50, 77)", "torch.dist(x, z)"),
    "times a power of 2": ("k = torch.ones(1, 77, device='cuda')", "torch.ldexp(x, k)"),
    "normal around tensors": ("", "torch.normal(x.detach(), 1.0)"),
    "bernoulli": ("p = torch.rand(50, 77, device='cuda')", "torch.bernoulli(p)"),
    "bernoulli of bfloat16": ("p = p.bfloat16()", "torch.bernoulli(p)"),
    "unpooling": ("i = made(4, 8, 6, 6); v, k = F.max_pool2d(i, 2, return_indices=True)", "F.max_unpool2d(v, k, 2)"),
    "unpooling, channels last": (
        "v, k = F.max_pool2d(i.to(memory_format=torch.channels_last), 2, return_indices=True)",
        "F.max_unpool2d(v, k, 2)",
    ),
}  # fmt: skip
POSITIONS = [MASK, 4, 1]
"""The mask of whole rows, and what counts its elements."""
VIEW, PIECE = 4 * 8 * 32 * 16 * 16, 4 * 4 * 32 * 16 * 16
WANTED = {
    "activation in place behind instance normalization": [VIEW] * 6,
    "view that is written": [VIEW] * 6,
    "piece that is written": [PIECE, VIEW, VIEW, PIECE, PIECE, VIEW],
    "largest of all": [MASK, 1, MASK, 8, MASK * 8, 4, X],
    "median": [MASK, 1, MASK, 8, MASK * 8, 4, X],
    "largest norm": [X, MASK, MASK, MASK, 8, MASK * 8, 4, X, X, X],  # out of place in every build
    "power of a tensor": [MASK, MASK, MASK, X, X, 4, X, X, X, X, X, X, 4, MASK, X],
    "clamp by tensors": [4, MASK, MASK, X, MASK, MASK, X, 4, MASK, MASK, X],
    "cumulative product": [X, MASK, 1, X, X, X, X],
    "product of rows": [MASK, 50 * 8, MASK * 8, 8, X, X],
    "mean and variance": [200, X, 200, X, X, X],
    "mean and variance of a result": [X, X, X, X, X, 200, X, 200, 200, X, 200, X, X, X, X],
    "angle": [4608, 4608, 221_184, 221_184, 55_296, *[221_184, 221_184, 4608, 221_184, 221_184], 4608, 4608],
    "trace": [60 * 60 * 4, 60 * 8],
    "masked scatter": [*POSITIONS, 770 * 2 * 8, 1023, 770 * 4],
    "masked scatter of more": [*POSITIONS, 770 * 2 * 8, 1023, 770 * 4, 770 * 4, 1540 * 4],
    "masked scatter by unknown values": [*POSITIONS, 770 * 2 * 8, 1023, 770 * 4],
    "largest of groups": [X, 693, T, MASK, X, T, T, 693, T, X, MASK, X],
    "mean of groups": [T, X, T, 693],
    "mean of rows": [T, T, X, 693],
    "mean of rows in place": [T, X, 693],
    "CTC": [32, 32, 32, 4 * 50 * 61 * 4, 16],
    "gradient of CTC": [32, 32, 32, 4 * 50 * 61 * 4, 50 * 4 * 20 * 4],
    "infinite": [X, MASK],
    "infinite integers": [8 * MASK, MASK],
    "distance": [X, 4],
    "times a power of 2": [77 * 4, 8, X],
    "normal around tensors": [X, X],
    "bernoulli": [X],
    "bernoulli of bfloat16": [X // 2, X],
    "unpooling": [4608],
    "unpooling, channels last": [1152, 2304, 4608],
}


@pytest.fixture(scope="module")
def requests_of(tmp_path_factory):
    return requests_of_calls(tmp_path_factory.mktemp("formulas"), CALLS)


@pytest.mark.parametrize("name", WANTED)
def test_requests_are_those_of_a_cuda_build(requests_of, name):
    assert requests_of[name] == WANTED[name]


def test_products_have_their_gradients_under_transforms_and_twice(tmp_path):
    source = HEAD.replace("MARK", str(MARK)) + (
        "x = made(8, 6)\n"
        "rows = (lambda t: t.prod(0).sum(), lambda t: t.prod(0, True).sum(), lambda t: t.cumprod(0).sum())\n"
        "for f in (torch.prod, *rows):\n"
        "    assert torch.func.vmap(torch.func.grad(f))(x.detach().unsqueeze(0)).shape == (1, 8, 6)\n"
        "    (first,) = torch.autograd.grad(f(x), x, create_graph=True)\n"
        "    (second,) = torch.autograd.grad(first.sum(), x)\n"
        "    assert first.shape == second.shape == x.shape\n"
        "counts = torch.ones(8, 6, dtype=torch.long, device='cuda')\n"
        "assert counts.prod().dtype is counts.cumprod(0).dtype is torch.long\n"
        "assert counts.prod(0, dtype=torch.float64).dtype is torch.float64\n"
        "assert (counts == 1).prod(0, dtype=torch.uint8).dtype is torch.uint8\n"
        "assert (counts == 1).cumprod(0, dtype=torch.uint8).dtype is torch.uint8\n"
        "half = made(8, 6, dtype=torch.bfloat16)\n"
        "single = {'dtype': torch.float32}\n"
        "for y in (half.prod(0, **single), half.prod(**single), half.cumprod(0, **single)):\n"
        "    assert y.dtype is torch.float32\n"
        "    assert torch.autograd.grad(y.sum(), half)[0].dtype is torch.bfloat16\n"
        "assert torch.func.vmap(torch.prod)(counts).shape == (8,)\n"
        "one.sum().backward()\noptimizer.step()"
    )
    assert not traced(tmp_path, source).partial


def test_backward_variables_of_ctc_live_beside_its_gradient(tmp_path):
    source = HEAD.replace("MARK", str(MARK)) + (
        "p = torch.randn(50, 4, 20, device='cuda').log_softmax(2).requires_grad_()\n"
        "t = torch.ones(4, 30, dtype=torch.long, device='cuda')\n"
        "loss = F.ctc_loss(p, t, torch.full((4,), 50), torch.full((4,), 30), reduction='sum')\n"
        "before = torch.cuda.memory_allocated()\ntorch.cuda.reset_peak_memory_stats()\n"
        "torch.autograd.grad(loss, p)\n"
        "peak = torch.cuda.max_memory_allocated() - before\n"
        "assert peak == 49_152 + 16_384 + 4 * 512, peak\n"
        "one.sum().backward()\noptimizer.step()"
    )
    assert not traced(tmp_path, source).partial


def test_operands_of_a_softened_margin_are_gone_before_its_gradient_is_made(tmp_path):
    source = HEAD.replace("MARK", str(MARK)) + (
        "x = made(50, 77)\nloss = F.soft_margin_loss(x, torch.ones(50, 77, device='cuda'))\n"
        "before = torch.cuda.memory_allocated()\ntorch.cuda.reset_peak_memory_stats()\n"
        "(grad,) = torch.autograd.grad(loss, x)\n"
        "assert torch.cuda.max_memory_allocated() - before == 3 * 15_872 + 512, 'of the loss'\n"
        "one.sum().backward()\noptimizer.step()"
    )
    assert not traced(tmp_path, source).partial
