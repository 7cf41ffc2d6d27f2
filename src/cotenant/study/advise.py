"""Advice on which jobs should share a GPU, from a study's rows, published workloads or figures that a user gives."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations_with_replacement

from cotenant.core import stats
from cotenant.core.errors import UsageError
from cotenant.core.units import GiB
from cotenant.measurement.job_list import ALONE
from cotenant.scheduling.sharing_guidelines import VERDICTS, SharingAdvice, SoloUse, sharing_advice
from cotenant.sim.workloads import workloads
from cotenant.study.collocation_report import GroupResult

Row = Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredAdvice:
    """Advice on a set of jobs, and what was measured of the same set: the gain by way to share."""

    advice: SharingAdvice
    gains: Mapping[str, float]

    @property
    def best(self) -> str:
        """The way with the largest gain; empty without a measurement."""
        return max(self.gains, key=lambda way: self.gains[way]) if self.gains else ""


def advise_on(
    groups: Iterable[Sequence[SoloUse]],
    gpu_memory_bytes: int,
    results: Sequence[GroupResult] = (),
    *,
    needs_isolation: bool = False,
    has_mps: bool = True,
) -> list[MeasuredAdvice]:
    """Advice on each group, best first: by verdict, then by the sum of SM activity."""
    found = []
    for group in groups:
        names = sorted(job.name for job in group)
        gains = {
            result.sharing: result.gain
            for result in results
            if result.gain is not None and sorted(result.jobs) == names
        }
        advice = sharing_advice(group, gpu_memory_bytes, needs_isolation=needs_isolation, has_mps=has_mps)
        measured = MeasuredAdvice(advice=advice, gains=gains)
        if advice.sharing is not None and measured.best.partition(":")[0] not in ("", advice.sharing):
            says = f"but here {measured.best} gained most: {gains[measured.best]:.2f}"
            measured = replace(measured, advice=replace(advice, reasons=(*advice.reasons, says)))
        found.append(measured)
    return sorted(found, key=lambda one: (VERDICTS.index(one.advice.verdict), one.advice.smact_sum or 0.0))


def all_pairs(jobs: Sequence[SoloUse]) -> list[tuple[SoloUse, ...]]:
    """Every two of the jobs, and each beside another run of itself."""
    return list(combinations_with_replacement(jobs, 2))


def solo_uses(rows: Iterable[Row]) -> dict[str, SoloUse]:
    """The jobs that a study measured alone, by name: medians over their repeats."""
    alone: dict[str, list[Row]] = {}
    for row in rows:
        if row["sharing"] == ALONE and row["step_s"]:
            alone.setdefault(row["job"], []).append(row)
    found = {}
    for name, runs in alone.items():
        memory = [float(row["peak_device_bytes"]) for row in runs if row["peak_device_bytes"]]
        smacts = [float(row["smact"]) for row in runs if row["smact"]]
        found[name] = SoloUse(
            name=name,
            smact=stats.median(smacts) if smacts else None,
            memory_bytes=round(stats.median(memory)) if memory else None,
        )
    return found


def gpu_memory_of(rows: Iterable[Row]) -> int | None:
    """Memory of the GPU that the rows are of; None where they do not say."""
    return next((int(float(row["gpu_memory_bytes"])) for row in rows if row["gpu_memory_bytes"]), None)


def parse_job(text: str, known: Mapping[str, SoloUse]) -> SoloUse:
    """A job by name, of `known` or of the published workloads, or by figures: `NAME=SMACT,GIB`.

    Raises:
        UsageError: there is no such job, or the figures are no such numbers.
    """
    name, has_figures, figures = text.partition("=")
    if has_figures:
        smact_text, _, gib_text = figures.partition(",")
        try:
            smact, gib = float(smact_text), float(gib_text)
        except ValueError as error:
            raise UsageError(f"`{text}` is no job", hint=_FIGURES) from error
        if not name or not 0.0 <= smact <= 1.0 or not 0.0 < gib < math.inf:
            raise UsageError(f"`{text}` is no job", hint=_FIGURES)
        return SoloUse(name=name, smact=smact, memory_bytes=round(gib * GiB))
    if name in known:
        return known[name]
    published = workloads()
    if name in published:
        found = published[name]
        return SoloUse(name=name, smact=found.smact, memory_bytes=found.peak_bytes)
    some = ", ".join([*known][:5] or [*published][:5])
    raise UsageError(f"no job `{name}`", hint=f"known are {some} and others; or {_FIGURES}")


_FIGURES = "write `NAME=SMACT,GIB`, e.g. `bert=0.35,6`"
