"""Jobs as Slurm lists them, each with what its record adds: promised, seen, energy, resubmitted as."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Any

from cotenant.slurm.installation import SEPARATOR, SlurmInstallation, split_marked_rows
from cotenant.slurm.job_records import JobRecords

_QUEUE = {
    "job_id": "JobArrayID",
    "raw_id": "JobID",
    "array_id": "ArrayJobID",
    "partition": "Partition",
    "user": "UserName",
    "state": "State",
    "state_short": "StateCompact",
    "time": "TimeUsed",
    "nodes": "NumNodes",
    "allocated": "tres-alloc",
    "where": "ReasonList",
    "name": "Name",
}
"""Fields of squeue -O. `%b` has not what was allocated."""
_ACCOUNTING = {
    "job_id": "JobID",
    "raw_id": "JobIDRaw",
    "partition": "Partition",
    "user": "User",
    "state": "State",
    "exit_code": "ExitCode",
    "elapsed": "Elapsed",
    "allocated": "AllocTRES",
    "name": "JobName",
}
UNENDED = (
    *("CONFIGURING", "PENDING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "RESIZING"),
    *("RUNNING", "SIGNALING", "SPECIAL_EXIT", "STOPPED", "SUSPENDED"),
)
"""States of squeue(1) of jobs that run, or will run (again)."""
RECORD_FIELDS = ("promised_bytes", "seen_bytes", "energy_j", "resubmitted_as", "resubmission_of")


def joined_queue(
    slurm: SlurmInstallation, records: JobRecords, words: Sequence[str], *, and_recorded: bool = False
) -> list[dict[str, Any]]:
    """Jobs of `squeue` with its options `words`; with `and_recorded`, jobs that Slurm has forgotten as well.

    Raises:
        BackendError: squeue fails.
    """
    mark = _mark()
    text = slurm.output("squeue", *words, "-h", "-O", ",".join(f"{field}:{mark}" for field in _QUEUE.values()))
    rows = [_joined(row, records) for row in split_marked_rows(text, list(_QUEUE), mark)]
    for row in rows:
        row["elapsed"] = row["time"]
    if not and_recorded:
        return rows
    present = {row["raw_id"] for row in rows}
    recorded = [records.read(job_id) for job_id in records.job_ids() if job_id not in present]
    return [*(_of_record(record) for record in recorded if record.get("ended_at_s")), *rows]


def joined_accounting(slurm: SlurmInstallation, records: JobRecords, words: Sequence[str]) -> list[dict[str, Any]]:
    """Jobs of `sacct` with its options `words`, without their steps.

    Raises:
        BackendError: sacct fails, e.g. because this Slurm stores no accounting.
    """
    mark = _mark()
    layout = ("-X", "-n", "-p", f"--delimiter={mark}", "-o", ",".join(_ACCOUNTING.values()))
    text = slurm.output("sacct", *words, *layout)
    return [_joined(row, records) for row in split_marked_rows(text, list(_ACCOUNTING), mark)]


def _mark() -> str:
    """What Slurm prints after each column. A name may hold lines that look like rows of other people's jobs, so it is
    new with each call.
    """
    return f"{SEPARATOR}{secrets.token_hex(8)}{SEPARATOR}"


def _joined(row: dict[str, str], records: JobRecords) -> dict[str, Any]:
    record = records.read(row["raw_id"]) or records.read(row.get("array_id") or row["job_id"].partition("_")[0])
    joined: dict[str, Any] = {**row, **{field: record.get(field) for field in RECORD_FIELDS}}
    # A job that Slurm has requeued has the record of its run before.
    joined.setdefault("exit_code", "" if row["state"] in UNENDED else _exit_code(record))
    if record.get("oom") and joined["state"] == "FAILED":
        joined |= {"state": "OUT_OF_MEMORY", "state_short": "OOM"}  # Slurm's own OOM is that of the host's memory
    return joined


def _exit_code(record: dict[str, Any]) -> str:
    """`CODE:SIGNAL`, as Slurm writes it; empty before the end."""
    if not record.get("ended_at_s"):
        return ""
    return f"{record.get('exit_code') or 0}:{record.get('signal') or 0}"


def _of_record(record: dict[str, Any]) -> dict[str, Any]:
    """A job that Slurm has forgotten."""
    state = "COMPLETED" if record.get("exit_code") == 0 else "OUT_OF_MEMORY" if record.get("oom") else "FAILED"
    empty = dict.fromkeys((*_QUEUE, "elapsed"), "")
    return {
        **empty,
        **{field: record.get(field) for field in RECORD_FIELDS},
        "job_id": str(record.get("job_id", "")),
        "raw_id": str(record.get("job_id", "")),
        "state": state,
        "exit_code": _exit_code(record),
    }
