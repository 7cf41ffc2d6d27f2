"""Scratch memory of CUDA kernels, with bytes counted by hand from PyTorch's CUDA sources."""

from __future__ import annotations

import pytest

from traced_scripts import allocations, traced

torch = pytest.importorskip("torch", reason="tracing needs torch")

HEAD = """
import torch
from torch import nn
from torch.nn import functional as F
one = torch.ones(1, device="cuda", requires_grad=True)
optimizer = torch.optim.SGD([one], lr=0.1)
def made(*shape, **kind):
    return torch.randn(*shape, device="cuda", **kind).requires_grad_()
"""
STEP = "one.sum().backward()\noptimizer.step()\n"


def scratch(tmp_path, line, more_than=512):
    """Sizes of all storages that the line makes, those of its operands and small ones left out."""
    before = allocations(traced(tmp_path, HEAD + line.split("---")[0] + "\n" + STEP))
    after = allocations(traced(tmp_path, HEAD + line.replace("---", "\n") + "\n" + STEP))
    for size in before:
        after.remove(size)
    return sorted((size for size in after if size > more_than), reverse=True)


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        pytest.param("x = made(50, 77)---y = F.logsigmoid(x)", [50 * 77 * 4], id="log-sigmoid keeps no buffer"),
        pytest.param("x = made(50, 77)---y = F.mse_loss(x, x.detach())", [50 * 77 * 4], id="squares, then their mean"),
        pytest.param(
            "x = made(50, 77)---y = F.smooth_l1_loss(x, x.detach(), reduction='none')", [50 * 77 * 4],
            id="nothing to reduce",
        ),
        pytest.param(
            "x = made(50, 77)---y = torch.logsumexp(x, 1)", [50 * 77 * 4], id="exponentials before the sum"
        ),
        pytest.param(
            "x = made(50, 77)---y = F.binary_cross_entropy(x.detach(), x.detach())", [50 * 77 * 4],
            id="a loss in the storage of its elements",
        ),
        pytest.param(
            "x = made(40, 50)\nw = made(50, 30)---y = x.t().contiguous()[:, ::2] @ w[:20]",
            [50 * 40 * 4, 50 * 20 * 4, 50 * 30 * 4],
            id="a matrix with gaps is copied for cuBLAS",
        ),
        pytest.param(
            "x = made(40, 50)\nw = made(40, 30)---y = x.t() @ w", [50 * 30 * 4], id="a transposed one is not"
        ),
        pytest.param(
            "x, w = made(4, 40, 50), made(4, 25, 30)---y = torch.bmm(x[:, :, ::2], w)",
            [4 * 40 * 30 * 4, 4 * 40 * 25 * 4],
            id="so is a batch of them",
        ),
        pytest.param(
            "x, w = made(4, 40, 50), made(4, 40, 30)---y = torch.bmm(x.transpose(1, 2), w)",
            [4 * 50 * 30 * 4],
            id="but not of transposed ones",
        ),
        pytest.param(
            "x = made(70, 50)---y = F.layer_norm(x.t(), (70,))", [50 * 70 * 4, 50 * 70 * 4],
            id="rows in order for layer norm",
        ),
        pytest.param("x = made(70, 50)---y = F.softmax(x.t(), 1)", [50 * 70 * 4, 50 * 70 * 4], id="and for softmax"),
        pytest.param(
            "x = made(70, 50)\nm = torch.ones(70, 50, device='cuda', dtype=torch.bool)---"
            "with torch.no_grad(): y = x.masked_scatter_(m, x.detach())",
            [70 * 50 * 8],
            id="sums of a mask",
        ),
        pytest.param(
            "x = made(70, 50)\nm = torch.ones(70, 50, device='cuda', dtype=torch.bool)---y = x.masked_scatter(m, x)",
            [70 * 50 * 8, 70 * 50 * 4],
            id="sums of a mask, and a result of its own",
        ),
        pytest.param(
            "x = made(70, 50)\ni = torch.zeros(300, dtype=torch.long, device='cuda')\nv = made(300, 50)---"
            "with torch.no_grad(): x[i] = v",
            [],
            id="values that are put by index need no order",
        ),
        pytest.param(
            "x = made(70, 50)\ni = torch.zeros(300, dtype=torch.long, device='cuda')\nv = made(50, 300)---"
            "with torch.no_grad(): x.index_put_((i,), v.t(), accumulate=True)",
            [300 * 50 * 4, *4 * [300 * 8]],
            id="those that are added do, in rows",
        ),
    ],
)  # fmt: skip
def test_scratch_memory_of_forward_kernels(tmp_path, line, wanted):
    assert scratch(tmp_path, line) == sorted(wanted, reverse=True)


def test_accumulating_by_a_mask_sorts_nothing(tmp_path):
    line = "x, v = made(70, 50), torch.ones((), device='cuda')\nm = torch.ones(70, 50, device='cuda').bool()---"
    assert scratch(tmp_path, line + "with torch.no_grad(): x.index_put_((m,), v, accumulate=True)", 4) == []


def backward(tmp_path, line):
    """Sizes of what a backward pass makes."""
    return allocations(traced(tmp_path, HEAD + line + "\noptimizer.step()\n"), "backward")


@pytest.mark.parametrize(
    ("tokens", "rows", "dtype", "taken"),
    [
        # Places sorted, where they were, and one number for each; two for each row that is met; one for each part, and
        # its sum: parts are of ten places at most, and each row begins one.
        pytest.param(3072, 900, "float32", {}, id="few"),
        pytest.param(
            3073, 900, "float32", {3073 * 8: 3, 900 * 8: 2, 1207 * 8: 1, 1207 * 24 * 4: 1}, id="more than 3072"
        ),
        pytest.param(3073, 4000, "float32", {3073 * 8: 5, 3380 * 8: 1, 3380 * 24 * 4: 1}, id="of more rows"),
        pytest.param(3073, 900, "float16", {1207 * 24 * 4: 1}, id="halves are summed in float32"),
        pytest.param(3073, 900, "float64", {1207 * 24 * 8: 1}, id="doubles as they are"),
    ],
)
def test_many_indices_of_an_embedding_are_sorted(tmp_path, tokens, rows, dtype, taken):
    line = f"table = nn.Embedding({rows}, 24, dtype=torch.{dtype}).cuda()\n"
    line += f"y = table(torch.zeros({tokens}, dtype=torch.long, device='cuda'))\n"
    sizes = backward(tmp_path, line + "(y * one).sum().backward()")
    assert {size: sizes.count(size) for size in taken} == taken
    result = sizes.index(rows * 24 * getattr(torch, dtype).itemsize)  # it comes between sorting and summing
    assert sizes[:result].count(tokens * 8) == (2 if tokens > 3072 else 0)
    assert (tokens * 8 in sizes) == (tokens > 3072)


@pytest.mark.parametrize("line", ["F.softmax(x, 1)", "F.log_softmax(x, 1)", "F.layer_norm(x, (50,))"])
def test_gradients_are_made_contiguous_first(tmp_path, line):
    tail = f"y = {line}\nz = torch.ones(50, 70, device='cuda')\n"
    in_order = backward(tmp_path, f"x = made(70, 50)\n{tail}y.backward(z.view(70, 50))")
    turned = backward(tmp_path, f"x = made(70, 50)\n{tail}y.backward(z.t())")
    assert turned.count(70 * 50 * 4) == in_order.count(70 * 50 * 4) + 1


def test_accumulating_by_index_sorts_the_indices(tmp_path):
    line = "x = made(500, 3)\ni = torch.zeros(777, dtype=torch.long, device='cuda')\n(x[i] * one).sum().backward()"
    assert backward(tmp_path, line).count(777 * 8) == 4


@pytest.mark.parametrize(
    ("dtype", "grouped", "wanted"),
    [
        # batch 2, 3 heads of 40, 100 long: 128 rows of 64 for each head. Flash: the gradient of queries, the given one
        # and the result in rows, two gradients for each query's head. Efficient: three gradients, again as their
        # leaves are laid out, the given one in rows, and its product with the result.
        pytest.param("bfloat16", 3, {2 * 3 * 128 * 64 * 4: 1, 2 * 3 * 128 * 4: 1}, id="flash sums in float32"),
        pytest.param(
            "bfloat16", 1, {2 * 3 * 128 * 64 * 4: 1, 2 * 3 * 100 * 40 * 2: 5}, id="grouped heads, each its own"
        ),
        pytest.param(
            "float32", 3, {2 * 3 * 100 * 40 * 4: 8, 2 * 3 * 100 * 4: 2}, id="efficient multiplies by the result"
        ),
    ],
)
def test_scratch_memory_of_attention_backward(tmp_path, dtype, grouped, wanted):
    kind = f"dtype=torch.{dtype}"
    line = f"q = made(2, 3, 100, 40, {kind})\nk, v = (made(2, {grouped}, 100, 40, {kind}) for _ in 'kv')\n"
    line += f"y = F.scaled_dot_product_attention(q, k, v, enable_gqa={grouped != 3})\n"
    sizes = backward(tmp_path, line + f"y.backward(torch.ones(2, 3, 100, 40, device='cuda', {kind}))")
    assert {size: sizes.count(size) for size in wanted} == wanted


def test_a_contiguous_gradient_is_not_copied(tmp_path):
    line = "q, k, v = (made(2, 3, length, 40) for length in (100, 60, 60))\n"
    line += "y = F.scaled_dot_product_attention(q, k, v)\n"
    usual = "torch.ones(2, 3, 100, 40, device='cuda')"
    turned = "torch.ones(2, 100, 3, 40, device='cuda').transpose(1, 2)"
    copied, used = (backward(tmp_path, line + f"y.backward({gradient})") for gradient in (usual, turned))
    assert copied.count(2 * 3 * 100 * 40 * 4) == used.count(2 * 3 * 100 * 40 * 4) + 1
    assert used.count(2 * 3 * 100 * 4) == 2  # a number for each query


def test_scratch_memory_is_freed(tmp_path):
    trace = traced(tmp_path, HEAD + "x = made(50, 77)\ny = F.mse_loss(x, x.detach())\nz = made(50, 77)\n" + STEP)
    made = [(i, e.storage_id) for i, e in enumerate(trace.events) if e.action == "alloc" and e.bytes == 50 * 77 * 4]
    _, (_, loss), (later, _) = made
    assert loss in [e.storage_id for e in trace.events[:later] if e.action == "free"]
