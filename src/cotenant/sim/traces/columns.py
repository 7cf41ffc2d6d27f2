"""CSV tables with a row per job: the plainest format, to which published traces are converted.

Required columns are `submit_s`, `duration_s` and `n_gpus`; `vc` or `user`, `status` and `workload` are optional. The
durations of other tables are accepted as well: `duration_v100_s`, and `dur_a100_s` of the PAI jobs of Hydra. A table of
several traces (column `trace` or `case`) is read whole; `--group` selects one.
"""

from __future__ import annotations

from pathlib import Path

from cotenant.sim.trace import Trace, TraceJob
from cotenant.sim.traces.formats import TraceFormat
from cotenant.sim.traces.rows import Collected, TraceRow, columns_of, rows, stem

DURATIONS = ("duration_s", "duration_v100_s", "dur_a100_s")
WORKLOADS = ("workload", "model", "job_type", "application")
GROUPS = ("vc", "trace", "case", "user")
"""Columns that name the group of a job, the first present one counts: a virtual cluster or trace before a user."""

FAILED = ("failed", "fail", "oom", "node_fail")

EXAMPLE = """\
job_id,submit_s,duration_s,n_gpus,vc,status
0,0,3600.5,1,lab,completed
1,30,120,8,lab,failed
2,30,,1,lab,completed
"""


def recognizes(_path: Path, head: str) -> bool:
    """Whether the required columns are present."""
    titles = columns_of(head)
    return "submit_s" in titles and "n_gpus" in titles and any(duration in titles for duration in DURATIONS)


def read(path: Path) -> Trace:
    """Read the jobs of the table."""
    found = Collected()
    duration: str | None = None
    for row in rows(path, wanted=("submit_s", "n_gpus")):
        if duration is None:
            duration = next((column for column in DURATIONS if row.text(column, "absent") != "absent"), DURATIONS[0])
        _add(found, row, duration)
    notes = [f"durations are `{duration}`"] if duration not in (None, "duration_s") else []
    return found.trace(stem(path), path, *notes)


def _add(found: Collected, row: TraceRow, duration: str) -> None:
    submit_s, duration_s, gpus = row.number("submit_s"), row.number(duration), row.number("n_gpus")
    if submit_s is None:
        raise row.error("no `submit_s`")
    if duration_s is None or duration_s <= 0:
        found.skip("no run time")
        return
    if gpus is None or gpus < 1 or gpus != int(gpus):
        found.skip("no whole GPU")
        return
    found.add(
        TraceJob(
            submit_s=submit_s,
            duration_s=duration_s,
            gpus=int(gpus),
            user=row.first_text(GROUPS),
            failed=row.text("status").lower() in FAILED,
            workload=row.first_text(WORKLOADS),
        )
    )


COLUMNS = TraceFormat(
    about="CSV with submit_s, duration_s, n_gpus, and vc, status, workload where known",
    recognizes=recognizes,
    read=read,
    example=EXAMPLE,
    example_name="jobs.csv",
    is_generic=True,
)
