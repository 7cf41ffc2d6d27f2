"""`cotenant show`."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from cotenant.cli.common import JobId, Json, Socket, gpu_names, new_client, one_job
from cotenant.cli.output import emit_json, print_line
from cotenant.core.units import format_bytes, format_duration, format_energy

Fields = Iterator[tuple[str, str]]


def command(job: JobId, *, json: Json = False, socket: Socket = None) -> None:
    """Everything about one job: what was asked, its estimate, its attempts and how each ended.

    cotenant show 17
    cotenant show 17 --json | jq .job.estimate
    """
    client = new_client(socket)
    view = client.job(one_job(client, job))
    if json:
        emit_json({"job": view})
        return
    print_line(f"job {view['label']}  {view['name']}  {view['state']}")
    for title, value in [*_job_fields(view), *_estimate_fields(view)]:
        print_line(f"  {title:<15} {value}")
    for attempt in view["attempt_list"]:
        print_line(f"  attempt {attempt['number']}")
        for title, value in _attempt_fields(attempt):
            print_line(f"    {title:<15} {value}")


def _job_fields(view: Mapping[str, Any]) -> Fields:
    yield "reason", view["reason"]
    if view["exit_code"] is not None:
        yield "exit code", str(view["exit_code"])
    if view["array_id"] is not None:
        yield "array", f"task {view['array_index']} of array {view['array_id']}, job {view['id']}"
    yield "command", shlex.join(view["command"])
    yield "folder", view["workdir"]
    if view["source"]:
        yield "from", view["source"]
    yield "user", view["user"]
    yield "submitted", view["submitted_at"]
    yield "queueing delay", format_duration(view["queueing_s"])
    if view["jct_s"] is not None:
        yield "completion time", format_duration(view["jct_s"])
    yield "asked", ", ".join(_asked(view))
    for title, key in (("output", "stdout_path"), ("errors", "stderr_path")):
        if view[key]:
            yield title, view[key]


def _asked(view: Mapping[str, Any]) -> Iterator[str]:
    yield f"{view['gpus']} GPU{'' if view['gpus'] == 1 else 's'}"
    if view["declared_bytes"] is not None:
        yield f"{format_bytes(view['declared_bytes'])} declared"
    if view["exclusive"]:
        yield "exclusive"
    if view["requested_sharing"] != "auto":
        yield f"sharing {view['requested_sharing']}"
    if view["time_limit_s"] is not None:
        yield f"time limit {format_duration(view['time_limit_s'])}"
    if view["max_slowdown"] is not None:
        yield f"slowdown at most {view['max_slowdown']:g}"
    for key, word in (("after", "after"), ("after_any", "after the end of"), ("after_failed", "after the failure of")):
        if view[key]:
            yield f"{word} " + ", ".join(f"job {each}" for each in view[key])
    if view["singleton"]:
        yield "one of its name at a time"
    if view["begin_at"] is not None:
        yield f"not before {view['begin_at']}"
    if view["requeue"]:
        yield "again if lost"
    if view["progress"]:
        yield f"steps told by `{view['progress']}`"
    if view["priority"]:
        yield f"priority {view['priority']}"


def _estimate_fields(view: Mapping[str, Any]) -> Fields:
    estimate = view["estimate"]
    if view["estimate_error"]:
        yield "estimate", f"none: {view['estimate_error']}"
    if estimate is not None:
        sums = [(estimate[f"{part}_bytes"], part) for part in ("peak_reserved", "context", "margin")]
        parts = " + ".join(f"{format_bytes(value)} {part.replace('_', ' ')}" for value, part in sums)
        yield "estimate", f"{format_bytes(estimate['bound_bytes'])} = {parts}"
        yield (
            "",
            f"by {estimate['estimator']} {estimate['version']} for {estimate['gpu']}"
            + (", partial: a lower bound" if estimate["partial"] else ""),
        )
        if estimate["smact"] is not None:
            yield "", f"SMACT {estimate['smact']:.2f} expected of it alone"
        for each in estimate["warnings"]:
            yield "", f"warning: {each}"
    if view["estimate_log_path"]:
        yield "estimator's log", view["estimate_log_path"]
    if view["min_memory_bytes"] is not None:
        yield "learned floor", f"{format_bytes(view['min_memory_bytes'])}: an attempt with less ran out of memory"
    if view["exclusive_retry"]:
        yield "next attempt", "alone on its GPUs"


def _attempt_fields(attempt: Mapping[str, Any]) -> Fields:
    yield "GPU", f"{gpu_names(attempt)} ({attempt['sharing']}), {format_bytes(attempt['promised_bytes'])} promised"
    for uuid, seen in attempt["peak_observed_bytes"].items():
        yield "seen at most", f"{format_bytes(seen)} on {uuid}"
    yield from _usage_fields(attempt)
    yield "started", attempt["started_at"] or "-"
    if attempt["stop_reason"]:
        yield "stop asked", attempt["stop_reason"]
    end = attempt["exit"]
    if end is None:
        return
    yield "ended", attempt["ended_at"]
    how = f"signal {end['signal']}" if end["signal"] is not None else f"exit code {end['exit_code']}"
    detail = f": {end['detail']}" if end["detail"] else ""
    yield "end", f"{end['reason']}, {how}{detail}"
    oom = end["oom"]
    if oom["exception"] or oom["message"]:
        yield "out of memory", "the final exception says so" if oom["exception"] else "words in the output, a hint"
        told = [
            (oom["in_use_bytes"], "held"),
            (oom["tried_bytes"], "more tried"),
            (oom["free_bytes"], "free on the GPU"),
        ]
        yield (
            "",
            ", ".join(f"{format_bytes(value)} {word}" for value, word in told if value is not None) or "no figures",
        )


def _assumed(attempt: Mapping[str, Any]) -> str:
    on_instances = any(each.startswith("MIG-") for each in attempt["gpu_uuids"])
    return "; assumed, by its MIG instance's share of the card's SMs" if on_instances else ""


def _usage_fields(attempt: Mapping[str, Any]) -> Fields:
    usage = attempt["usage"]
    if usage is not None:
        smact = "not known" if usage["smact"] is None else f"{usage['smact']:.2f}"
        yield (
            "used",
            f"{usage['gpu_s'] / 3600:.2f} GPU hours, {format_bytes(usage['mean_bytes'])}, SMACT {smact} (means)",
        )
        if usage["energy_j"] is not None:
            idle = usage["idle_energy_j"] / usage["energy_j"] if usage["energy_j"] else 0.0
            power = f"{usage['power_w']:.0f} W in the mean, {idle:.0%} of it for idling"
            yield "energy", f"{format_energy(usage['energy_j'])}, {power}{_assumed(attempt)}"
    for each in attempt["co_runs"]:
        names = ", ".join("?" if mate is None else str(mate) for mate in each["neighbor_ids"])
        who = f"beside {names}" if names else "alone"
        rate = "" if each["steps_hz"] is None else f", {each['steps_hz']:.3g} steps/s"
        slower = "" if each["slowdown"] is None else f", {each['slowdown']:.2f} times as long a step as alone"
        yield who, f"{format_duration(each['seconds'])}{rate}{slower}"
