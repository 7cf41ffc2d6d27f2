"""Simulation of PyTorch's CUDA caching allocator: replays a trace into segments and blocks. Pure."""

from cotenant.allocator.caching import CachingAllocator
from cotenant.allocator.errors import OutOfMemory
from cotenant.allocator.options import AllocatorOptions, parse_options, settings_text
from cotenant.allocator.repeats import count_growing_repeats, of_iteration_before
from cotenant.allocator.replay import OomReport, ReplayResult, TimelinePoint, peak_reserved_bytes, replay
from cotenant.allocator.snapshot import AllocatorStats, BlockInfo, SegmentInfo
from cotenant.allocator.versions import AllocatorRules, rules_for

__all__ = [
    "AllocatorOptions",
    "AllocatorRules",
    "AllocatorStats",
    "BlockInfo",
    "CachingAllocator",
    "OomReport",
    "OutOfMemory",
    "ReplayResult",
    "SegmentInfo",
    "TimelinePoint",
    "count_growing_repeats",
    "of_iteration_before",
    "parse_options",
    "peak_reserved_bytes",
    "replay",
    "rules_for",
    "settings_text",
]
