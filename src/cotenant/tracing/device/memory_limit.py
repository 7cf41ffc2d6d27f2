"""What a GPU refuses: devices that do not exist, and memory, to scripts that wait for it and halve their batch.

A trace has no limit, so that one script answers for every GPU. Only where somebody on the call stack catches the error
does it come, when the live tensors alone no longer fit the card; it would come earlier by what the allocator cannot
use. Source of the message: c10/cuda/CUDACachingAllocator.cpp, `malloc`.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from types import CodeType, FrameType
from typing import Any

import torch

from cotenant.core.units import format_bytes

_HANDLER_NAMES = frozenset({"OutOfMemoryError", "should_reduce_batch_size", "is_oom_error", "is_cuda_out_of_memory"})
_OOM_MESSAGES = ("out of memory", "CUDA_ERROR_OUT_OF_MEMORY")


class MemoryLimit:
    """Raises what CUDA raises when a GPU is full, if the script would catch it."""

    def __init__(self, recorder: Any, capacity_bytes: int, count: int, total_bytes: int) -> None:
        self._recorder = recorder
        self._count = count
        self._capacity_bytes = min(capacity_bytes, total_bytes)
        self._total_bytes = total_bytes
        self._main = threading.get_ident()
        self._catching: dict[CodeType, bool] = {}

    def __call__(self, nbytes: int, device: int) -> None:
        """Check before `nbytes` more on `device`.

        Raises:
            torch.OutOfMemoryError: they do not fit, and the script is prepared for it.
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
        """What the allocator can get: what is beside the context, or the share of the card that the script set."""
        share = self._recorder.header.memory_fraction
        return self._capacity_bytes if share is None else min(self._capacity_bytes, int(share * self._total_bytes))

    def _is_awaited(self) -> bool:
        """Whether a frame of this thread, or of the main one, which waits for autograd's, catches it."""
        frames = [sys._getframe(), sys._current_frames().get(self._main)]
        return any(self._catches(frame) for first in frames for frame in _callers(first))

    def _catches(self, frame: FrameType) -> bool:
        code = frame.f_code
        known = self._catching.get(code)
        if known is None:
            known = self._catching[code] = _mentions_oom(code)
        return known and _in_try(frame)


def _callers(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        if not frame.f_code.co_filename.startswith(_TRACING_DIR):
            yield frame
        frame = frame.f_back


_TRACING_DIR = __file__.rpartition("device")[0]


def _mentions_oom(code: CodeType) -> bool:
    texts = [each for each in code.co_consts if isinstance(each, str)]
    return bool(_HANDLER_NAMES & set(code.co_names)) or any(word in text for word in _OOM_MESSAGES for text in texts)


def _in_try(frame: FrameType) -> bool:
    """Whether the frame is inside a `try`; where Python does not say (before 3.11), it is believed to be."""
    table = getattr(frame.f_code, "co_exceptiontable", None)
    if table is None:
        return True
    return any(start <= frame.f_lasti < end for start, end in _protected_ranges(table))


def _protected_ranges(table: bytes) -> Iterator[tuple[int, int]]:
    """Ranges of byte offsets that have a handler. Source: CPython, Objects/exception_handling_notes.txt."""
    values = iter(table)

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
