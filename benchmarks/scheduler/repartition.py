"""What changing MIG layouts gains over fixed ones: t1 on four A100-40GB in MIG mode, each layout fixed and changing.

    python -m benchmarks.scheduler.repartition [--bootstraps 20] [--quick] [--write]

Each row starts with the same layout on all four GPUs. `fixed`: it stays; a job that fits on no instance never starts.
`changing`: an empty GPU is repartitioned when the queue gains by it, at 15 s each. `most-memory` and `exclusive`, with
known memory; speeds on instances are the rules of `sim/interference/sharing.py`. Makespan and JCT are of the jobs that
ended, so a fixed layout that leaves jobs out has fewer of them: the shares of jobs come first. Where both runs ended
all jobs they can be compared directly.
"""

from __future__ import annotations

import argparse
import platform
from collections.abc import Sequence

from benchmarks._lib.results import add_write_option, commit, today, write_result
from cotenant.core.stats import mean
from cotenant.scheduling.repartition import RepartitionRule
from cotenant.sim import cluster, traces
from cotenant.sim.engine.config import SimulationConfig
from cotenant.sim.metrics import metrics_of
from cotenant.sim.simulate import simulate
from cotenant.sim.trace import Trace
from cotenant.sim.traces.transforms import resampled

SEED = 1000
GPUS = 4
LAYOUTS = (
    "7g.40gb",
    "4g.20gb+3g.20gb",
    "3g.20gb+2g.10gb+2g.10gb",
    "2g.10gb+2g.10gb+2g.10gb+1g.5gb",
    "+".join(["1g.5gb"] * 7),
)
POLICIES = ("most-memory", "exclusive")


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bootstraps", type=int, default=20, help="default: %(default)s")
    parser.add_argument("--quick", action="store_true", help="3 bootstraps")
    add_write_option(parser)
    args = parser.parse_args(argv)
    count = 3 if args.quick else args.bootstraps
    drawn = [resampled(traces.load("t1"), seed=SEED + number) for number in range(count)]
    rule = RepartitionRule()
    lines = [
        f"# Fixed and changing MIG layouts, {today()}",
        "",
        f"Commit {commit()}; Python {platform.python_version()}; no GPU. {count} bootstraps of t1 (60 jobs) from seed",
        f"{SEED} on {GPUS} simulated A100-40GB in MIG mode; means. A repartition takes {rule.cost_s:g} s.",
        "Repeat with `python -m benchmarks.scheduler.repartition --write`.",
    ]
    for policy in POLICIES:
        lines += ["", *table(policy, drawn)]
    text = "\n".join(lines)
    print(text)
    if args.write:
        write_result("repartition", text + "\n")


def table(policy: str, drawn: Sequence[Trace]) -> list[str]:
    """Rows of one policy: each layout fixed and changing, and whole GPUs without MIG."""
    lines = [
        f"`{policy}`",
        "",
        "| layout at first | | jobs ended | makespan, h | mean JCT, h | GPUs repartitioned |",
        "| --- | --- | ---: | ---: | ---: | ---: |",
        _row("none: whole GPUs", "", policy, drawn, "4xA100-40GB", None),
    ]
    for layout in LAYOUTS:
        gpus, name = f"{GPUS}xA100-40GB/{layout}", layout.replace("+", " + ")
        name = "7 x 1g.5gb" if layout.count("1g") == 7 else name
        lines.append(_row(name, "fixed", policy, drawn, gpus, None))
        lines.append(_row("", "changing", policy, drawn, gpus, RepartitionRule()))
    return lines


def _row(name: str, how: str, policy: str, drawn: Sequence[Trace], gpus: str, rule: RepartitionRule | None) -> str:
    config = SimulationConfig(repartition=rule)
    runs = [simulate(trace, cluster.parse(gpus), policy, config=config) for trace in drawn]
    metrics = [metrics_of(run) for run in runs]
    ended = mean([found.ended / found.jobs for found in metrics])
    makespan_h = mean([found.makespan_s for found in metrics]) / 3600
    jct_h = mean([found.jct_mean_s for found in metrics]) / 3600
    changes = mean([float(len(run.layouts or ())) for run in runs])
    counted = "" if rule is None else f"{changes:.1f}"
    return f"| {name} | {how} | {ended:.1%} | {makespan_h:.2f} | {jct_h:.2f} | {counted} |"


if __name__ == "__main__":
    main()
