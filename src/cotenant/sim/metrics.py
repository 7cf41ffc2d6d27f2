"""Metrics of a run, and their confidence intervals over bootstraps."""

from __future__ import annotations

import bisect
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields

from cotenant.core.stats import mean, quantile
from cotenant.sim.engine.records import COMPLETED, FAILED
from cotenant.sim.simulate import SimulationResult
from cotenant.sim.trace import Trace

MAX_SLOWDOWN = 1.5


@dataclass(frozen=True, slots=True, kw_only=True)
class SimMetrics:
    """Metrics of one run. Those of jobs are over the jobs that ran to their end; NaN if there is none.

    Attributes:
        wait: time from submission to the first launch, and from each OOM to the next launch.
        execution: time of the attempt that ran to its end. slowdown: execution over time alone on GPUs of these types.
        fairness: finish-time fairness: JCT over the time alone, on the GPUs of the trace, on a share of the cluster
            that is as crowded as it was meanwhile (demanded over existing GPUs, at least 1); above 1 is worse.
        within_bound: share of jobs with a slowdown of at most 1.5.
        memory, smact, smocc, drama: mean over all GPUs, from the first submission to the last end; ratios.
        blocked: GPU seconds in which a GPU was empty while a job was pending, over all GPU seconds.
        lost_gpu_s: GPU seconds of attempts without a result.

    Where MIG layouts change, fairness and means over GPUs are NaN.
    """

    jobs: int
    ended: int
    makespan_s: float
    wait_mean_s: float
    wait_p95_s: float
    execution_mean_s: float
    jct_mean_s: float
    jct_median_s: float
    jct_p95_s: float
    slowdown_mean: float
    slowdown_p95: float
    within_bound: float
    fairness_mean: float
    fairness_p95: float
    memory: float
    smact: float
    smocc: float
    drama: float
    shared: float
    power_mean_w: float
    energy_j: float
    ooms: int
    jobs_with_oom: int
    retry_wait_mean_s: float
    lost_gpu_s: float
    blocked: float


NAMES: tuple[str, ...] = tuple(field.name for field in fields(SimMetrics))
"""Names of all metrics."""


def metrics_of(run: SimulationResult, *, max_slowdown: float = MAX_SLOWDOWN) -> SimMetrics:
    """The metrics of a run."""
    trace, columns = run.trace, run.columns
    ended = [number for number, outcome in enumerate(columns.outcome) if outcome in (COMPLETED, FAILED)]
    jct_s = [columns.end_s[number] - trace.submit_s[number] for number in ended]
    wait_s = [columns.start_s[number] - trace.submit_s[number] + columns.retry_wait_s[number] for number in ended]
    execution_s = [columns.run_s[number] - columns.lost_s[number] for number in ended]
    slowdown = [run_s / columns.alone_s[number] for number, run_s in zip(ended, execution_s, strict=True)]
    crowding = _crowding(trace, run, ended) if run.layouts is None else [math.nan] * len(ended)
    fairness = [
        time_s / (trace.duration_s[number] * crowded)
        for number, time_s, crowded in zip(ended, jct_s, crowding, strict=True)
    ]
    failed_once = [number for number, count in enumerate(columns.ooms) if count]
    # Where layouts change, the cluster has every instance that there may be: no mean over GPUs is meaningful.
    span_s = math.nan if run.layouts is not None else run.makespan_s * len(run.cluster)
    capacity = [slot.gpu.memory_total_bytes for slot in run.cluster.slots]
    memory_s = sum(total.memory_byte_s / size for total, size in zip(run.totals, capacity, strict=True))
    energy_j = sum(total.energy_j for total in run.totals)
    return SimMetrics(
        jobs=len(trace),
        ended=len(ended),
        makespan_s=run.makespan_s,
        wait_mean_s=mean(wait_s),
        wait_p95_s=quantile(wait_s, 0.95),
        execution_mean_s=mean(execution_s),
        jct_mean_s=mean(jct_s),
        jct_median_s=quantile(jct_s, 0.5),
        jct_p95_s=quantile(jct_s, 0.95),
        slowdown_mean=mean(slowdown),
        slowdown_p95=quantile(slowdown, 0.95),
        within_bound=mean([float(factor <= max_slowdown) for factor in slowdown]),
        fairness_mean=mean(fairness),
        fairness_p95=quantile(fairness, 0.95),
        memory=memory_s / span_s,
        smact=sum(total.smact_s for total in run.totals) / span_s,
        smocc=sum(total.smocc_s for total in run.totals) / span_s,
        drama=sum(total.drama_s for total in run.totals) / span_s,
        shared=sum(total.shared_s for total in run.totals) / span_s,
        power_mean_w=energy_j / run.makespan_s,
        energy_j=energy_j,
        ooms=sum(columns.ooms),
        jobs_with_oom=len(failed_once),
        retry_wait_mean_s=mean([columns.retry_wait_s[number] for number in failed_once]) if failed_once else 0.0,
        lost_gpu_s=sum(lost_s * gpus for lost_s, gpus in zip(columns.lost_s, trace.gpus, strict=True)),
        blocked=run.idle_while_waiting_s / span_s,
    )


def _crowding(trace: Trace, run: SimulationResult, ended: Sequence[int]) -> list[float]:
    """For each ended job, the mean over its stay of demanded over existing GPUs, at least 1."""
    gpus = len(run.cluster)
    changes: list[tuple[float, int]] = []
    for number, end_s in enumerate(run.columns.end_s):
        changes.append((trace.submit_s[number], trace.gpus[number]))
        if not math.isnan(end_s):
            changes.append((end_s, -trace.gpus[number]))
    changes.sort()
    moments, demand_s, demanded = [0.0], [0.0], [0]
    for at_s, change in changes:
        demand_s.append(demand_s[-1] + demanded[-1] * (at_s - moments[-1]))
        moments.append(at_s)
        demanded.append(demanded[-1] + change)

    def until(at_s: float) -> float:
        place = bisect.bisect_right(moments, at_s) - 1
        return demand_s[place] + demanded[place] * (at_s - moments[place])

    found = []
    for number in ended:
        submit_s, end_s = trace.submit_s[number], run.columns.end_s[number]
        stay_s = end_s - submit_s
        found.append(max(1.0, (until(end_s) - until(submit_s)) / stay_s / gpus) if stay_s > 0 else 1.0)
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfidenceInterval:
    """A mean over bootstraps, and the middle 95 % of them."""

    mean: float
    low: float
    high: float


def interval(samples: Sequence[float]) -> ConfidenceInterval:
    """The mean, 2.5th and 97.5th percentile of the samples that are not NaN."""
    sound = [sample for sample in samples if not math.isnan(sample)]
    return ConfidenceInterval(mean=mean(sound), low=quantile(sound, 0.025), high=quantile(sound, 0.975))


def intervals(samples: Sequence[SimMetrics]) -> Mapping[str, ConfidenceInterval]:
    """An interval for every metric."""
    return {name: interval([float(getattr(sample, name)) for sample in samples]) for name in NAMES}


def changes(samples: Sequence[SimMetrics], baseline: Sequence[SimMetrics], name: str) -> list[float]:
    """Relative change of a metric against the baseline on the same sample; -0.25 is a quarter less."""
    pairs = zip(samples, baseline, strict=True)
    return [_change(float(getattr(mine, name)), float(getattr(theirs, name))) for mine, theirs in pairs]


def _change(value: float, baseline: float) -> float:
    return value / baseline - 1.0 if baseline else math.nan


def gpu_series(run: SimulationResult, gpu: int, *, step_s: float) -> list[tuple[float, float, float]]:
    """(from, mean SMACT, mean memory ratio) of one GPU in steps of `step_s`; needs a recorded run.

    Raises:
        ValueError: the run was not recorded.
    """
    if run.moments is None:
        raise ValueError("the run was not recorded")
    moments = sorted(run.moments[gpu], key=lambda moment: moment.at_s)
    total = run.cluster.slots[gpu].gpu.memory_total_bytes
    steps = max(1, math.ceil(run.makespan_s / step_s))
    smact, memory = [0.0] * steps, [0.0] * steps
    ends = [moment.at_s for moment in moments[1:]] + [steps * step_s]
    for moment, end_s in zip(moments, ends, strict=True):
        step = int(moment.at_s // step_s)
        while step < steps and step * step_s < end_s:
            part_s = min(end_s, (step + 1) * step_s) - max(moment.at_s, step * step_s)
            smact[step] += moment.smact * part_s / step_s
            memory[step] += moment.held_bytes / total * part_s / step_s
            step += 1
    return [(step * step_s, smact[step], memory[step]) for step in range(steps)]
