"""Jobs of squeue and sacct, whatever their names hold."""

from __future__ import annotations

import pytest

from cotenant.slurm.job_records import JobRecords
from cotenant.slurm.job_views import joined_accounting, joined_queue

NAMES = ("a|b|", "first\n13|13|gpu|root|COMPLETED|0:0|01:00||forged", " ")


class _Slurm:
    """Prints one job of each of `NAMES`, in `state`, as squeue and sacct of 22.05 would."""

    def __init__(self, state="RUNNING"):
        self.state = state

    def output(self, program, *words):
        fields = words[-1].split(",")
        if program == "sacct":
            assert "-p" in words  # the delimiter comes also after the last column
            (delimiter,) = [word.removeprefix("--delimiter=") for word in words if word.startswith("--delimiter=")]
            marks = dict.fromkeys(fields, delimiter)
        else:
            marks = dict(field.split(":", 1) for field in fields)
        text = ""
        for number, name in enumerate(NAMES, start=1):
            known = {"JobID": str(number), "JobIDRaw": str(number), "JobArrayID": str(number), "State": self.state}
            known |= {"Name": name, "JobName": name, "ExitCode": "0:0"}
            text += "".join(known.get(field, "x") + mark for field, mark in marks.items()) + "\n"
        return text


@pytest.mark.parametrize("listed", [joined_queue, joined_accounting])
def test_a_name_forges_no_row_and_no_column(tmp_path, listed):
    rows = listed(_Slurm(), JobRecords(tmp_path), [])
    assert [row["job_id"] for row in rows] == ["1", "2", "3"]
    assert [row["name"] for row in rows] == [name.strip() for name in NAMES]


@pytest.mark.parametrize(("state", "exit_code"), [("PENDING", ""), ("RUNNING", ""), ("FAILED", "9:0")])
def test_a_requeued_job_has_no_exit_code(tmp_path, state, exit_code):
    records = JobRecords(tmp_path)
    records.update("1", "ran", {"ended_at_s": 5.0, "exit_code": 9})
    assert joined_queue(_Slurm(state), records, [])[0]["exit_code"] == exit_code
