"""Jobs and this machine in Slurm's words: states, reasons, times, and the fields that its commands print. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from cotenant.cli.slurm_verbs.formats import SlurmField
from cotenant.core.errors import UsageError
from cotenant.core.units import MiB, shortened
from cotenant.engines.slurm_environment import CLUSTER, PARTITION

Job = Mapping[str, Any]

SLURM_STATES: Mapping[str, tuple[str, str]] = {
    "PENDING": ("PENDING", "PD"),
    "HELD": ("PENDING", "PD"),
    "STARTING": ("CONFIGURING", "CF"),
    "RUNNING": ("RUNNING", "R"),
    "COMPLETED": ("COMPLETED", "CD"),
    "FAILED": ("FAILED", "F"),
    "OOM": ("OUT_OF_MEMORY", "OOM"),
    "TIMEOUT": ("TIMEOUT", "TO"),
    "CANCELLED": ("CANCELLED", "CA"),
    "LOST": ("NODE_FAIL", "NF"),
}
"""Slurm's name and short name of each of our states."""

_NEVER = (
    "SUSPENDED S PREEMPTED PR BOOT_FAIL BF DEADLINE DL COMPLETING CG RESIZING RS REQUEUED RQ REQUEUE_HOLD RH REVOKED "
    "RV SIGNALING SI SPECIAL_EXIT SE STAGE_OUT SO STOPPED ST RESV_DEL_HOLD RD REQUEUE_FED RF"
)
NEVER = frozenset(_NEVER.split())
"""States of Slurm that no job is in here."""

REASONS: Mapping[str, str] = {
    "dependency": "Dependency",
    "begin_time": "BeginTime",
    "array_limit": "JobArrayTaskLimit",
    "quota": "QOSMaxJobsPerUserLimit",
    "head_of_line": "Priority",
    "reserved": "Priority",
    "stale_telemetry": "ReqNodeNotAvail",
    "": "Priority",
}
"""Slurm's word for the rule that a pending job waits for; `Resources` for all others."""


def parse_slurm_states(text: str) -> frozenset[str]:
    """Our states for `PD,RUNNING`; `all` is every one.

    Raises:
        UsageError: Slurm has no such state.
    """
    found: set[str] = set()
    for word in text.upper().split(","):
        if word == "ALL":
            return frozenset(SLURM_STATES)
        ours = [state for state, names in SLURM_STATES.items() if word in (*names, state)]
        if not ours and word not in NEVER:
            known = ", ".join(dict.fromkeys(name for name, _ in SLURM_STATES.values()))
            raise UsageError(f"invalid job state specified: {shortened(word)}", hint=f"states: {known}")
        found.update(ours)
    return frozenset(found)


def reason_of(job: Job) -> str:
    """Slurm's word for why a job waits; `None` for one that does not."""
    if job["state"] == "HELD":
        return "JobHeldUser"
    return REASONS.get(job["rule"], "Resources") if job["state"] == "PENDING" else "None"


def duration(seconds: float | None, *, padded: bool = False) -> str:
    """`0:05`, `1:00:00`, `1-02:03:04`; with `padded` as sacct, `00:00:05`."""
    whole = int(seconds or 0)
    days, hours, minutes, rest = whole // 86400, whole // 3600 % 24, whole // 60 % 60, whole % 60
    if days or padded:
        return f"{days}-" * bool(days) + f"{hours:02d}:{minutes:02d}:{rest:02d}"
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def limit(job: Job) -> str:
    """The time limit."""
    return "UNLIMITED" if job["time_limit_s"] is None else duration(job["time_limit_s"])


def left(job: Job) -> str:
    """What is left of it."""
    if job["time_limit_s"] is None:
        return "UNLIMITED"
    rest_s = job["time_limit_s"] - (job["running_s"] or 0)
    return duration(rest_s) if rest_s >= 0 else "INVALID"


def local_time(text: str | None, missing: str) -> str:
    """`2026-11-22T19:48:12` in the time zone of this machine; `missing` for None."""
    if text is None:
        return missing
    return datetime.fromisoformat(text.replace("Z", "+00:00")).astimezone().strftime("%Y-%m-%dT%H:%M:%S")


def exit_code(job: Job) -> str:
    """`CODE:SIGNAL`, as sacct prints it."""
    code = job["exit_code"] if job["state"] == "FAILED" else 0
    if job["state"] == "OOM":
        return "0:125"
    return f"0:{code - 128}" if (code or 0) > 128 else f"{code or 0}:0"


def is_over(job: Job) -> bool:
    """Whether a job has ended."""
    return job["ended_at"] is not None


def collapse_arrays(jobs: Sequence[Job]) -> list[Job]:
    """`jobs` with one record for all pending tasks of an array, as squeue prints them without -r."""
    pending: dict[tuple[int, str], list[Job]] = {}
    for job in jobs:
        if job["array_id"] is not None and job["state"] in ("PENDING", "HELD"):
            pending.setdefault((job["array_id"], job["state"]), []).append(job)
    collapsed = []
    for job in jobs:
        tasks = pending.get((job["array_id"], job["state"]), [job])
        if len(tasks) == 1:
            collapsed.append(job)
        elif tasks[0] is job:
            indices = ranges([task["array_index"] for task in tasks])
            collapsed.append({**job, "label": f"{job['array_id']}_[{indices}]", "array_tasks": indices})
    return collapsed


def ranges(numbers: Sequence[int]) -> str:
    """`1-3,7` for 1, 2, 3, 7."""
    parts: list[list[int]] = []
    for number in sorted(numbers):
        if parts and number == parts[-1][-1] + 1:
            parts[-1][1:] = [number]
        else:
            parts.append([number])
    return ",".join("-".join(map(str, part)) for part in parts)


def expand_refs(words: Sequence[str]) -> list[str]:
    """References to jobs one by one: `17,18_[1,3-5]` is 17, 18_1 and 18_[3-5].

    Raises:
        UsageError: a word is no id.
    """
    refs = []
    for part in (part for word in words for part in re.split(r",(?![^\[]*\])", word)):
        match = re.fullmatch(r"(\d+)(?:_(?:(\d+)|\[([\d,-]+)(?:%\d+)?\]))?", part, re.ASCII)
        if match is None:
            raise UsageError(f"invalid job id {shortened(part)}", hint="write 17, 17_3 or 17_[1-3]")
        if match[3] is None:
            refs.append(part)
        else:
            refs += [f"{match[1]}_[{task}]" if "-" in task else f"{match[1]}_{task}" for task in match[3].split(",")]
    return refs


def node_of(job: Job) -> str:
    """The node that a job is or was on; empty before it starts."""
    return str(job["node"]) if job["gpu_uuids"] and (job["state"] in ("STARTING", "RUNNING") or is_over(job)) else ""


def _where(job: Job) -> str:
    return f"({reason_of(job)})" if job["state"] in ("PENDING", "HELD") else node_of(job)


def _array_task(job: Job) -> str:
    index = job["array_index"]
    return str(job.get("array_tasks", "N/A" if index is None else index))


def _constant(text: str) -> Any:
    return lambda _: text


SQUEUE_FIELDS: Mapping[str, SlurmField] = {
    "i": SlurmField(title="JOBID", names=("JobArrayID",), value=lambda job: job["label"]),
    "A": SlurmField(title="JOBID", names=("JobID",), value=lambda job: str(job["id"])),
    "F": SlurmField(title="ARRAY_JOB_ID", names=("ArrayJobID",), value=lambda job: str(job["array_id"] or job["id"])),
    "K": SlurmField(title="ARRAY_TASK_ID", names=("ArrayTaskID",), value=_array_task),
    "j": SlurmField(title="NAME", names=("Name",), value=lambda job: job["name"]),
    "u": SlurmField(title="USER", names=("UserName",), value=lambda job: job["user"]),
    "t": SlurmField(title="ST", names=("StateCompact",), value=lambda job: SLURM_STATES[job["state"]][1]),
    "T": SlurmField(title="STATE", names=("State",), value=lambda job: SLURM_STATES[job["state"]][0]),
    "M": SlurmField(title="TIME", names=("TimeUsed",), value=lambda job: duration(job["running_s"])),
    "l": SlurmField(title="TIME_LIMIT", names=("TimeLimit",), value=limit),
    "L": SlurmField(title="TIME_LEFT", names=("TimeLeft",), value=left),
    "D": SlurmField(title="NODES", names=("NumNodes",), value=_constant("1")),
    "C": SlurmField(title="CPUS", names=("NumCPUs",), value=_constant("1")),
    "R": SlurmField(title="NODELIST(REASON)", names=("ReasonList",), value=_where),
    "r": SlurmField(title="REASON", names=("Reason",), value=reason_of),
    "N": SlurmField(title="NODELIST", names=("NodeList",), value=node_of),
    "B": SlurmField(title="EXEC_HOST", names=("BatchHost",), value=lambda job: node_of(job) or "n/a"),
    "P": SlurmField(title="PARTITION", names=("Partition",), value=_constant(PARTITION)),
    "a": SlurmField(title="ACCOUNT", names=("Account",), value=_constant("(null)")),
    "q": SlurmField(title="QOS", names=("QOS",), value=_constant("(null)")),
    "b": SlurmField(
        title="TRES_PER_NODE", names=("tres-per-node", "gres"), value=lambda job: f"gres:gpu:{job['gpus']}"
    ),
    "m": SlurmField(title="MIN_MEMORY", names=("MinMemory",), value=_constant("0")),
    "Q": SlurmField(title="PRIORITY", names=("PriorityLong",), value=lambda job: str(job["priority"])),
    "p": SlurmField(title="PRIORITY", names=("Priority",), value=lambda job: str(job["priority"])),
    "y": SlurmField(title="NICE", names=("Nice",), value=lambda job: str(-job["priority"])),
    "S": SlurmField(title="START_TIME", names=("StartTime",), value=lambda job: local_time(job["started_at"], "N/A")),
    "e": SlurmField(title="END_TIME", names=("EndTime",), value=lambda job: local_time(job["ended_at"], "N/A")),
    "V": SlurmField(
        title="SUBMIT_TIME", names=("SubmitTime",), value=lambda job: local_time(job["submitted_at"], "N/A")
    ),
    "Z": SlurmField(title="WORK_DIR", names=("WorkDir",), value=lambda job: job["workdir"]),
    "o": SlurmField(title="COMMAND", names=("Command",), value=lambda job: " ".join(job["command"])),
    "k": SlurmField(title="COMMENT", names=("Comment",), value=_constant("(null)")),
    "h": SlurmField(title="OVER_SUBSCRIBE", names=("OverSubscribe",), value=_constant("OK")),
}
"""By the letter in a format."""

DETAIL_TITLES = frozenset(("WORK_DIR", "COMMAND"))
"""Titles of fields that a list of jobs does not have."""

SINFO_FIELDS: Mapping[str, SlurmField] = {
    "P": SlurmField(title="PARTITION", names=("Partition",), value=_constant(f"{PARTITION}*")),
    "R": SlurmField(title="PARTITION", names=("PartitionName",), value=_constant(PARTITION)),
    "a": SlurmField(title="AVAIL", names=("Available",), value=_constant("up")),
    "l": SlurmField(title="TIMELIMIT", names=("Time",), value=_constant("infinite")),
    "D": SlurmField(title="NODES", names=("Nodes",), value=_constant("1")),
    "t": SlurmField(title="STATE", names=("StateCompact",), value=lambda node: node["state"][1]),
    "T": SlurmField(title="STATE", names=("StateLong", "State"), value=lambda node: node["state"][0]),
    "N": SlurmField(title="NODELIST", names=("NodeList",), value=lambda node: node["name"]),
    "n": SlurmField(title="HOSTNAMES", names=("NodeHost",), value=lambda node: node["name"]),
    "c": SlurmField(title="CPUS", names=("CPUs",), value=lambda node: str(node["cpus"])),
    "m": SlurmField(title="MEMORY", names=("Memory",), value=lambda node: str(node["memory_mib"])),
    "G": SlurmField(title="GRES", names=("Gres",), value=lambda node: f"gpu:{node['gpus']}"),
    "C": SlurmField(
        title="CPUS(A/I/O/T)", names=("CPUsState",), value=lambda node: f"0/{node['cpus']}/0/{node['cpus']}"
    ),
    "F": SlurmField(
        title="NODES(A/I/O/T)", names=("NodeAIOT",), value=lambda node: f"{_used(node)}/{1 - _used(node)}/0/1"
    ),
    "A": SlurmField(title="NODES(A/I)", names=("NodeAI",), value=lambda node: f"{_used(node)}/{1 - _used(node)}"),
    "E": SlurmField(title="REASON", names=("Reason",), value=_constant("none")),
    "f": SlurmField(title="AVAIL_FEATURES", names=("Features",), value=_constant("(null)")),
    "s": SlurmField(title="JOB_SIZE", names=("Size",), value=_constant("1-infinite")),
    "h": SlurmField(title="OVERSUBSCRIBE", names=("OverSubscribe",), value=_constant("YES:4")),
    "w": SlurmField(title="WEIGHT", names=("Weight",), value=_constant("1")),
}


def _used(node: Mapping[str, Any]) -> int:
    return int(node["state"][1] != "idle")


def node_state(gpus: Sequence[Mapping[str, Any]]) -> tuple[str, str]:
    """The state of a node, long and short: idle without jobs, allocated if no GPU is empty, else mixed."""
    busy = sum(bool(gpu["residents"]) for gpu in gpus)
    if not busy:
        return "idle", "idle"
    return ("allocated", "alloc") if busy == len(gpus) else ("mixed", "mix")


def tres(job: Job) -> str:
    """Trackable resources, as Slurm writes them."""
    return f"cpu=1,gres/gpu={job['gpus']},node=1"


def _gpu_memory(job: Job) -> str:
    """The peak on one GPU as Slurm 23.11 and later account it."""
    held = job["observed_bytes"]
    return "" if held is None or not job.get("is_step") else f"gres/gpumem={round(held / MiB)}M"


def _step_only(text: str) -> Any:
    return lambda job: text if job.get("is_step") else ""


def _joules(job: Job) -> str:
    usage = job["usage"]
    return "" if usage is None or usage["energy_j"] is None else str(round(usage["energy_j"]))


SACCT_FIELDS: Sequence[SlurmField] = tuple(
    SlurmField(title=names[0], names=names, value=value, width=width)
    for names, width, value in (
        (("JobID",), -12, lambda job: job["label"] + (".batch" if job.get("is_step") else "")),
        (("JobIDRaw",), -12, lambda job: str(job["id"]) + (".batch" if job.get("is_step") else "")),
        (("JobName",), 10, lambda job: "batch" if job.get("is_step") else job["name"]),
        (("User",), 9, lambda job: "" if job.get("is_step") else job["user"]),
        (("Partition",), 10, lambda job: "" if job.get("is_step") else PARTITION),
        (("Account",), 10, _constant("")),
        (("Cluster",), 10, _constant(CLUSTER)),
        (("QOS",), 10, _constant("")),
        (("State",), 10, lambda job: SLURM_STATES[job["state"]][0]),
        (("ExitCode",), 8, exit_code),
        (("DerivedExitCode",), 15, lambda job: "" if job.get("is_step") else "0:0"),
        (("Elapsed",), 10, lambda job: duration(job["running_s"], padded=True)),
        (("ElapsedRaw",), 10, lambda job: str(int(job["running_s"] or 0))),
        (("Timelimit",), 10, lambda job: "" if job.get("is_step") else limit_padded(job)),
        (("Submit",), 19, lambda job: local_time(job["submitted_at"], "Unknown")),
        (("Start",), 19, lambda job: local_time(job["started_at"], "Unknown")),
        (("End",), 19, lambda job: local_time(job["ended_at"], "Unknown")),
        (("NodeList",), 15, lambda job: node_of(job) or "None assigned"),
        (("NNodes",), 8, _constant("1")),
        (("AllocNodes",), 10, _constant("1")),
        (("NCPUS",), 10, _constant("1")),
        (("AllocCPUS",), 10, _constant("1")),
        (("ReqCPUS",), 8, _constant("1")),
        (("NTasks",), 8, _step_only("1")),
        (("AllocTRES",), 10, tres),
        (("ReqTRES",), 10, tres),
        (("ReqMem",), 10, _constant("")),
        (("MaxRSS",), 10, _constant("")),
        (("AveRSS",), 10, _constant("")),
        (("MaxVMSize",), 10, _constant("")),
        (("TotalCPU",), 10, _constant("")),
        (("TRESUsageInMax",), 14, _gpu_memory),
        (("TRESUsageInAve",), 14, _gpu_memory),
        (("ConsumedEnergy",), 14, _joules),
        (("ConsumedEnergyRaw",), 17, _joules),
        (("Priority",), 10, lambda job: "" if job.get("is_step") else str(job["priority"])),
        (("Reason",), 22, reason_of),
        (("Restarts",), 8, lambda job: str(max(0, job["attempts"] - 1))),
        (("WorkDir",), 20, lambda job: "" if job.get("is_step") else job.get("workdir", "")),
    )
)
"""In the order of the documentation; MaxRSS is empty, because the memory of the host is not watched."""


def limit_padded(job: Job) -> str:
    """The time limit as sacct prints it."""
    return "UNLIMITED" if job["time_limit_s"] is None else duration(job["time_limit_s"], padded=True)


def with_steps(jobs: Sequence[Job]) -> list[Job]:
    """Each job, and after one that has started its batch step, as sacct prints them without -X."""
    return [record for job in jobs for record in ((job, {**job, "is_step": True}) if job["started_at"] else (job,))]
