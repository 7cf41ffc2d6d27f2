"""The arithmetic of the comparison with the null GPU; the comparison itself needs a CUDA build of torch."""

from __future__ import annotations

import pytest

from benchmarks.estimator.oracle import Comparison, matching, report_lines, rounded


@pytest.mark.parametrize(("size", "block"), [(1, 512), (512, 512), (513, 1024), (100_000, 100_352)])
def test_sizes_are_compared_as_blocks(size, block):
    assert rounded(size) == block


def test_equal_lists_have_no_first_difference():
    assert matching([512, 1024, 512], [512, 1024, 512]) == (3, None)


def test_first_difference_is_an_index_in_both_lists():
    assert matching([512, 1024, 2048, 512], [512, 4096, 2048, 512]) == (3, (1, 1))


def test_allocations_that_the_estimate_lacks_are_a_difference():
    assert matching([512, 1024], [512]) == (1, (1, 1))


def test_allocations_that_follow_the_last_one_are_no_difference():
    assert matching([512, 1024], [512, 1024, 2048]) == (2, None)


def test_report_counts_equal_near_and_far():
    sizes = [(100, 100), (1000, 1004), (1000, 1030), (1000, 970)]
    rows = [
        Comparison(
            "job", "A100-40GB", null_reserved_bytes=null, reserved_bytes=ours, null_allocations=4, equal_allocations=3
        )
        for null, ours in sizes
    ]
    lines = list(report_lines([*rows, Comparison("bad", "A100-40GB", problem="null GPU: raised")]))
    assert lines[10] == "| A100-40GB | 4 | 1 | 2 | 2 | 75.00% |"
    assert lines[11] == "| all | 4 | 1 | 2 | 2 | 75.00% |"
    assert lines[-1] == "Not counted: 1 jobs that either side could not run, 0 whose sizes depend on data."
    assert "| +3.00% |" in lines[4]
    assert lines[6].endswith("| null GPU: raised |")
