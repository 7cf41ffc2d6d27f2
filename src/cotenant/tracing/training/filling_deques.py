"""Deques of bounded length that fill with GPU tensors: replay buffers, queues of the last gradients or features.

A trace has their first entries. A function at any depth may add the next ones, so no loop shows how many come; `maxlen`
does. The deques are found among the objects of the garbage collector, in about 0.1 s: call this once, and only where
GPU memory grew.
"""

from __future__ import annotations

import gc
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch

from cotenant.core.units import format_bytes
from cotenant.tracing.training.step_growth import AllocatedBytes, is_large

_MAX_DEPTH = 3  # of containers in an entry: a list of transitions, each of which holds a dict of observations


def filling_deques(allocated: AllocatedBytes, objects: Iterable[Any] | None = None) -> str | None:
    """What to say of the deques that are not full; None if what they lack is small.

    An entry that comes is like the present ones: they may share storages, as views of one batch do.
    """
    lengths: list[int] = []
    missing_bytes = 0
    for queue in gc.get_objects() if objects is None else objects:
        # A class, not `isinstance`, which would ask lazy objects for theirs.
        if not issubclass(type(queue), deque) or not queue.maxlen or not 0 < len(queue) < queue.maxlen:
            continue
        sizes = {storage._cdata: storage.nbytes() for storage in _gpu_storages(queue, _MAX_DEPTH + 1)}
        if sizes:
            lengths.append(queue.maxlen)
            missing_bytes += sum(sizes.values()) * (queue.maxlen - len(queue)) // len(queue)
    if not lengths or not is_large(missing_bytes, allocated):
        return None
    deques = "a deque" if len(lengths) == 1 else f"{len(lengths)} deques"
    return (
        f"{deques} of at most {max(lengths):,} entries had few when the trace ended: GPU memory grows by "
        f"{format_bytes(missing_bytes)} until full, which is not included"
    )


def _gpu_storages(value: Any, depth: int) -> Iterator[torch.UntypedStorage]:
    if isinstance(value, torch.Tensor):
        if value.device.type == "cuda":
            yield value.untyped_storage()
    elif depth:
        parts: Iterable[Any] = ()
        if isinstance(value, Mapping):
            parts = value.values()
        elif isinstance(value, tuple | list | deque):
            parts = value
        elif hasattr(value, "__dict__"):
            parts = vars(value).values()
        for part in parts:
            yield from _gpu_storages(part, depth - 1)
