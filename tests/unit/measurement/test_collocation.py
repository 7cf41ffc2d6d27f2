"""The arithmetic of groups: what of several runs counts, and how much slower they were."""

from __future__ import annotations

import pytest

from cotenant.gpus.gpu_sampler import MeasuredUsage
from cotenant.measurement.collocation import COLUMNS, AloneRun, group_line, group_rows, step_times_within
from cotenant.measurement.group_run import GroupMember, host_within, overlap_of
from cotenant.measurement.job_list import ALONE, JobGroup, MeasureJob
from cotenant.osutil.procfs import UsageSample


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
    rows = group_rows(
        [a, b], group, 1, (0.0, 4.0), MeasuredUsage(smact=0.9, peak_device_bytes=70), {"a": AloneRun(0.5, None)}
    )
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
    alone = {"a": AloneRun(0.5, None), "b": AloneRun(1.0, None)}
    rows = group_rows(members, group, 2, overlap_of(members), MeasuredUsage(), alone)
    assert [(row["position"], row["job"], row["partners"], row["slowdown"]) for row in rows] == [
        (1, "a", "b+a", 2.0),
        (2, "b", "a+a", 1.0),
        (3, "a", "a+b", 2.0),
    ]
    assert {(row["group"], row["repeat"]) for row in rows} == {("a+b+a", 2)}


def test_energy_is_divided_by_what_the_steps_take_alone():
    members = [a_run("a", [0.0, 1.0, 2.0, 3.0, 4.0]), a_run("b", [0.0, 2.0, 4.0])]
    group = JobGroup(jobs=("a", "b"))
    usage = MeasuredUsage(energy_j=100.0)
    # a: 4 steps of 0.5 s at 100 W are 200 J; b: 2 steps of 1 s at 300 W are 600 J.
    alone = {"a": AloneRun(0.5, 100.0), "b": AloneRun(1.0, 300.0)}
    rows = group_rows(members, group, 1, (0.0, 4.0), usage, alone)
    assert [row["job_energy_j"] for row in rows] == [25.0, 75.0]
    unknown = {**alone, "b": AloneRun(1.0, None)}
    rows = group_rows(members, group, 1, (0.0, 4.0), usage, unknown)
    assert [row["job_energy_j"] for row in rows] == [50.0, 50.0]
    assert [row["job_energy_j"] for row in group_rows(members, group, 1, None, MeasuredUsage(), alone)] == [None, None]


def test_host_use_is_of_the_overlap():
    samples = [UsageSample(0.0, 5.0, 100), UsageSample(1.0, 6.0, 900), UsageSample(3.0, 9.0, 300)]
    assert host_within(samples, (0.5, 4.0)) == (1.4, 900), "5.5 s at 0.5 s, 9 s at 3 s"
    assert host_within(samples, (1.2, 1.4)) == (pytest.approx(1.5), 300), "between two samples"
    assert host_within(samples, (3.0, 4.0)) == (None, 300)
    assert host_within(samples, (4.0, 5.0)) == host_within(samples, None) == host_within([], (0.0, 1.0)) == (None, None)


def test_time_of_an_epoch_and_of_fixed_work():
    job = MeasureJob(name="a", script="/x/a.py", epoch_steps=391)
    member = GroupMember(job=job, record={"step_ended_s": [0.0, 1.0, 2.0, 3.0], "warmup_steps": 2}, run_s=2.5)
    (row,) = group_rows([member], JobGroup(jobs=("a",), sharing=ALONE), 1, (1.0, 3.0), MeasuredUsage(), {})
    assert (row["epoch_s"], row["run_s"], row["steps_run"]) == (391.0, 2.5, 3)
    assert row["workload"] == "python /x/a.py"
