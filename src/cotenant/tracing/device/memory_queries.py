"""Memory statistics and sensor readings of the GPU, for a script that has the GPU to itself.

Allocated bytes are those of the blocks of live tensors, multiples of 512. Reserved bytes are known after the replay
only, so the script reads the allocated bytes, rounded up to 2 MiB segments. Source of the names: torch/cuda/memory.py,
torch/cuda/__init__.py.
"""

from __future__ import annotations

import collections
import functools
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from cotenant.tracing.recorder import TraceRecorder

if TYPE_CHECKING:
    from cotenant.tracing.device.cuda_api import FakeGpuSpec

# c10/core/AllocatorConfig.h, `kRoundLarge`; small segments have the same size.
_SEGMENT_BYTES = 2 << 20
_POOLS = ("all", "small_pool", "large_pool")
_STATISTICS = ("current", "peak", "allocated", "freed")
_BY_BYTES = ("allocated_bytes", "active_bytes", "requested_bytes", "reserved_bytes", "inactive_split_bytes")
_BY_COUNT = ("allocation", "active", "segment", "inactive_split")
_TOTALS = ("num_alloc_retries", "num_ooms", "num_device_alloc", "num_device_free", "num_sync_all_streams")
MEMORY_FUNCTIONS = (
    "empty_cache", "ipc_collect", "mem_get_info", "memory_stats", "memory_stats_as_nested_dict",
    "memory_allocated", "max_memory_allocated", "memory_reserved", "max_memory_reserved", "memory_cached",
    "max_memory_cached", "reset_peak_memory_stats", "reset_max_memory_allocated", "reset_max_memory_cached",
    "reset_accumulated_memory_stats", "set_per_process_memory_fraction", "get_per_process_memory_fraction",
    "memory_snapshot", "list_gpu_processes",
)  # fmt: skip
"""Names that `torch.cuda` and `torch.cuda.memory` share."""
_PEAK_RESETS = ("reset_peak_memory_stats", "reset_max_memory_allocated", "reset_max_memory_cached")
_SENSORS = {"utilization": 0, "memory_usage": 0, "temperature": 40, "power_draw": 0, "clock_rate": 1000}
"""Readings of an idle GPU, in the units of the functions of `torch.cuda` with these names."""


def memory_queries(spec: FakeGpuSpec, recorder: TraceRecorder, current: Callable[[], int]) -> dict[str, Any]:
    """Functions by their names in `torch.cuda`; `current` returns the index of the current GPU."""

    def at(device: object) -> int:
        if device is None:
            return current()
        if isinstance(device, int):
            return max(device, 0)
        index = torch.device(device).index
        return current() if index is None else int(index)

    def live(device: object = None) -> int:
        return int(recorder.live_bytes[at(device)])

    def peak(device: object = None) -> int:
        return int(recorder.peak_bytes[at(device)])

    def reset_peak(device: object = None) -> None:
        recorder.peak_bytes[at(device)] = recorder.live_bytes[at(device)]

    def memory_info(device: object = None) -> tuple[int, int]:
        beside_context = spec.total_bytes if spec.allocator_bytes is None else spec.allocator_bytes
        return max(0, beside_context - live(device)), spec.total_bytes

    def nested_stats(device: object = None) -> dict[str, Any]:
        return _nested_stats(live(device), peak(device))

    def set_fraction(fraction: float, device: object = None) -> None:
        if not 0 <= fraction <= 1:
            # The message of torch/cuda/memory.py, `set_per_process_memory_fraction`.
            raise ValueError(f"Invalid fraction value: {fraction}. Allowed range: 0~1")
        recorder.header = replace(recorder.header, memory_fraction=float(fraction))

    def get_fraction(device: object = None) -> float:
        fraction = recorder.header.memory_fraction
        return 1.0 if fraction is None else float(fraction)

    return {
        "empty_cache": recorder.empty_cache,
        "ipc_collect": lambda: None,
        "mem_get_info": memory_info,
        "memory_stats": lambda device=None: _flatten_stats(nested_stats(device)),
        "memory_stats_as_nested_dict": nested_stats,
        "memory_allocated": live,
        "max_memory_allocated": peak,
        "memory_reserved": lambda device=None: _in_segments(live(device)),
        "max_memory_reserved": lambda device=None: _in_segments(peak(device)),
        "memory_cached": lambda device=None: _in_segments(live(device)),
        "max_memory_cached": lambda device=None: _in_segments(peak(device)),
        **dict.fromkeys(_PEAK_RESETS, reset_peak),
        "reset_accumulated_memory_stats": lambda device=None: None,
        "set_per_process_memory_fraction": set_fraction,
        "get_per_process_memory_fraction": get_fraction,
        "memory_snapshot": lambda *_, **__: [],
        "list_gpu_processes": lambda device=None: f"GPU:{at(device)}\nno processes are running",
        "device_memory_used": live,
        **{name: functools.partial(_sensor, reading) for name, reading in _SENSORS.items()},
    }


def _sensor(reading: int, device: object = None) -> int:
    return reading


def _in_segments(nbytes: int) -> int:
    return -(-nbytes // _SEGMENT_BYTES) * _SEGMENT_BYTES


def _nested_stats(live: int, peak: int) -> dict[str, Any]:
    def by_pool(current: int, peak: int) -> dict[str, Any]:
        zeros = dict.fromkeys(_STATISTICS, 0)
        counts = {**zeros, "current": current, "peak": peak, "allocated": peak, "freed": peak - current}
        return {pool: counts if pool != "small_pool" else zeros for pool in _POOLS}

    found: dict[str, Any] = dict.fromkeys(_TOTALS, 0)
    found["oversize_allocations"] = found["oversize_segments"] = dict.fromkeys(_STATISTICS, 0)
    found.update({name: by_pool(0, 0) for name in _BY_COUNT})
    for name in _BY_BYTES:
        if name.startswith("reserved"):
            found[name] = by_pool(_in_segments(live), _in_segments(peak))
        else:
            found[name] = by_pool(live, peak) if not name.startswith("inactive") else by_pool(0, 0)
    return found


def _flatten_stats(nested: Mapping[str, Any], prefix: str = "") -> dict[str, int]:
    """Names joined by dots; a statistic that this version of PyTorch does not have is 0."""
    found: dict[str, int] = collections.defaultdict(int)
    for key, value in nested.items():
        if isinstance(value, dict):
            found.update(_flatten_stats(value, f"{prefix}{key}."))
        else:
            found[prefix + key] = value
    return found
