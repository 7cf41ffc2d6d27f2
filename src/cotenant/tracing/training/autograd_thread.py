"""Waits until autograd's thread has let go of the gradients that `torch.autograd.grad` returned.

The thread that computes the last gradient hands all of them to the caller and drops its own references afterwards, for
which it needs the interpreter's lock. On a GPU the caller soon gives that lock up, in a kernel launch, a
synchronization, a call of the allocator; a trace has none of these and would keep it for up to 5 ms. A gradient that
the script drops in the meantime, to empty the cache or to capture a graph, would live in one trace and not in another.
Source: torch/csrc/autograd/engine.cpp, `GraphTask::mark_as_completed_and_run_post_processing`, `Engine::thread_main`.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Iterable
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from cotenant.tracing.mode import TraceMode
from cotenant.tracing.patches.registry import Patch, PatchContext, Phase


def patches(context: PatchContext) -> list[Patch]:
    """`torch.autograd.grad`, which returns when the threads have dropped what it returns."""
    return [
        Patch(
            target="torch.autograd:grad", phase=Phase.TRAINING, wraps=True,
            replacement=functools.partial(_waiting, _AutogradThreads(context.mode)),
            reason="Without kernels to launch, its thread gets no turn to drop its references to the gradients.",
            source="torch/csrc/autograd/engine.cpp, `GraphTask::mark_as_completed_and_run_post_processing`",
        )
    ]  # fmt: skip


def _waiting(threads: _AutogradThreads, original: Any) -> Any:
    @functools.wraps(original)
    def grad(*args: Any, **kwargs: Any) -> Any:
        gradients = original(*args, **kwargs)
        if threading.current_thread() is threading.main_thread():  # one within a backward pass has no thread of its own
            threads.wait(original, gradients)
        return gradients

    return grad


class _AutogradThreads:
    """Autograd's threads, one for each GPU, which do one task after the other."""

    def __init__(self, mode: TraceMode) -> None:
        self._mode = mode
        self._ends: dict[torch.device, tuple[torch.Tensor, torch.Tensor]] = {}

    def wait(self, grad: Any, gradients: Iterable[Any]) -> None:
        """Give the threads of these gradients a task without an operator, and wait: those before it are then done."""
        fake = self._mode.fake
        ours = (tensor for tensor in gradients if isinstance(tensor, FakeTensor) and tensor.fake_mode is fake)
        for device in {tensor.fake_device for tensor in ours}:
            if device.type == "cuda":
                leaf, gradient = self._ends.get(device) or self._ends.setdefault(device, self._end(device))
                grad(leaf, leaf, gradient)

    def _end(self, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
        """A leaf and its gradient, neither of which is recorded."""
        with torch.inference_mode(mode=False):
            leaf, gradient = (self._mode.wrap(torch.empty(0, device="meta"), device) for _ in range(2))
            return leaf.requires_grad_(), gradient
