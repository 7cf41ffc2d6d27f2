"""The arithmetic of groups: what of several runs counts, and how much slower they were."""

from __future__ import annotations

import pytest

from cotenant.gpus.gpu_sampler import MeasuredUsage
from cotenant.measurement.collocation import (
    COLUMNS,
    GroupMember,
    group_line,
    group_rows,
    overlap_of,
    step_times_within,
)
from cotenant.measurement.job_list import ALONE, JobGroup, MeasureJob


def a_run(name, ended, warmup=1, **record):
    job = MeasureJob(name=name, script=f"/x/{name}.py", seconds=5.0)
    return GroupMember(job=job, record={"step_ended_s": ended, "warmup_steps": warmup, "outcome": "ok", **record})


def test_only_overlapping_training_time_counts():
    a, b = a_run("a", [0.0, 1.0, 2.0, 3.0, 4.0]), a_run("b", [1.5, 2.5, 3.5, 9.0])
    assert overlap_of([a, b]) == (1.5, 4.0)
    assert step_times_within(a.record, (1.5, 4.0)) == [1.0, 1.0]
    assert step_times_within(a.record, None) == []


@pytest.mark.parametrize(
    "other",
    [a_run("b", [5.0, 6.0]), a_run("b", []), GroupMember(job=a_run("b", []).job, record={"outcome": "crashed"})],
    ids=["later", "no steps", "crashed"],
)
def test_runs_without_overlap_have_no_slowdown(other):
    assert overlap_of([a_run("a", [0.0, 1.0]), other]) is None


def test_rows_contain_the_slowdown():
    a, b = a_run("a", [0.0, 2.0, 4.0]), a_run("b", [0.0, 1.0, 2.0, 3.0, 4.0], peak_reserved_bytes=9)
    group = JobGroup(jobs=("a", "b"))
    rows = group_rows([a, b], group, 1, (0.0, 4.0), MeasuredUsage(smact=0.9, peak_device_bytes=70), {"a": 0.5})
    assert all(list(row) == list(COLUMNS) for row in rows)
    assert [(row["job"], row["partners"], row["step_s"], row["slowdown"]) for row in rows] == [
        ("a", "b", 2.0, 4.0),
        ("b", "a", 1.0, None),
    ]
    assert (rows[1]["peak_reserved_bytes"], rows[0]["peak_device_bytes"], rows[0]["smact"]) == (9, 70, 0.9)
    assert "4.00 x alone" in group_line(rows[0])


def test_a_job_alone_is_its_own_measure():
    alone = JobGroup(jobs=("a",), sharing=ALONE)
    (row,) = group_rows([a_run("a", [0.0, 2.0])], alone, 1, (0.0, 2.0), MeasuredUsage(), {})
    assert (row["step_s"], row["alone_step_s"], row["slowdown"], row["partners"]) == (2.0, 2.0, None, "")


def test_partners_of_three_are_the_other_two_in_order():
    group = JobGroup(jobs=("a", "b", "a"))
    members = [a_run(name, [0.0, 1.0, 2.0]) for name in group.jobs]
    rows = group_rows(members, group, 2, overlap_of(members), MeasuredUsage(), {"a": 0.5, "b": 1.0})
    assert [(row["position"], row["job"], row["partners"], row["slowdown"]) for row in rows] == [
        (1, "a", "b+a", 2.0),
        (2, "b", "a+a", 1.0),
        (3, "a", "a+b", 2.0),
    ]
    assert {(row["group"], row["repeat"]) for row in rows} == {("a+b+a", 2)}
