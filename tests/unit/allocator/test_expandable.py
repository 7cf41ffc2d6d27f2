"""Expandable segments: pages, growth, reuse of holes, giving pages back."""

from __future__ import annotations

import pytest

from cotenant.allocator import CachingAllocator, OutOfMemory, parse_options, rules_for
from cotenant.core.units import MiB

VERSION = "2.13.0"


def an_allocator(more="", **limits):
    options = parse_options(f"expandable_segments:True{more}", VERSION)
    return CachingAllocator(options, rules_for(VERSION), **{name: mib * MiB for name, mib in limits.items()})


def sizes(allocator):
    """Blocks of every contiguous range in MiB, live ones positive, free ones negative."""
    return [
        [(1 if block.state == "live" else -1) * block.size_bytes / MiB for block in segment.blocks]
        for segment in allocator.segments()
    ]


def test_large_requests_map_pages_of_20_mib():
    allocator = an_allocator()
    allocator.malloc(33 * MiB)
    assert sizes(allocator) == [[33, -7]]
    assert allocator.stats.reserved_bytes == 40 * MiB


def test_small_requests_map_pages_of_2_mib():
    allocator = an_allocator()
    allocator.malloc(1 * MiB)
    assert allocator.stats.reserved_bytes == 2 * MiB


def test_pages_follow_the_large_segment_size():
    allocator = an_allocator(",large_segment_size_mb:32")
    allocator.malloc(33 * MiB)
    assert allocator.stats.reserved_bytes == 64 * MiB


def test_one_segment_grows_at_its_end():
    allocator = an_allocator()
    first, second = allocator.malloc(33 * MiB), allocator.malloc(33 * MiB)
    assert second - first == 33 * MiB  # 7 MiB were free, 26 more needed two pages
    assert sizes(allocator) == [[33, 33, -14]]


def test_expandable_segments_are_not_counted_as_segments():
    allocator = an_allocator()
    allocator.malloc(33 * MiB)
    assert allocator.stats.segments == 0
    assert allocator.segments()[0].is_expandable


def test_large_blocks_split_at_512_bytes():
    allocator = an_allocator()
    allocator.malloc(20 * MiB - 512)
    assert sizes(allocator) == [[20 - 1 / 2048, -1 / 2048]]


def test_max_split_size_does_not_stop_splitting():
    allocator = an_allocator(",max_split_size_mb:64")
    allocator.malloc(70 * MiB)
    assert sizes(allocator) == [[70, -10]]


def test_a_hole_that_fits_is_preferred_to_growing():
    allocator = an_allocator()
    first = allocator.malloc(15 * MiB)
    allocator.malloc(20 * MiB)
    allocator.free(first)
    assert allocator.malloc(10 * MiB) == first


def test_small_requests_do_not_take_the_block_that_can_grow():
    allocator = an_allocator()
    hole = allocator.malloc(18 * MiB)
    allocator.malloc(18 * MiB)  # 4 MiB free at the end
    allocator.free(hole)
    # 4 MiB at the end fit best, but could grow without end: the hole is smaller than that.
    assert allocator.malloc(3 * MiB) == hole


def test_pools_and_streams_have_their_own_segment():
    allocator = an_allocator()
    for stream in (0, 1):
        allocator.malloc(1 * MiB, stream)
        allocator.malloc(5 * MiB, stream)
    assert sorted((s.pool, s.stream) for s in allocator.segments()) == [
        ("large", 0),
        ("large", 1),
        ("small", 0),
        ("small", 1),
    ]
    assert allocator.stats.reserved_bytes == 2 * (2 + 20) * MiB


def test_empty_cache_unmaps_whole_free_pages():
    allocator = an_allocator()
    first, middle, last = (allocator.malloc(30 * MiB) for _ in range(3))  # [0,30) [30,60) [60,90), mapped to 100
    allocator.free(middle)
    allocator.empty_cache()  # only the page [40,60) is free as a whole; [90,100) is not
    assert sizes(allocator) == [[30, -10], [30, -10]]
    assert allocator.stats.reserved_bytes == 80 * MiB
    allocator.free(first)
    allocator.free(last)
    allocator.empty_cache()
    assert allocator.stats.reserved_bytes == 0
    assert allocator.segments() == ()


def test_unmapped_pages_are_mapped_again_at_the_lowest_address():
    allocator = an_allocator()
    first = allocator.malloc(40 * MiB)
    allocator.malloc(40 * MiB)
    allocator.free(first)
    allocator.empty_cache()
    assert allocator.malloc(40 * MiB) == first
    assert sizes(allocator) == [[40, 40]]


def test_partial_pages_at_both_ends_stay_cached():
    allocator = an_allocator()
    allocator.malloc(30 * MiB)
    middle = allocator.malloc(60 * MiB)  # [30,90)
    allocator.malloc(10 * MiB)
    allocator.free(middle)
    allocator.empty_cache()  # [40,80) goes back
    assert sizes(allocator) == [[30, -10], [-10, 10]]
    assert allocator.malloc(10 * MiB) == middle + 50 * MiB  # before the other, which could grow
    assert allocator.malloc(10 * MiB) == middle


def test_of_several_holes_the_lowest_is_filled():
    allocator = an_allocator()
    blocks = [allocator.malloc(40 * MiB) for _ in range(4)]
    for index in (0, 2):
        allocator.free(blocks[index])
        allocator.empty_cache()
    assert allocator.malloc(40 * MiB) == blocks[0]


def test_addresses_of_an_empty_segment_are_not_reused():
    allocator = an_allocator()
    first = allocator.malloc(40 * MiB)
    allocator.free(first)
    allocator.empty_cache()
    assert allocator.malloc(40 * MiB) != first


def test_a_request_larger_than_the_hole_goes_to_the_end():
    allocator = an_allocator()
    first = allocator.malloc(40 * MiB)
    second = allocator.malloc(40 * MiB)
    allocator.free(first)
    allocator.empty_cache()
    assert allocator.malloc(41 * MiB) == second + 40 * MiB


def test_free_and_unmapped_neighbors_serve_one_request():
    allocator = an_allocator()
    first = allocator.malloc(30 * MiB)
    middle = allocator.malloc(30 * MiB)
    allocator.malloc(20 * MiB)  # [60,80)
    allocator.free(middle)
    allocator.empty_cache()  # [30,40) free, [40,60) unmapped
    assert allocator.malloc(30 * MiB) == middle
    assert sizes(allocator) == [[30, 30, 20]]
    allocator.free(first)


def test_capacity_counts_pages():
    allocator = an_allocator(capacity_bytes=50)
    allocator.malloc(40 * MiB)
    with pytest.raises(OutOfMemory):
        allocator.malloc(5 * MiB)
    allocator.malloc(1 * MiB)
    assert allocator.stats.reserved_bytes == 42 * MiB


def test_a_retry_unmaps_and_maps_again():
    allocator = an_allocator(capacity_bytes=60)
    allocator.free(allocator.malloc(40 * MiB, stream=1))
    allocator.malloc(60 * MiB)
    assert allocator.stats.retries == 1
    assert sizes(allocator) == [[60]]


def test_a_fraction_counts_the_whole_request():
    allocator = an_allocator(total_bytes=100)
    allocator.set_memory_fraction(0.5)
    allocator.malloc(31 * MiB)  # 40 mapped, 9 of them free
    with pytest.raises(OutOfMemory):  # half a MiB is missing, but 40 + 20 are compared with 50
        allocator.malloc(9 * MiB + 512 * 1024)
    allocator.malloc(9 * MiB)


def test_a_full_address_space_opens_a_second_segment():
    allocator = an_allocator(total_bytes=160)  # 180 MiB of addresses
    first = allocator.malloc(100 * MiB)
    second = allocator.malloc(100 * MiB)
    assert second >= first + 180 * MiB
    assert allocator.stats.reserved_bytes == 200 * MiB
