"""Time series of GPUs as text, and sums as tables."""

from __future__ import annotations

import pytest

from cotenant.cli.common import TableOptions
from cotenant.cli.jobs.history_groups import print_users, print_workloads
from cotenant.cli.sparkline import ASCII_BLOCKS, UNICODE_BLOCKS, history_rows, sparkline, time_buckets, weighted_mean

GiB = 2**30


def point(at_s, seconds=1.0, **values):
    blank = dict.fromkeys(("used_bytes", "smact", "smocc", "drama", "utilization", "power_w", "max_bytes", "energy_j"))
    return {"at_s": at_s, "seconds": seconds, **blank, **values}


@pytest.mark.parametrize(
    ("values", "line"),
    [
        ([0.0, 0.5, 1.0], "▁▅█"),
        ([None, 2.0, -1.0], " █▁"),
        ([], ""),
    ],
)
def test_sparkline_scales_values_to_the_maximum(values, line):
    assert sparkline(values, 1.0, blocks=UNICODE_BLOCKS) == line


def test_nothing_is_drawn_if_the_maximum_is_zero():
    assert sparkline([1.0], 0.0, blocks=ASCII_BLOCKS) == " "


def test_time_buckets_are_weighted_means_with_gaps_as_none():
    points = [point(0.0, smact=0.2), point(1.0, smact=0.6), point(2.0), point(6.0, 4.0, smact=1.0)]
    assert time_buckets(points, "smact", since_s=0.0, until_s=10.0, count=5) == [
        pytest.approx(0.4),
        None,
        None,
        1.0,
        1.0,
    ]
    assert time_buckets(points, "smact", since_s=8.0, until_s=9.0, count=1) == [1.0], "a point from before that goes on"
    assert time_buckets([], "smact", since_s=0.0, until_s=1.0, count=2) == [None, None]
    assert weighted_mean(points, "smact") == pytest.approx((0.2 + 0.6 + 4.0) / 6)
    assert weighted_mean(points, "power_w") is None


def test_history_rows_have_mean_maximum_and_sparkline():
    values = {"used_bytes": GiB, "max_bytes": 3 * GiB, "smact": 0.5, "power_w": 100.0, "energy_j": 1800.0}
    gpu = {"index": 3, "memory_total_bytes": 4 * GiB, "points": [point(0.0, **values), point(1.0, **values)]}
    found = {row["measure"]: row for row in history_rows(gpu, since_s=0.0, until_s=2.0)}
    assert (found["memory"]["mean"], found["memory"]["max"]) == ("1.0 GiB", "3.0 GiB")
    assert (found["SMACT"]["mean"], found["power"]["max"], found["energy"]["mean"]) == ("0.50", "100 W", "1.0 Wh")
    assert len(found["SMACT"]["history"]) == 60
    empty = {row["measure"]: row["mean"] for row in history_rows({**gpu, "points": []}, since_s=0.0, until_s=2.0)}
    assert set(empty.values()) == {"-"}


def test_usage_is_printed_by_user_and_by_workload(capsys):
    user = {"user": "ann", "jobs": 2, "gpu_s": 7200.0, "gpu_share_s": 3600.0, "smact": 0.5, "mean_bytes": GiB}
    user |= {"power_w": 200.0, "energy_j": 1.44e6, "idle_energy_j": 3.6e5}
    unknown = {**user, "user": "bob", "smact": None, "power_w": None, "energy_j": None, "idle_energy_j": None}
    print_users([user, unknown], TableOptions(no_header=True))
    first, second = capsys.readouterr().out.splitlines()
    assert first.split() == ["ann", "2", "2.00", "1.00", "0.50", "1.0", "GiB", "200", "W", "0.400", "25%"]
    assert second.split()[-3:] == ["-", "-", "-"]
    work = {
        "workload": "python a.py",
        "runs": 1,
        "need_bytes": GiB,
        "is_certain": False,
        "min_bytes": None,
        "solo_s": 60.0,
    }
    work |= {
        "duration_s": 61.0,
        "smact": None,
        "drama": None,
        "steps_hz": 12.34,
        "sensitivity": 1.5,
        "aggressiveness": None,
    }
    work |= {"co_runs": [{"workloads": ["python b.py", ""], "seconds": 90.0, "steps_hz": None, "slowdown": 2.0}]}
    print_workloads([work], TableOptions(no_header=True))
    first, second = capsys.readouterr().out.splitlines()
    assert first.split() == ["1", "1.0", "GiB?", "1m01s", "-", "12.3", "x1.50", "-", "python", "a.py"]
    assert second.split(maxsplit=3) == ["1m30s", "-", "x2.00", "beside python b.py and an unnamed workload"]
