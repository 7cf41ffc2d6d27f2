"""Allocators with given settings and limits, and views of their blocks, in MiB."""

from __future__ import annotations

from cotenant.allocator import CachingAllocator, parse_options, rules_for
from cotenant.core.units import MiB

NEW, OLD = "2.13.0", "2.9.1"


def an_allocator(text="", version=NEW, **limits):
    """An allocator with the settings `text`; limits in MiB."""
    return CachingAllocator(
        parse_options(text, version), rules_for(version), **{name: int(mib * MiB) for name, mib in limits.items()}
    )


def sizes(allocator):
    """Blocks of every segment in MiB, live ones positive, free ones negative."""
    return [
        [(1 if block.state == "live" else -1) * block.size_bytes / MiB for block in segment.blocks]
        for segment in allocator.segments()
    ]


def reserved_mib(allocator):
    return allocator.stats.reserved_bytes / MiB
