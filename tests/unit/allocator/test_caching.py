"""Pools, best fit, splitting, merging, limits: one rule of c10/cuda/CUDACachingAllocator.cpp a test."""

from __future__ import annotations

import pytest

from cotenant.allocator import CachingAllocator, OutOfMemory, parse_options, rules_for
from cotenant.core.errors import UsageError
from cotenant.core.units import KiB, MiB

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
def test_remainders_of_a_cached_block(request_mib, blocks):
    allocator = an_allocator()
    allocator.free(allocator.malloc(20 * MiB))
    allocator.malloc(int(request_mib * MiB))
    kept_whole = request_mib == 19
    assert sizes(allocator) == ([[20]] if kept_whole else blocks)
    assert allocator.stats.requested_bytes == int(request_mib * MiB)
    assert allocator.stats.allocated_bytes == (20 * MiB if kept_whole else int(request_mib * MiB))


def test_the_least_remainder_that_is_split():
    allocator = an_allocator()
    allocator.free(allocator.malloc(20 * MiB))
    allocator.malloc(19 * MiB - 512)
    assert sizes(allocator) == [[19 - 1 / 2048, -(1 + 1 / 2048)]]


def test_small_pool_splits_off_512_bytes():
    allocator = an_allocator()
    allocator.malloc(1 * MiB)
    allocator.malloc(1 * MiB - 512)
    assert sizes(allocator) == [[1, 1 - 1 / 2048, -1 / 2048]]


def test_best_fit_is_the_smallest_that_fits():
    allocator = an_allocator()
    big, middle, small = (allocator.malloc(mib * MiB) for mib in (40, 30, 20))
    for address in (big, small, middle):
        allocator.free(address)
    assert allocator.malloc(25 * MiB) == middle


def test_of_equal_blocks_the_lowest_address():
    allocator = an_allocator()
    first, second = allocator.malloc(30 * MiB), allocator.malloc(30 * MiB)
    allocator.free(second)
    allocator.free(first)
    assert allocator.malloc(30 * MiB) == min(first, second)


def test_pools_do_not_share():
    allocator = an_allocator()
    allocator.free(allocator.malloc(20 * MiB))
    allocator.malloc(512)
    assert reserved_mib(allocator) == 22


def test_streams_do_not_share():
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


def test_a_request_of_nothing_takes_nothing():
    allocator = an_allocator()
    address = allocator.malloc(0)
    allocator.free(address)
    assert address == 0
    assert allocator.segments() == ()


def test_a_negative_request():
    with pytest.raises(ValueError, match="-1 bytes"):
        an_allocator().malloc(-1)


def test_free_of_what_is_not_live():
    allocator = an_allocator()
    address = allocator.malloc(512)
    allocator.free(address)
    for unknown in (address, 12345):
        with pytest.raises(ValueError, match="no block is live"):
            allocator.free(unknown)


def test_empty_cache_gives_back_whole_segments_only():
    allocator = an_allocator()
    kept, gone = allocator.malloc(5 * MiB), allocator.malloc(30 * MiB)
    allocator.free(gone)
    allocator.empty_cache()
    assert sizes(allocator) == [[5, -15]]
    assert allocator.stats.segments == 1
    allocator.free(kept)
    allocator.empty_cache()
    assert allocator.stats.reserved_bytes == allocator.stats.segments == 0


def test_peaks_stay():
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


def test_cached_memory_goes_back_before_a_request_fails():
    allocator = an_allocator(capacity_bytes=50)
    allocator.free(allocator.malloc(30 * MiB))
    allocator.malloc(40 * MiB)
    assert sizes(allocator) == [[40]]
    assert (allocator.stats.retries, allocator.stats.ooms) == (1, 0)
    assert allocator.stats.peak_reserved_bytes == 40 * MiB


def test_a_retry_waits_for_other_streams():
    allocator = an_allocator(capacity_bytes=50)
    allocator.free(allocator.malloc(30 * MiB), in_use_elsewhere=True)
    allocator.malloc(40 * MiB)
    assert sizes(allocator) == [[40]]


def test_out_of_memory_says_the_numbers_of_torch():
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


def test_capacity_is_met_exactly():
    allocator = an_allocator(capacity_bytes=40)
    allocator.malloc(40 * MiB)
    with pytest.raises(OutOfMemory):
        allocator.malloc(1)


# max_split_size_mb: `get_free_block`, `should_split`, `release_available_cached_blocks`.


@pytest.mark.parametrize(
    ("request_mib", "reuses"),
    [
        pytest.param(30, False, id="below the limit: oversize block is kept"),
        pytest.param(64, True, id="oversize request, block larger by less than 20 MiB"),
        pytest.param(60, False, id="60 is below 64"),
    ],
)
@pytest.mark.parametrize("cached_mib", [64, 80])
def test_oversize_blocks_are_kept_for_oversize_requests(request_mib, cached_mib, reuses):
    allocator = an_allocator("max_split_size_mb:64")
    cached = allocator.malloc(cached_mib * MiB)
    allocator.free(cached)
    assert (allocator.malloc(request_mib * MiB) == cached) is reuses


def test_oversize_blocks_are_not_split():
    allocator = an_allocator("max_split_size_mb:64")
    allocator.free(allocator.malloc(80 * MiB))
    allocator.malloc(70 * MiB)
    assert sizes(allocator) == [[80]]


@pytest.mark.parametrize(
    ("text", "reuses"),
    [
        ("max_split_size_mb:64", False),  # 86 >= 65 + 20
        ("max_split_size_mb:64,max_non_split_rounding_mb:22", True),  # 86 < 65 + 22
    ],
)
def test_rounding_of_oversize_blocks(text, reuses):
    allocator = an_allocator(text)
    cached = allocator.malloc(86 * MiB)
    allocator.free(cached)
    assert (allocator.malloc(65 * MiB) == cached) is reuses


def test_oversize_rounding_is_a_strict_limit():
    for extra, reuses in ((20, False), (18, True)):
        allocator = an_allocator("max_split_size_mb:64")
        cached = allocator.malloc((64 + extra) * MiB)
        allocator.free(cached)
        assert (allocator.malloc(64 * MiB) == cached) is reuses


@pytest.mark.parametrize(
    ("request_mib", "left", "retries"),  # 30, 70, 100 and 130 are cached, 70 are not in use
    [
        pytest.param(160, [[-30], [-70], [160]], 0, id="130 and 100 suffice, largest first"),
        pytest.param(250, [[-30], [250]], 0, id="all three oversize blocks"),
        pytest.param(310, [[310]], 1, id="too few: the retry gives back the rest"),
    ],
)
def test_just_enough_oversize_blocks_go_back(request_mib, left, retries):
    allocator = an_allocator("max_split_size_mb:64", capacity_bytes=400)
    for address in [allocator.malloc(mib * MiB) for mib in (30, 70, 100, 130)]:
        allocator.free(address)
    allocator.malloc(request_mib * MiB)
    assert sizes(allocator) == left
    assert allocator.stats.retries == retries


def test_one_oversize_block_that_is_large_enough_goes_back_alone():
    allocator = an_allocator("max_split_size_mb:64", capacity_bytes=330)
    for address in [allocator.malloc(mib * MiB) for mib in (70, 100, 130)]:
        allocator.free(address)
    allocator.malloc(78 * MiB)  # 100 >= 78 + 20: not reused; 100 is the smallest of 78 or more
    assert sizes(allocator) == [[-70], [-130], [78]]
    assert allocator.stats.retries == 0


def test_without_the_limit_everything_goes_back():
    allocator = an_allocator(capacity_bytes=330)
    live = allocator.malloc(70 * MiB)
    for address in [allocator.malloc(mib * MiB) for mib in (100, 130)]:
        allocator.free(address)
    allocator.malloc(140 * MiB)
    assert sizes(allocator) == [[70], [140]]
    assert allocator.stats.retries == 1
    allocator.free(live)


# set_per_process_memory_fraction and garbage_collection_threshold.


def test_memory_fraction_limits_reserved_bytes():
    allocator = an_allocator(total_bytes=100)
    allocator.set_memory_fraction(0.5)
    allocator.malloc(50 * MiB)
    with pytest.raises(OutOfMemory) as caught:
        allocator.malloc(1)
    assert caught.value.allowed_bytes == 50 * MiB
    assert caught.value.free_bytes is None


def test_memory_fraction_counts_the_whole_segment():
    allocator = an_allocator(total_bytes=100)
    allocator.set_memory_fraction(0.5)
    allocator.malloc(40 * MiB)
    with pytest.raises(OutOfMemory):
        allocator.malloc(2 * MiB)


def test_memory_fraction_as_a_setting():
    allocator = an_allocator("per_process_memory_fraction:0.25", total_bytes=100)
    with pytest.raises(OutOfMemory):
        allocator.malloc(26 * MiB)


def test_memory_fraction_of_an_unknown_gpu():
    with pytest.raises(UsageError, match="unknown size"):
        an_allocator("per_process_memory_fraction:0.25")


@pytest.mark.parametrize("fraction", [-0.1, 1.1])
def test_no_fraction(fraction):
    with pytest.raises(UsageError, match=r"not in 0\.\.1"):
        an_allocator(total_bytes=100).set_memory_fraction(fraction)


@pytest.mark.parametrize(("version", "limited"), [(OLD, True), (NEW, False)])
def test_a_fraction_of_one(version, limited):
    allocator = an_allocator(version=version, total_bytes=100)
    allocator.set_memory_fraction(1)
    if limited:
        with pytest.raises(OutOfMemory):
            allocator.malloc(120 * MiB)
    else:
        allocator.malloc(120 * MiB)


def collecting(threshold, fraction=1.0):
    allocator = an_allocator(f"garbage_collection_threshold:{threshold}", OLD, total_bytes=100)
    allocator.set_memory_fraction(fraction)
    return allocator


def test_garbage_is_collected_above_the_threshold():
    allocator = collecting(0.5)
    for address in [allocator.malloc(40 * MiB), allocator.malloc(20 * MiB)]:
        allocator.free(address)
    allocator.malloc(50 * MiB)  # 60 held, threshold 50: 10 wanted
    assert [-40] not in sizes(allocator)
    assert allocator.stats.retries == 0


def test_old_garbage_goes_first():
    allocator = collecting(0.5)
    old, young = allocator.malloc(30 * MiB), allocator.malloc(24 * MiB)
    allocator.free(old)
    for _ in range(10):
        allocator.free(young)
        young = allocator.malloc(24 * MiB)
    allocator.free(young)
    allocator.malloc(36 * MiB)  # 54 held, threshold 50: the old block alone is above the average age
    assert sizes(allocator) == [[-24], [36]]


def test_below_the_threshold_garbage_stays():
    allocator = collecting(0.9)
    allocator.free(allocator.malloc(40 * MiB))
    allocator.malloc(50 * MiB)
    assert sizes(allocator) == [[-40], [50]]


def test_no_collection_without_a_limit():
    allocator = an_allocator("garbage_collection_threshold:0.1", NEW, total_bytes=100)
    allocator.set_memory_fraction(1)
    allocator.free(allocator.malloc(40 * MiB))
    allocator.malloc(50 * MiB)
    assert sizes(allocator) == [[-40], [50]]


def test_split_segments_are_not_collected():
    allocator = collecting(0.1)
    allocator.malloc(5 * MiB)
    allocator.malloc(30 * MiB)
    assert sizes(allocator) == [[5, -15], [30]]
    assert reserved_mib(allocator) == 50


def test_throw_on_cudamalloc_oom_frees_nothing():
    allocator = an_allocator("throw_on_cudamalloc_oom:True", total_bytes=100)
    allocator.free(allocator.malloc(60 * MiB))
    with pytest.raises(OutOfMemory):
        allocator.malloc(70 * MiB)
    assert sizes(allocator) == [[-60]]
    assert allocator.stats.retries == 0


def test_large_segments_of_another_size():
    allocator = an_allocator("large_segment_size_mb:32")
    allocator.malloc(5 * MiB)
    assert sizes(allocator) == [[5, -27]]


def test_requests_are_rounded_by_power_of_two_divisions():
    allocator = an_allocator("roundup_power2_divisions:[1:1,2:1,4:1,8:4,>:1]")
    allocator.malloc(9 * MiB)
    allocator.malloc(600 * KiB + 1)
    assert [
        block.size_bytes for segment in allocator.segments() for block in segment.blocks if block.requested_bytes
    ] == [
        10 * MiB,
        600 * KiB + 512,
    ]
