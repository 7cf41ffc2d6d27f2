"""Whether the power model gives the energies that were published.

    python -m benchmarks.simulator.energy [--write] [--data FOLDER]

First, mean power of 18 published runs (AEGIS: three traces, six policies, A100-40GB) from their mean utilization, and
from two other means; each trace is predicted by a line fitted to the other two. Then the energy of each run against
exclusive on its trace: power of the shipped model times the published makespan (model); the published mean power times
that makespan, with no model at all (measured W); and the model for the part of the makespan in which GPUs had work, as
it follows from published energy, power and makespan, and idle power for the rest (with idle). The last is a check of
watts and not of energy, for it takes that part from the energy itself. What whole simulations give, makespans included,
is in the results of `benchmarks/reproductions/chapter6.py`.
"""

from __future__ import annotations

import argparse
import csv
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from benchmarks._lib.results import add_write_option, today, version, write_result
from cotenant.gpus.power_model import power_model

ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT.parent / "shared" / "data" / "carma"
MAKESPANS = {
    "AEGIS+Horus mem": "AEGIS + Horus mem (EST-MAGM)",
    "AEGIS+peak mem": "AEGIS + measured peak mem (oracle-MAGM)",
    "AEGIS EstimatorFree": "AEGIS EstimatorFree (OR-MAGM)",
}
"""Names of the same policies in the two tables of the source."""
EXPLAINED_BY = ("active_gpu_util_mean", "active_smact_mean", "active_drama_mean")


class Measured(NamedTuple):
    """One published run."""

    trace: str
    policy: str
    power_w: float
    energy_mj: float
    makespan_s: float
    activity: dict[str, float]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_write_option(parser)
    parser.add_argument("--data", type=Path, default=DATA, help="folder of results.csv")
    args = parser.parse_args()
    if not (args.data / "results.csv").is_file():
        print(f"skipped: no published results at `{args.data}`; say --data FOLDER")
        return
    runs = published(args.data / "results.csv")
    lines = [*power_lines(runs), "", *energy_lines(runs), ""]
    print("\n".join(lines))
    if args.write:
        head = [
            "# Power and energy",
            "",
            f"{today()}, cotenant {version('cotenant')}; `python -m benchmarks.simulator.energy --write`.",
            "",
        ]
        write_result("energy", "\n".join([*head, *(__doc__ or "").split("\n\n")[2].splitlines(), "", *lines]))


def published(path: Path) -> list[Measured]:
    rows = [row for row in csv.DictReader(path.open()) if row["source"].startswith("aegis")]
    makespans = {
        (row["experiment"].split()[0], row["policy"]): float(row["value"])
        for row in rows
        if row["metric"] == "makespan" and "60 jobs, 3x A100-40" in row["experiment"]
    }
    found: dict[tuple[str, str], dict[str, float]] = {}
    for row in rows:
        if row["experiment"].endswith("resource/energy"):
            found.setdefault((row["experiment"].split()[0], row["policy"]), {})[row["metric"]] = float(row["value"])
    runs = []
    for (trace, policy), values in found.items():
        activity = {name: values[name] / (100 if "util" in name else 1) for name in EXPLAINED_BY}
        makespan_s = makespans[trace, MAKESPANS.get(policy, policy)]
        runs.append(
            Measured(trace, policy, values["active_power_mean"], values["total_gpu_energy"], makespan_s, activity)
        )
    return runs


def power_lines(runs: Sequence[Measured]) -> list[str]:
    lines = ["## Mean power of a GPU with work, 18 runs", "", "| explained by | line | rms, trace left out | worst |"]
    lines.append("| --- | --- | --- | --- |")
    for name in EXPLAINED_BY:
        off = []
        for trace in sorted({run.trace for run in runs}):
            start, slope = line([run for run in runs if run.trace != trace], name)
            off += [start + slope * run.activity[name] - run.power_w for run in runs if run.trace == trace]
        start, slope = line(runs, name)
        rms = statistics.mean(error**2 for error in off) ** 0.5
        lines.append(f"| {name} | {start:.1f} W + {slope:.1f} W x | {rms:.1f} W | {max(map(abs, off)):.1f} W |")
    return lines


def line(runs: Sequence[Measured], name: str) -> tuple[float, float]:
    """Start and slope of the least-squares line of power."""
    found = statistics.linear_regression([run.activity[name] for run in runs], [run.power_w for run in runs])
    return found.intercept, found.slope


WAYS = ("model", "measured W", "with idle")
GPUS = 3


def energy_lines(runs: Sequence[Measured]) -> list[str]:
    head = " | ".join(f"{way} | off" for way in WAYS)
    lines = ["## Energy against exclusive", "", f"| trace | policy | published | {head} | GPUs with work |"]
    lines.append("| --- " * (4 + 2 * len(WAYS)) + "|")
    off: dict[str, list[float]] = {way: [] for way in WAYS}
    for run in runs:
        base = next(candidate for candidate in runs if candidate.trace == run.trace and candidate.policy == "Exclusive")
        if run is base:
            continue
        told = run.energy_mj / base.energy_mj - 1
        mine, theirs = energies(run), energies(base)
        cells = []
        for way in WAYS:
            said = mine[way] / theirs[way] - 1
            off[way].append(100 * (said - told))
            cells.append(f"{said:+.1%} | {100 * (said - told):+.1f}")
        lines.append(f"| {run.trace} | {run.policy} | {told:+.1%} | {' | '.join(cells)} | {with_work(run):.0%} |")
    lines.append("")
    for way, found in off.items():
        close = sum(1 for error in found if abs(error) <= 2.0)
        lines.append(f"- {way}: within 2 points for {close} of {len(found)}, worst {max(map(abs, found)):.1f}.")
    return lines


def energies(run: Measured) -> dict[str, float]:
    """What the run took, in watts of a GPU times seconds, told in each way."""
    model = power_model("A100-40GB")
    working_w, part = model.watts(1, run.activity[EXPLAINED_BY[0]]), with_work(run)
    watts = (working_w, run.power_w, part * working_w + (1 - part) * model.idle_w)
    return {way: run.makespan_s * mean_w for way, mean_w in zip(WAYS, watts, strict=True)}


def with_work(run: Measured) -> float:
    """Part of the makespan in which a GPU had work: the published mean power is of that part, the energy of all."""
    idle_w = power_model("A100-40GB").idle_w
    mean_w = run.energy_mj * 1e6 / GPUS / run.makespan_s
    return (mean_w - idle_w) / (run.power_w - idle_w)


if __name__ == "__main__":
    main()
