"""Limits and settings of the allocator: each test has one rule of c10/cuda/CUDACachingAllocator.cpp."""

from __future__ import annotations

import pytest

from allocators import NEW, OLD, an_allocator, reserved_mib, sizes
from cotenant.allocator import OutOfMemory
from cotenant.core.errors import UsageError
from cotenant.core.units import KiB, MiB

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
def test_oversize_blocks_serve_oversize_requests_only(request_mib, cached_mib, reuses):
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
def test_just_enough_oversize_blocks_are_released(request_mib, left, retries):
    allocator = an_allocator("max_split_size_mb:64", capacity_bytes=400)
    for address in [allocator.malloc(mib * MiB) for mib in (30, 70, 100, 130)]:
        allocator.free(address)
    allocator.malloc(request_mib * MiB)
    assert sizes(allocator) == left
    assert allocator.stats.retries == retries


def test_one_oversize_block_that_is_large_enough_is_released_alone():
    allocator = an_allocator("max_split_size_mb:64", capacity_bytes=330)
    for address in [allocator.malloc(mib * MiB) for mib in (70, 100, 130)]:
        allocator.free(address)
    allocator.malloc(78 * MiB)  # 100 >= 78 + 20: not reused; 100 is the smallest of 78 or more
    assert sizes(allocator) == [[-70], [-130], [78]]
    assert allocator.stats.retries == 0


def test_without_a_split_limit_the_whole_cache_is_released():
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


def test_a_memory_fraction_of_an_unknown_gpu_is_refused():
    with pytest.raises(UsageError, match="which is not known"):
        an_allocator("per_process_memory_fraction:0.25")


@pytest.mark.parametrize("fraction", [-0.1, 1.1])
def test_a_fraction_out_of_range_is_refused(fraction):
    with pytest.raises(UsageError, match=r"must be in 0\.\.1"):
        an_allocator(total_bytes=100).set_memory_fraction(fraction)


@pytest.mark.parametrize(("version", "limited"), [(OLD, True), (NEW, False)])
def test_a_fraction_of_one_limits_by_version(version, limited):
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


def test_the_oldest_garbage_is_collected_first():
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


def test_throw_on_cudamalloc_oom_releases_nothing():
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
