"""`torch.cuda.MemPool`: memory that the allocator keeps apart, for buffers of a library or for weights that can sleep.

As the private pool of a CUDA graph it is a stream with a negative number: the allocator neither releases its cached
blocks nor uses them elsewhere. Only the thread that entered `use_mem_pool` allocates from it, so that a backward pass
does not. Not modeled: memory is held after its pool is deleted; an allocator of the script's own, which may round
otherwise.
Source: torch/cuda/memory.py, `use_mem_pool`; c10/cuda/CUDACachingAllocator.cpp, `createOrIncrefPool`.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch

from cotenant.tracing.device.streams import device_index
from cotenant.tracing.patches.registry import Patch, Phase, patch_attributes
from cotenant.tracing.recorder import TraceRecorder

PoolId = tuple[int, int]


def patches(recorder: TraceRecorder, new_pool: Callable[[], PoolId]) -> list[Patch]:
    """The class and what makes a pool the current one; `new_pool` gives the id of a new pool."""

    class MemPool:
        """A pool of memory: its id."""

        def __init__(self, allocator: Any = None, use_on_oom: bool = False, *_: object, **__: object) -> None:
            self.allocator = allocator
            self.id = new_pool()

        def use_count(self) -> int:
            """The object itself."""
            return 1

        def snapshot(self, *_: object, **__: object) -> list[Any]:
            """No segments: addresses are known only when the trace is replayed."""
            return []

    @contextlib.contextmanager
    def use_mem_pool(pool: Any, device: Any = None) -> Iterator[None]:
        place = torch.cuda.current_device() if device is None else device_index(device)
        key = (place, threading.get_ident())
        before = recorder.pools.get(key)
        recorder.pools[key] = -pool.id[1]
        try:
            yield
        finally:
            if before is None:
                del recorder.pools[key]
            else:
                recorder.pools[key] = before

    return [
        patch
        for module in ("torch.cuda", "torch.cuda.memory")
        for patch in patch_attributes(
            module, {"MemPool": MemPool, "use_mem_pool": use_mem_pool}, phase=Phase.DEVICE,
            reason="A CPU build has none, and a CUDA build calls the driver.", source="torch/cuda/memory.py, `MemPool`",
            missing="PyTorch 2.4",
        )
    ]  # fmt: skip
