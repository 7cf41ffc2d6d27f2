"""Buffers of reductions; bytes by hand, from `setReduceConfig`."""

from __future__ import annotations

import pytest

from cotenant.core.trace import LibraryCall
from cotenant.core.units import MiB
from cotenant.estimators.reductions import ReductionRule, threads_of_sm

A100 = ReductionRule(sm_count=108, sm_threads=2048)


def call(shape, dims, *, strides=None, offset=0, item_bytes=4, sum_bytes=4):
    if strides is None:
        strides, step = [], 1
        for size in reversed(shape):
            strides.insert(0, step)
            step *= size
    params = {
        "shape": shape,
        "strides": strides,
        "offset": offset,
        "dims": dims,
        "item_bytes": item_bytes,
        "sum_bytes": sum_bytes,
    }
    return LibraryCall(kind="reduction", thread="autograd", params=params)


def test_sums_of_rows_take_twice_the_matrix():
    # Blocks of 32 x 4 threads, four results a thread: 8192 / 4 / 16 blocks share a result.
    assert A100(call((8192, 256), (0,))) == (4 * 256 * 128 * (32 * 4), 4 * 2)
    assert A100(call((8192, 256), (0,)))[0] == 2 * (8192 * 256 * 4)


@pytest.mark.parametrize("width", [512, 1024, 4096])
def test_no_more_blocks_than_fill_the_gpu(width):
    assert A100(call((64 * 512, width), (0,)))[0] == 108 * MiB


def test_a_smaller_gpu_has_smaller_buffers():
    a10g = ReductionRule(sm_count=80, sm_threads=threads_of_sm((8, 6)))
    assert a10g(call((64 * 512, 1024), (0,)))[0] == 60 * MiB


@pytest.mark.parametrize(("capability", "threads"), [((7, 0), 2048), ((7, 5), 1024), ((8, 9), 1536), ((9, 0), 2048)])
def test_the_threads_of_a_multiprocessor_depend_on_the_capability(capability, threads):
    assert threads_of_sm(capability) == threads


def test_results_that_cannot_be_loaded_together_have_other_blocks():
    # 981 is odd: blocks of 32 x 16 threads, 31 beside each other, of which 432 fill the GPU.
    assert A100(call((8192, 981), (0,)))[0] == 4 * 981 * 14 * 32
    # 982 is even: two results a thread, so blocks of 32 x 8; 16 beside each other, 864 fill the GPU.
    assert A100(call((8192, 982), (0,)))[0] == 4 * 982 * 54 * (32 * 2)


def test_an_odd_address_counts_as_an_odd_length():
    assert A100(call((8192, 256), (0,), offset=1))[0] == 4 * 256 * 32 * 32


def test_columns_of_a_wider_matrix_have_its_strides():
    assert A100(call((8192, 255), (0,), strides=(256, 1)))[0] == 4 * 255 * 32 * 32
    assert A100(call((8192, 256), (0,), strides=(257, 1)))[0] == 4 * 256 * 32 * 32
    assert A100(call((64, 128, 256), (0, 1), strides=(128 * 256 + 1, 256, 1)))[0] == 4 * 256 * 32 * 32


def test_an_expanded_dimension_is_summed_by_its_stride():
    assert A100(call((8192, 256), (0,), strides=(0, 0)))[0] == 4 * 256 * 32 * 32


def test_complex_doubles_have_half_the_threads():
    assert A100(call((8192, 256), (0,), item_bytes=16, sum_bytes=16))[0] == 16 * 256 * 256 * 128


def test_halves_are_added_up_in_float32():
    assert A100(call((8192, 256), (0,), item_bytes=2)) == A100(call((8192, 256), (0,)))
    assert A100(call((8192, 256), (0,), item_bytes=2, sum_bytes=16))[0] == 4 * A100(call((8192, 256), (0,)))[0]


@pytest.mark.parametrize("rows", [64, 512, 1020])
def test_few_rows_are_not_split_over_blocks(rows):
    assert A100(call((rows, 256), (0,))) == ()


def test_enough_rows_are_split_over_blocks():
    # Each of four warps has 256 rows, or 16 of 16 blocks.
    assert A100(call((1024, 256), (0,)))[0] == 4 * 256 * 16 * 128


def test_the_last_block_may_have_sixteen_values():
    assert A100(call((8200, 256), (0,)))[0] == 4 * 256 * 129 * 128


def test_no_thread_adds_up_more_than_256_values_of_a_large_matrix():
    # 54 blocks for each of 32 beside each other would fill the GPU, with 463 values for each thread.
    assert A100(call((100_000, 4096), (0,)))[0] == 4 * 4096 * 98 * 128


def test_one_row_of_blocks_can_fill_the_gpu():
    assert A100(call((2048, 1728 * 128), (0,)))[0] == 4 * (1728 * 128) * 2 * 128
    assert A100(call((2048, 1729 * 128), (0,))) == ()


def test_many_results_are_not_split():
    assert A100(call((4096, 1 << 20), (0,))) == ()


def test_long_rows_leave_one_number_for_each_block():
    # 128 x 4 threads add up a row: 1,954 values each, so 108 blocks for each of four rows.
    assert A100(call((4, 1_000_000), (1,))) == (4 * 4 * 108, 4 * 4)


def test_contiguous_dimensions_are_merged():
    assert A100(call((64, 128, 256), (0, 1))) == A100(call((8192, 256), (0,)))
    assert A100(call((64, 1, 128, 256), (0, 1, 2))) == A100(call((8192, 256), (0,)))
    for odd in (7, 10**9 + 1):
        assert A100(call((64, 1, 128, 256), (0, 1, 2), strides=(128 * 256, odd, 256, 1))) == A100(
            call((8192, 256), (0,))
        )
    assert A100(call((1, 8192, 256), (1,), strides=(10**9 + 1, 256, 1))) == A100(call((8192, 256), (0,)))
    assert A100(call((64, 128, 256), (0, 1), strides=(0, 256, 1))) == A100(call((8192, 256), (0,)))
    turned = call((128, 64, 256), (0, 1), strides=(256, 128 * 256, 1))
    assert A100(turned) == A100(call((8192, 256), (0,)))


def test_buffers_depend_on_the_memory_format_of_images():
    planes = call((32, 64, 56, 56), (0, 2, 3))
    assert A100(planes) == ()  # 196 values for each of 512 threads
    pixels = call((32, 64, 56, 56), (0, 2, 3), strides=(64 * 56 * 56, 1, 64 * 56, 64))
    # Blocks of 16 x 8 threads: 12,544 values for each, so 784 blocks.
    assert A100(pixels)[0] == 4 * 64 * 784 * (16 * 4)


def test_a_sum_over_all_elements_has_one_value_per_block():
    # 512 threads have 2,048 values each; 432 blocks would fill the GPU, but each thread keeps 16 values.
    assert A100(call((1024, 1024), (0, 1)))[0] == 4 * 128


def test_tensors_beyond_32_bit_indexing_are_summed_in_parts():
    whole, half = call((1 << 20, 1000), (0,)), call((1 << 19, 1000), (0,))
    assert A100(whole) == A100(half)
    assert A100(call((1 << 22, 256), (0,))) == A100(call((1 << 21, 256), (0,)))
    spread = call((1 << 22, 1024), (0,), strides=(0, 1))  # a row without end, of which 32 bits count too many elements
    assert A100(spread) == A100(call((1 << 22, 256), (0,), strides=(0, 1)))
    # The larger half of an odd number of rows: 131,073 for each of four warps, or 256 of 513 blocks.
    assert A100(call(((1 << 20) + 1, 1000), (0,)))[0] == 4 * 1000 * 513 * 128


def test_a_scalar_needs_no_buffer():
    assert A100(call((1,), (0,))) == ()
