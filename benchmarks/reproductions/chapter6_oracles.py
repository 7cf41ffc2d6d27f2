"""The oracles of chapter 6 (figures 6.5 and 6.6), GPUs over time (6.13 to 6.15), and streams against MPS.

    python -m benchmarks.reproductions.chapter6_oracles [--write] [--seeds 5]

Oracles know the measured peak of a task. Changes are against exclusive, means over seeds of the launch delays. The
first reading of the published pairs is the one that ships: they ran on time slices, and MPS is a rule. By the others
they ran under MPS, and in naive sharing kernels take turns (`time_budget.py`), by the two fits of `sharing_fits.py`.
"""

from __future__ import annotations

import argparse
import csv
import platform
import statistics
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from unittest import mock

from benchmarks._lib.results import RESULTS, add_write_option, today, version, write_result
from benchmarks.reproductions.chapter6_figures import Row, draw, draw_over_time
from benchmarks.reproductions.sharing_fits import mps_lines, naive_lines
from benchmarks.reproductions.time_budget import KernelTime, check_budgets, pairs
from cotenant.core.placement import Placement
from cotenant.core.units import GiB
from cotenant.gpu_specs import gpu_spec
from cotenant.sim import cluster, traces
from cotenant.sim.engine.config import SimulationConfig
from cotenant.sim.engine.simulation import Simulation
from cotenant.sim.interference import Interference
from cotenant.sim.metrics import SimMetrics, metrics_of
from cotenant.sim.simulate import SimulationResult, simulate

DATA = Path(__file__).parents[3] / "shared" / "data"
GPUS = "4xA100-40GB"
ORACLES = ("off", "obf", "owf", "olug")
PUBLISHED = {("owf", "mps"): "-30.1 %"}
MARGINAL = "hardly any"
OVER_TIME = "over-time"
ORACLE_PICTURE = "chapter6_oracles.svg"
SHORT = ("pairs", "turns fitted to chapter 4", "turns fitted to table 6.6")
"""The readings in the chart."""
BIN_S = 600


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_write_option(parser)
    parser.add_argument("--seeds", type=int, default=5, help="number of seeds (default: %(default)s)")
    parser.add_argument("--quick", action="store_true", help="one seed")
    args = parser.parse_args()
    seeds = range(1 if args.quick else args.seeds)
    naive, of_chapter_4, of_energy = naive_lines(seeds)
    readings: list[tuple[str, Interference | None]] = [
        ("pairs on time slices", None),
        (f"pairs under MPS, turns cost {of_chapter_4:.2f}", KernelTime(of_chapter_4)),
        (f"pairs under MPS, turns cost {of_energy:.2f}", KernelTime(of_energy)),
    ]
    table, pictured = oracles(seeds, readings)
    lines = ["## Oracles, 90 tasks (figures 6.5, 6.6)", "", *table, "", f"![Bar chart]({ORACLE_PICTURE})", ""]
    lines += ["## How often an oracle has a choice", "", *choices(), ""]
    lines += ["## Streams against MPS", "", *check_budgets(list(pairs())), ""]
    head = ["| model | fitted to | tested on | error |", "| --- | --- | --- | --- |"]
    lines += ["## Two fitted models of sharing", "", *head, *mps_lines(), *naive, ""]
    table, panels = over_time()
    picture = f"chapter6_{OVER_TIME}.svg"
    lines += ["## GPUs over time, 60 heavy tasks (figures 6.13 to 6.15)", "", *table, ""]
    lines += [
        "Means of ten minutes; the thesis has no numbers of these figures.",
        "",
        f"![GPUs over time]({picture})",
        "",
    ]
    lines += ["## Jobs and GPU time by GPUs (figure 6.1)", "", *venus()]
    print("\n".join(lines))
    if args.write:
        draw(RESULTS / ORACLE_PICTURE, "Oracles, 90 tasks; diamond: published", pictured)
        draw_over_time(RESULTS / picture, "Memory, SMACT and power of each GPU, 60 heavy tasks", panels)
        page = [
            "# Chapter 6 of the thesis: oracles, and streams against MPS",
            "",
            f"{today()}, {platform.machine()}, {platform.python_version()}, cotenant {version('cotenant')}.",
            "Command: `python -m benchmarks.reproductions.chapter6_oracles --write`.",
            "",
            *(__doc__ or "").split("\n\n")[2].splitlines(),
            "",
        ]
        write_result("chapter6-oracles", "\n".join([*page, *lines]))


def oracles(seeds: Sequence[int], readings: Sequence[tuple[str, Interference | None]]) -> tuple[list[str], list[Row]]:
    """Figures 6.5 and 6.6, by each reading, as a table and for the chart; MPS of the second and third is the same."""
    pictured: list[Row] = []
    lines = [
        "| policy | sharing | pairs | makespan | published | waiting | execution | mean JCT | OOMs |",
        "| --- | --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    base = [run("exclusive", "", None, seed) for seed in seeds]
    wait, work = (
        statistics.mean(getattr(one, name) / 60 for one in base) for name in ("wait_mean_s", "execution_mean_s")
    )
    makespan = statistics.mean(one.makespan_s / 60 for one in base)
    lines.append(
        f"| exclusive | | | {makespan:.0f} min | | {wait:.0f} min | {work:.1f} min | {wait + work:.0f} min | 0 |"
    )
    for place, (reading, model) in enumerate(readings):
        for sharing in ("mps", "time-sliced") if place < 2 else ("time-sliced",):
            for name in ORACLES:
                found = [run(f"thesis-{name}", sharing, model, seed) for seed in seeds]
                change = statistics.mean(a.makespan_s / b.makespan_s - 1 for a, b in zip(found, base, strict=True))
                jct = statistics.mean(a.jct_mean_s / b.jct_mean_s - 1 for a, b in zip(found, base, strict=True))
                published = PUBLISHED.get((name, sharing), MARGINAL if sharing != "mps" else "")
                cells = [
                    name.upper(),
                    "MPS" if sharing == "mps" else "streams",
                    reading,
                    f"{change:+.1%}",
                    published,
                    f"{statistics.mean(one.wait_mean_s for one in found) / 60:.0f} min",
                    f"{statistics.mean(one.execution_mean_s for one in found) / 60:.1f} min",
                    f"{jct:+.1%}",
                    f"{statistics.mean(one.ooms for one in found):.1f}",
                ]
                lines.append(f"| {' | '.join(cells)} |")
                title = f"{cells[0]}, {cells[1]}, {SHORT[place]}"
                pictured.append(Row(title, _figures(found, base, -0.3013 if published == "-30.1 %" else None)))
    return lines, pictured


def _figures(
    found: Sequence[SimMetrics], base: Sequence[SimMetrics], makespan: float | None
) -> dict[str, tuple[float, float, float, float | None]]:
    """(Least, mean, most over the seeds, published) of each panel; `makespan` is the published change."""
    panels = {}
    for title, name, published in (
        ("Total time, exclusive is 1 (figure 6.5)", "makespan_s", None if makespan is None else 1 + makespan),
        ("Mean JCT, exclusive is 1 (figure 6.6)", "jct_mean_s", None),
    ):
        parts = [getattr(a, name) / getattr(b, name) for a, b in zip(found, base, strict=True)]
        panels[title] = (min(parts), statistics.mean(parts), max(parts), published)
    for title, name in (("Waiting, minutes (6.6)", "wait_mean_s"), ("Execution, minutes (6.6)", "execution_mean_s")):
        minutes = [getattr(one, name) / 60 for one in found]
        panels[title] = (min(minutes), statistics.mean(minutes), max(minutes), None)
    return panels


def run(policy: str, sharing: str, model: Interference | None, seed: int) -> SimMetrics:
    """The metrics of a policy on the 90 tasks."""
    return metrics_of(
        simulate(
            traces.load("mix-90"),
            cluster.parse(GPUS),
            policy,
            options={"sharing": sharing} if sharing else {},
            interference=model,
            config=SimulationConfig(seed=seed),
        )
    )


def choices() -> list[str]:
    """By oracle, how many GPUs admitted a task when it was placed."""
    lines = [
        "| policy | sharing | only empty GPUs | one busy GPU | an empty and a busy one | several busy ones |",
        "| --- | --- | ---: | ---: | ---: | ---: |",
    ]
    for name in ORACLES:
        for sharing in ("mps", "time-sliced"):
            counts: Counter[str] = Counter()
            launch = Simulation._launch  # no public hook sees a placement before it counts

            def counting(
                self: Simulation,
                placement: Placement,
                at_s: float,
                launch: Callable[..., None] = launch,
                counts: Counter[str] = counts,
            ) -> None:
                empty = any(not gpu.residents for gpu in self.gpus)
                busy = sum(
                    bool(gpu.residents)
                    and all(one.is_active and at_s >= one.visible_s + 90 for one in gpu.residents)
                    and gpu.mean_activity(at_s, 90.0)[0] <= 0.8
                    and sum(one.placement.promised_bytes for one in gpu.residents) + placement.promised_bytes + 2 * GiB
                    <= gpu.total_bytes
                    for gpu in self.gpus
                )
                counts["empty" if empty and not busy else "mixed" if empty else "one" if busy < 2 else "several"] += 1
                launch(self, placement, at_s)

            with mock.patch.object(Simulation, "_launch", counting):
                run(f"thesis-{name}", sharing, None, 0)
            cells = [str(counts[key]) for key in ("empty", "one", "mixed", "several")]
            lines.append(f"| {name.upper()} | {'MPS' if sharing == 'mps' else 'streams'} | {' | '.join(cells)} |")
    return lines


def over_time() -> tuple[list[str], dict[str, list[list[tuple[float, float]]]]]:
    """Means of each GPU's memory, SMACT and power over the makespan, and the same over hours by caption."""
    rows = [
        "| policy | GPU | memory, mean | memory, most | SMACT, mean | power, mean | power, most |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    total = gpu_spec("A100-40GB").memory_total_bytes
    panels: dict[str, list[list[tuple[float, float]]]] = {}
    cases = (("exclusive", "exclusive", "none"), ("MAGM + GPUMemNet, MPS", "thesis-magm", "gpumemnet"))
    runs = {
        title: simulate(
            traces.load("heavy-60"),
            cluster.parse(GPUS),
            policy,
            estimator=estimator,
            config=SimulationConfig(record=True),
        )
        for title, policy, estimator in cases
    }
    for title, found in runs.items():
        for gpu, moments in enumerate(found.moments or ()):
            held, smact, watts = _means(found, gpu, 0.0, found.makespan_s)
            most = max(moment.held_bytes for moment in moments) / total
            peak = max(moment.power_w for moment in moments)
            rows.append(
                f"| {title} | {gpu} | {held / total:.0%} | {most:.0%} | {smact:.2f} | {watts:.0f} W | {peak:.0f} W |"
            )
    for number, (what, scale) in enumerate((("Memory in GiB", 1 / GiB), ("SMACT", 1.0), ("Power in W", 1.0))):
        for title, found in runs.items():
            starts_s = range(0, int(found.makespan_s), BIN_S)
            panels[f"{what}, {title}"] = [
                [
                    (
                        start_s / 3600,
                        scale * _means(found, gpu, start_s, min(start_s + BIN_S, found.makespan_s))[number],
                    )
                    for start_s in starts_s
                ]
                for gpu in range(len(found.moments or ()))
            ]
    return rows, panels


def _means(found: SimulationResult, gpu: int, begin_s: float, finish_s: float) -> tuple[float, float, float]:
    """Means over a time of held bytes, SMACT and watts."""
    moments = (found.moments or ())[gpu]
    ends_s = [moment.at_s for moment in moments[1:]] + [found.makespan_s]
    sums = [0.0, 0.0, 0.0]
    for moment, end_s in zip(moments, ends_s, strict=True):
        overlap_s = max(0.0, min(end_s, finish_s) - max(moment.at_s, begin_s))
        for i, value in enumerate((moment.held_bytes, moment.smact, moment.power_w)):
            sums[i] += value * overlap_s
    duration_s = finish_s - begin_s
    return sums[0] / duration_s, sums[1] / duration_s, sums[2] / duration_s


def venus() -> list[str]:
    """What is published of Venus, and what our data say of it."""
    with (DATA / "traces" / "helios_cluster_summary.csv").open() as file:
        row = next(row for row in csv.DictReader(file) if row["id"] == "Venus")
    published = (
        "Published: 52.5 % of jobs want one GPU and take 4.7 % of GPU time; 22.6 % want 8, 10.3 % more. Those of 8"
    )
    published += " and more take 85.7 %."
    ours = (
        f"Our data have no row per job of Venus, so the shares cannot be made again: {int(row['gpu_job_num']):,} jobs,"
    )
    ours += f" {float(row['avg_gpu_num']):.1f} GPUs on average, a median of {float(row['med_gpu_num']):.0f}."
    return [
        published,
        "",
        ours,
    ]


if __name__ == "__main__":
    main()
