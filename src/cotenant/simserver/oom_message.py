"""Torch's out-of-memory messages, so that code which parses them can be tested without a GPU.

A module of its own: fake jobs and fake CUDA devices print the same text.
"""

from __future__ import annotations

from pathlib import Path

from cotenant.core.units import GiB, MiB
from cotenant.simserver.gpu import SimulatedOutOfMemory


def out_of_memory_text(error: SimulatedOutOfMemory, script: Path, *, device: int) -> str:
    """The traceback of torch 2.11 for this error on the `device`-th visible GPU of the process.

    A fake job has no blocks that are reserved but free.
    """
    message = out_of_memory_message(error, device=device, allocated_bytes=error.own_allocated_bytes)
    return (
        "Traceback (most recent call last):\n"
        f'  File "{script}", line 1, in train\n'
        "    output = model(batch)\n"
        "             ^^^^^^^^^^^^^^\n"
        f"torch.OutOfMemoryError: {message}\n"
    )


def out_of_memory_message(error: SimulatedOutOfMemory, *, device: int, allocated_bytes: int) -> str:
    """The message for a process with `allocated_bytes` in live blocks.

    Source: PyTorch, c10/cuda/CUDACachingAllocator.cpp, the message of `OutOfMemoryError`.
    """
    others = "".join(f"Process {pid} has {_size(used)} memory in use. " for pid, used in error.others)
    cached = _size(max(0, error.own_allocated_bytes - allocated_bytes))
    return (
        f"CUDA out of memory. Tried to allocate {_size(error.tried_bytes)}. GPU {device} has a total "
        f"capacity of {_size(error.total_bytes)} of which {_size(error.free_bytes)} is free. {others}"
        f"Including non-PyTorch memory, this process has {_size(error.own_bytes)} memory in use. "
        f"Of the allocated memory {_size(allocated_bytes)} is allocated by PyTorch, and {cached} is "
        "reserved by PyTorch but unallocated. If reserved but unallocated memory is large try setting "
        "PYTORCH_ALLOC_CONF=expandable_segments:True to avoid fragmentation.  See documentation for Memory "
        "Management  (https://docs.pytorch.org/docs/stable/notes/cuda.html#optimizing-memory-usage-with-pytorch-alloc-conf)"
    )


def _size(value: int) -> str:
    """A size as torch's `format_size` writes it."""
    if value <= 1024:
        return f"{value} bytes"
    if value <= MiB:
        return f"{value / 1024:.2f} KiB"
    if value <= GiB:
        return f"{value / MiB:.2f} MiB"
    return f"{value / GiB:.2f} GiB"
