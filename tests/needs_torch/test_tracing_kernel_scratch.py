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


def scratch(tmp_path, line, more_than=512, capability=(8, 0)):
    """Sizes of all storages that the line makes, those of its operands and small ones left out."""
    before = allocations(traced(tmp_path, HEAD + line.split("---")[0] + "\n" + STEP, capability=capability))
    after = allocations(traced(tmp_path, HEAD + line.replace("---", "\n") + "\n" + STEP, capability=capability))
    for size in before:
        after.remove(size)
    return sorted((size for size in after if size > more_than), reverse=True)


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        pytest.param("x = made(50, 77)---y = F.logsigmoid(x)", [50 * 77 * 4], id="log-sigmoid keeps no buffer"),
        pytest.param("x = made(50, 77)---y = F.mse_loss(x, x.detach())", [50 * 77 * 4] * 2, id="the loss, and squares"),
        pytest.param(
            "x = made(50, 77)---y = torch.allclose(x.detach(), x.detach())", [50 * 77 * 4] * 6 + [50 * 77] * 5,
            id="differences, tolerances, and what is close",
        ),
        pytest.param(
            "x = made(50, 77).detach()---y = torch.mvlgamma(x, 2)", [2 * 50 * 77 * 4, 50 * 77 * 4], id="two gammas each"
        ),
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
            [70 * 50 * 8, 1279],
            id="sums of a mask",
        ),
        pytest.param(
            "x = made(70, 50)\nm = torch.ones(70, 50, device='cuda', dtype=torch.bool)---y = x.masked_scatter(m, x)",
            [70 * 50 * 8, 70 * 50 * 4, 1279],
            id="sums of a mask, and a result of its own",
        ),
        pytest.param(
            "x = made(70, 50).detach()\ni = torch.zeros(900, dtype=torch.int32, device='cuda')---y = x[i, i], x[:, i]",
            [70 * 900 * 4, 900 * 8, 900 * 8, 900 * 8, 900 * 4],
            id="indices of 32 bits as some of 64",
        ),
        pytest.param(
            "x = made(70, 50).detach()\ni = torch.zeros(60, 1, dtype=torch.int32, device='cuda')\n"
            "j = torch.zeros(1, 40, dtype=torch.long, device='cuda')---y = x[i, j], x[j, j]",
            [60 * 40 * 8, 60 * 40 * 8, 60 * 40 * 4],
            id="one of 32 bits, and the other beside it",
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
            [300 * 50 * 4, *5 * [300 * 8]],
            id="those that are added do, in rows",
        ),
        pytest.param(
            "x = made(70, 50)\ni = torch.zeros(300, dtype=torch.long, device='cuda')\nv = made(50, 300)---"
            "torch.use_deterministic_algorithms(True)\n"
            "with torch.no_grad(): x[i] = v.t(); x[i] = v[0, 0]\n"
            "torch.use_deterministic_algorithms(False)",
            [300 * 50 * 4, *5 * [300 * 8]],
            id="so do deterministic ones, but for one value",
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
        # Places sorted, where they were, three more lists of them; two for each row that is met; one for each part, and
        # its sum: parts are of ten places at most, and each row begins one.
        pytest.param(3072, 900, "float32", {}, id="few"),
        pytest.param(
            3073, 900, "float32", {3073 * 8: 5, 900 * 8: 2, 1207 * 8: 1, 1207 * 24 * 4: 1}, id="more than 3072"
        ),
        pytest.param(3073, 4000, "float32", {3073 * 8: 7, 3380 * 8: 1, 3380 * 24 * 4: 1}, id="of more rows"),
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
    assert sizes[:result].count(tokens * 8) == (3 if tokens > 3072 else 0)
    assert (tokens * 8 in sizes) == (tokens > 3072)


def test_sorting_the_indices_of_an_embedding_takes_the_buffers_of_a_cuda_build(tmp_path):
    """Sizes in order as torch 2.13 allocates them on a null A100, from the sorted indices to the last partial sum."""
    line = "table = nn.Embedding(70000, 28).cuda()\ny = table(torch.zeros(20000, dtype=torch.long, device='cuda'))\n"
    sizes = backward(tmp_path, line + "(y * one).sum().backward()")
    start = sizes.index(160_000)
    made = [160_000, 160_000, 160_000, 332_799, 7_840_000, 160_000, 8, 160_000, 1279, 160_000, 160_000, 1535, 8]
    assert sizes[start : start + 15] == [*made, 176_000, 2_464_000]


def test_indices_with_gaps_are_copied_for_an_embedding(tmp_path):
    head = "table = nn.Embedding(10, 50).cuda()\ni = torch.zeros(40, 31, dtype=torch.long, device='cuda')---"
    copied, used = (scratch(tmp_path, head + f"y = table({taken})") for taken in ("i[:, 1:]", "i[1:]"))
    assert (copied, used) == ([40 * 30 * 50 * 4, 40 * 30 * 8], [39 * 31 * 50 * 4])


@pytest.mark.parametrize(
    ("shape", "keys", "half", "capability", "nbytes"),
    [
        # What a CUDA build of torch 2.13 allocates on null GPUs.
        pytest.param((2, 3, 128, 64), 128, False, (8, 0), 196_800, id="float32: two blocks of queries"),
        pytest.param((2, 3, 100, 72), 100, False, (8, 0), 393_408, id="float32: one wide tile"),
        pytest.param((2, 3, 512, 128), 512, False, (7, 5), 1_574_400, id="float32: two narrow tiles on a T4"),
        pytest.param((2, 3, 200, 256), 72, False, (8, 0), 1_573_632, id="float32: four tiles"),
        pytest.param((2, 3, 512, 192), 512, False, (8, 6), 2_361_600, id="float32: lower tiles on an RTX 3060"),
        pytest.param((2, 3, 200, 64), 72, True, (8, 0), 393_600, id="half: as float32"),
        pytest.param((2, 3, 200, 96), 72, True, (9, 0), 786_624, id="half: large tiles"),
        pytest.param((2, 3, 512, 128), 512, True, (7, 5), 1_573_632, id="half: high, narrow tiles on a T4"),
        pytest.param((1, 2, 1000, 128), 700, True, (8, 6), 2_491_392, id="half: an RTX 3060 stages keys and values"),
        pytest.param((1, 2, 1000, 192), 700, True, (8, 0), 4_457_216, id="half: wide heads are staged"),
        pytest.param((10, 10, 512, 192), 512, True, (8, 0), 65_555_200, id="half: many heads split keys less"),
        pytest.param((50, 6, 512, 192), 512, True, (7, 5), 157_344_000, id="half: more heads do not split them"),
    ],
)
def test_workspace_of_the_efficient_backward_kernel(shape, keys, half, capability, nbytes):
    from cotenant.tracing.operators.attention_scratch import efficient_workspace_bytes

    assert efficient_workspace_bytes(shape, keys, shape[3], half=half, capability=capability) == nbytes


def test_efficient_attention_makes_what_a_cuda_build_makes(tmp_path):
    """Gradients, product, delta, workspace in order; the seed of dropout is on the CPU."""
    line = (
        "q, k, v = (made(2, 3, 128, 64) for _ in 'qkv')\n---y = F.scaled_dot_product_attention(q, k, v, dropout_p=0.1)"
    )
    assert scratch(tmp_path, line, 0) == [196_608, 3072]
    tail = "\ny.backward(torch.ones(2, 128, 3, 64, device='cuda').transpose(1, 2))"
    assert backward(tmp_path, line.replace("---", "") + tail)[:7] == [196_608] * 4 + [3072, 3072, 196_800]


@pytest.mark.parametrize(
    ("on_gpu", "dropout", "sizes"),
    [
        pytest.param(False, 0.0, [196_608, 3072], id="to 2.13"),
        pytest.param(True, 0.0, [8, 8, 196_608, 3072], id="from 2.14 on"),
        pytest.param(True, 0.1, [196_608, 3072], id="dropout: on the CPU"),
    ],
)
@pytest.mark.parametrize("of_libraries", [False, True])
def test_efficient_attention_without_dropout_has_its_seed_on_the_gpu(tmp_path, on_gpu, dropout, sizes, of_libraries):
    call = f"F.scaled_dot_product_attention(q, k, v, dropout_p={dropout})"
    if of_libraries:
        call = (
            "torch.ops.aten._efficient_attention_forward(*(x.transpose(1, 2) for x in (q, k, v)), None, None, None, "
            f"128, 128, {dropout}, 0, True)"
        )
    line = (
        "from cotenant.tracing.operators import attention_scratch\n"
        f"attention_scratch.SEEDS_ON_GPU = {on_gpu}\n"
        f"q, k, v = (made(2, 3, 128, 64) for _ in 'qkv')\ny = {call}\n"
    )
    found = allocations(traced(tmp_path, HEAD + line + STEP))
    end = found.index(3072) + 1
    assert found[end - len(sizes) - 3 : end] == [196_608] * 3 + sizes


def test_cudnn_attention_takes_a_boolean_mask_as_numbers(tmp_path):
    line = "q, m = made(2, 4, 96, 64, dtype=torch.bfloat16), torch.zeros(2, 1, 96, 96, device='cuda', dtype=torch.bool)"
    line += "---y = F.scaled_dot_product_attention(q, q, q, attn_mask=m)"
    assert 2 * 96 * 96 * 2 in scratch(tmp_path, line, capability=(9, 0))


@pytest.mark.parametrize("how", ["attn_mask=m", "attn_mask=m > 0", "is_causal=True"])
def test_attention_without_a_fused_kernel_adds_its_mask_in_place(tmp_path, how):
    """The scores of a product and of their softmax; an outer sum, with no mask, is another tensor."""
    line = "q, m = made(2, 4, 96, 64, dtype=torch.float64), torch.zeros(96, 96, device='cuda', dtype=torch.float64)"
    line += f"---y = F.scaled_dot_product_attention(q, q, q, {how})\nz = y + y"
    sizes = scratch(tmp_path, line)
    assert sizes.count(2 * 4 * 96 * 96 * 8) == 2
    assert sizes.count(2 * 4 * 96 * 64 * 8) == 4, "scaled queries and keys, the output, and the sum"


@pytest.mark.parametrize(
    ("with_offsets", "dtype", "blocks"),
    [
        pytest.param(False, "float32", [2 * 3 * 4], id="to 2.14: three chunks of both"),
        pytest.param(False, "float64", [2 * 3 * 8], id="so in double precision"),
        pytest.param(True, "float32", [3 * 8, 4 * 4], id="from 2.15 on: three and one, and where they begin"),
        pytest.param(True, "float64", [3 * 8, 4 * 8], id="in double precision"),
    ],
)
def test_clipping_takes_one_block_for_all_norms(tmp_path, with_offsets, dtype, blocks):
    """Two tensors, of one and of three chunks of 65,536 elements."""
    line = (
        "from cotenant.tracing.operators import kernel_scratch\n"
        f"kernel_scratch.NORMS_WITH_OFFSETS = {with_offsets}\n"
        f"a, b = (made(*shape, dtype=torch.{dtype}) for shape in ((100, 100), (400, 400)))\n"
        "a.grad, b.grad = torch.ones_like(a), torch.ones_like(b)\n"
    )
    sizes = scratch(tmp_path, line + "---nn.utils.clip_grad_norm_([a, b], 1.0)", 0)
    stacked = 2 * getattr(torch, dtype).itemsize
    assert sorted(size for size in sizes if 8 < size < 576 and size != stacked) == sorted(blocks)
    assert 576 not in sizes, "norms are not taken one by one"


def test_sorting_indices_takes_the_storage_of_a_radix_sort(tmp_path):
    line = "x = made(732, 12)\ni = torch.zeros(38809, dtype=torch.long, device='cuda')\n(x[i] * one).sum().backward()"
    sizes = backward(tmp_path, line)
    start = sizes.index(38809 * 8)
    assert sizes[start - 1 : start + 6] == [732 * 12 * 4, *[38809 * 8] * 5, 636_927]


def test_wide_heads_of_half_precision_are_accumulated_in_float32(tmp_path):
    made = "q, k, v = (made(2, 3, 100, 192, dtype=torch.float16) for _ in 'qkv')\n"
    line = made + "m = torch.zeros(100, 112, device='cuda', dtype=torch.float16)[:, :100]\n---"
    sizes = scratch(tmp_path, line + "y = F.scaled_dot_product_attention(q, k, v, attn_mask=m)", 3000)
    assert sizes[0] == 2 * 3 * 100 * 192 * 4


@pytest.mark.parametrize(("dtype", "weight"), [("bfloat16", "bfloat16"), ("float32", "float32")])
def test_rms_norm_is_one_kernel(tmp_path, dtype, weight):
    line = f"x = made(64, 768, dtype=torch.{dtype})\nnorm = nn.RMSNorm(768, dtype=torch.{weight}).cuda()\n"
    nbytes = 64 * 768 * getattr(torch, dtype).itemsize
    assert scratch(tmp_path, line + "---y = norm(x)", 0) == [nbytes, 64 * 4]
    sizes = backward(tmp_path, line + "y = norm(x)\ny.backward(torch.ones_like(y))")
    assert sizes == [nbytes, 768 * getattr(torch, dtype).itemsize]


@pytest.mark.parametrize("line", ["F.softmax(x, 1)", "F.log_softmax(x, 1)", "F.layer_norm(x, (50,))"])
def test_gradients_are_made_contiguous_first(tmp_path, line):
    tail = f"y = {line}\nz = torch.ones(50, 70, device='cuda')\n"
    in_order = backward(tmp_path, f"x = made(70, 50)\n{tail}y.backward(z.view(70, 50))")
    turned = backward(tmp_path, f"x = made(70, 50)\n{tail}y.backward(z.t())")
    assert turned.count(70 * 50 * 4) == in_order.count(70 * 50 * 4) + 1


def test_accumulating_by_index_sorts_the_indices(tmp_path):
    line = "x = made(500, 3)\ni = torch.zeros(777, dtype=torch.long, device='cuda')\n(x[i] * one).sum().backward()"
    assert backward(tmp_path, line).count(777 * 8) == 5


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
    _, _, (_, loss), (later, _) = made
    assert loss in [e.storage_id for e in trace.events[:later] if e.action == "free"]
