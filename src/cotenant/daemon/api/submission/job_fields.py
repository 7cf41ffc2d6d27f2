"""The fields of a job's spec that an update may change: one table for the API, the event texts and the CLI.

A module of its own: the CLI reads it, and loads nothing else of the daemon for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Unit = Literal["plain", "bytes", "duration", "time"]


@dataclass(frozen=True, slots=True, kw_only=True)
class JobField:
    """A field of `JobSpec`.

    Attributes:
        label: what people call it, e.g. in `cotenant events`.
        unit: how people read its value.
        option: the CLI option that sets it.
    """

    label: str
    option: str
    unit: Unit = "plain"


UPDATABLE_FIELDS: Mapping[str, JobField] = {
    "after": JobField(label="afterok", option="--dependency"),
    "after_any": JobField(label="afterany", option="--dependency"),
    "after_failed": JobField(label="afternotok", option="--dependency"),
    "begin_at_s": JobField(label="begin", option="--begin", unit="time"),
    "checkpoint_grace_s": JobField(label="time to save", option="--checkpoint-signal", unit="duration"),
    "checkpoint_signal": JobField(label="checkpoint signal", option="--checkpointable"),
    "declared_bytes": JobField(label="memory", option="--gpu-mem", unit="bytes"),
    "estimator": JobField(label="estimator", option="--estimator"),
    "exclusive": JobField(label="exclusive", option="--exclusive"),
    "gpus": JobField(label="gpus", option="--gpus"),
    "max_attempts": JobField(label="max attempts", option="--max-attempts"),
    "max_slowdown": JobField(label="max slowdown", option="--max-slowdown"),
    "name": JobField(label="name", option="--job-name"),
    "notify": JobField(label="notify", option="--notify"),
    "priority": JobField(label="priority", option="--priority"),
    "progress": JobField(label="progress", option="--progress"),
    "requeue": JobField(label="requeue", option="--requeue"),
    "retries": JobField(label="retries", option="--retries"),
    "sharing": JobField(label="sharing", option="--sharing"),
    "singleton": JobField(label="singleton", option="--dependency"),
    "stderr_path": JobField(label="stderr", option="--error"),
    "stdout_path": JobField(label="stdout", option="--output"),
    "time_limit_s": JobField(label="time limit", option="--time", unit="duration"),
    "time_slice_s": JobField(label="time slice", option="--time-slice", unit="duration"),
}
"""What a job runs, where and as whom never changes."""
