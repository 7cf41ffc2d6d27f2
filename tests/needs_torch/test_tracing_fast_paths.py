"""Operators that must not use FakeTensorMode, and what a failing meta kernel leaves behind."""

from __future__ import annotations

import pytest

from traced_scripts import allocations, traced

pytest.importorskip("torch", reason="tracing needs torch")

PARTS = """
import torch
from torch.utils._python_dispatch import _get_current_dispatch_mode

mode = _get_current_dispatch_mode()
dispatch, dispatched = mode.fake.dispatch, []

def noted(func, *args, **kwargs):
    dispatched.append(str(func))
    return dispatch(func, *args, **kwargs)

mode.fake.dispatch = noted

def views(x):  # (2, 6, 24), as queries, keys and values are cut out of one product, and put together again
    for part in x.split(8, -1):
        heads = part.view(2, 6, 2, 4).transpose(1, 2)
        yield from (part, heads, heads.transpose(1, 2).view(2, 6, 8), part[:, -1].view(2, 2, 4))

real = torch.empty(2, 6, 24)
on_gpu = list(views(real.to("cuda")))
for ours, theirs in zip(on_gpu, views(real), strict=True):
    layouts = [(view.shape, view.stride(), view.storage_offset()) for view in (ours, theirs)]
    assert layouts[0] == layouts[1], layouts
assert not dispatched, dispatched
try:
    on_gpu[1].view(2, 6, 8)
except (RuntimeError, ValueError) as error:
    assert "view" in str(error)
else:
    raise AssertionError("a view that is none")

w = torch.nn.Parameter(torch.zeros(4, device="cuda"))
optimizer = torch.optim.SGD([w], 0.1)
for _ in range(3):
    w.sum().backward()
    optimizer.step()
"""


def test_views_of_slices_do_not_use_fake_tensor_mode(tmp_path):
    trace = traced(tmp_path, PARTS)
    assert 2 * 6 * 24 * 4 in allocations(trace)


STEPS = """
import torch
from torch.utils._python_dispatch import _get_current_dispatch_mode

mode = _get_current_dispatch_mode()
run_fake, called = mode.run_fake, []

def noted(func, *args, **kwargs):
    called.append(func.name())
    return run_fake(func, *args, **kwargs)

mode.run_fake = noted

def gradients(x):  # (4, 6, 5), by steps of time and by slices
    for cut in (lambda: x[:, 2], lambda: x[..., -1], lambda: x[1:3], lambda: x[:, ::2], lambda: x.transpose(0, 2)[0]):
        x.grad = None
        cut().sum().backward()
        yield x.grad

real = torch.zeros(4, 6, 5, requires_grad=True)
on_gpu = torch.zeros(4, 6, 5, device="cuda", requires_grad=True)
for ours, theirs in zip(gradients(on_gpu), gradients(real), strict=True):
    assert (ours.shape, ours.stride(), ours.device.type) == (theirs.shape, theirs.stride(), "cuda")
assert not {"aten::select_backward", "aten::slice_backward"}.intersection(called), called

w = torch.nn.Parameter(torch.zeros(3, 700, device="cuda"))
optimizer = torch.optim.SGD([w], 0.1)
for _ in range(3):
    w[:, 1].sum().backward()
    optimizer.step()
"""


def test_gradients_of_steps_of_time_do_not_use_meta_kernels(tmp_path):
    trace = traced(tmp_path, STEPS)
    assert allocations(trace)[-1] == 3 * 700 * 4


COMPLEX = """
import torch
from torch.utils._python_dispatch import _get_current_dispatch_mode

mode = _get_current_dispatch_mode()
cache, dispatch, dispatched = mode.meta_cache, mode.fake.dispatch, []
factor = torch.ones(6, 5, dtype=torch.complex64)

def results(x):  # each twice: the second time from the cache
    f = factor.to(x.device)
    for _ in range(2):
        for y in (x, x.conj(), x.transpose(0, 2), x.conj().resolve_conj()):
            yield from (y * f if y.shape[1:] == f.shape else y * 2, y.conj() + 1, y.resolve_conj(), y.abs(), y.sum(0))
            yield from (torch.view_as_real(y.resolve_conj()), y.clone(), y.neg(), torch.fft.fft(y, dim=1), y.imag.exp())

real = torch.zeros(4, 6, 5, dtype=torch.complex64)
for ours, theirs in zip(results(real.to("cuda")), results(real), strict=True):
    layouts = [(made.shape, made.stride(), made.dtype, made.is_conj()) for made in (ours, theirs)]
    assert layouts[0] == layouts[1], layouts
    assert ours.untyped_storage().nbytes() == theirs.untyped_storage().nbytes(), layouts
before = len(cache._results)
list(results(real.to("cuda")))
assert len(cache._results) == before > 10, before

def noted(func, *rest):
    dispatched.append(func)
    return dispatch(func, *rest)

def picked(x):  # each twice: the second time from the cache
    rows, columns = torch.tensor([2, 0, 1], device=x.device), torch.tensor([[1], [3]], device=x.device)
    for _ in range(2):
        for y in (x, x.transpose(0, 2), x[:, ::2]):
            yield from (y[rows], y[:, columns], y[rows, None], y[rows.int()], y[..., rows, columns], y[:, :, rows[:2]])

mode.fake.dispatch = noted
small = torch.zeros(4, 8, 5)
for ours, theirs in zip(picked(small.to("cuda")), picked(small), strict=True):
    assert (ours.shape, ours.stride(), ours.device.type) == (theirs.shape, theirs.stride(), "cuda")
assert dispatched.count(torch.ops.aten.index.Tensor) == 18, dispatched
mode.fake.dispatch = dispatch

w = torch.nn.Parameter(torch.zeros(4, device="cuda"))
optimizer = torch.optim.SGD([w], 0.1)
for _ in range(3):
    w.sum().backward()
    optimizer.step()
"""


def test_results_of_indices_and_of_complex_tensors_are_cached_apart_from_those_of_conjugate_views(tmp_path):
    traced(tmp_path, COMPLEX)


THREADS = """
import threading
import torch

w = torch.nn.Parameter(torch.zeros(4, device="cuda"))
optimizer = torch.optim.SGD([w], 0.1)

def refuse():  # a kernel that raises must leave the thread as it was
    for _ in range(3):
        try:
            torch.zeros(3, device="cuda").unsqueeze(7)
        except IndexError:
            pass
        else:
            raise AssertionError("no such dimension")
        assert torch.zeros(5).sum().item() == 0
        assert torch.zeros(5, device="cuda").device.type == "cuda"

refuse()
thread = threading.Thread(target=refuse)
thread.start()
thread.join()
assert type(torch.zeros(2)) is torch.Tensor and torch.ones(2).tolist() == [1, 1]
for _ in range(3):
    w.sum().backward()
    optimizer.step()
"""


def test_a_meta_kernel_that_raises_restores_the_dispatcher(tmp_path):
    assert traced(tmp_path, THREADS).header.steps == 3
