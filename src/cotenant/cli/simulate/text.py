"""What `cotenant simulate` prints: the table of policies, the catalog, and a file of jobs."""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from cotenant.cli.output import Column, emit_json, print_table
from cotenant.core.units import counted, format_bytes, format_duration
from cotenant.sim.engine.records import NEVER_STARTED

if TYPE_CHECKING:
    from cotenant.sim.evaluation import Evaluation, PolicyResult
    from cotenant.sim.trace_description import Distribution, TraceDescription

COLUMNS = (
    Column(key="policy", title="POLICY"),
    Column(key="makespan", title="MAKESPAN", right=True),
    Column(key="jct", title="MEAN JCT", right=True),
    Column(key="p95", title="P95 JCT", right=True),
    Column(key="wait", title="WAIT", right=True),
    Column(key="slowdown", title="SLOWDOWN", right=True),
    Column(key="bound", title="<= 1.5", right=True),
    Column(key="smact", title="SMACT", right=True),
    Column(key="energy", title="ENERGY", right=True),
    Column(key="ooms", title="OOM", right=True),
)
CHANGES = (("makespan_s", "makespan"), ("jct_mean_s", "mean JCT"), ("jct_p95_s", "P95 JCT"), ("energy_j", "energy"))


def print_evaluation(evaluation: Evaluation) -> None:
    """Print one line for each policy; then changes against exclusive use, with intervals if there are bootstraps."""
    experiment = evaluation.experiment
    trace = experiment.trace
    gpus = len(experiment.cluster)
    work = f"{counted(len(trace), 'job')}, {trace.work_gpu_s / 3600:.1f} GPU hours alone"
    print(f"{trace.name}: {work}, on {counted(gpus, 'GPU')}")
    for remark in experiment.notes:
        print(f"  {remark}")
    too_wide = sum(wanted > gpus for wanted in trace.gpus)
    if too_wide:
        print(f"  never started: {too_wide} of {len(trace)} jobs, which need more than {counted(gpus, 'GPU')}")
    print(f"memory estimates by `{experiment.estimator}`; seed {experiment.config.seed}\n")
    print_table([_row(result) for result in evaluation.results], COLUMNS)
    _print_changes(evaluation)
    _print_unfinished(evaluation)
    _print_repartitions(evaluation.results)


def _row(result: PolicyResult) -> dict[str, str]:
    metrics = result.metrics
    return {
        "policy": result.policy,
        "makespan": _time(metrics.makespan_s),
        "jct": _time(metrics.jct_mean_s),
        "p95": _time(metrics.jct_p95_s),
        "wait": _time(metrics.wait_mean_s),
        "slowdown": _number(metrics.slowdown_mean),
        "bound": _percent(metrics.within_bound),
        "smact": _number(metrics.smact),
        "energy": f"{metrics.energy_j / 3.6e6:.1f} kWh",
        "ooms": str(metrics.ooms),
    }


def _print_changes(evaluation: Evaluation) -> None:
    others = [result for result in evaluation.results if result.policy != "exclusive"]
    if evaluation.baseline() is None or not others:
        return
    title = "against exclusive"
    if evaluation.bootstrap:
        title += f": mean of {evaluation.bootstrap} bootstraps, with the middle 95 %"
    print(f"\n{title}")
    columns = (
        Column(key="policy", title="POLICY"),
        *(Column(key=name, title=text.upper(), right=True) for name, text in CHANGES),
    )
    rows = [
        {"policy": result.policy, **{name: _change(evaluation, result, name) for name, _ in CHANGES}}
        for result in others
    ]
    print_table(rows, columns)


def _change(evaluation: Evaluation, result: PolicyResult, name: str) -> str:
    change = evaluation.change(result, name)
    if change is None:
        return "-"
    if "mean" not in change:
        return _signed(change["trace"])
    return f"{_signed(change['mean'])} ({_signed(change['low'])} to {_signed(change['high'])})"


def _print_unfinished(evaluation: Evaluation) -> None:
    """How many jobs of each policy did not complete, and why."""
    trace, slots = evaluation.experiment.trace, evaluation.experiment.cluster.slots
    largest_bytes = max(slot.gpu.memory_total_bytes for slot in slots)
    for result in evaluation.results:
        missing = result.metrics.jobs - result.metrics.ended
        if not missing:
            continue
        outcomes = result.run.columns.outcome
        waiting = [number for number, outcome in enumerate(outcomes) if outcome == NEVER_STARTED]
        profiles = [trace.profiles[trace.profile_of[number]] for number in waiting if trace.profile_of[number] >= 0]
        too_large = sum(profile.peak_bytes > largest_bytes for profile in profiles)
        large = f" ({too_large} need more than the {format_bytes(largest_bytes)} of a GPU)" if too_large else ""
        reasons = (
            f"{missing - len(waiting)} ran out of memory" if missing > len(waiting) else "",
            f"{len(waiting)} never started{large}" if waiting else "",
        )
        why = ", ".join(reason for reason in reasons if reason)
        print(f"\n{result.policy}: {missing} of {result.metrics.jobs} jobs did not complete: {why}")


def _print_repartitions(results: Sequence[PolicyResult]) -> None:
    """The MIG layouts that each policy's queue led to, where layouts may change."""
    for result in results:
        for change in result.run.layouts or ():
            at, after = format_duration(change.begin_s), ", ".join(change.after)
            print(f"{result.policy}: {at} MIG GPU {change.gpu} is repartitioned into {after}: {change.reason}")


def save_jobs(evaluation: Evaluation, path: Path) -> None:
    """Write one line for each job under each policy, as CSV; times that do not exist are empty."""
    from cotenant.sim.engine.records import OUTCOMES

    with path.open("w", newline="") as file:
        out = csv.writer(file)
        out.writerow(
            ["policy", "job", "workload", "gpus", "submit_s", "start_s", "end_s", "run_s", "alone_s", "ooms", "outcome"]
        )
        for result in evaluation.results:
            run = result.run
            for number, job in enumerate(run.trace):
                times = (
                    job.submit_s,
                    run.columns.start_s[number],
                    run.columns.end_s[number],
                    run.columns.run_s[number],
                    job.duration_s,
                )
                cells = ["" if math.isnan(time_s) else f"{time_s:.3f}" for time_s in times]
                row = [result.policy, number + 1, job.workload, job.gpus, *cells, run.columns.ooms[number]]
                out.writerow([*row, OUTCOMES[run.columns.outcome[number]]])


def print_catalog(*, json: bool) -> None:
    """Print everything that can be named on the command line."""
    from cotenant.scheduling import policies
    from cotenant.sim import memory_source, traces

    if json:
        emit_json(
            {
                "traces": list(traces.shipped()),
                "formats": {name: traces.TRACE_FORMATS.get(name).about for name in traces.TRACE_FORMATS},
                "policies": {name: dict(policies.options(name)) for name in policies.policies()},
                "estimators": list(memory_source.estimators()),
            }
        )
        return
    print("traces in the package: " + ", ".join(traces.shipped()))
    print("\nformats of files:")
    for name in traces.TRACE_FORMATS:
        print(f"  {name.ljust(12)} {traces.TRACE_FORMATS.get(name).about}")
    print("\npolicies, with their options:")
    for name in policies.policies():
        options = ", ".join(f"{key}={value}" for key, value in policies.options(name).items())
        print(f"  {name.ljust(16)} {options}")
    print("\nestimators: " + ", ".join(memory_source.estimators()))


def _time(value_s: float) -> str:
    return "-" if math.isnan(value_s) else format_duration(value_s)


def _number(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.2f}"


def _percent(value: float) -> str:
    return "-" if math.isnan(value) else f"{100 * value:.0f} %"


def _signed(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:+.1f} %"


def print_description(described: TraceDescription, notes: Sequence[str]) -> None:
    """Print what a trace is like: a line for each measure, and one for each number of GPUs."""
    from cotenant.sim.trace_description import QUANTILES

    users = f" of {described.users} users" if described.users else ""
    print(f"{described.name}: {counted(described.jobs, 'job')}{users} in {format_duration(described.span_s)}, ", end="")
    print(f"{described.gpu_s / 3600:,.1f} GPU hours, {described.failed:.1%} failed")
    for remark in notes:
        print(f"  {remark}")
    names = [f"P{100 * q:g}" for q in QUANTILES]
    columns = [Column(key="name", title="MEASURE"), Column(key="mean", title="MEAN", right=True)]
    columns += [Column(key=name, title=name, right=True) for name in (*names, "MAX")]
    rows = []
    for one in described.distributions:
        values = dict(zip((*names, "MAX"), (*one.quantiles, one.most), strict=True))
        cells = {name: _measure(value, one) for name, value in values.items()}
        rows.append({"name": one.name, "mean": _measure(one.mean, one), **cells})
    print()
    print_table(rows, columns)
    print()
    sizes = [
        {"gpus": size.text, "jobs": f"{size.jobs:.1%}", "time": f"{size.gpu_time:.1%}"} for size in described.sizes
    ]
    titles = {"gpus": "GPUS OF A JOB", "jobs": "JOBS", "time": "GPU TIME"}
    print_table(sizes, [Column(key=key, title=title, right=key != "gpus") for key, title in titles.items()])


def description_json(described: TraceDescription) -> dict[str, object]:
    """Seconds, GPUs, GiB and ratios; `quantiles` by their percentage."""
    from cotenant.sim.trace_description import QUANTILES

    return {
        "name": described.name,
        "jobs": described.jobs,
        "users": described.users,
        "span_s": described.span_s,
        "gpu_s": described.gpu_s,
        "failed": described.failed,
        "distributions": [
            {
                "name": one.name,
                "unit": one.unit,
                "count": one.count,
                "mean": one.mean,
                "quantiles": {f"{100 * q:g}": value for q, value in zip(QUANTILES, one.quantiles, strict=True)},
                "max": one.most,
            }
            for one in described.distributions
        ],
        "sizes": [
            {"gpus_min": size.low, "gpus_max": size.high, "jobs": size.jobs, "gpu_time": size.gpu_time}
            for size in described.sizes
        ],
    }


def _measure(value: float, one: Distribution) -> str:
    if one.unit == "s":
        return format_duration(value)
    return f"{value:.2f}" if one.unit == "ratio" else f"{value:.1f}".removesuffix(".0")
