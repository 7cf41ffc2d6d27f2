"""Processes that a script starts itself: the first that uses a GPU runs in this process, others with a GPU do not run.

It runs when the script waits for it or ends, after everything that the script does until then, such as filling a queue.
Processes that use no GPU, such as those that load data, are started: which, follows from their code and arguments.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import os
import types
from collections.abc import Iterator
from typing import Any

import torch

from cotenant.tracing import script_location
from cotenant.tracing.patches.registry import Patch, PatchContext, Phase

_GPU_NAMES = frozenset({"cuda", "init_process_group"})
_GPU_TEXTS = ("cuda", "CUDA_VISIBLE_DEVICES")
_MAX_CALL_DEPTH = 3  # functions that call functions
_started: list[Any] = []  # processes that run here; a traced process has one session
raised: list[Exception] = []
"""What they raised: a script may catch it, as that of `mp.spawn`, and end as if nothing had been."""


def patches(context: PatchContext) -> list[Patch]:
    """The start of processes."""
    return [
        Patch(
            target="multiprocessing.process:BaseProcess.start", phase=Phase.DISTRIBUTED,
            replacement=functools.partial(_starting_in_process, context.recorder), wraps=True,
            reason="A trace follows one process; a second one would have no simulated GPU.",
            source="Lib/multiprocessing/process.py, `BaseProcess.start`",
        ),
        Patch(
            target="torch:Tensor.share_memory_", phase=Phase.DISTRIBUTED, replacement=_sharing_host_memory, wraps=True,
            reason="Memory of a GPU is shared already, and a fake tensor has none.",
            source="torch/_tensor.py, `Tensor.share_memory_`",
        ),
    ]  # fmt: skip


@contextlib.contextmanager
def noting_errors() -> Iterator[None]:
    """Notes what a process raises that runs here."""
    try:
        yield
    except Exception as error:
        raised.append(error)
        raise


def _sharing_host_memory(original: Any) -> Any:
    @functools.wraps(original)
    def share_memory_(self: torch.Tensor) -> Any:
        return self if self.is_cuda else original(self)

    return share_memory_


def _starting_in_process(recorder: Any, original: Any) -> Any:
    first: list[Any] = []

    @functools.wraps(original)
    def start(process: Any) -> None:
        body = process._target if process._target is not None else process.run
        given = (*getattr(process, "_args", ()), *getattr(process, "_kwargs", {}).values())
        if not (_uses_gpu(body, _MAX_CALL_DEPTH) or any(map(_is_on_gpu, given))):
            original(process)
            return
        if not first:
            first.append(process)
            recorder.warn("of the processes that the script starts for the GPU, only the first was traced")
        process._popen = _InProcessPopen(_with_options_of_now(process) if first[0] is process else None)
        _started.append(process)

    return start


def _with_options_of_now(process: Any) -> Any:
    """What a process runs, with the options that it was started with: a script sets `args.rank` for the next one.

    They are set back in the same object, which the process may also read as a global variable.
    """
    options = [one for one in getattr(process, "_args", ()) if isinstance(one, argparse.Namespace)]
    states = [dict(vars(one)) for one in options]

    def run() -> None:
        for one, state in zip(options, states, strict=True):
            vars(one).update(state)
        process.run()

    return run


def run_waiting_processes() -> None:
    """Run what was not waited for, as Python does at its end.

    Source: Lib/multiprocessing/util.py, `_exit_function`, which joins all children that are no daemons.
    """
    for process in _started:
        if not process.daemon:
            process.join()


class _InProcessPopen:
    """In place of `multiprocessing`'s handle of a process; `body` runs in this process, once, when it is waited for."""

    def __init__(self, body: Any) -> None:
        self._body = body
        self.pid = os.getpid()
        self.returncode: int | None = None
        self.sentinel = -1

    def poll(self, flag: int = 0) -> int:
        """Run it; its exit code."""
        body, self._body = self._body, None
        if body is not None:
            with noting_errors():
                body()
        self.returncode = 0
        return 0

    def wait(self, timeout: float | None = None) -> int:
        """Run it; its exit code."""
        return self.poll()

    def terminate(self) -> None:
        """Do not run it."""
        self._body = None

    kill = close = terminate


def _is_on_gpu(argument: Any) -> bool:
    """Whether an argument is a GPU, or a tensor or model on one: a process could not take it without CUDA."""
    if isinstance(argument, torch.nn.Module):
        argument = next(argument.parameters(), None)
    device = argument if isinstance(argument, torch.device) else getattr(argument, "device", None)
    return isinstance(device, torch.device) and device.type == "cuda"


def _uses_gpu(body: Any, depth: int) -> bool:
    body = getattr(body, "func", body)  # of a partial
    body = getattr(body, "__func__", body)
    if not isinstance(body, types.FunctionType) or not script_location.is_user_file(body.__code__.co_filename):
        return False
    for code in _codes(body.__code__):
        if any(isinstance(constant, str) and constant.startswith(_GPU_TEXTS) for constant in code.co_consts):
            return True
        for name in code.co_names:
            found = body.__globals__.get(name)
            if name in _GPU_NAMES or (isinstance(found, torch.device) and found.type == "cuda"):
                return True
            if depth and found is not body and _uses_gpu(found, depth - 1):
                return True
    return False


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _codes(constant)
