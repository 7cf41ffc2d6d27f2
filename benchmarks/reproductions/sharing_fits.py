"""Two fitted models of sharing, MPS and naive, with their errors on what they were not fitted to.

MPS, if AEGIS' pairs ran under it: slowdown = 1 + factor x SMACT^power of the partner. Naive: `time_budget.KernelTime`,
fitted to chapter 4, or to the energy of round robin on streams in table 6.6.
"""

from __future__ import annotations

import csv
import math
import statistics
from collections.abc import Callable, Sequence
from typing import NamedTuple

from benchmarks.reproductions.time_budget import AEGIS, KernelTime, turn_slowdown
from cotenant.core import stats
from cotenant.sim import cluster, traces
from cotenant.sim.engine.config import SimulationConfig
from cotenant.sim.metrics import SimMetrics, metrics_of
from cotenant.sim.simulate import simulate

GPUS = "4xA100-40GB"
RR_ENERGY = 0.0466
"""Table 6.6: round robin on streams against exclusive."""


class Slowdown(NamedTuple):
    """A victim, its partner, and the slowdown; shares of time with a kernel, and SMACT of the partner."""

    victim: str
    partner: str
    busy: float
    partner_busy: float
    partner_smact: float
    slowdown: float


CHAPTER_4 = (
    ("CaiT", Slowdown("CaiT", "CaiT", 1.0, 1.0, 1.0, 2.0)),
    ("table 4.2", Slowdown("recommender", "ResNet152", 0.05, 1.0, 0.82, 1.1362)),
    ("table 4.2", Slowdown("ResNet152", "recommender", 1.0, 0.05, 0.05, 1.0571)),
)
"""Naive sharing where chapter 4 has a number. Busy time is not published: SMACT stands for that of the recommender, and
ResNet152 and CaiT are taken to be always busy."""

MPS_TABLE_4_2 = (
    Slowdown("recommender", "ResNet152", 0.05, 1.0, 0.82, 1.0392),
    Slowdown("ResNet152", "recommender", 1.0, 0.05, 0.05, 1.0476),
)


def pair_slowdowns() -> list[Slowdown]:
    """Both slowdowns of each of AEGIS' pairs; speeds above 1 are noise, and cut."""
    with (AEGIS / "workload_profiles_a100.csv").open() as file:
        alone = {row["spec"]: row for row in csv.DictReader(file)}
    found = []
    with (AEGIS / "pairwise_a100.csv").open() as file:
        for row in csv.DictReader(file):
            for victim, partner in (("a", "b"), ("b", "a")):
                names = row[f"spec_{victim}"], row[f"spec_{partner}"]
                jobs = [alone.get(name, {}) for name in names]
                if all(job.get("gpu_util_mean_pct") and job.get("smact_mean") for job in jobs):
                    busy, partner_busy = (float(job["gpu_util_mean_pct"]) / 100 for job in jobs)
                    speed = min(1.0, float(row[f"overlap_speed_{victim}"]))
                    found.append(Slowdown(*names, busy, partner_busy, float(jobs[1]["smact_mean"]), 1.0 / speed))
    return found


def fit_mps(rows: Sequence[Slowdown]) -> tuple[float, float]:
    """Factor and power of the MPS model, by least absolute errors of log slowdowns on a grid."""

    def loss(factor: float, power: float) -> float:
        return sum(abs(math.log((1 + factor * row.partner_smact**power) / row.slowdown)) for row in rows)

    grid = [(f / 10, p / 4) for f in range(10, 36, 2) for p in range(8, 29)]
    return min(grid, key=lambda point: loss(*point))


def fit_delay(rows: Sequence[Slowdown]) -> float:
    """The delay of the naive model, by least squares of log slowdowns on a grid."""

    def loss(delay: float) -> float:
        return sum(math.log(turn_slowdown(delay, row.busy, row.partner_busy) / row.slowdown) ** 2 for row in rows)

    return min((step / 100 for step in range(501)), key=loss)


def errors(rows: Sequence[Slowdown], predict: Callable[[Slowdown], float]) -> list[float]:
    """Relative errors of predicted slowdowns, with their signs."""
    return [predict(row) / row.slowdown - 1.0 for row in rows]


def mps_lines() -> list[str]:
    """The MPS model: families of networks left out, and table 4.2."""
    rows = pair_slowdowns()
    factor, power = fit_mps(rows)
    families = sorted({row.victim.partition("_")[0] for row in rows})
    left_out: list[float] = []
    for family in families:
        rest = [row for row in rows if not any(name.startswith(family + "_") for name in (row.victim, row.partner))]
        f, p = fit_mps(rest)
        of_family = [row for row in rows if row.victim.startswith(family + "_")]
        left_out += errors(of_family, lambda row, f=f, p=p: 1 + f * row.partner_smact**p)  # type: ignore[misc]
    apart = errors(MPS_TABLE_4_2, lambda row: 1 + factor * row.partner_smact**power)
    model = f"MPS: 1 + {factor:.1f} x SMACT^{power:.2f} of the partner"
    return [
        f"| {model} | {len(rows)} slowdowns of AEGIS | victims of a family left out | {_spread(left_out)} |",
        f"| the same | | table 4.2, MPS: recommender, ResNet152 | {_signed(apart)} |",
    ]


def naive_lines(seeds: Sequence[int]) -> tuple[list[str], float, float]:
    """The naive model by both fits, with its delays."""
    rows = [row for _, row in CHAPTER_4]
    of_chapter_4 = fit_delay(rows)
    lines = []
    for group in dict.fromkeys(name for name, _ in CHAPTER_4):
        delay = fit_delay([row for name, row in CHAPTER_4 if name != group])
        held_out = [row for name, row in CHAPTER_4 if name == group]
        apart = errors(held_out, lambda row, delay=delay: turn_slowdown(delay, row.busy, row.partner_busy))  # type: ignore[misc]
        rest = " and ".join(dict.fromkeys(name for name, _ in CHAPTER_4 if name != group))
        what = f"{group}: {', '.join(row.victim for row in held_out)}"
        lines.append(f"| naive, delay {delay:.2f} | {rest} | {what} | {_signed(apart)} |")
    pairs = errors(pair_slowdowns(), lambda row: turn_slowdown(of_chapter_4, row.busy, row.partner_busy))
    lines.append(f"| naive, delay {of_chapter_4:.2f} | chapter 4 | AEGIS, if on time slices | {_spread(pairs)} |")
    of_energy = delay_of_energy(seeds)
    for delay, source in ((of_chapter_4, "chapter 4"), (of_energy, "table 6.6")):
        if source == "chapter 4":
            energy = change("heavy-60", "thesis-rr", KernelTime(delay), seeds, "energy_j")
            test = f"table 6.6, RR on streams: energy {energy:+.1%}, published {RR_ENERGY:+.1%}"
            lines.append(f"| naive, delay {delay:.2f} | {source} | {test} | {100 * (energy - RR_ENERGY):+.0f} points |")
        else:
            apart = errors(rows, lambda row: turn_slowdown(of_energy, row.busy, row.partner_busy))
            names = ", ".join(row.victim for row in rows)
            lines.append(f"| naive, delay {delay:.2f} | {source} | chapter 4: {names} | {_signed(apart)} |")
        makespan = change("mix-90", "thesis-owf", KernelTime(delay), seeds, "makespan_s")
        jct = change("mix-90", "thesis-owf", KernelTime(delay), seeds, "jct_mean_s")
        test = f"OWF on streams: makespan {makespan:+.1%}, published hardly any; JCT {jct:+.1%}, published less"
        lines.append(f"| naive, delay {delay:.2f} | {source} | {test} | |")
    return lines, of_chapter_4, of_energy


def delay_of_energy(seeds: Sequence[int]) -> float:
    """The delay at which round robin on streams takes the energy of table 6.6, between steps of a tenth."""
    below = (1.0, change("heavy-60", "thesis-rr", KernelTime(1.0), seeds, "energy_j"))
    for tenth in range(11, 31):
        above = (tenth / 10, change("heavy-60", "thesis-rr", KernelTime(tenth / 10), seeds, "energy_j"))
        if above[1] >= RR_ENERGY:
            return below[0] + 0.1 * (RR_ENERGY - below[1]) / (above[1] - below[1])
        below = above
    raise ValueError("no delay up to 3 takes that much energy")


def change(trace: str, policy: str, model: KernelTime, seeds: Sequence[int], name: str) -> float:
    """Mean change of a metric on streams, against exclusive."""
    changes = []
    for seed in seeds:
        base, found = (_metrics(trace, chosen, model, seed) for chosen in ("exclusive", policy))
        changes.append(getattr(found, name) / getattr(base, name) - 1)
    return statistics.mean(changes)


def _metrics(trace: str, policy: str, model: KernelTime, seed: int) -> SimMetrics:
    options: dict[str, object] = {} if policy == "exclusive" else {"sharing": "time-sliced"}
    if policy == "thesis-rr":
        options |= {"floor_gib": 0.0, "smact_limit": 1.0}
    config = SimulationConfig(seed=seed)
    estimator = "oracle" if policy == "thesis-owf" else "none"
    return metrics_of(
        simulate(
            traces.load(trace), cluster.parse(GPUS), policy, options=options, interference=model, estimator=estimator,
            config=config, learn=False,
        )
    )  # fmt: skip


def _spread(found: Sequence[float]) -> str:
    sizes = sorted(abs(error) for error in found)
    return (
        f"median {stats.median(sizes):.1%}, P90 {stats.quantile(sizes, 0.9):.1%}, in the middle "
        f"{stats.median(found):+.1%}"
    )


def _signed(found: Sequence[float]) -> str:
    return ", ".join(f"{error:+.1%}" for error in found)
