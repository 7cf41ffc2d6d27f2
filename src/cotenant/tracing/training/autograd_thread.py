"""Waits until autograd's threads have dropped what a backward pass has ended with.

The thread that computes the last gradient hands all of them to the caller of `torch.autograd.grad`, or the error to
that of a failed pass (and with it the tensors of all frames), and drops its own references afterwards, for which it
needs the interpreter's lock. On a GPU the caller soon releases that lock, in a synchronization or a call of the driver;
in a trace it would keep it for up to 5 ms. What the script drops in the meantime, to empty the cache or to try a
smaller batch, would live in one trace and not in another.
Source: torch/csrc/autograd/engine.cpp, `GraphTask::mark_as_completed_and_run_post_processing`, `Engine::thread_main`.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterable
from typing import Any, Protocol

import torch
from torch._subclasses.fake_tensor import FakeTensor

from cotenant.tracing.mode import TraceMode
from cotenant.tracing.patches.registry import Patch, PatchContext, Phase


def patches(context: PatchContext) -> list[Patch]:
    """Backward passes, which end when autograd's threads have dropped what they return or hold."""
    threads = _AutogradThreads(context.mode, context.gpu.count)
    return [
        Patch(
            target=f"torch.autograd:{name}", phase=Phase.TRAINING, wraps=True,
            replacement=functools.partial(waiting, threads),
            reason="Without a GPU to wait for, autograd's thread gets no turn to drop its references.",
            source="torch/csrc/autograd/engine.cpp, `GraphTask::mark_as_completed_and_run_post_processing`",
        )
        for name in ("backward", "grad")
    ]  # fmt: skip


class Threads(Protocol):
    """What `waiting` needs of autograd's threads."""

    def wait(self, gradients: Iterable[Any]) -> None:
        """Wait until the threads of these gradients have nothing to do."""

    def wait_for_all(self) -> None:
        """Wait until no thread has anything to do."""


def waiting(threads: Threads, original: Callable[..., Any]) -> Callable[..., Any]:
    """A backward pass that waits for `threads` at its end."""

    @functools.wraps(original)
    def run(*args: Any, **kwargs: Any) -> Any:
        if threading.current_thread() is not threading.main_thread():
            return original(*args, **kwargs)  # a pass within another one has no thread of its own
        try:
            gradients = original(*args, **kwargs)
        except BaseException:
            threads.wait_for_all()
            raise
        threads.wait(gradients or ())
        return gradients

    return run


class _EndNode(torch.autograd.Function):
    """A node of the graph that is never executed."""

    @staticmethod
    def forward(ctx: Any, leaf: torch.Tensor, result: Callable[[], torch.Tensor]) -> torch.Tensor:
        return result()


class _AutogradThreads:
    """Autograd's threads, one for each GPU, which do one task after the other."""

    def __init__(self, mode: TraceMode, count: int) -> None:
        self._mode = mode
        self._devices = {torch.device("cuda", index) for index in range(count)}
        self._grad = torch.autograd.grad
        self._tasks: dict[torch.device, tuple[torch.Tensor, torch.Tensor]] = {}

    def wait(self, gradients: Iterable[Any]) -> None:
        """See `Threads`."""
        fake = self._mode.fake
        ours = (tensor for tensor in gradients if isinstance(tensor, FakeTensor) and tensor.fake_mode is fake)
        self._wait_for({tensor.fake_device for tensor in ours} & self._devices)

    def wait_for_all(self) -> None:
        """See `Threads`."""
        self._wait_for(self._devices)

    def _wait_for(self, devices: set[torch.device]) -> None:
        """Give threads a task without an operator, and wait for it: those before it are then done."""
        if new := devices - self._tasks.keys():
            # Autograd takes nodes that a thread made later first: those of another thread, its first, come last.
            maker = threading.Thread(target=lambda: self._tasks.update({device: self._task(device) for device in new}))
            maker.start()
            maker.join()
        for device in devices:
            end, gradient = self._tasks[device]
            self._grad(end, end, gradient, retain_graph=True)

    def _task(self, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
        """The end of a graph and its gradient; neither is recorded."""

        def made() -> torch.Tensor:
            return self._mode.wrap(torch.empty(0, device="meta"), device)

        end: torch.Tensor = _EndNode.apply(made().requires_grad_(), made)
        return end, made()
