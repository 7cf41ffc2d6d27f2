"""What `cotenant squeue --json` and `sacct --json` print: jobs in the shape of Slurm's own JSON.

The shape is that of the plug-in data_parser/v0.0.41 of Slurm 24.05; programs for v0.0.40 (23.11) to v0.0.43 (25.05)
find the same fields. Source: src/plugins/data_parser/v0.0.41/parsers.c at tag slurm-24-05-0-1, `PARSER_ARRAY(JOB_INFO)`
for squeue, `PARSER_ARRAY(JOB)` and `PARSER_ARRAY(STEP)` for sacct, `DUMP_FUNC(UINT32_NO_VAL)` for numbers. Fields that
nothing corresponds to here, such as federations and the CPU time of a job, are left out.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from cotenant.cli.slurm_verbs import fields
from cotenant.engines.slurm_environment import CLUSTER, PARTITION

DATA_PARSER = "data_parser/v0.0.41"
SLURM_VERSION = {"major": "24", "minor": "05", "micro": "0"}
RELEASE = "24.05.0"
"""The Slurm whose shape this is."""

_TRES_IDS = {"cpu": 1, "node": 4, "gres/gpu": 1001, "gres/gpumem": 1002}
"""Ids of trackable resources: fixed for cpu and node (slurm/slurmdb.h, `tres_types_t`), those of gres are a site's."""

_Json = dict[str, Any]


def queue_output(jobs: Sequence[fields.Job], command: str) -> _Json:
    """What `squeue --json` prints for `jobs`, which have the fields of their specs as well."""
    now = _number(int(datetime.now().timestamp()))  # noqa: DTZ005 (seconds since 1970 have no time zone)
    return {"jobs": [_queued(job) for job in jobs], "last_backfill": now, "last_update": now, **_envelope(command)}


def accounting_output(jobs: Sequence[fields.Job], command: str, *, steps: bool) -> _Json:
    """What `sacct --json` prints for `jobs`, with the batch step of each that has started if `steps`."""
    return {"jobs": [_accounted(job, steps=steps) for job in jobs], **_envelope(command)}


def _envelope(command: str) -> _Json:
    plugin = {"type": "", "name": "cotenant", "data_parser": DATA_PARSER, "accounting_storage": ""}
    meta = {
        "plugin": plugin,
        "client": {"source": "", "user": str(os.getuid()), "group": str(os.getgid())},
        "command": [command, *sys.argv[2:]],
        "slurm": {"version": SLURM_VERSION, "release": RELEASE, "cluster": CLUSTER},
    }
    return {"meta": meta, "errors": [], "warnings": []}


def _queued(job: fields.Job) -> _Json:
    """A job as `JOB_INFO`."""
    gpus = len(job["gpu_indices"]) or job["gpus"]
    node, has_started = fields.node_of(job), job["started_at"] is not None
    indices = ",".join(str(index) for index in job["gpu_indices"] if index is not None)
    tasks = job.get("array_tasks", "")
    return {
        "account": "",
        "array_job_id": _number(job["array_id"] or 0),
        "array_max_tasks": _number(_array_limit(job)),
        "array_task_id": _number(None if tasks else job["array_index"]),
        "array_task_string": tasks,
        "batch_flag": True,
        "batch_host": node,
        "cluster": CLUSTER,
        "command": " ".join(job["command"]),
        "comment": "",
        "cpus": _number(1),
        "cpus_per_task": _number(1),
        "current_working_directory": job["workdir"],
        "dependency": _dependency(job),
        "derived_exit_code": _exit_code("0:0"),
        "eligible_time": _number(_eligible_s(job)),
        "end_time": _time(job["ended_at"] or _expected_end(job)),
        "exit_code": _exit_code(fields.exit_code(job)),
        "features": "",
        "flags": [],
        "gres_detail": [f"gpu:{gpus}(IDX:{indices})"] if has_started else [],
        "hold": job["state"] == "HELD",
        "job_id": job["id"],
        "job_state": _states(job),
        "max_nodes": _number(0),
        "memory_per_cpu": _number(None),
        "memory_per_node": _number(None),
        "name": job["name"],
        "nice": -job["priority"],
        "node_count": _number(1),
        "nodes": node,
        "partition": PARTITION,
        "priority": _number(job["priority"]),
        "qos": "",
        "requeue": job["requeue"],
        "restart_cnt": max(0, job["attempts"] - 1),
        "shared": ["none" if job["exclusive"] else "oversubscribe"],
        "standard_error": job["stderr_path"] or "",
        "standard_input": job["stdin_path"] or "/dev/null",
        "standard_output": job["stdout_path"] or "",
        "start_time": _time(job["started_at"]),
        "state_description": job["reason"],
        "state_reason": fields.reason_of(job),
        "submit_time": _time(job["submitted_at"]),
        "tasks": _number(1),
        "time_limit": _limit(job),
        "time_minimum": _number(0),
        "tres_alloc_str": fields.tres(job) if has_started else "",
        "tres_per_job": "",
        "tres_per_node": f"gres/gpu:{job['gpus']}",
        "tres_req_str": fields.tres(job),
        "user_id": job["uid"],
        "user_name": job["user"],
        "wckey": "",
    }


def _accounted(job: fields.Job, *, steps: bool) -> _Json:
    """A job as `JOB`."""
    tres, has_started = _tres_list({"cpu": 1, "gres/gpu": job["gpus"], "node": 1}), job["started_at"] is not None
    return {
        "account": "",
        "allocation_nodes": int(has_started),
        "array": {
            "job_id": job["array_id"] or 0,
            "limits": {"max": {"running": {"tasks": _array_limit(job)}}},
            "task_id": _number(job["array_index"]),
            "task": "",
        },
        "association": {"account": "", "cluster": CLUSTER, "partition": "", "user": job["user"], "id": 0},
        "cluster": CLUSTER,
        "comment": {"administrator": "", "job": "", "system": ""},
        "derived_exit_code": _exit_code("0:0"),
        "exit_code": _exit_code(fields.exit_code(job)),
        "flags": [],
        "hold": job["state"] == "HELD",
        "job_id": job["id"],
        "kill_request_user": "",
        "name": job["name"],
        "nodes": fields.node_of(job) or "None assigned",
        "partition": PARTITION,
        "priority": _number(job["priority"]),
        "qos": "",
        "required": {"CPUs": 1, "memory_per_cpu": _number(None), "memory_per_node": _number(None)},
        "restart_cnt": max(0, job["attempts"] - 1),
        "state": {"current": _states(job), "reason": fields.reason_of(job)},
        "stderr": job["stderr_path"] or "",
        "stdin": job["stdin_path"] or "/dev/null",
        "stdout": job["stdout_path"] or "",
        "steps": [_batch_step(job)] if steps and has_started else [],
        "submit_line": "",
        "time": {
            "elapsed": int(job["running_s"] or 0),
            "eligible": _eligible_s(job),
            "end": _seconds(job["ended_at"]),
            "limit": _limit(job),
            "planned": _number(int(job["queueing_s"] or 0)),
            "start": _seconds(job["started_at"]),
            "submission": _seconds(job["submitted_at"]),
            "suspended": 0,
        },
        "tres": {"allocated": tres if has_started else [], "requested": tres},
        "used_gres": "",
        "user": job["user"],
        "wckey": {"wckey": "", "flags": []},
        "working_directory": job["workdir"],
    }


def _batch_step(job: fields.Job) -> _Json:
    """The batch step of a job as `STEP`; the peak of GPU memory on one GPU is `gres/gpumem`, in bytes."""
    node, held = fields.node_of(job), job["observed_bytes"]
    most = _tres_list({} if held is None else {"gres/gpumem": held})
    energy = job["usage"] and job["usage"]["energy_j"]
    return {
        "exit_code": _exit_code(fields.exit_code(job)),
        "kill_request_user": "",
        "nodes": {"count": 1, "range": node, "list": [node]},
        "state": _states(job),
        "statistics": {"energy": {"consumed": _number(None if energy is None else round(energy))}},
        "step": {"id": f"{job['id']}.batch", "name": "batch"},
        "tasks": {"count": 1},
        "time": {
            "elapsed": int(job["running_s"] or 0),
            "end": _time(job["ended_at"]),
            "start": _time(job["started_at"]),
            "suspended": 0,
        },
        "tres": {
            "allocated": _tres_list({"cpu": 1, "gres/gpu": job["gpus"], "node": 1}),
            "consumed": {"average": [], "max": [], "min": [], "total": []},
            "requested": {
                "average": most,
                "max": [{**item, "task": 0, "node": node} for item in most],
                "min": [],
                "total": most,
            },
        },
    }


def _number(value: int | None) -> _Json:
    """A number that may be unset, as `UINT32_NO_VAL_STRUCT`."""
    return {"set": value is not None, "infinite": False, "number": value or 0}


def _limit(job: fields.Job) -> _Json:
    """The time limit in minutes."""
    if job["time_limit_s"] is None:
        return {"set": False, "infinite": True, "number": 0}
    return _number(-int(-job["time_limit_s"] // 60))


def _seconds(text: str | None) -> int:
    """Seconds since 1970; 0 where there is no time."""
    return 0 if text is None else int(datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp())


def _time(text: str | None) -> _Json:
    return _number(_seconds(text))


def _eligible_s(job: fields.Job) -> int:
    """From when it may run."""
    return max(_seconds(job["submitted_at"]), int(job["begin_at_s"] or 0))


def _array_limit(job: fields.Job) -> int:
    """How many tasks of its array may run at once; 0 without a limit."""
    return int((job["array"] or {}).get("limit") or 0)


def _expected_end(job: fields.Job) -> str | None:
    """When a running job reaches its time limit."""
    if job["started_at"] is None or job["time_limit_s"] is None:
        return None
    began_s = datetime.fromisoformat(job["started_at"].replace("Z", "+00:00")).timestamp()
    return datetime.fromtimestamp(began_s + job["time_limit_s"]).astimezone().isoformat()


def _states(job: fields.Job) -> list[str]:
    """The state, and the flags that Slurm lists beside it."""
    return ["RUNNING", "CONFIGURING"] if job["state"] == "STARTING" else [fields.SLURM_STATES[job["state"]][0]]


def _exit_code(text: str) -> _Json:
    """`CODE:SIGNAL` as `PROCESS_EXIT_CODE_VERBOSE`."""
    code, number = map(int, text.split(":"))
    if number:
        known = {member.value: member.name.removeprefix("SIG") for member in signal.Signals}
        return {
            "status": ["SIGNALED"],
            "return_code": _number(None),
            "signal": {"id": _number(number), "name": known.get(number, str(number))},
        }
    return {
        "status": ["ERROR" if code else "SUCCESS"],
        "return_code": _number(code),
        "signal": {"id": _number(None), "name": ""},
    }


def _tres_list(counts: Mapping[str, int]) -> list[_Json]:
    found = []
    for kind, count in counts.items():
        name, _, kind_of_gres = kind.partition("/")
        found.append({"type": name, "name": kind_of_gres, "id": _TRES_IDS[kind], "count": count})
    return found


def _dependency(job: fields.Job) -> str:
    """As --dependency takes it; empty once the job has started."""
    if job["state"] not in ("PENDING", "HELD"):
        return ""
    words = [
        f"{word}:{other}(unfulfilled)"
        for field, word in (("after", "afterok"), ("after_any", "afterany"), ("after_failed", "afternotok"))
        for other in job[field]
    ]
    return ",".join([*words, *(["singleton(unfulfilled)"] if job["singleton"] else [])])
