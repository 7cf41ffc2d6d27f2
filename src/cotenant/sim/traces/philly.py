"""The original Philly job log: `cluster_job_log`, one JSON array.

GPUs are those of the first attempt that had any. The run time is the sum over all attempts, since retries occupied GPUs
as well. Source: msr-fiddle/philly-traces, README, "Cluster job log".
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from cotenant.core.errors import UsageError
from cotenant.sim.trace import Trace, TraceJob
from cotenant.sim.traces.formats import TraceFormat
from cotenant.sim.traces.rows import Collected, read_text, stem

EXAMPLE = """\
[{"status": "Pass", "vc": "ee9e8c", "jobid": "application_1_0001", "user": "ce2f4c",
  "submitted_time": "2017-10-09 07:01:00",
  "attempts": [{"start_time": "2017-10-09 07:02:00", "end_time": "2017-10-09 08:02:00",
                "detail": [{"ip": "m1", "gpus": ["gpu0", "gpu1"]}]}]},
 {"status": "Failed", "vc": "ee9e8c", "jobid": "application_1_0002", "user": "ce2f4c",
  "submitted_time": "2017-10-09 07:05:00",
  "attempts": [{"start_time": "2017-10-09 07:06:00", "end_time": "2017-10-09 07:16:00",
                "detail": [{"ip": "m2", "gpus": ["gpu0"]}]},
               {"start_time": "2017-10-09 07:17:00", "end_time": "2017-10-09 07:18:00",
                "detail": [{"ip": "m2", "gpus": ["gpu3"]}]}]},
 {"status": "Killed", "vc": "ee9e8c", "jobid": "application_1_0003", "user": "ce2f4c",
  "submitted_time": "2017-10-09 07:07:00", "attempts": []}]
"""


def recognizes(_path: Path, head: str) -> bool:
    """Whether it is a JSON array of records with attempts and submission times."""
    return head.lstrip().startswith("[") and '"attempts"' in head and '"submitted_time"' in head


def read(path: Path) -> Trace:
    """Read the jobs that ran on a GPU."""
    try:
        records = json.loads(read_text(path))
    except json.JSONDecodeError as error:
        raise UsageError(f"{path}:{error.lineno}: not JSON: {error.msg.lower()}") from error
    if not isinstance(records, list):
        raise UsageError(f"trace `{path}` is not a JSON array of jobs")
    found = Collected()
    for number, record in enumerate(records):
        try:
            _add(found, record)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise UsageError(f"trace `{path}`: record {number} is not a Philly job: {error}") from error
    return found.trace(stem(path), path, "run time is that of all attempts together")


def _add(found: Collected, record: Mapping[str, Any]) -> None:
    spans = [_span(attempt) for attempt in record["attempts"]]
    duration_s = sum(end_s - start_s for start_s, end_s in filter(None, spans))
    gpus = next((count for count in map(_gpus, record["attempts"]) if count), 0)
    submit_s = _time_s(record["submitted_time"])
    if submit_s is None or not gpus or duration_s <= 0:
        found.skip("never ran on a GPU")
        return
    found.add(
        TraceJob(
            submit_s=submit_s,
            duration_s=duration_s,
            gpus=gpus,
            user=str(record.get("vc") or record.get("user") or ""),
            failed=record.get("status") == "Failed",
        )
    )


def _span(attempt: Mapping[str, Any]) -> tuple[float, float] | None:
    start_s, end_s = _time_s(attempt.get("start_time")), _time_s(attempt.get("end_time"))
    return None if start_s is None or end_s is None or end_s <= start_s else (start_s, end_s)


def _gpus(attempt: Mapping[str, Any]) -> int:
    detail: Sequence[Mapping[str, Any]] = attempt.get("detail") or ()
    return sum(len(node.get("gpus") or ()) for node in detail)


def _time_s(text: object) -> float | None:
    if text in (None, "", "None"):
        return None
    return datetime.fromisoformat(str(text)).replace(tzinfo=timezone.utc).timestamp()


PHILLY = TraceFormat(
    about="the original Philly log, cluster_job_log (JSON)",
    recognizes=recognizes,
    read=read,
    example=EXAMPLE,
    example_name="cluster_job_log.json",
)
