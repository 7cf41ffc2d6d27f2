"""What a verb prints of the jobs that it changed."""

from __future__ import annotations

import json

import pytest

from cotenant.cli.common import MAX_CHANGES, report_changes
from cotenant.core.errors import CotenantError, NoSuchJob


def _views(reasons):
    return [{"id": number, "label": f"2_{number}", "reason": reason} for number, reason in enumerate(reasons)]


def test_few_jobs_have_a_line_each(capsys):
    assert report_changes(_views(["held"] * MAX_CHANGES)[::-1], [], json=False) == 0
    assert capsys.readouterr().out.splitlines() == [f"job 2_{number}: held" for number in range(MAX_CHANGES)]


def test_many_jobs_in_the_same_state_are_counted(capsys):
    views = _views(["is stopped", *["cancelled"] * 9999])
    assert report_changes(views[::-1], [], json=False) == 0
    out = capsys.readouterr().out.splitlines()
    assert out == ["job 2_0: is stopped", "9999 jobs between 2_1 and 2_9999: cancelled"]
    report_changes(views, [], json=True)
    assert len(json.loads(capsys.readouterr().out)["jobs"]) == 10000


def test_of_many_failures_the_first_are_printed(capsys):
    failures = [NoSuchJob(f"no job {number}") for number in range(10000)]
    assert report_changes(_views(["held"]), failures, json=False) == NoSuchJob.exit_code
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == MAX_CHANGES + 1
    assert lines[-1] == "error: 9980 more jobs were not changed; --json lists them"
    with pytest.raises(CotenantError):  # main prints it
        report_changes([], failures[:1], json=False)
