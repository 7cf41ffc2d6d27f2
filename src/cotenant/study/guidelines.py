"""The guidelines of collocation (thesis, section 4.3.5), each tested on rows: how often did it hold?

Rows come from `cotenant study collocate`, from the pairs that AEGIS published (A100), and from chapter 4 of the thesis.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from cotenant.core import stats
from cotenant.measurement.job_list import group_text
from cotenant.scheduling.sharing_guidelines import MAX_SMACT_SUM
from cotenant.sim.workloads import pair_speeds, workloads

PUBLISHED = Path(__file__).parent / "published" / "collocation.csv"
MAX_SLOWDOWN = 1.5
MEMORY_TOLERANCE = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class CollocationRow:
    """A group of jobs that ran together on one GPU; None where a figure is not known.

    Attributes:
        jobs: names. sharing: time-sliced, mps or mig.
        gain: work done per time over that of the same jobs in turn; above 1, collocation pays.
        slowdown: of the job that suffers most.
        smact_sum, memory_sum_bytes: sums of the jobs' figures alone; `memory_bytes`: of the group.
        energy_ratio: energy of the group over that of the same jobs in turn.
        source: who measured it.
    """

    jobs: tuple[str, ...]
    sharing: str
    gain: float | None = None
    slowdown: float | None = None
    smact_sum: float | None = None
    memory_sum_bytes: float | None = None
    memory_bytes: float | None = None
    energy_ratio: float | None = None
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GuidelineTest:
    """A guideline on rows: it held in `held` of `tested` cases.

    Attributes:
        mean: mean of the figure that decides over all cases, with its name; empty without cases.
        exceptions: the worst cases in which it did not hold.
    """

    guideline: str
    tested: int
    held: int
    mean: str = ""
    exceptions: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """A sentence for people."""
        if not self.tested:
            return f"{self.guideline}: no row to test it on."
        mean = f", {self.mean}" if self.mean else ""
        worst = f"; not for {', '.join(self.exceptions)}" if self.exceptions else ""
        return f"{self.guideline}: held in {self.held} of {self.tested}{mean}{worst}."


def published_collocations() -> list[CollocationRow]:
    """The pairs of AEGIS on an A100-40GB, and the rows of chapter 4 that have numbers."""
    return [*_aegis_pairs(), *_chapter_4()]


def _aegis_pairs() -> Iterator[CollocationRow]:
    known, speeds = workloads(), pair_speeds()
    for (first, second), speed in speeds.items():
        if first <= second and (second, first) in speeds:
            yield CollocationRow(
                jobs=(first, second),
                sharing="time-sliced",
                gain=speed + speeds[second, first],
                slowdown=1.0 / min(speed, speeds[second, first]),
                smact_sum=known[first].smact + known[second].smact if {first, second} <= known.keys() else None,
                source="AEGIS, A100-40GB",
            )


def _chapter_4() -> Iterator[CollocationRow]:
    with PUBLISHED.open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            yield CollocationRow(
                jobs=tuple(row["jobs"].split(" + ")),
                sharing=row["sharing"],
                gain=_number(row["gain"]),
                smact_sum=_number(row["smact_sum"]),
                memory_sum_bytes=_number(row["memory_sum_bytes"]),
                memory_bytes=_number(row["memory_bytes"]),
                energy_ratio=_number(row["energy_ratio"]),
                source=row["source"],
            )


def _number(text: str) -> float | None:
    return float(text) if text else None


def judge_guidelines(rows: Sequence[CollocationRow]) -> list[GuidelineTest]:
    """All guidelines on `rows`."""
    return [
        smact_pays(rows), above_costs(rows), smact_bounds_slowdown(rows), memory_adds_up(rows), mps_is_best(rows),
        mig_saves_energy(rows),
    ]  # fmt: skip


def smact_pays(rows: Iterable[CollocationRow]) -> GuidelineTest:
    """Up to an SMACT sum of 0.8, collocation pays."""
    cases = [(row.gain, row) for row in rows if row.gain is not None and _sum_of(row) <= MAX_SMACT_SUM]
    name = f"Up to an SMACT sum of {MAX_SMACT_SUM:.0%}, collocation pays"
    return _judged(name, "gain", cases, lambda gain: gain > 1.0)


def above_costs(rows: Iterable[CollocationRow]) -> GuidelineTest:
    """Above an SMACT sum of 0.8, it does not."""
    cases = [(row.gain, row) for row in rows if row.gain is not None and MAX_SMACT_SUM < _sum_of(row) < math.inf]
    name = f"Above an SMACT sum of {MAX_SMACT_SUM:.0%}, it does not"
    return _judged(name, "gain", cases, lambda gain: gain <= 1.0)


def smact_bounds_slowdown(rows: Iterable[CollocationRow]) -> GuidelineTest:
    """Up to an SMACT sum of 0.8, no job takes more than 1.5 times as long: our own bound, not the thesis'."""
    cases = [(row.slowdown, row) for row in rows if row.slowdown is not None and _sum_of(row) <= MAX_SMACT_SUM]
    name = f"Up to an SMACT sum of {MAX_SMACT_SUM:.0%}, no job takes more than {MAX_SLOWDOWN:g} times as long"
    return _judged(name, "slowdown", cases, lambda slowdown: slowdown <= MAX_SLOWDOWN)


def _judged(
    guideline: str, figure: str, cases: Sequence[tuple[float, CollocationRow]], holds: Callable[[float], bool]
) -> GuidelineTest:
    """The guideline on cases (figure, row); its exceptions are those farthest from 1."""
    mean = stats.mean([value for value, _ in cases])
    against = sorted((case for case in cases if not holds(case[0])), key=lambda case: -abs(case[0] - 1.0))
    return GuidelineTest(
        guideline=guideline,
        tested=len(cases),
        held=len(cases) - len(against),
        mean=f"mean {figure} {mean:.2f}" if cases else "",
        exceptions=tuple(f"{group_text(row.jobs)} ({value:.2f})" for value, row in against[:3]),
    )


def _sum_of(row: CollocationRow) -> float:
    return math.inf if row.smact_sum is None else row.smact_sum


def memory_adds_up(rows: Iterable[CollocationRow]) -> GuidelineTest:
    """The memory of a group is the sum of its jobs' memory."""
    cases = [
        (row, row.memory_bytes / row.memory_sum_bytes - 1.0)
        for row in rows
        if row.memory_bytes and row.memory_sum_bytes
    ]
    off = [(row, error) for row, error in cases if abs(error) > MEMORY_TOLERANCE]
    return GuidelineTest(
        guideline=f"Memory of the jobs adds up, within {MEMORY_TOLERANCE:.0%}",
        tested=len(cases),
        held=len(cases) - len(off),
        exceptions=tuple(f"{group_text(row.jobs)} ({error:+.0%})" for row, error in off[:3]),
    )


def mps_is_best(rows: Iterable[CollocationRow]) -> GuidelineTest:
    """MPS gains at least as much as time slicing, for the same jobs of the same source."""
    gains = _by_group(rows, "gain")
    cases = [
        (jobs, found["mps"], found["time-sliced"]) for jobs, found in gains if {"mps", "time-sliced"} <= found.keys()
    ]
    lost = [(jobs, mps, sliced) for jobs, mps, sliced in cases if mps < sliced]
    return GuidelineTest(
        guideline="MPS gains at least as much as time slicing",
        tested=len(cases),
        held=len(cases) - len(lost),
        exceptions=tuple(f"{group_text(jobs)} ({mps:.2f} against {sliced:.2f})" for jobs, mps, sliced in lost[:3]),
    )


def mig_saves_energy(rows: Iterable[CollocationRow]) -> GuidelineTest:
    """MIG takes the least energy, for the same jobs of the same source."""
    energies = _by_group(rows, "energy_ratio")
    cases = [(jobs, found) for jobs, found in energies if "mig" in found and len(found) > 1]
    lost = [(jobs, found) for jobs, found in cases if found["mig"] > min(found.values())]
    return GuidelineTest(
        guideline="MIG takes the least energy",
        tested=len(cases),
        held=len(cases) - len(lost),
        exceptions=tuple(f"{group_text(jobs)} ({found['mig']:.2f})" for jobs, found in lost[:3]),
    )


def _by_group(rows: Iterable[CollocationRow], field: str) -> list[tuple[tuple[str, ...], dict[str, float]]]:
    """For each group of jobs of one source: a figure by the way of sharing."""
    found: dict[tuple[str, tuple[str, ...]], dict[str, float]] = {}
    for row in rows:
        value = getattr(row, field)
        if value is not None:
            found.setdefault((row.source, tuple(sorted(row.jobs))), {})[row.sharing] = value
    return [(jobs, by_sharing) for (_, jobs), by_sharing in found.items()]
