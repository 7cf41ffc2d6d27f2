"""The search for the largest batch, on functions in place of scripts."""

from __future__ import annotations

import pytest

from cotenant.core.errors import TraceError, UsageError
from cotenant.core.units import MiB
from cotenant.estimators.batch_search import find_batch_size, value_of, with_value


def search(bound_mib, *, limit_mib=10_000, start=8):
    return find_batch_size(
        lambda size: int(bound_mib(size) * MiB), argument="--batch", start=start, limit_bytes=limit_mib * MiB
    )


def line(size):
    return 500 + 73 * size


@pytest.mark.parametrize("start", [1, 8, 100, 129, 130, 131, 1000])
def test_the_largest_batch_is_found_where_memory_is_linear(start):
    found = search(line, start=start)
    assert (found.largest, found.smallest_misfit, found.remark) == (130, 131, None)
    assert len(found.trials) <= 5


@pytest.mark.parametrize(
    "bound",
    [
        pytest.param(lambda size: 500 + 73 * size + (300 if size % 3 else 0), id="uneven"),
        pytest.param(lambda size: 500 + size**2, id="growing faster"),
        pytest.param(lambda size: 500 + 600 * size**0.5, id="growing slower"),
        pytest.param(lambda size: 9000 + 1.5 * size, id="a large base"),
        pytest.param(lambda size: 500 + 20 * (73 * size // 20), id="in steps"),
    ],
)
def test_the_result_was_tried_and_one_more_does_not_fit(bound):
    found = search(bound)
    by_size = {trial.batch_size: trial for trial in found.trials}
    assert by_size[found.largest].fits
    assert not by_size[found.smallest_misfit].fits
    assert 0 < found.smallest_misfit - found.largest <= max(1, found.largest // 100)
    assert len(by_size) == len(found.trials) <= 16


def test_a_bound_equal_to_the_limit_fits():
    found = search(line, limit_mib=line(130), start=130)
    assert [trial.batch_size for trial in found.trials] == [130, 260, 131]
    assert found.largest == 130


def test_large_batches_are_exact_to_a_hundredth():
    found = search(lambda size: 500 + size / 10 + size**2 / 10**6)
    assert len(found.trials) <= 10
    assert found.smallest_misfit - found.largest <= found.largest // 100


def test_a_search_in_which_no_batch_fits_has_no_result():
    found = search(line, limit_mib=550)
    assert (found.largest, found.smallest_misfit) == (None, 1)


def test_a_batch_of_one_can_be_the_largest():
    assert search(line, limit_mib=600).largest == 1


def test_an_argument_that_does_not_change_memory_is_refused():
    with pytest.raises(UsageError, match="`--batch` does not change the memory") as caught:
        search(lambda size: 700)
    assert "8 and 16 and 64 and 2048" in caught.value.message
    assert "--batch-arg" in caught.value.hint


def test_equal_peaks_of_small_batches_do_not_end_the_search():
    assert search(lambda size: 500 + 20 * (size // 40), limit_mib=600).largest in range(237, 240)
    assert search(lambda size: 500 + 2 * (size // 1000), limit_mib=600).largest in range(50_000, 51_000)


def test_a_limit_below_what_small_batches_share_is_no_batch():
    found = search(lambda size: 500 + 2 * (size // 100), limit_mib=400)
    assert [trial.batch_size for trial in found.trials] == [8, 4, 1]
    assert (found.largest, found.smallest_misfit) == (None, 1)


def test_a_script_that_fails_with_a_large_batch_bounds_it():
    def bound(size):
        if size > 100:
            raise TraceError("no-step", "the script ended without an optimizer step")
        return line(size)

    found = search(bound)
    assert found.largest == 100
    assert next(trial for trial in found.trials if trial.batch_size > 100).problem.startswith("the script ended")
    assert found.remark.startswith("with 101 it is not memory that is missing: the script ended")


def test_a_start_far_above_the_limit_searches_downward():
    assert [trial.batch_size for trial in search(line, start=1000).trials] == [1000, 500, 130, 131]


def test_a_failing_bisection_is_bisected_again():
    def bound(size):
        if size == 4:
            raise TraceError("raised", "not with four")
        return line(size)

    found = search(bound, limit_mib=line(2))
    assert [trial.batch_size for trial in found.trials] == [8, 4, 2, 3]
    assert (found.largest, found.smallest_misfit) == (2, 3)


def test_the_line_is_not_used_where_the_script_fails():
    """The line leads beyond what runs: what is left is halved, and no trial is next to one that failed."""

    def bound(size):
        if size > 4096:
            raise TraceError("raised", "more than the data")
        return 500 + size // 50

    found = search(bound)
    assert 4096 - 40 <= found.largest <= 4096 < found.smallest_misfit
    assert found.smallest_misfit - found.largest <= found.largest // 100
    assert len(found.trials) < 16


def test_an_unfinished_search_has_a_remark():
    found = search(lambda size: 500 + size.bit_length())
    assert found.smallest_misfit is None
    assert found.remark == f"larger ones than {found.largest} may fit: the search ended after 16 trials"


def test_a_script_that_always_fails_is_an_error():
    def bound(size):
        raise TraceError("raised", "no such option")

    with pytest.raises(TraceError):
        search(bound)


def test_memory_that_stops_growing_ends_the_search():
    found = search(lambda size: min(line(size), 5000))
    assert found.smallest_misfit is None
    assert len(found.trials) <= 8
    assert found.largest < 1000
    assert "larger batches take no more memory" in found.remark


def test_every_trial_is_reported():
    reported = []
    found = find_batch_size(line, argument="-b", start=4, limit_bytes=2000, on_trial=reported.append)
    assert tuple(reported) == found.trials


@pytest.mark.parametrize(
    ("args", "name", "value", "changed"),
    [
        (["--batch", "8", "x"], "--batch", 8, ["--batch", "5", "x"]),
        (["x", "--batch", "8"], "--batch", 8, ["x", "--batch", "5"]),
        (["--batch=8"], "--batch", 8, ["--batch=5"]),
        (["batch=8"], "batch", 8, ["batch=5"]),
        (["--batches", "8"], "--batch", None, ["--batches", "8", "--batch", "5"]),
        ([], "batch", None, ["batch=5"]),
        (["data.batch=8"], "data.batch=", 8, ["data.batch=5"]),
        (["--batch", "8"], "--batch=", 8, ["--batch", "5"]),
        ([], "--batch=", None, ["--batch=5"]),
        (["--batch"], "--batch", None, ["--batch", "--batch", "5"]),
        (["x", "--batch"], "--batch", None, ["x", "--batch", "--batch", "5"]),
        (["--batch", "many"], "--batch", None, ["--batch", "5"]),
    ],
)
def test_the_batch_argument_is_set_in_the_command_line(args, name, value, changed):
    assert value_of(args, name) == value
    assert list(with_value(args, name, 5)) == changed
