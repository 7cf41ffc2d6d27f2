"""Where GPU time goes with moves, and what a search reaches that may move every job at every event.

    python -m benchmarks.scheduler.move_limits [--seeds 10] [--write]

Bootstraps of t1 on 4 x A100-40GB as in `quality`, with other seeds (9000 and later), and a slowdown bound of 1.5.

GPU time. `marginal-gain` with our memory estimates, against the relaxation (`quality_limits`): sets of at most four
jobs on a GPU, cut and moved at will, all jobs there from the beginning. Its prices divide the gap exactly. An idle GPU
loses its time; a set of jobs loses what its work is worth less than its time; slowdown that its bound would allow a job
and that it did not have is lost, too, and so is the time in which jobs start, save their state or wait for the slowest
of their GPUs. "None waits": no job that has arrived is without GPUs.

Search. See `reassignment`: durations, memory and speeds are known, arrivals are not. "Longer first" weighs a job by 1 +
work left / 10,000 s, "long first" by 1 + work left / 5,000 s, times its GPUs, "short first" by 1,000 s / work left.
"No move": a job stays where it starts. `marginal-gain`, "all known", knows what the search knows, and moves at 60 s.
"""

from __future__ import annotations

import argparse
import math
import platform
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import pairwise

from benchmarks._lib.results import add_write_option, today, version, write_result
from benchmarks.scheduler.knowledge import ALL, TrueHistory
from benchmarks.scheduler.quality_limits import LeastGpuTime, least_gpu_time
from benchmarks.scheduler.reassignment import Outcome, Rule, replay
from cotenant.scheduling.prediction.history import WorkloadHistory
from cotenant.sim import cluster, traces
from cotenant.sim.cluster import Cluster
from cotenant.sim.engine.config import SimulationConfig
from cotenant.sim.engine.speeds import activity_of
from cotenant.sim.interference import standard
from cotenant.sim.metrics import SimMetrics, metrics_of
from cotenant.sim.simulate import SimulationResult, simulate
from cotenant.sim.trace import Trace
from cotenant.sim.traces.transforms import resampled

SEED = 9000
GPUS = "4xA100-40GB"
BOUND = 1.5
MOVE_S = 60.0
STOPS = "starts, saves, gangs that wait for their slowest GPU"
UNUSED = "slowdown that the bound allows, not used"
RULES = (
    Rule("moves are free"),
    Rule("a move costs 60 s", move_s=MOVE_S, hysteresis=0.3),
    Rule("no move", hysteresis=math.inf),
    Rule(
        "longer first, a move costs 60 s",
        weight=lambda _gpus, left_s: 1.0 + left_s / 10_000.0,
        move_s=MOVE_S,
        hysteresis=0.3,
    ),
    Rule("longer first, moves are free", weight=lambda _gpus, left_s: 1.0 + left_s / 10_000.0),
    Rule("long first, moves are free", weight=lambda gpus, left_s: gpus * (1.0 + left_s / 5000.0)),
    Rule("short first, moves are free", weight=lambda _gpus, left_s: 1000.0 / max(60.0, left_s)),
)


def losses(run: SimulationResult, least: LeastGpuTime) -> Mapping[str, float]:
    """GPU seconds beyond the relaxation, by reason; needs a recorded run."""
    trace, found = run.trace, defaultdict[str, float](float)
    spans = [
        (place, part.number, part.placed_s, part.ended_s)
        for place, parts in enumerate(run.runs or ())
        for part in parts
    ]
    world, slot = standard(), run.cluster.slots[0]
    activities = [activity_of(profile) for profile in trace.profiles]
    moments = sorted({*trace.submit_s, *(at_s for _, _, *ends in spans for at_s in ends)})
    worked_s, held_s = defaultdict[int, float](float), defaultdict[int, float](float)
    for from_s, to_s in pairwise(moments):
        now = [(place, number) for place, number, placed_s, ended_s in spans if placed_s <= from_s < ended_s]
        on_gpus = {number for _, number in now}
        is_waiting = any(
            submit_s <= from_s < end_s and number not in on_gpus
            for number, (submit_s, end_s) in enumerate(zip(trace.submit_s, run.columns.end_s, strict=True))
        )
        waits = "jobs wait" if is_waiting else "none waits"
        if from_s >= trace.submit_s[-1] and not is_waiting:
            waits += ", after the last arrival"
        for place in range(len(run.cluster)):
            kinds = [(number, trace.profile_of[number]) for at, number in now if at == place]
            speeds = world.speeds([activities[kind] for _, kind in kinds], slot.gpu_type) if kinds else ()
            worth = 0.0
            for (number, kind), speed in zip(kinds, speeds, strict=True):
                worth += least.work[kind] * speed - least.slowdown[kind] * (1.0 - BOUND * speed)
                worked_s[number] += speed * (to_s - from_s)
                held_s[number] += to_s - from_s
            size = "idle" if not kinds else "one job" if len(kinds) == 1 else "jobs share"
            found[f"{size}, {waits}"] += (1.0 - worth) * (to_s - from_s)
    for number, gpus in enumerate(trace.gpus):
        kind, work_s = trace.profile_of[number], trace.duration_s[number] * gpus
        price = least.work[kind] + BOUND * least.slowdown[kind]
        found[STOPS] += price * (worked_s[number] - work_s)
        found[UNUSED] += least.slowdown[kind] * (BOUND * work_s - held_s[number])
    return found


def least_of(trace: Trace, gpus: Cluster) -> LeastGpuTime:
    """The relaxation for all work of a trace."""
    work_s = defaultdict[int, float](float)
    for number, kind in enumerate(trace.profile_of):
        work_s[kind] += trace.duration_s[number] * trace.gpus[number]
    return least_gpu_time(trace, gpus, standard(), work_s, BOUND)


def policy_run(trace: Trace, gpus: Cluster, share: float, *, is_known: bool = False) -> SimulationResult:
    """`marginal-gain` with this share of movable jobs, 30 s to save and 30 s to start."""
    return simulate(
        trace,
        gpus,
        "marginal-gain",
        estimator="oracle" if is_known else "cotenant",
        max_slowdown=BOUND,
        config=SimulationConfig(movable_share=share, save_s=MOVE_S / 2, startup_s=MOVE_S / 2, record=True),
        history=TrueHistory(trace, ALL) if is_known else WorkloadHistory(),
    )


def time_table(drawn: Sequence[Trace], gpus: Cluster, baseline: Sequence[SimMetrics]) -> list[str]:
    """GPU time lost, as a share of the GPU time of exclusive use."""
    means: list[Mapping[str, float]] = []
    relaxed, critical = [], []
    for share in (0.0, 1.0):
        mean = defaultdict[str, float](float)
        for trace, base in zip(drawn, baseline, strict=True):
            least, whole_s = least_of(trace, gpus), len(gpus) * base.makespan_s
            run = policy_run(trace, gpus, share)
            parts = losses(run, least)
            gap_s = len(gpus) * run.makespan_s - least.gpu_s
            if not math.isclose(sum(parts.values()), gap_s, rel_tol=1e-6, abs_tol=1.0):
                raise AssertionError(f"{sum(parts.values()):g} GPU seconds explained of {gap_s:g}")
            for name, lost_s in parts.items():
                mean[name] += lost_s / whole_s / len(drawn)
            mean["all"] += gap_s / whole_s / len(drawn)
            if not share:
                ends_s = [at_s + s for at_s, s in zip(trace.submit_s, trace.duration_s, strict=True)]
                relaxed.append(least.gpu_s / whole_s - 1.0)
                critical.append((max(ends_s) - trace.submit_s[0]) / base.makespan_s - 1.0)
        means.append(mean)
    still, moved = means
    names = sorted(set(still) | set(moved), key=lambda name: (name == "all", -moved.get(name, 0.0)))
    return [
        "## GPU time beyond the relaxation, in percent of exclusive use's",
        "",
        f"The relaxation: {statistics.mean(relaxed):+.1%} of makespan. No schedule beats the latest of",
        f"arrival plus run time of a job: {statistics.mean(critical):+.1%}.",
        "",
        "| lost by | nothing moves | all can be moved |",
        "| --- | ---: | ---: |",
        *(f"| {name} | {100 * still.get(name, 0.0):.1f} | {100 * moved.get(name, 0.0):.1f} |" for name in names),
        "",
    ]


def outcome_of(run: SimulationResult) -> Outcome:
    """Of a simulation."""
    metrics = metrics_of(run)
    moves = sum(run.columns.attempts) - len(run.trace) - sum(run.columns.ooms)
    return Outcome(metrics.makespan_s, metrics.jct_mean_s, metrics.within_bound, moves)


def search_table(drawn: Sequence[Trace], gpus: Cluster, baseline: Sequence[SimMetrics]) -> list[str]:
    """What the policy and the searches reach against exclusive use."""
    rows = [
        ("`marginal-gain`, our estimates, nothing moves", [outcome_of(policy_run(t, gpus, 0.0)) for t in drawn]),
        ("`marginal-gain`, our estimates", [outcome_of(policy_run(t, gpus, 1.0)) for t in drawn]),
        ("`marginal-gain`, all known", [outcome_of(policy_run(t, gpus, 1.0, is_known=True)) for t in drawn]),
    ]
    lines = ["## Makespan and mean JCT against exclusive use", ""]
    lines += [
        "| schedule | makespan | mean JCT | within 1.5 | moves per 60 jobs |",
        "| --- | ---: | ---: | ---: | ---: |",
    ]
    for rule in RULES:
        rows.append((f"search, {rule.name}", [replay(trace, gpus, rule, BOUND) for trace in drawn]))
    for name, outcomes in rows:
        pairs = list(zip(outcomes, baseline, strict=True))
        makespan = statistics.mean(outcome.makespan_s / base.makespan_s for outcome, base in pairs) - 1.0
        jct = statistics.mean(outcome.jct_mean_s / base.jct_mean_s for outcome, base in pairs) - 1.0
        within = statistics.mean(outcome.within for outcome in outcomes)
        moves = statistics.mean(outcome.moves * 60 / len(trace) for outcome, trace in zip(outcomes, drawn, strict=True))
        lines.append(f"| {name} | {makespan:+.1%} | {jct:+.1%} | {within:.0%} | {moves:.0f} |")
        print(lines[-1], flush=True)
    return [*lines, ""]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=10, help="number of bootstraps (default: %(default)s)")
    add_write_option(parser)
    args = parser.parse_args()
    gpus = cluster.parse(GPUS)
    drawn = [resampled(traces.load("t1"), seed=SEED + i) for i in range(args.seeds)]
    baseline = [metrics_of(simulate(trace, gpus, "exclusive")) for trace in drawn]
    lines = [*time_table(drawn, gpus, baseline), *search_table(drawn, gpus, baseline)]
    print("\n".join(lines))
    if args.write:
        head = [
            "# What moves leave, simulated",
            "",
            f"{today()}, {platform.machine()}, {platform.python_version()}, cotenant {version('cotenant')}.",
            f"Command: `python -m benchmarks.scheduler.move_limits --seeds {len(drawn)} --write`.",
            "",
            *"\n\n".join((__doc__ or "").split("\n\n")[2:]).splitlines(),
            "",
        ]
        write_result("move-limits", "\n".join([*head, *lines]))


if __name__ == "__main__":
    main()
