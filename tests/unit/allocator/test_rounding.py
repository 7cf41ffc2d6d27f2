"""Sizes of blocks and segments. Source: `round_size`, `get_allocation_size` in c10/cuda/CUDACachingAllocator.cpp."""

from __future__ import annotations

import pytest

from cotenant.allocator.rounding import block_bytes, segment_bytes
from cotenant.core.units import MiB


@pytest.mark.parametrize(("request_bytes", "size"), [(1, 512), (512, 512), (513, 1024), (2**20 + 1, 2**20 + 512)])
def test_blocks_are_multiples_of_512(request_bytes, size):
    assert block_bytes(request_bytes) == size


@pytest.mark.parametrize(
    ("request_bytes", "divisions", "size"),
    [
        pytest.param(1200, 4, 1536, id="too small for four steps: 512 B grid"),
        pytest.param(2049, 4, 2560, id="2048..4096 in steps of 512"),
        pytest.param(9 * MiB, 4, 10 * MiB, id="8..16 MiB in steps of 2"),
        pytest.param(10 * MiB, 4, 10 * MiB, id="on a step"),
        pytest.param(15 * MiB, 4, 16 * MiB, id="last step is the next power"),
        pytest.param(16 * MiB, 4, 16 * MiB, id="power of 2"),
        pytest.param(9 * MiB, 1, 9 * MiB, id="one division: 512 B grid"),
        pytest.param(9 * MiB, 0, 9 * MiB, id="off"),
    ],
)
def test_sizes_are_rounded_up_by_power_of_two_divisions(request_bytes, divisions, size):
    assert block_bytes(request_bytes, (divisions,) * 16) == size


@pytest.mark.parametrize(
    ("mib", "interval"), [(0.5, 0), (1, 0), (1.9, 0), (2, 1), (1023, 9), (1024, 10), (40000, 15), (200000, 15)]
)
def test_a_size_uses_the_divisions_of_its_interval(mib, interval):
    request_bytes = int(mib * MiB) + 1
    only = tuple(2 if index == interval else 0 for index in range(16))
    power = 1 << (request_bytes.bit_length() - 1)
    expected = power + power // 2 if request_bytes <= power + power // 2 else 2 * power
    assert block_bytes(request_bytes, only) == expected


@pytest.mark.parametrize(
    ("size", "segment"),
    [
        (512, 2 * MiB),
        (1 * MiB, 2 * MiB),
        (1 * MiB + 512, 20 * MiB),
        (10 * MiB - 512, 20 * MiB),
        (10 * MiB, 10 * MiB),
        (10 * MiB + 512, 12 * MiB),
        (33 * MiB, 34 * MiB),
    ],
)
def test_the_segment_size_depends_on_the_request(size, segment):
    assert segment_bytes(size) == segment


def test_the_large_segment_size_can_be_set():
    assert segment_bytes(2 * MiB, 32 * MiB) == 32 * MiB
    assert segment_bytes(1 * MiB, 32 * MiB) == 2 * MiB
