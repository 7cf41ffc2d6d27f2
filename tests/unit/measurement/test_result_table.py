"""Rows of a campaign: the schema, times, and a table that survives a crash."""

from __future__ import annotations

import os
import re

import pytest

from cotenant.core.errors import CotenantError, UsageError
from cotenant.gpus.gpu_sampler import MeasuredUsage
from cotenant.measurement.campaign import open_table, window_of
from cotenant.measurement.data_card import card_lines
from cotenant.measurement.job_list import JobList, MeasureJob
from cotenant.measurement.result_table import COLUMNS, ResultTable, read_rows, row_of, step_times_s

JOB = MeasureJob(name="net", script="/x/train.py", tags=("cnn", "fp32"))
RECORD = {
    "outcome": "ok",
    "steps": 5,
    "peak_allocated_bytes": 70,
    "peak_reserved_bytes": 100,
    "reserved_bytes": 90,
    "allocated_bytes": 10,
    "phases": {"forward": {"allocated": 60}, "backward": {"allocated": 70}},
    "step_ended_s": [0.0, 10.0, 11.0, 13.0, 14.0],
    "warmup_steps": 2,
    "versions": {"torch": "2.11.0", "gpu": "NVIDIA H200"},
}


def test_times_leave_out_the_warm_up():
    assert step_times_s(RECORD) == [1.0, 2.0, 1.0]
    assert window_of(RECORD) == (10.0, 14.0)
    assert step_times_s({**RECORD, "warmup_steps": 0}) == [10.0, 1.0, 2.0, 1.0]
    assert step_times_s({"step_ended_s": [1.0], "warmup_steps": 2}) == []
    assert window_of({"step_ended_s": [1.0], "warmup_steps": 2}) is None


def test_a_row_has_all_columns_and_the_bytes_outside_the_allocator():
    row = row_of(JOB, 1, RECORD, MeasuredUsage(end_process_bytes=600, end_device_bytes=700, smact=0.5), driver="580")
    assert list(row) == list(COLUMNS)
    assert (row["context_bytes"], row["step_s"], row["steps_timed"]) == (510, 1.0, 3)
    assert (row["forward_peak_bytes"], row["step_peak_bytes"], row["end_reserved_bytes"]) == (60, None, 90)
    assert (row["torch"], row["gpu"], row["driver"], row["smact"], row["tags"]) == (
        "2.11.0",
        "NVIDIA H200",
        "580",
        0.5,
        "cnn fp32",
    )


@pytest.mark.parametrize(("process", "device", "context"), [(None, 700, 610), (None, None, None)])
def test_context_without_the_bytes_of_processes(process, device, context):
    usage = MeasuredUsage(end_process_bytes=process, end_device_bytes=device)
    assert row_of(JOB, 1, RECORD, usage, driver=None)["context_bytes"] == context


def test_a_run_without_a_result_is_recorded():
    row = row_of(JOB, 1, {"outcome": "timeout", "message": "late"}, MeasuredUsage(), driver=None)
    assert (row["outcome"], row["peak_reserved_bytes"], row["step_s"]) == ("timeout", None, None)


def test_a_table_appends_and_drops_a_partial_line(tmp_path):
    path = tmp_path / "t.csv"
    ResultTable(path, ("a", "b")).add({"a": 1, "b": None})
    with path.open("a") as file:
        file.write("2,to")
    table = ResultTable(path, ("a", "b"))
    table.add({"a": 3, "b": "x,y"})
    assert read_rows(path) == [{"a": "1", "b": ""}, {"a": "3", "b": "x,y"}]


def test_a_table_with_other_columns_is_refused(tmp_path):
    ResultTable(tmp_path / "t.csv", ("a",))
    with pytest.raises(CotenantError, match="other columns"):
        ResultTable(tmp_path / "t.csv", ("a", "b"))


def test_existing_results_are_not_overwritten(tmp_path):
    path = tmp_path / "d" / "rows.csv"
    with open_table(path, COLUMNS, resume=False):
        pass
    with pytest.raises(UsageError, match="exists already"), open_table(path, COLUMNS, resume=False):
        pass
    with open_table(path, COLUMNS, resume=True) as table:
        assert table.rows() == []


def test_a_folder_is_measured_into_by_one_process_at_a_time(tmp_path):
    message = f"process {os.getpid()} is measuring into `{tmp_path}`"
    with open_table(tmp_path / "rows.csv", COLUMNS, resume=True):
        # flock(2) is of the open file: a second one of this process is refused as another process is.
        with pytest.raises(UsageError, match=re.escape(message)), open_table(tmp_path / "b.csv", COLUMNS, resume=True):
            pass
        assert not (tmp_path / "b.csv").exists()
    with open_table(tmp_path / "rows.csv", COLUMNS, resume=True) as table:
        assert table.rows() == []


def test_rows_of_two_gpus_are_not_mixed(tmp_path):
    path = tmp_path / "rows.csv"
    with open_table(path, COLUMNS, resume=False, same={"gpu": "A100"}) as table:
        table.add({"gpu": "A100"})
    with open_table(path, COLUMNS, resume=True, same={"gpu": "A100"}) as table:
        assert len(table.rows()) == 1
    message = "has rows of the gpu `A100`, and this is `simulated A100`"
    with (
        pytest.raises(UsageError, match=message),
        open_table(path, COLUMNS, resume=True, same={"gpu": "simulated A100"}),
    ):
        pass


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").touch()
    with (
        pytest.raises(CotenantError, match="cannot write into"),
        open_table(tmp_path / "file" / "rows.csv", COLUMNS, resume=True),
    ):
        pass


def test_card_names_setup_outcomes_and_every_column():
    row = dict.fromkeys(COLUMNS, "") | {"outcome": "oom", "gpu": "NVIDIA H200", "at": "2026-11-21T00:00:00Z"}
    text = "\n".join(card_lines(JobList(path="jobs.toml", jobs=(JOB,)), [row], "no driver"))
    assert "Runs: 1 oom; 1 jobs in `jobs.toml`" in text
    assert "- gpu: NVIDIA H200" in text
    assert "no driver" in text
    assert all(f"| `{name}` |" in text for name in COLUMNS)
