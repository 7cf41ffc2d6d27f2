"""Invariants of the simulated allocator for generated requests."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cotenant.allocator import CachingAllocator, OutOfMemory, parse_options, replay, rules_for
from cotenant.core.trace import MemoryEvent
from cotenant.core.units import KiB, MiB

VERSION = "2.13.0"
SETTINGS = [
    "",
    "expandable_segments:True",
    "max_split_size_mb:24",
    "roundup_power2_divisions:4",
    "large_segment_size_mb:40",
    "expandable_segments:True,roundup_power2_divisions:[2:2,16:8,>:0]",
    "garbage_collection_threshold:0.4,max_split_size_mb:32",
]
CAPACITY = 200 * MiB

request_sizes = st.one_of(
    st.integers(0, 4 * KiB),
    st.integers(KiB, 2 * MiB),
    st.integers(MiB, 12 * MiB),
    st.integers(10 * MiB, 90 * MiB),
    st.sampled_from([512, MiB, MiB + 1, 10 * MiB, 19 * MiB, 20 * MiB, 24 * MiB]),
)
# (what, size or which of the live blocks, stream)
steps = st.lists(
    st.tuples(
        st.sampled_from(["malloc"] * 6 + ["free"] * 5 + ["later", "finish", "empty", "empty"]),
        request_sizes,
        st.integers(0, 2),
    ),
    max_size=60,
)


def check(allocator: CachingAllocator) -> None:
    """What must hold after every call."""
    stats = allocator.stats
    segments = allocator.segments()
    end = 0
    for segment in segments:
        assert segment.address >= end, "segments overlap"
        end = segment.address
        for block in segment.blocks:
            assert block.address == end, "blocks do not tile their segment"
            assert block.size_bytes > 0
            assert block.size_bytes % 512 == 0
            end += block.size_bytes
        assert end == segment.address + segment.size_bytes
        states = [block.state for block in segment.blocks]
        assert ("free", "free") not in itertools.pairwise(states), "free neighbors not merged"
    blocks = [block for segment in segments for block in segment.blocks]
    by_state = {
        state: sum(block.size_bytes for block in blocks if block.state == state)
        for state in ("live", "pending", "free")
    }
    assert by_state["live"] == stats.allocated_bytes
    assert by_state["live"] + by_state["pending"] == stats.active_bytes
    assert sum(by_state.values()) == stats.reserved_bytes
    assert sum(block.requested_bytes for block in blocks) == stats.requested_bytes
    assert stats.reserved_bytes >= stats.active_bytes >= stats.requested_bytes
    assert stats.peak_reserved_bytes >= max(stats.reserved_bytes, stats.peak_active_bytes)
    assert stats.peak_active_bytes >= stats.peak_allocated_bytes >= stats.allocated_bytes
    assert stats.peak_reserved_bytes <= CAPACITY


@pytest.mark.parametrize("text", SETTINGS)
@settings(max_examples=100, deadline=None)
@given(steps=steps)
def test_blocks_tile_segments_and_sums_agree(text, steps):
    allocator = CachingAllocator(parse_options(text, VERSION), rules_for(VERSION), CAPACITY, total_bytes=CAPACITY)
    if "garbage" in text:
        allocator.set_memory_fraction(0.9)
    live: list[int] = []
    peaks = allocator.stats
    for what, size, stream in steps:
        if what == "malloc":
            try:
                address = allocator.malloc(size, stream)
            except OutOfMemory as oom:
                least = (oom.allowed_bytes or CAPACITY) - 20 * MiB  # mapped pages may round up to 20 MiB more
                if oom.reserved_bytes + oom.tried_bytes <= least:
                    pytest.fail("out of memory although there was room")
            else:
                assert (address == 0) == (size == 0)
                assert address == 0 or address not in live
                live.append(address)
        elif what == "empty":
            allocator.empty_cache()
        elif what == "finish":
            allocator.finish_streams()
        elif live:
            allocator.free(live.pop(size % len(live)), in_use_elsewhere=what == "later")
        check(allocator)
        now = allocator.stats
        assert now.peak_allocated_bytes >= peaks.peak_allocated_bytes
        assert now.peak_reserved_bytes >= peaks.peak_reserved_bytes
        assert now.peak_requested_bytes >= peaks.peak_requested_bytes
        peaks = now
    for address in live:
        allocator.free(address)
    allocator.empty_cache()
    assert allocator.stats.reserved_bytes == allocator.stats.requested_bytes == allocator.stats.segments == 0
    assert allocator.segments() == ()


class Obvious:
    """The default allocator, written down as slowly and plainly as possible: lists of [size, live] by segment."""

    def __init__(self) -> None:
        self.segments: list[tuple[bool, int, list[list[int]]]] = []  # small, stream, [size, id or 0]
        self.next_id = 0

    def malloc(self, request: int, stream: int) -> int:
        self.next_id += 1
        if request == 0:
            return self.next_id
        size = (request + 511) // 512 * 512
        small = size <= MiB
        fitting = [
            (block[0], number, position)
            for number, (its_small, its_stream, blocks) in enumerate(self.segments)
            if its_small == small and its_stream == stream
            for position, block in enumerate(blocks)
            if block[1] == 0 and block[0] >= size
        ]
        if fitting:
            _, number, position = min(fitting)
            blocks = self.segments[number][2]
        else:
            total = 2 * MiB if small else 20 * MiB if size < 10 * MiB else (size + 2 * MiB - 1) // (2 * MiB) * 2 * MiB
            blocks, position = [[total, 0]], 0
            self.segments.append((small, stream, blocks))
        rest = blocks[position][0] - size
        if rest >= 512 if small else rest > MiB:
            blocks[position : position + 1] = [[size, self.next_id], [rest, 0]]
        else:
            blocks[position][1] = self.next_id
        return self.next_id

    def free(self, which: int) -> None:
        for _, _, blocks in self.segments:
            for block in blocks:
                if block[1] == which:
                    block[1] = 0
            merged: list[list[int]] = []
            for block in blocks:
                if merged and merged[-1][1] == block[1] == 0:
                    merged[-1][0] += block[0]
                else:
                    merged.append(block)
            blocks[:] = merged

    def empty_cache(self) -> None:
        # A segment that is gone keeps its number, as addresses are never used twice.
        for _, _, blocks in self.segments:
            if len(blocks) == 1 and blocks[0][1] == 0:
                blocks.clear()

    def layout(self) -> list[list[tuple[int, bool]]]:
        return [[(size, owner != 0) for size, owner in blocks] for _, _, blocks in self.segments if blocks]


@settings(max_examples=200, deadline=None)
@given(steps=steps)
def test_same_blocks_as_a_simple_reference_allocator(steps):
    allocator, obvious = CachingAllocator(parse_options("", VERSION), rules_for(VERSION)), Obvious()
    live: list[tuple[int, int]] = []
    for what, size, stream in steps:
        if what == "malloc":
            live.append((allocator.malloc(size, stream), obvious.malloc(size, stream)))
        elif what == "empty":
            allocator.empty_cache()
            obvious.empty_cache()
        elif live:
            ours, theirs = live.pop(size % len(live))
            allocator.free(ours)
            obvious.free(theirs)
        layout = [
            [(block.size_bytes, block.state == "live") for block in segment.blocks] for segment in allocator.segments()
        ]
        assert layout == obvious.layout()


@settings(max_examples=100, deadline=None)
@given(steps=steps, text=st.sampled_from(SETTINGS[:6]))
def test_the_breakdown_of_a_replay_adds_up(steps, text):
    events: list[MemoryEvent] = []
    live: list[int] = []
    for what, size, stream in steps:
        category = ("parameter", "activation", "gradient")[stream]
        if what == "malloc":
            events.append(MemoryEvent("alloc", len(events), size, category, category, "", stream, 0))
            live.append(len(events) - 1)
        elif what == "empty":
            events.append(MemoryEvent("empty_cache", -1, 0, "", "step", "", 0, 0))
        elif live:
            events.append(MemoryEvent("free", live.pop(size % len(live)), 0, "", "step", "", 0, 0))
    result = replay(events, options=parse_options(text, VERSION), rules=rules_for(VERSION), timeline=True)
    assert sum(result.breakdown_bytes.values()) == result.peak_allocated_bytes
    assert result.peak_reserved_bytes >= result.peak_allocated_bytes >= result.peak_requested_bytes
    assert max((point.allocated_bytes for point in result.timeline), default=0) == result.peak_allocated_bytes
    assert max((point.reserved_bytes for point in result.timeline), default=0) == result.peak_reserved_bytes
    if result.peak_event_index is not None:
        point = next(point for point in result.timeline if point.event_index == result.peak_event_index)
        assert point.allocated_bytes == result.peak_allocated_bytes
