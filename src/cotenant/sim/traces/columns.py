"""Tables of jobs with our column names: the plainest format, and what published traces were converted to.

`submit_s`, `duration_s`, `n_gpus` are wanted; `vc` or `user`, `status` and `workload` are used where they are. Also
understood are the durations of other tables: `duration_v100_s`, and `dur_a100_s` of the PAI jobs of Hydra. A table that
holds several traces (`trace`, `case`) is read whole; `--group` takes one of them.
"""

from __future__ import annotations

from pathlib import Path

from cotenant.sim.trace import Trace, TraceJob
from cotenant.sim.traces.rows import Collected, TraceFormat, TraceRow, columns_of, rows, stem

DURATIONS = ("duration_s", "duration_v100_s", "dur_a100_s")
WORKLOADS = ("workload", "model", "job_type", "application")
GROUPS = ("vc", "trace", "case", "user")
"""Whose job it is, for `--group`: a virtual cluster, or one of several traces in one table, before a user."""

FAILED = ("failed", "fail", "oom", "node_fail")

EXAMPLE = """\
job_id,submit_s,duration_s,n_gpus,vc,status
0,0,3600.5,1,lab,completed
1,30,120,8,lab,failed
2,30,,1,lab,completed
"""


def recognizes(_path: Path, head: str) -> bool:
    """By its column names."""
    titles = columns_of(head)
    return "submit_s" in titles and "n_gpus" in titles and any(each in titles for each in DURATIONS)


def read(path: Path) -> Trace:
    """The jobs of the table."""
    found = Collected()
    duration: str | None = None
    for row in rows(path, wanted=("submit_s", "n_gpus")):
        if duration is None:
            duration = next((each for each in DURATIONS if row.text(each, "absent") != "absent"), DURATIONS[0])
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
            user=next((row.text(each) for each in GROUPS if row.text(each)), ""),
            failed=row.text("status").lower() in FAILED,
            workload=next((row.text(each) for each in WORKLOADS if row.text(each)), ""),
        )
    )


FORMAT = TraceFormat(
    name="columns",
    about="CSV with submit_s, duration_s, n_gpus, and vc, status, workload where known",
    recognizes=recognizes,
    read=read,
    example=EXAMPLE,
    example_name="jobs.csv",
)
