"""Validates the power model against published power and energy.

    python -m benchmarks.simulator.energy [--write] [--data FOLDER]

Power: the mean power of 18 published runs (AEGIS: three traces, six policies, A100-40GB) is predicted from their mean
utilization and from two other means; each trace is predicted by a line fitted to the other two. Energy: each run is
compared with exclusive on its trace in three ways. `model`: power of the shipped model times the published makespan.
`measured W`: published mean power times that makespan. `with idle`: the model for the busy share of the makespan, idle
power for the rest. The busy share follows from the published energy, so `with idle` validates watts and not energy.
Energies of whole simulations, makespans included, are in the results of `benchmarks/reproductions/chapter6.py`.
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
"""Policy names in the energy table -> names in the makespan table of the source."""
PREDICTORS = ("active_gpu_util_mean", "active_smact_mean", "active_drama_mean")


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
        print(f"skipped: no published results at `{args.data}`; set --data FOLDER")
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
        activity = {name: values[name] / (100 if "util" in name else 1) for name in PREDICTORS}
        makespan_s = makespans[trace, MAKESPANS.get(policy, policy)]
        runs.append(
            Measured(trace, policy, values["active_power_mean"], values["total_gpu_energy"], makespan_s, activity)
        )
    return runs


def power_lines(runs: Sequence[Measured]) -> list[str]:
    lines = ["## Mean power of a busy GPU, 18 runs", "", "| predictor | line | RMSE, trace held out | max error |"]
    lines.append("| --- | --- | --- | --- |")
    for name in PREDICTORS:
        off = []
        for trace in sorted({run.trace for run in runs}):
            start, slope = line([run for run in runs if run.trace != trace], name)
            off += [start + slope * run.activity[name] - run.power_w for run in runs if run.trace == trace]
        start, slope = line(runs, name)
        rms = statistics.mean(error**2 for error in off) ** 0.5
        lines.append(f"| {name} | {start:.1f} W + {slope:.1f} W x | {rms:.1f} W | {max(map(abs, off)):.1f} W |")
    return lines


def line(runs: Sequence[Measured], name: str) -> tuple[float, float]:
    """Intercept and slope of the least-squares line of power."""
    found = statistics.linear_regression([run.activity[name] for run in runs], [run.power_w for run in runs])
    return found.intercept, found.slope


WAYS = ("model", "measured W", "with idle")
GPUS = 3


def energy_lines(runs: Sequence[Measured]) -> list[str]:
    head = " | ".join(f"{way} | error" for way in WAYS)
    lines = ["## Energy against exclusive", "", f"| trace | policy | published | {head} | busy share |"]
    lines.append("| --- " * (4 + 2 * len(WAYS)) + "|")
    off: dict[str, list[float]] = {way: [] for way in WAYS}
    for run in runs:
        base = next(candidate for candidate in runs if candidate.trace == run.trace and candidate.policy == "Exclusive")
        if run is base:
            continue
        published_change = run.energy_mj / base.energy_mj - 1
        run_energy, base_energy = energies(run), energies(base)
        cells = []
        for way in WAYS:
            change = run_energy[way] / base_energy[way] - 1
            off[way].append(100 * (change - published_change))
            cells.append(f"{change:+.1%} | {100 * (change - published_change):+.1f}")
        row = f"{run.trace} | {run.policy} | {published_change:+.1%} | {' | '.join(cells)}"
        lines.append(f"| {row} | {busy_share(run):.0%} |")
    lines.append("")
    for way, found in off.items():
        close = sum(1 for error in found if abs(error) <= 2.0)
        lines.append(f"- {way}: {close} of {len(found)} within 2 points, max error {max(map(abs, found)):.1f}.")
    return lines


def energies(run: Measured) -> dict[str, float]:
    """Energy of the run per GPU in joules, by each of `WAYS`."""
    model = power_model("A100-40GB")
    working_w, part = model.watts(1, run.activity[PREDICTORS[0]]), busy_share(run)
    watts = (working_w, run.power_w, part * working_w + (1 - part) * model.idle_w)
    return {way: run.makespan_s * mean_w for way, mean_w in zip(WAYS, watts, strict=True)}


def busy_share(run: Measured) -> float:
    """Share of the makespan in which a GPU was busy: published power covers that share, energy the whole makespan."""
    idle_w = power_model("A100-40GB").idle_w
    mean_w = run.energy_mj * 1e6 / GPUS / run.makespan_s
    return (mean_w - idle_w) / (run.power_w - idle_w)


if __name__ == "__main__":
    main()
