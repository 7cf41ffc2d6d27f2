"""Builders of small memory traces, in MiB."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from cotenant.core.trace import LibraryCall, MemoryEvent, MemoryTrace, TraceHeader
from cotenant.core.units import MiB

HEADER = TraceHeader(torch_version="2.13.0", python_version="3.11.7", steps=2, capability=(8, 0), gpus=1)


def alloc(
    number: int, mib: float, category: str = "activation", phase: str = "forward", module: str = ""
) -> MemoryEvent:
    """Allocation of a storage."""
    return MemoryEvent("alloc", number, int(mib * MiB), category, phase, module, 0, 0)


def free(number: int, phase: str = "backward") -> MemoryEvent:
    """Free of a storage."""
    return MemoryEvent("free", number, 0, "", phase, "", 0, 0)


def call(number: int, phase: str = "forward") -> MemoryEvent:
    """A library call."""
    return MemoryEvent("op", -1, 0, "", phase, "", 0, 0, number)


def a_trace(events: Iterable[MemoryEvent], ops: Iterable[LibraryCall] = (), **header: Any) -> MemoryTrace:
    """A trace of these events, made by torch 2.13 for an A100."""
    return MemoryTrace(events=tuple(events), ops=tuple(ops), header=replace(HEADER, **header))


def steps(*, batch_mib: float = 400, layers: int = 4, count: int = 3) -> MemoryTrace:
    """A network: each layer saves `batch_mib` for the backward pass and has 100 MiB weights, 200 MiB states."""
    events = [alloc(i, 100, "parameter", "load") for i in range(layers)]
    number = 100
    for step in range(count):
        saved = list(range(number, number + layers))
        events += [alloc(storage_id, batch_mib, module=f"layer{i}") for i, storage_id in enumerate(saved)]
        for i, storage_id in reversed(list(enumerate(saved))):
            events += [alloc(storage_id + 50, 100, "gradient", "backward", f"layer{i}"), free(storage_id)]
        if step == 0:
            events += [alloc(1000 + i, 200, "optimizer state", "step") for i in range(layers)]
        events += [free(storage_id + 50, "step") for storage_id in saved]
        number += 100
    return a_trace(events)


def conv_call(kind: str = "conv_forward", batch: int = 32, **changes: Any) -> LibraryCall:
    """The second convolution of VGG-16."""
    params = {
        "x": (batch, 64, 224, 224),
        "w": (64, 64, 3, 3),
        "y": (batch, 64, 224, 224),
        "stride": (1, 1),
        "padding": (1, 1),
        "dilation": (1, 1),
        "groups": 1,
        "dtype": "float32",
        "channels_last": False,
        "transposed": False,
        "enabled": True,
        "benchmark": False,
        "deterministic": False,
        "allow_tf32": True,
        **changes,
    }
    return LibraryCall(kind=kind, thread="main", params=params)
