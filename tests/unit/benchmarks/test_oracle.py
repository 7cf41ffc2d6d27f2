"""The arithmetic of the comparison with the null GPU; the comparison itself needs a CUDA build of torch."""

from __future__ import annotations

import pytest

from benchmarks.estimator.oracle import (
    Comparison,
    cause_of,
    chosen_jobs,
    jobs_of_page,
    matching,
    report_lines,
    rounded,
)


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
    assert lines[-1] == "Not counted: 1 jobs that either side could not run, 0 that the null GPU cannot judge."
    assert "| +3.00% |" in lines[4]
    assert lines[6].endswith("| null GPU: raised |")


def test_a_mask_that_the_null_gpu_reads_as_zeros_is_a_known_cause():
    row = Comparison("job", "example", first_difference="59: null GPU: 32,768 in _expand_mask (masks.py:194)")
    assert cause_of(row).startswith("the null GPU reads a mask")
    assert cause_of(Comparison("job", "example", first_difference="59: null GPU: 4 in C++")) == "59: null GPU: 4 in C++"


PAGE = """# Estimates

| job | null |
| --- | ---: |
| `examples/mlp.py on A100-40GB` | 766.0 MiB |
| `examples/gone.py on A100-40GB` | - |

| kind | jobs |
| --- | ---: |
| all | 1 |
"""


def test_jobs_of_an_earlier_page_are_judged_again_and_those_that_are_gone_counted(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(PAGE)
    assert jobs_of_page(page) == ["examples/mlp.py on A100-40GB", "examples/gone.py on A100-40GB"]
    chosen, gone = chosen_jobs([], [page])
    assert ([job.name for job in chosen], gone) == (["examples/mlp.py on A100-40GB"], 1)


def test_patterns_add_to_the_jobs_of_a_page(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(PAGE)
    chosen, _ = chosen_jobs(["examples/gpt2.py on *"], [page])
    assert {job.command for job in chosen} == {"examples/mlp.py", "examples/gpt2.py"}
    assert len(chosen_jobs([], [])[0]) > 700
