"""Verbs that print what is known of one job: `show`, `explain` and `events`."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import Any

from cotenant.cli.common import Connection, connection_options, gpu_names, job_argument, one_job
from cotenant.cli.options import cli_command, json_option
from cotenant.cli.output import emit_json, note, print_line
from cotenant.core.units import counted, format_bytes, format_duration, format_energy

Fields = Iterator[tuple[str, str]]


@cli_command()
@job_argument
@json_option
@connection_options
def show(job: str, *, json: bool, connection: Connection) -> None:
    """Show everything about one job: its request, its estimate, its attempts and how each ended.

    cotenant show 17
    cotenant show 17 --json | jq .job.estimate
    """
    client = connection.client()
    view = client.job(one_job(client, job))
    from cotenant.cli.jobs.checkpoint_advice import habit_view  # reads Python, which other verbs need not load

    habit = habit_view(view, is_remote=connection.is_remote)
    if json:
        emit_json({"job": view, "checkpoints": habit})
        return
    print_line(f"job {view['label']}  {view['name']}  {view['state']}")
    for title, value in [*_job_fields(view), *_estimate_fields(view)]:
        print_line(f"  {title:<15} {value}")
    for attempt in view["attempt_list"]:
        print_line(f"  attempt {attempt['number']}")
        for title, value in _attempt_fields(attempt):
            print_line(f"    {title:<15} {value}")
    for sentence in [*view["advice"], *([] if habit is None or habit["advice"] is None else [habit["advice"]])]:
        print_line(f"  advice          {sentence}")


@cli_command()
@job_argument
@json_option
@connection_options
def explain(job: str, *, json: bool, connection: Connection) -> None:
    """Show why a job waits: for each GPU, the rule that rejected it, with its numbers.

    $ cotenant explain 17
    job 17 waits: GPU 1, best of 2: SMACT 0.91, limit 0.80
      GPU 0  insufficient_memory  needs 13.1 GiB, 9.8 GiB available
      GPU 1  smact_too_high       SMACT 0.91, limit 0.80
    """
    client = connection.client()
    explanation = client.explain(one_job(client, job))
    if json:
        emit_json(explanation)
        return
    reason, rejections = str(explanation["reason"]), explanation["rejections"]
    # With rejections the reason is a bare need, as above; without, a sentence that has its verb.
    print_line(f"job {job} waits: {reason}" if rejections else f"job {job}: {reason}")
    print_rejections(rejections)
    for event in explanation["quarantined"]:
        note(f"note: left out: {quarantined_text(event)}")


def quarantined_text(event: Mapping[str, Any]) -> str:
    """An event that could not be applied, in one line."""
    return f"event {event['seq']} ({event['type']}) could not be applied: {event['error']}"


def print_rejections(rejections: Sequence[Mapping[str, Any]]) -> None:
    """Print one line for each GPU, in columns."""
    names = [str(row["gpu"]) if row["gpu"] is not None else row["gpu_uuid"] for row in rejections]
    for name, row in zip(names, rejections, strict=True):
        gpu, rule = name.ljust(max(map(len, names))), row["rule"].ljust(max(len(other["rule"]) for other in rejections))
        print_line(f"  GPU {gpu}  {rule}  {row['reason']}")


@cli_command()
@job_argument
@json_option
@connection_options
def events(job: str, *, json: bool, connection: Connection) -> None:
    """Show what happened to a job: every transition with its time and its reason, from the journal.

    cotenant events 17
    cotenant events 17_3 --json
    """
    client = connection.client()
    job_id = one_job(client, job)
    transitions = client.events(job_id)
    if json:
        emit_json({"id": job_id, "events": transitions})
        return
    before_s: float | None = None
    for event in transitions:
        gap = "" if before_s is None else f"+{format_duration(max(0.0, event['at_s'] - before_s))}"
        print_line(f"{event['at']}  {gap:>8}  {event['state'] or '-':<8}  {event['text']}")
        before_s = event["at_s"]


def _job_fields(view: Mapping[str, Any]) -> Fields:
    yield "reason", view["reason"]
    for event in view["quarantined"]:
        yield "left out", quarantined_text(event)
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
    yield "requested", ", ".join(_requested(view))
    if view["move_cost"] is not None:
        yield "cost of a move", _move_cost(view["move_cost"])
    for moved, after in zip_longest(view["attempt_list"], view["attempt_list"][1:]):
        if moved["moved"]:
            yield "moved", _move(moved, after)
    for title, key in (("output", "stdout_path"), ("errors", "stderr_path")):
        if view[key]:
            yield title, view[key]


def _move(before: Mapping[str, Any], after: Mapping[str, Any] | None) -> str:
    """When, from where to where, what it cost, and why: `2026-..: GPU 0 -> GPU 1, 31s to save, 28s to start: ...`."""
    parts = [f"GPU {gpu_names(before)} -> " + ("it waits" if after is None else f"GPU {gpu_names(after)}")]
    if before["stopping_s"] is not None:
        parts.append(f"{format_duration(before['stopping_s'])} to save" + ("" if before["saved"] else ", not saved"))
    if after is not None and after["startup_s"] is not None:
        parts.append(f"{format_duration(after['startup_s'])} to start")
    why = before["exit"]["detail"].partition(": ")[2]
    return f"{before['ended_at']}: {', '.join(parts)}" + (f": {why}" if why else "")


def _move_cost(cost: Mapping[str, Any]) -> str:
    parts = [
        f"{'a typical time' if cost[key] is None else format_duration(cost[key])} to {what}"
        for key, what in (("save_s", "save"), ("startup_s", "start"))
    ]
    unsaved = f", not saved after {cost['unsaved']} moves" if cost["unsaved"] else ""
    return f"{format_duration(cost['seconds'])}: {' and '.join(parts)}{unsaved}"


def _requested(view: Mapping[str, Any]) -> Iterator[str]:
    yield counted(view["gpus"], "GPU")
    if view["declared_bytes"] is not None:
        yield f"{format_bytes(view['declared_bytes'])} declared"
    if view["exclusive"]:
        yield "exclusive"
    if view["requested_sharing"] != "auto":
        yield f"sharing {view['requested_sharing']}"
    yield from _requested_times(view)
    for key, word in (("after", "after"), ("after_any", "after the end of"), ("after_failed", "after the failure of")):
        if view[key]:
            yield f"{word} " + ", ".join(f"job {job_id}" for job_id in view[key])
    if view["singleton"]:
        yield "singleton: no other job of this name and user runs"
    if view["begin_at"] is not None:
        yield f"not before {view['begin_at']}"
    if view["requeue"]:
        yield "requeued if the machine goes down"
    if view["progress"]:
        yield f"progress from `{view['progress']}`"
    if view["priority"]:
        yield f"priority {view['priority']}"


def _requested_times(view: Mapping[str, Any]) -> Iterator[str]:
    if view["time_limit_s"] is not None:
        yield f"time limit {format_duration(view['time_limit_s'])}"
    if view["max_slowdown"] is not None:
        yield f"max slowdown {view['max_slowdown']:g}"
    if view["checkpoint_signal"]:
        yield f"checkpointable: SIG{view['checkpoint_signal']}, {format_duration(view['checkpoint_grace_s'])} to save"


def _estimate_fields(view: Mapping[str, Any]) -> Fields:
    estimate = view["estimate"]
    if view["estimate_error"]:
        yield "estimate", f"none: {view['estimate_error']}"
    if estimate is not None and estimate["estimator"] != "declared":  # what was declared is in `requested`
        sums = [(estimate[f"{part}_bytes"], part) for part in ("peak_reserved", "context", "margin")]
        parts = " + ".join(f"{format_bytes(value)} {part.replace('_', ' ')}" for value, part in sums)
        yield "estimate", f"{format_bytes(estimate['bound_bytes'])} = {parts}"
        yield (
            "",
            f"by {estimate['estimator']} {estimate['version']} for {estimate['gpu']}"
            + (", partial: a lower bound" if estimate["partial"] else ""),
        )
        if estimate["smact"] is not None:
            yield "", f"SMACT {estimate['smact']:.2f} expected when it runs alone"
        for warning in estimate["warnings"]:
            yield "", f"warning: {warning}"
    if view["estimate_log_path"]:
        yield "estimator's log", view["estimate_log_path"]
    if view["min_memory_bytes"] is not None:
        yield "learned floor", f"{format_bytes(view['min_memory_bytes'])}: an attempt with less ran out of memory"
    if view["exclusive_retry"]:
        yield "next attempt", "alone on its GPUs"


def _attempt_fields(attempt: Mapping[str, Any]) -> Fields:
    yield "GPU", f"{gpu_names(attempt)} ({attempt['sharing']}), {format_bytes(attempt['promised_bytes'])} promised"
    for uuid, peak_bytes in attempt["peak_observed_bytes"].items():
        yield "peak memory", f"{format_bytes(peak_bytes)} on {uuid}"
    yield from _usage_fields(attempt)
    if attempt["idle_s"]:
        yield "idle", f"{format_duration(attempt['idle_s'])}: it held its GPUs and computed nothing"
    yield "started", attempt["started_at"] or "-"
    if attempt["stop_reason"]:
        yield "stop requested", attempt["stop_reason"]
    end = attempt["exit"]
    if end is None:
        return
    yield "ended", attempt["ended_at"]
    how = f"signal {end['signal']}" if end["signal"] is not None else f"exit code {end['exit_code']}"
    detail = f": {end['detail']}" if end["detail"] else ""
    yield "end", f"{end['reason']}, {how}{detail}"
    if attempt["stopping_s"] is not None:
        saved = ", state saved" if attempt["saved"] else ""
        yield "stopped", f"{format_duration(attempt['stopping_s'])} after the signal{saved}"
    oom = end["oom"]
    if oom["exception"] or oom["message"]:
        yield "out of memory", "says the final exception" if oom["exception"] else "likely: its output mentions it"
        figures = [
            f"{format_bytes(oom[key])} {word}"
            for key, word in (("in_use_bytes", "held"), ("tried_bytes", "requested"), ("free_bytes", "free on the GPU"))
            if oom[key] is not None
        ]
        yield "", ", ".join(figures) or "no figures"


def _assumed(attempt: Mapping[str, Any]) -> str:
    on_instances = any(uuid.startswith("MIG-") for uuid in attempt["gpu_uuids"])
    return "; assumed from its MIG instance's share of the GPU's SMs" if on_instances else ""


def _usage_fields(attempt: Mapping[str, Any]) -> Fields:
    usage = attempt["usage"]
    if usage is not None:
        smact = "unknown" if usage["smact"] is None else f"{usage['smact']:.2f}"
        yield (
            "used",
            f"{usage['gpu_s'] / 3600:.2f} GPU hours, {format_bytes(usage['mean_bytes'])}, SMACT {smact} on average",
        )
        if usage["energy_j"] is not None:
            idle = usage["idle_energy_j"] / usage["energy_j"] if usage["energy_j"] else 0.0
            power = f"{usage['power_w']:.0f} W on average, {idle:.0%} of it idle power"
            yield "energy", f"{format_energy(usage['energy_j'])}, {power}{_assumed(attempt)}"
    for co_run in attempt["co_runs"]:
        names = ", ".join("?" if job_id is None else str(job_id) for job_id in co_run["neighbor_ids"])
        rate = "" if co_run["steps_hz"] is None else f", {co_run['steps_hz']:.3g} steps/s"
        slowdown = "" if co_run["slowdown"] is None else f", slowdown {co_run['slowdown']:.2f}"
        yield f"beside {names}" if names else "alone", f"{format_duration(co_run['seconds'])}{rate}{slowdown}"
