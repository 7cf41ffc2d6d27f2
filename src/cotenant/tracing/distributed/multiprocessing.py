"""Processes that a script starts by hand, of which those that use a GPU train: the first of them runs here.

It runs when the script waits for it, so that what the script does until then, such as filling a queue, is done. Others
for the GPU do nothing; processes that load data or play games are real. Which is which follows from their code.
"""

from __future__ import annotations

import functools
import multiprocessing.process
import os
import types
from collections.abc import Iterator
from typing import Any

import torch

from cotenant.tracing import script_location

_GPU_NAMES = frozenset({"cuda", "init_process_group"})
_MAX_CALL_DEPTH = 3  # functions that call functions


def install(recorder: Any) -> None:
    """Replace the start of processes."""
    base: Any = multiprocessing.process.BaseProcess
    original = base.start
    chosen: list[Any] = []

    @functools.wraps(original)
    def start(process: Any) -> None:
        body = process._target if process._target is not None else process.run
        if not _uses_a_gpu(body, _MAX_CALL_DEPTH):
            original(process)
            return
        if not chosen:
            chosen.append(process)
            recorder.warn("of the processes that the script starts for the GPU, the first was traced")
        process._popen = _InProcessPopen(process.run if chosen[0] is process else None)

    base.start = start


class _InProcessPopen:
    """Stands in for what `multiprocessing` knows of a process that runs; `body`: to be run in this one, once."""

    def __init__(self, body: Any) -> None:
        self._body = body
        self.pid = os.getpid()
        self.returncode: int | None = None
        self.sentinel = -1

    def poll(self, flag: int = 0) -> int:
        """Runs it, and gives its exit code."""
        body, self._body = self._body, None
        if body is not None:
            body()
        self.returncode = 0
        return 0

    def wait(self, timeout: float | None = None) -> int:
        """The same."""
        return self.poll()

    def terminate(self) -> None:
        """It is not run any more."""
        self._body = None

    kill = close = terminate


def _uses_a_gpu(body: Any, depth: int) -> bool:
    body = getattr(body, "func", body)  # of a partial
    body = getattr(body, "__func__", body)
    if not isinstance(body, types.FunctionType) or not script_location.is_user_file(body.__code__.co_filename):
        return False
    for code in _codes(body.__code__):
        if any(isinstance(each, str) and each.startswith("cuda") for each in code.co_consts):
            return True
        for name in code.co_names:
            found = body.__globals__.get(name)
            if name in _GPU_NAMES or (isinstance(found, torch.device) and found.type == "cuda"):
                return True
            if depth and found is not body and _uses_a_gpu(found, depth - 1):
                return True
    return False


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for each in code.co_consts:
        if isinstance(each, types.CodeType):
            yield from _codes(each)
