"""Shape functions agree with FakeTensorMode in shape, strides, dtype, device and shared storage."""

from __future__ import annotations

import pytest

from traced_scripts import traced

pytest.importorskip("torch", reason="tracing needs torch")

COMPARING = """
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import _get_current_dispatch_mode
from cotenant.tracing.operators.dispatch_plan import plan_of

mode = _get_current_dispatch_mode()
answer, answers, wrong = type(mode)._on_cuda, {{}}, set()
NOT_COMPARED = {{{not_compared}}}  # FakeTensor knows no values, or other kernels than CUDA's

def tensors(value):
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from tensors(item)

def layouts_of(out, args):
    if isinstance(out, (list, tuple)):
        return [layouts_of(item, args) for item in out]
    if not isinstance(out, FakeTensor):
        return out
    storage = out.untyped_storage()
    sources = [at for at, tensor in enumerate(tensors(args)) if tensor.untyped_storage()._cdata == storage._cdata]
    nbytes = storage.nbytes() if not sources else 0
    seen = tuple(out.shape), out.stride(), out.dtype, out.fake_device, out.storage_offset()
    # FakeTensor gives views of nothing a storage of their own, or not, by what was imported.
    return (*seen, sources, nbytes) if out.numel() else seen

def compare(self, func, args, kwargs, device):
    out = answer(self, func, args, kwargs, device)
    if func._opname in NOT_COMPARED or plan_of(func, self._operators, replaced=False).is_composite:
        return out
    ours = layouts_of(out, args)
    expected = layouts_of(self.fake.dispatch(func, (FakeTensor,), args, kwargs), args)
    answers[str(func)] = answers.get(str(func), 0) + 1
    if ours != expected:
        wrong.add((str(func), str(args)[:200], str(ours), str(expected)))
    return out

type(mode)._on_cuda = compare
{body}
assert not wrong, wrong
missing = set({wanted}) - set(answers)
assert not missing, missing
optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1).cuda())], lr=0.1)
for _ in range(3):
    optimizer.step()
"""
CALLS = """
def ones(*shape, dtype=torch.float32, **more):
    return torch.ones(shape, dtype=dtype, device="cuda", **more)

def calls():
    x, wide, whole = ones(4, 6), ones(2, 3, 8, 8), ones(4, 6, dtype=torch.int64)
    images = wide.to(memory_format=torch.channels_last)
    for t in (x, x.t(), x[:, ::2], x[:0], x[1:2], wide, images, wide.transpose(1, 3), ones(), ones(3, 1).expand(3, 4)):
        for dim in range(t.dim()):
            size = t.shape[dim]
            for start, end, step in ((None, None, 1), (1, None, 1), (None, -1, 2), (-2, 99, 1), (3, 1, 1), (99, 3, 3)):
                torch.ops.aten.slice.Tensor(t, dim, start, end, step)
            for index in {0, -1, size - 1} if size else ():
                t.select(dim, index), t.select(dim - t.dim(), index)
        for made in (torch.zeros_like, torch.ones_like, torch.empty_like, torch.rand_like):
            made(t), made(t, dtype=torch.float64), made(t, memory_format=torch.contiguous_format)
        torch.full_like(t, 1), torch.full_like(t, 1.0, dtype=torch.int32), t.new_zeros(3, 2), t.new_full((2,), 7)
        t + 1, t + 1.0, t * True, t + t, 1 - t, t / 2, t.neg(), t.sum(), t.mean(), t.abs(), t.sqrt(), t > 0, t.exp()
        t.pow(2), t.clamp(0, 1), t.relu(), t.sigmoid(), t.tanh(), nn.functional.gelu(t), nn.functional.silu(t)
        nn.functional.hardswish(t), nn.functional.hardtanh(t), nn.functional.leaky_relu(t), t.masked_fill(t > 0, 2.0)
        torch.where(t > 0, t, 0.0), torch.linalg.vector_norm(t), t.clone(), t.contiguous(), t.half(), t.to(torch.int8)
        t.reshape(-1), t.detach(), t.unsqueeze(0), t.expand(2, *t.shape), torch.stack([t, t]), t.flatten()
        if t.dim() and t.numel():
            torch.cat([t, t], -1), t.softmax(-1), t.log_softmax(-1), t.sum(-1, keepdim=True), t.max(-1), t.cumsum(0)
            t.transpose(0, -1), t.argmax(-1), t.split(2, -1), t.unbind(0), t.flip(0), t.amax(0)
    for other in (1, 1.0, True, ones(), ones(dtype=torch.float64), ones(6, dtype=torch.float16), x):
        whole + other, whole * other, x + other, whole / other, x.half() * other
    for numbers in (whole, whole[0], whole[0, 0], whole.int(), whole.t()):
        nn.functional.embedding(numbers, ones(9, 5)), nn.functional.embedding(numbers, ones(5, 9).t())
    ones(3, 4).mm(ones(4, 5)), ones(2, 3, 4).bmm(ones(2, 4, 5)), torch.addmm(ones(5), ones(3, 4), ones(4, 5))
    ones(4, 3).t().mm(ones(5, 4).t()), torch.addmm(ones(3, 5), ones(3, 4), ones(4, 5), beta=2), ones(3, 4).mv(ones(4))
    x.clone().add_(1), x.clone().mul_(x), nn.functional.hardswish(x.clone(), inplace=True), x.clone().clamp_(0)
    assert (x.clone().t_().shape, x.clone().unsqueeze_(0).shape) == ((6, 4), (1, 4, 6))
    x.clone().fill_(2), x.clone().masked_fill_(x > 0, 0)
    x.clone().resize_(3, 3), x.clone().resize_(9, 9), nn.functional.interpolate(wide, scale_factor=2)
    nn.functional.max_pool2d(wide, 2), nn.functional.avg_pool2d(images, 2)
    nn.functional.mse_loss(x, x), nn.functional.cross_entropy(x, whole[:, 0]), nn.functional.pad(wide, (1, 1))
    torch.zeros(3, 4, device="cuda"), torch.arange(5, device="cuda"), torch.arange(5.0, device="cuda")
    torch.full((2,), 3, device="cuda"), torch.full((2,), 3.0, device="cuda"), torch.full((2,), True, device="cuda")
    torch.eye(3, device="cuda"), torch.randn(2, 3, device="cuda"), torch.tril(x), torch.outer(x[0], x[0])

for _ in range(2):
    calls()
torch.set_default_dtype(torch.float64)
calls()
torch.set_default_dtype(torch.float32)
calls()
"""
MODELS = """
convolutions = nn.Sequential(
    nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8), nn.ReLU(inplace=True), nn.MaxPool2d(2),
    nn.Conv2d(8, 8, 3, groups=8), nn.GroupNorm(2, 8), nn.Hardswish(),
    nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 16), nn.SiLU(),
).cuda()
words = nn.Sequential(
    nn.Embedding(20, 16), nn.TransformerEncoderLayer(16, 2, 32, dropout=0.1, batch_first=True), nn.Linear(16, 16)
).cuda()
optimizer = torch.optim.AdamW([*convolutions.parameters(), *words.parameters()])
scaler = torch.amp.GradScaler("cuda")
for step, (half, layout) in enumerate([(False, torch.contiguous_format), (True, torch.channels_last)] * 2):
    convolutions.to(memory_format=layout)
    with torch.autocast("cuda", torch.float16, enabled=half):
        seen = convolutions(torch.randn(4, 3, 32, 32).cuda().to(memory_format=layout))
        read = words(torch.zeros(4, 7, dtype=torch.long).cuda()).mean(1)
        loss = nn.functional.cross_entropy(seen + read, torch.zeros(4, dtype=torch.long).cuda())
    scaler.scale(loss).backward()
    nn.utils.clip_grad_norm_(words.parameters(), 1.0)
    if step < 3:
        scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
    if step == 2:
        break
"""
UNLIKE = (
    *("t_", "unsqueeze_", "_local_scalar_dense", "is_pinned", "record_stream", "equal", "nonzero"),
    *("mse_loss", "smooth_l1_loss", "binary_cross_entropy", "im2col", "col2im"),  # of larger storages than they fill
)


def compared(folder, body, *wanted, unlike=()):
    names = ", ".join(repr(name) for name in (*UNLIKE, *unlike))
    traced(folder, COMPARING.format(body=body, not_compared=names, wanted=wanted), steps=30)


def test_shape_functions_agree_with_fake_tensor_mode(tmp_path):
    compared(
        tmp_path, CALLS, "aten.slice.Tensor", "aten.select.int", "aten.embedding.default", "aten.hardswish_.default"
    )


def test_shape_functions_agree_with_fake_tensor_mode_in_models(tmp_path):
    compared(
        tmp_path,
        MODELS,
        "aten.convolution_backward.default",
        "aten._foreach_sqrt.default",
        unlike=("convolution", "convolution_backward"),
    )


CHANGED_GRAPH = """
import torch

weight = torch.nn.Parameter(torch.ones(4, device="cuda"))
loss = (weight * weight).sum()
loss.backward(retain_graph=True)
torch.optim.Adam([weight], lr=0.1, fused=True).step()
assert weight._version == 0  # as on a GPU: kernels of fused optimizers count no write
torch.optim.Adam([weight], lr=0.1, foreach=True).step()
loss.backward()
"""


def test_a_graph_that_an_optimizer_step_has_changed_raises_in_backward(tmp_path):
    trace = traced(tmp_path, CHANGED_GRAPH)
    assert trace.partial
    assert any("modified by an inplace operation" in warning for warning in trace.warnings), trace.warnings
