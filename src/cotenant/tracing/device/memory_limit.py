"""Errors that a real GPU would raise: for devices that do not exist, and out of memory in scripts that catch it.

A trace has no memory limit, so that it holds for every GPU. But some scripts wait for the error to halve their batch.
So it is raised where a function on the call stack catches it, when the live tensors alone exceed the GPU's memory; on a
real GPU it comes somewhat earlier, by fragmentation. Source of the message: c10/cuda/CUDACachingAllocator.cpp,
`malloc`.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from types import CodeType, FrameType

import torch

from cotenant.core.units import format_bytes
from cotenant.tracing.recorder import TraceRecorder

_HANDLER_NAMES = frozenset({"OutOfMemoryError", "should_reduce_batch_size", "is_oom_error", "is_cuda_out_of_memory"})
_OOM_MESSAGES = ("out of memory", "CUDA_ERROR_OUT_OF_MEMORY")


class MemoryLimit:
    """Raises CUDA's out-of-memory error when a GPU is full, if the script would catch it."""

    def __init__(self, recorder: TraceRecorder, capacity_bytes: int, count: int, total_bytes: int) -> None:
        self._recorder = recorder
        self._count = count
        self._capacity_bytes = min(capacity_bytes, total_bytes)
        self._total_bytes = total_bytes
        self._main = threading.get_ident()
        # By `id`: the hash of a code object is that of all its constants. The code is held, so that its address stays.
        self._catching: dict[int, tuple[CodeType, bool]] = {}

    def __call__(self, nbytes: int, device: int) -> None:
        """Check that `nbytes` more fit on `device`.

        Raises:
            torch.OutOfMemoryError: they do not fit, and the script catches the error.
            RuntimeError: there is no such device.
        """
        if device >= self._count:
            raise RuntimeError(
                f"CUDA error: invalid device ordinal: the script uses `cuda:{device}` and has {self._count} GPU"
                f"{'s' if self._count != 1 else ''}; give it more with `--gpus {device + 1}`"
            )
        live, capacity = self._recorder.live_bytes[device], self.capacity_bytes
        if live + nbytes <= capacity or not self._is_awaited():
            return
        self._recorder.header = replace(self._recorder.header, oom_raised=True)
        self._recorder.warn(
            f"the script catches out-of-memory errors: it got one when its tensors exceeded {_gib(capacity)}"
        )
        raise torch.cuda.OutOfMemoryError(
            f"CUDA out of memory. Tried to allocate {_gib(nbytes)}. GPU {device} has a total capacity of "
            f"{_gib(capacity)} of which {_gib(max(0, capacity - live))} is free."
        )

    @property
    def capacity_bytes(self) -> int:
        """The allocator's maximum: the memory beside the context, or the fraction of the GPU that the script set."""
        share = self._recorder.header.memory_fraction
        return self._capacity_bytes if share is None else min(self._capacity_bytes, int(share * self._total_bytes))

    def _is_awaited(self) -> bool:
        """Whether a frame of this thread, or of the main thread, which waits for autograd's, catches the error."""
        # Backward runs on autograd's thread for the GPU, and its error is raised again in the thread that called
        # `backward()` (`GraphTask::set_exception` of torch/csrc/autograd/engine.cpp).
        # A frame in a variable of its own is a cycle, which holds the tensors of all callers until a collection.
        main = None if threading.get_ident() == self._main else sys._current_frames().get(self._main)
        return self._any_catches(sys._getframe(1)) or self._any_catches(main)

    def _any_catches(self, frame: FrameType | None) -> bool:
        """Whether this frame or one around it does; called for each allocation of a script that exceeds its GPU."""
        catching = self._catching
        while frame is not None:
            code = frame.f_code
            known = catching.get(id(code))
            if known is None:
                mentions = not code.co_filename.startswith(_TRACING_DIR) and _mentions_oom(code)
                known = catching[id(code)] = (code, mentions)
            if known[1] and _in_try(frame):
                return True
            frame = frame.f_back
        return False


_TRACING_DIR = __file__.rpartition("device")[0]


def _mentions_oom(code: CodeType) -> bool:
    texts = [constant for constant in code.co_consts if isinstance(constant, str)]
    return bool(_HANDLER_NAMES & set(code.co_names)) or any(
        message in text for message in _OOM_MESSAGES for text in texts
    )


def _in_try(frame: FrameType) -> bool:
    """Whether the frame executes a `try` block; assumed before Python 3.11, whose code has no exception table."""
    table = getattr(frame.f_code, "co_exceptiontable", None)
    if table is None:
        return True
    return any(start <= frame.f_lasti < end for start, end in _protected_ranges(table))


def _protected_ranges(table: bytes) -> Iterator[tuple[int, int]]:
    """Ranges of bytecode offsets with an exception handler. Source: CPython, Objects/exception_handling_notes.txt."""
    values = iter(table)

    # Varints of six bits, most significant first; bit 6 says that another byte follows.
    def number() -> int:
        byte = next(values)
        found = byte & 63
        while byte & 64:
            byte = next(values)
            found = found << 6 | byte & 63
        return found

    while True:
        try:
            start, length = number() * 2, number() * 2
        except StopIteration:
            return
        number(), number()
        yield start, start + length


def _gib(nbytes: int) -> str:
    return format_bytes(nbytes)
