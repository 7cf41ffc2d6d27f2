"""Fits what policies predict with to the rows of `cotenant study collocate`: one table for each way to share.

The fit is the one that the daemon's predictor makes of observations, all at once: effects of each workload as victim
and as aggressor in log slowdown, on top of the prior by activity, under a normal prior with the predictor's own spreads
(`scheduling/prediction/interference.py`). Groups of three and more say how far costs that add up are off.
"""

from __future__ import annotations

import datetime
import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import cotenant
from cotenant.core import stats
from cotenant.core.errors import UsageError
from cotenant.measurement.collocation import SIMULATED
from cotenant.measurement.data_card import commit
from cotenant.measurement.job_list import ALONE
from cotenant.scheduling.prediction.interference import (
    MEASUREMENT_STD,
    PRIOR_STD,
    GpuActivity,
    LearnedInterference,
    prior_slowdowns,
    smacts_or_assumed,
)
from cotenant.scheduling.prediction.interference_table import (
    FittedEffects,
    InterferenceTable,
    SharingTable,
    WorkloadAlone,
)

Row = Mapping[str, str]

MAX_SWEEPS = 500
TOLERANCE = 1e-9


class GroupSlowdowns(NamedTuple):
    """One run of a group: workload keys in order, and the slowdown of each."""

    workloads: tuple[str, ...]
    slowdowns: tuple[float, ...]


def fit_table(rows: Sequence[Row], source: Path) -> InterferenceTable:
    """The table of all rows of a study; `source` is their file.

    Raises:
        UsageError: there is no group with slowdowns, or rows are of several GPUs.
    """
    gpus = list(dict.fromkeys(row["gpu"] for row in rows))
    if len(gpus) > 1:
        raise UsageError(
            f"`{source}` has rows of {len(gpus)} GPUs: {', '.join(gpus)}",
            hint="speeds do not carry over between GPUs: measure each into a folder of its own",
        )
    workloads = measured_workloads(rows)
    groups = groups_by_way(rows)
    ways = {way: _fit_way(found, workloads) for way, found in groups.items() if not way.startswith("mig")}
    if not ways and not any(found.slice_speeds for found in workloads.values()):
        raise UsageError(f"`{source}` has no group in which all jobs were timed", hint="see `message` in its rows")
    name = gpus[0].removeprefix(f"{SIMULATED} ")
    return InterferenceTable(
        gpu=name,
        is_simulated=name != gpus[0] or not name,
        provenance={
            "made_by": f"cotenant {cotenant.__version__}, commit {commit()}",
            "made_at": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "rows": str(source.resolve()),
            "rows_sha256": hashlib.sha256(source.read_bytes()).hexdigest(),
            "measured": f"{min(row['at'] for row in rows)} to {max(row['at'] for row in rows)}",
        },
        workloads=workloads,
        ways=ways,
    )


def measured_workloads(rows: Sequence[Row]) -> dict[str, WorkloadAlone]:
    """Each workload alone: medians over its repeats; on MIG instances of its own, its speed by profile."""
    found = {}
    slices = _slice_speeds(rows)
    for key in dict.fromkeys(row["workload"] for row in rows):
        alone = [row for row in rows if row["workload"] == key and row["sharing"] == ALONE and row["step_s"]]
        if alone:
            memory = _median(alone, "peak_device_bytes")
            found[key] = WorkloadAlone(
                name=alone[0]["job"],
                step_s=stats.median(float(row["step_s"]) for row in alone),
                smact=_median(alone, "smact"),
                smocc=_median(alone, "smocc"),
                drama=_median(alone, "drama"),
                memory_bytes=None if not memory else round(memory),
                gpu_memory_bytes=round(_median(alone, "gpu_memory_bytes") or 0) or None,
                power_w=_median(alone, "power_w") or None,
                slice_speeds=slices.get(key, {}),
            )
    return found


def _slice_speeds(rows: Iterable[Row]) -> dict[str, dict[str, float]]:
    """By workload and profile: speed on a MIG instance that the job had to itself, the median of its runs."""
    speeds: dict[str, dict[str, list[float]]] = {}
    for row in rows:
        way, _, detail = row["sharing"].partition(":")
        profiles = detail.split(",")
        jobs = row["group"].count("+") + 1
        if way == "mig" and row["slowdown"] and jobs <= len(profiles) and "c." not in detail:
            profile = profiles[int(row["position"]) - 1]
            speeds.setdefault(row["workload"], {}).setdefault(profile, []).append(1.0 / float(row["slowdown"]))
    return {
        key: {profile: stats.median(found) for profile, found in by_profile.items()}
        for key, by_profile in speeds.items()
    }


def groups_by_way(rows: Iterable[Row]) -> dict[str, list[GroupSlowdowns]]:
    """Runs of groups in which every job has a slowdown, by way to share."""
    runs: dict[tuple[str, str, str, str], list[Row]] = {}
    for row in rows:
        if row["sharing"] != ALONE:
            runs.setdefault((row["group"], row["sharing"], row["until"], row["repeat"]), []).append(row)
    found: dict[str, list[GroupSlowdowns]] = {}
    for (_, sharing, _, _), run in runs.items():
        if all(row["slowdown"] for row in run):
            ordered = sorted(run, key=lambda row: int(row["position"]))
            found.setdefault(sharing, []).append(
                GroupSlowdowns(
                    workloads=tuple(row["workload"] for row in ordered),
                    # Neighbors never speed a job up: a slowdown below 1 is noise.
                    slowdowns=tuple(max(1.0, float(row["slowdown"])) for row in ordered),
                )
            )
    return found


def _fit_way(groups: Sequence[GroupSlowdowns], workloads: Mapping[str, WorkloadAlone]) -> SharingTable:
    pairs = [group for group in groups if len(group.workloads) == 2]
    effects = _effects(pairs, workloads)
    factors = {}
    fitted = SharingTable(
        effects=effects, pair_speeds=_pair_speeds(pairs), group_factors={}, median_error=0.0, p90_error=0.0, rows=0
    )
    for count in sorted({len(group.workloads) for group in groups if len(group.workloads) > 2}):
        ratios = [
            math.log(measured / predicted)
            for group in groups
            if len(group.workloads) == count
            for measured, predicted in zip(group.slowdowns, _predicted(group, fitted, workloads), strict=True)
        ]
        factors[count] = math.exp(stats.mean(ratios))
    whole = SharingTable(
        effects=effects, pair_speeds=fitted.pair_speeds, group_factors=factors, median_error=0.0, p90_error=0.0, rows=0
    )
    errors = [
        abs(predicted / measured - 1.0)
        for group in groups
        for measured, predicted in zip(group.slowdowns, _predicted(group, whole, workloads), strict=True)
    ]
    return SharingTable(
        effects=effects,
        pair_speeds=fitted.pair_speeds,
        group_factors=factors,
        median_error=stats.median(errors),
        p90_error=stats.quantile(sorted(errors), 0.9),
        rows=len(errors),
    )


def _pair_speeds(pairs: Sequence[GroupSlowdowns]) -> dict[tuple[str, str], float]:
    found: dict[tuple[str, str], list[float]] = {}
    for (first, second), slowdowns in pairs:
        found.setdefault((first, second), []).append(1.0 / slowdowns[0])
        found.setdefault((second, first), []).append(1.0 / slowdowns[1])
    return {pair: stats.mean(speeds) for pair, speeds in found.items()}


def activity_of(key: str, workloads: Mapping[str, WorkloadAlone]) -> GpuActivity:
    """What the predictor knows of a workload."""
    found = workloads.get(key)
    if found is None:
        return GpuActivity(key)
    return GpuActivity(key, found.smact, found.smocc, found.drama, found.memory_bytes, found.gpu_memory_bytes)


def _effects(pairs: Sequence[GroupSlowdowns], workloads: Mapping[str, WorkloadAlone]) -> dict[str, FittedEffects]:
    """The most likely effects, by coordinate descent on the normal equations, which converges (they are definite).

    Each observation is `log slowdown - log prior = victim + aggressor + noise`.
    """
    observations: list[tuple[str, str, float]] = []
    for keys, slowdowns in pairs:
        activities = [activity_of(key, workloads) for key in keys]
        prior = prior_slowdowns(activities, smacts_or_assumed(activities))
        for i, partner in ((0, 1), (1, 0)):
            observations.append((keys[i], keys[partner], math.log(slowdowns[i] / prior[i])))
    names = sorted({name for victim, partner, _ in observations for name in (victim, partner)})
    values = {(role, name): 0.0 for role in ("victim", "aggressor") for name in names}
    ridge = (MEASUREMENT_STD / PRIOR_STD) ** 2
    seen: dict[tuple[str, str], list[tuple[tuple[str, str], float]]] = {key: [] for key in values}
    for name, other_name, surprise in observations:
        seen["victim", name].append((("aggressor", other_name), surprise))
        seen["aggressor", other_name].append((("victim", name), surprise))
    for _ in range(MAX_SWEEPS):
        moved = 0.0
        for key, found in seen.items():
            new = math.fsum(surprise - values[other] for other, surprise in found) / (len(found) + ridge)
            moved = max(moved, abs(new - values[key]))
            values[key] = new
        if moved < TOLERANCE:
            break
    return {
        name: FittedEffects(
            victim=values["victim", name],
            victim_variance=MEASUREMENT_STD**2 / (len(seen["victim", name]) + ridge),
            aggressor=values["aggressor", name],
            aggressor_variance=MEASUREMENT_STD**2 / (len(seen["aggressor", name]) + ridge),
        )
        for name in names
    }


def _predicted(group: GroupSlowdowns, table: SharingTable, workloads: Mapping[str, WorkloadAlone]) -> tuple[float, ...]:
    """The slowdowns that the daemon's predictor gives for a group with this table."""
    whole = InterferenceTable(
        gpu="", is_simulated=False, provenance={}, workloads=workloads, ways={"time-sliced": table}
    )
    return LearnedInterference(whole).slowdowns([activity_of(key, workloads) for key in group.workloads])


def _median(rows: Sequence[Row], column: str) -> float | None:
    values = [float(row[column]) for row in rows if row[column]]
    return stats.median(values) if values else None
