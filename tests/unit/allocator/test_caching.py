"""Pools, best fit, splitting, merging, a full GPU: each test has one rule of c10/cuda/CUDACachingAllocator.cpp."""

from __future__ import annotations

import pytest

from allocators import an_allocator, reserved_mib, sizes
from cotenant.allocator import OutOfMemory
from cotenant.core.units import MiB


def test_small_requests_share_a_segment_of_2_mib():
    allocator = an_allocator()
    allocator.malloc(1)
    allocator.malloc(1 * MiB)
    assert reserved_mib(allocator) == 2
    assert sizes(allocator) == [[1 / 2048, 1, -(1 - 1 / 2048)]]
    assert [segment.pool for segment in allocator.segments()] == ["small"]


def test_medium_requests_share_a_segment_of_20_mib():
    allocator = an_allocator()
    allocator.malloc(1 * MiB + 1)
    allocator.malloc(9 * MiB)
    assert reserved_mib(allocator) == 20
    assert [segment.pool for segment in allocator.segments()] == ["large"]


@pytest.mark.parametrize(
    ("request_mib", "blocks"),  # should_split: the large pool splits if more than 1 MiB remains
    [
        pytest.param(19, [[19, -1]], id="exactly 1 MiB remains of a cached 20: not split"),
        pytest.param(18.5, [[18.5, -1.5]], id="1.5 MiB remains: split"),
    ],
)
def test_a_cached_block_is_split_or_used_whole(request_mib, blocks):
    allocator = an_allocator()
    allocator.free(allocator.malloc(20 * MiB))
    allocator.malloc(int(request_mib * MiB))
    stays_whole = request_mib == 19
    assert sizes(allocator) == ([[20]] if stays_whole else blocks)
    assert allocator.stats.requested_bytes == int(request_mib * MiB)
    assert allocator.stats.allocated_bytes == (20 * MiB if stays_whole else int(request_mib * MiB))


def test_a_block_is_split_from_a_minimum_remainder():
    allocator = an_allocator()
    allocator.free(allocator.malloc(20 * MiB))
    allocator.malloc(19 * MiB - 512)
    assert sizes(allocator) == [[19 - 1 / 2048, -(1 + 1 / 2048)]]


def test_the_small_pool_splits_at_512_bytes():
    allocator = an_allocator()
    allocator.malloc(1 * MiB)
    allocator.malloc(1 * MiB - 512)
    assert sizes(allocator) == [[1, 1 - 1 / 2048, -1 / 2048]]


def test_the_smallest_block_that_fits_is_used():
    allocator = an_allocator()
    big, middle, small = (allocator.malloc(mib * MiB) for mib in (40, 30, 20))
    for address in (big, small, middle):
        allocator.free(address)
    assert allocator.malloc(25 * MiB) == middle


def test_of_equal_blocks_the_lowest_address_is_used():
    allocator = an_allocator()
    first, second = allocator.malloc(30 * MiB), allocator.malloc(30 * MiB)
    allocator.free(second)
    allocator.free(first)
    assert allocator.malloc(30 * MiB) == min(first, second)


def test_small_and_large_pools_share_no_blocks():
    allocator = an_allocator()
    allocator.free(allocator.malloc(20 * MiB))
    allocator.malloc(512)
    assert reserved_mib(allocator) == 22


def test_streams_share_no_blocks():
    allocator = an_allocator()
    allocator.free(allocator.malloc(20 * MiB, stream=0))
    allocator.malloc(20 * MiB, stream=1)
    assert reserved_mib(allocator) == 40
    assert sorted(segment.stream for segment in allocator.segments()) == [0, 1]


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (0, 2, 1), (1, 0, 2)])
def test_free_neighbors_merge(order):
    allocator = an_allocator()
    addresses = [allocator.malloc(5 * MiB) for _ in range(3)]
    for index in order:
        allocator.free(addresses[index])
    assert sizes(allocator) == [[-20]]


def test_live_neighbors_keep_blocks_apart():
    allocator = an_allocator()
    first, _, third = (allocator.malloc(5 * MiB) for _ in range(3))
    allocator.free(first)
    allocator.free(third)
    assert sizes(allocator) == [[-5, 5, -10]]


def test_segments_do_not_merge():
    allocator = an_allocator()
    for address in [allocator.malloc(20 * MiB), allocator.malloc(20 * MiB)]:
        allocator.free(address)
    assert sizes(allocator) == [[-20], [-20]]


def test_zero_bytes_allocate_nothing():
    allocator = an_allocator()
    address = allocator.malloc(0)
    allocator.free(address)
    assert address == 0
    assert allocator.segments() == ()


def test_a_negative_request_is_refused():
    with pytest.raises(ValueError, match="must be >= 0, got -1"):
        an_allocator().malloc(-1)


def test_a_free_without_a_live_block_is_refused():
    allocator = an_allocator()
    address = allocator.malloc(512)
    allocator.free(address)
    for unknown in (address, 12345):
        with pytest.raises(ValueError, match="no block is live"):
            allocator.free(unknown)


def test_empty_cache_releases_whole_segments_only():
    allocator = an_allocator()
    first, gone = allocator.malloc(5 * MiB), allocator.malloc(30 * MiB)
    allocator.free(gone)
    allocator.empty_cache()
    assert sizes(allocator) == [[5, -15]]
    assert allocator.stats.segments == 1
    allocator.free(first)
    allocator.empty_cache()
    assert allocator.stats.reserved_bytes == allocator.stats.segments == 0


def test_peaks_do_not_decrease():
    allocator = an_allocator()
    allocator.free(allocator.malloc(30 * MiB))
    allocator.empty_cache()
    stats = allocator.stats
    assert (stats.peak_allocated_bytes, stats.peak_requested_bytes, stats.peak_reserved_bytes) == (30 * MiB,) * 3
    assert (stats.allocated_bytes, stats.requested_bytes, stats.reserved_bytes) == (0, 0, 0)


def test_blocks_in_use_elsewhere_stay_active():
    allocator = an_allocator()
    address = allocator.malloc(30 * MiB)
    allocator.free(address, in_use_elsewhere=True)
    assert allocator.malloc(30 * MiB) != address
    stats = allocator.stats
    assert (stats.allocated_bytes, stats.active_bytes, stats.requested_bytes) == (30 * MiB, 60 * MiB, 60 * MiB)
    assert (stats.peak_allocated_bytes, stats.peak_active_bytes) == (30 * MiB, 60 * MiB)
    assert [block.state for segment in allocator.segments() for block in segment.blocks] == ["pending", "live"]
    allocator.finish_streams()
    assert allocator.stats.active_bytes == 30 * MiB
    assert allocator.malloc(30 * MiB) == address


def test_a_pending_block_does_not_merge():
    allocator = an_allocator()
    first, second = allocator.malloc(5 * MiB), allocator.malloc(5 * MiB)
    allocator.free(first, in_use_elsewhere=True)
    allocator.free(second)
    assert [block.size_bytes for block in allocator.segments()[0].blocks] == [5 * MiB, 15 * MiB]


# Out of memory: `malloc` tries, gives back everything cached, tries again.


def test_the_cache_is_released_before_a_request_fails():
    allocator = an_allocator(capacity_bytes=50)
    allocator.free(allocator.malloc(30 * MiB))
    allocator.malloc(40 * MiB)
    assert sizes(allocator) == [[40]]
    assert (allocator.stats.retries, allocator.stats.ooms) == (1, 0)
    assert allocator.stats.peak_reserved_bytes == 40 * MiB


def test_a_retry_synchronizes_with_other_streams():
    allocator = an_allocator(capacity_bytes=50)
    allocator.free(allocator.malloc(30 * MiB), in_use_elsewhere=True)
    allocator.malloc(40 * MiB)
    assert sizes(allocator) == [[40]]


def test_out_of_memory_reports_the_numbers_of_torch():
    allocator = an_allocator(capacity_bytes=50, total_bytes=64)
    allocator.malloc(19 * MiB)
    allocator.malloc(5 * MiB)
    with pytest.raises(OutOfMemory, match=r"tried to allocate 16.0 MiB, 10.0 MiB free") as caught:
        allocator.malloc(16 * MiB)
    oom = caught.value
    assert (oom.tried_bytes, oom.free_bytes, oom.total_bytes) == (16 * MiB, 10 * MiB, 64 * MiB)
    assert (oom.allocated_bytes, oom.reserved_bytes) == (25 * MiB, 40 * MiB)
    assert oom.allowed_bytes is None
    assert (allocator.stats.retries, allocator.stats.ooms) == (1, 1)


def test_the_whole_capacity_can_be_reserved():
    allocator = an_allocator(capacity_bytes=40)
    allocator.malloc(40 * MiB)
    with pytest.raises(OutOfMemory):
        allocator.malloc(1)
