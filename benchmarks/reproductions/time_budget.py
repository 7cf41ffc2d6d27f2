"""Another reading of the published pairs: they ran under MPS, and naive sharing divides the time of a GPU.

`check_budgets` says why; `KernelTime` is the model that follows, which `sharing_fits.py` fits.
"""

from __future__ import annotations

import csv
import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from cotenant.core.gpu import Sharing
from cotenant.sim.interference import StandardInterference, TrueActivity, standard
from cotenant.sim.interference.model import DEFAULT_GPU

AEGIS = Path(__file__).parents[3] / "shared" / "data" / "carma" / "aegis"


class Pair(NamedTuple):
    """Speeds of two jobs beside each other, and what each does alone: share of time with a kernel, SMACT."""

    speeds: tuple[float, float]
    busy: tuple[float, float]
    smact: tuple[float, float]


def pairs(folder: Path = AEGIS) -> Iterator[Pair]:
    """The published pairs on an A100 whose jobs have both measures alone; speeds above 1 are noise, and cut."""
    with (folder / "workload_profiles_a100.csv").open() as file:
        alone = {row["spec"]: row for row in csv.DictReader(file)}
    with (folder / "pairwise_a100.csv").open() as file:
        for row in csv.DictReader(file):
            both = [alone.get(row["spec_a"], {}), alone.get(row["spec_b"], {})]
            if all(job.get("gpu_util_mean_pct") and job.get("smact_mean") for job in both):
                yield Pair(
                    (min(1.0, float(row["overlap_speed_a"])), min(1.0, float(row["overlap_speed_b"]))),
                    (float(both[0]["gpu_util_mean_pct"]) / 100, float(both[1]["gpu_util_mean_pct"]) / 100),
                    (float(both[0]["smact_mean"]), float(both[1]["smact_mean"])),
                )


def check_budgets(found: Sequence[Pair]) -> list[str]:
    """How much of a GPU's time, and of its SMs' time, each pair used: more than 1 is impossible.

    If kernels of two processes never ran at once, as in time slices, speed x busy time adds up to 1 at most.
    """
    lines = [
        "| budget | pairs that could fill it | used, mean | most | above 1 | above 1.1 |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for name, key in (("time with a kernel (NVML utilization)", "busy"), ("time of SMs (SMACT)", "smact")):
        used = []
        for pair in found:
            alone = getattr(pair, key)
            if sum(alone) >= 1.0:
                used.append(sum(speed * part for speed, part in zip(pair.speeds, alone, strict=True)))
        above = [sum(value > limit for value in used) for limit in (1.0, 1.1)]
        lines.append(
            f"| {name} | {len(used)} | {statistics.mean(used):.2f} | {max(used):.2f} | {above[0]} | {above[1]} |"
        )
    return lines


class KernelTime(StandardInterference):
    """MPS as the published pairs; naive sharing as turns of kernels.

    While a job has a kernel to run, each neighbor that has one, too, delays it by `delay` times the neighbor's share of
    the time: slowdown = 1 + delay x busy x sum of the neighbors' busy. 1 is turns that cost nothing: k jobs that are
    always busy take k times as long.
    """

    def __init__(self, delay: float) -> None:
        super().__init__()
        self.delay = delay

    def speeds(
        self, members: Sequence[TrueActivity], gpu_type: str = DEFAULT_GPU, sharing: Sharing = "time-sliced"
    ) -> list[float]:
        """Speed of each job, relative to alone on a whole GPU of that type."""
        if sharing == "mps":
            return list(standard().speeds(members, gpu_type, "time-sliced"))
        if sharing != "time-sliced" or len(members) < 2:
            return super().speeds(members, gpu_type, sharing)
        busy = [member.smact if member.utilization is None else member.utilization for member in members]
        total = sum(busy)
        return [1.0 / turn_slowdown(self.delay, own, total - own) for own in busy]


def turn_slowdown(delay: float, own: float, others: float) -> float:
    """Slowdown of a job that is busy for a share `own` of its time, beside jobs of `others` in all."""
    return 1.0 + delay * own * others
