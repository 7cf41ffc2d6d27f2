"""What collocation brought: throughput against serial, slowdowns, memory and activity, and the guidelines on it."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from cotenant.core.stats import mean, mean_of_known, median
from cotenant.core.units import format_bytes
from cotenant.measurement.collocation import INTERRUPTED
from cotenant.measurement.job_list import ALONE, group_text
from cotenant.reporting.charts import Bar, bars
from cotenant.reporting.page import Page
from cotenant.study.chapter4 import TONES, add_figures
from cotenant.study.guidelines import CollocationRow, judge_guidelines, published_collocations

Row = Mapping[str, str]

PAIRS_HEAD = (
    "# Speed of each of two jobs on one GPU, as a part of its speed alone. Measured by `cotenant study collocate`.\n"
)


class GroupResult(NamedTuple):
    """A group of jobs under one way to share; the mean of its repeats.

    Attributes:
        until: when the group ends, as in `JobGroup`.
        gain: work per time over that of the same jobs in turn: with fixed work and no refill, the time in turn over
            that of the group, else the sum of the jobs' speeds; None where a job has no step time.
        slowdowns: of each job, in order.
        smact, power_w: of the GPU; `energy_ratio`: energy over that of the same steps of the jobs in turn.
        problem: why there are no figures; empty if there are.
    """

    jobs: tuple[str, ...]
    sharing: str
    repeats: int
    gain: float | None
    slowdowns: tuple[float, ...]
    memory_bytes: float | None
    memory_sum_bytes: float | None
    smact: float | None
    smact_sum: float | None
    power_w: float | None
    energy_ratio: float | None
    problem: str
    until: str = "seconds"
    host_cpu_cores: float | None = None
    pcie_rx_bytes_s: float | None = None
    makespan_s: float | None = None


def results_of(rows: Sequence[Row]) -> list[GroupResult]:
    """The groups in the order of their first rows; jobs alone are not among them."""
    alone: dict[str, list[Row]] = {}
    runs: dict[tuple[str, str, str], dict[str, list[Row]]] = {}
    for row in completed_rows(rows):
        if row["sharing"] == ALONE:
            alone.setdefault(row["job"], []).append(row)
        else:
            key = (row["group"], row["sharing"], row["until"])
            runs.setdefault(key, {}).setdefault(row["repeat"], []).append(row)
    return [_result(sharing, until, list(repeats.values()), alone) for (_, sharing, until), repeats in runs.items()]


def completed_rows(rows: Sequence[Row]) -> list[Row]:
    """The rows without those of interrupted runs that were made again."""
    again = {_run_key(row) for row in rows if row["outcome"] != INTERRUPTED}
    return [row for row in rows if row["outcome"] != INTERRUPTED or _run_key(row) not in again]


def _run_key(row: Row) -> tuple[str, ...]:
    return (row["group"], row["sharing"], row["until"], row["repeat"])


def _result(sharing: str, until: str, runs: Sequence[Sequence[Row]], alone: Mapping[str, Sequence[Row]]) -> GroupResult:
    jobs = tuple(row["job"] for row in sorted(runs[0], key=lambda row: int(row["position"])))
    complete = [
        sorted(run, key=lambda row: int(row["position"])) for run in runs if all(row["slowdown"] for row in run)
    ]
    slowdowns = (
        tuple(mean([float(run[i]["slowdown"]) for run in complete]) for i in range(len(jobs))) if complete else ()
    )
    problems = [
        f"{row['job']}: {row['outcome']} {row['message']}".strip() for run in runs for row in run if not row["step_s"]
    ]
    powers = [_alone(alone, job, "power_w") for job in jobs]
    power_w = mean_of_known(_number(run[0]["power_w"]) for run in complete)
    gain = sum(1.0 / slowdown for slowdown in slowdowns) if slowdowns else None
    makespan_s = None
    if until == "steps" and complete:
        makespan_s = mean([max(float(row["run_s"]) for row in run) for run in complete])
        in_turn_s = mean([sum(float(row["steps_run"]) * float(row["alone_step_s"]) for row in run) for run in complete])
        gain = in_turn_s / makespan_s
    return GroupResult(
        jobs=jobs,
        sharing=sharing,
        repeats=len(complete),
        gain=gain,
        slowdowns=slowdowns,
        until=until,
        makespan_s=makespan_s,
        host_cpu_cores=mean_of_known(_sum([_number(row["host_cpu_cores"]) for row in run]) for run in complete),
        pcie_rx_bytes_s=mean_of_known(_number(run[0]["pcie_rx_bytes_s"]) for run in complete),
        memory_bytes=mean_of_known(_number(run[0]["peak_device_bytes"]) for run in complete),
        memory_sum_bytes=_sum([_alone(alone, job, "peak_device_bytes") for job in jobs]),
        smact=mean_of_known(_number(run[0]["smact"]) for run in complete),
        smact_sum=_sum([_alone(alone, job, "smact") for job in jobs]),
        power_w=power_w,
        energy_ratio=_energy_ratio(power_w, slowdowns, powers),
        problem="" if complete else "; ".join(dict.fromkeys(problems)) or "not run",
    )


def _energy_ratio(power_w: float | None, slowdowns: Sequence[float], alone_w: Sequence[float | None]) -> float | None:
    """Energy of one second of the group over that of the same work in turn.

    In a second, job i does the work of 1 / slowdown_i seconds alone, for which it takes its power alone.
    """
    known = [watts for watts in alone_w if watts is not None]
    if power_w is None or not slowdowns or len(known) < len(alone_w):
        return None
    in_turn = sum(watts / slowdown for watts, slowdown in zip(known, slowdowns, strict=True))
    return power_w / in_turn if in_turn > 0 else None


def _alone(alone: Mapping[str, Sequence[Row]], job: str, column: str) -> float | None:
    values = [value for row in alone.get(job, ()) if (value := _number(row[column])) is not None]
    return median(values) if values else None


def _sum(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if len(known) == len(values) else None


def _number(text: str) -> float | None:
    return float(text) if text else None


def as_collocation_rows(results: Sequence[GroupResult], source: str) -> list[CollocationRow]:
    """Results as rows for the guidelines."""
    return [
        CollocationRow(
            jobs=result.jobs,
            sharing=result.sharing.partition(":")[0],
            gain=result.gain,
            slowdown=max(result.slowdowns),
            smact_sum=result.smact_sum,
            memory_sum_bytes=result.memory_sum_bytes,
            memory_bytes=result.memory_bytes,
            energy_ratio=result.energy_ratio,
            source=source,
        )
        for result in results
        if result.slowdowns
    ]


def write_pairs(results: Sequence[GroupResult], path: Path, *, sharing: str = "time-sliced") -> Path | None:
    """Write the measured pairs as `cotenant simulate --pairs` reads them; None if there are none."""
    pairs = [
        result
        for result in results
        if len(result.slowdowns) == 2 and result.sharing == sharing and result.until != "steps"
    ]
    if not pairs:
        return None
    with path.open("w", newline="", encoding="utf-8") as file:
        file.write(PAIRS_HEAD)
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("first", "second", "speed_first", "speed_second"))
        for result in pairs:
            writer.writerow((*result.jobs, *(f"{1.0 / slowdown:.4f}" for slowdown in result.slowdowns)))
    return path


HEAD = ("group", "sharing", "until", "repeats", "gain", "slowdowns", "SMACT", "memory", "sum alone", "power", "energy")


def table_cells(result: GroupResult) -> tuple[str, ...]:
    """A row of the table, as text."""
    return (
        group_text(result.jobs),
        result.sharing,
        result.until,
        str(result.repeats),
        "" if result.gain is None else f"{result.gain:.2f}",
        " ".join(f"{slowdown:.2f}" for slowdown in result.slowdowns),
        "" if result.smact is None else f"{result.smact:.2f}",
        "" if result.memory_bytes is None else format_bytes(round(result.memory_bytes)),
        "" if result.memory_sum_bytes is None else format_bytes(round(result.memory_sum_bytes)),
        "" if result.power_w is None else f"{result.power_w:.0f} W",
        "" if result.energy_ratio is None else f"{result.energy_ratio:.2f}",
    )


def write_report(rows: Sequence[Row], path: Path) -> Path:
    """Write the page: the table, gains by way to share, the guidelines on these and on published rows, the figures."""
    page = Page("What collocation brings")
    gpus = ", ".join(dict.fromkeys(row["gpu"] or "no GPU that a driver reads" for row in rows))
    page.lead(
        (f"Rows of: {gpus}. " if gpus else "Nothing was measured. ")
        + "Gain: work per time over that of the same jobs in turn, so 2.00 for two jobs that do not slow each other "
        "down. Energy: over that of the same work in turn."
    )
    results = results_of(rows)
    measured = [result for result in results if not result.problem]
    if measured:
        page.table(HEAD, [table_cells(result) for result in measured])
        found = [
            Bar(
                f"{group_text(result.jobs)}, {result.sharing}",
                TONES[result.sharing.partition(":")[0]],
                result.gain or 0.0,
            )
            for result in measured
        ]
        page.figure(bars(found, unit="", width=900), "Gain of each group; 1 is the same jobs in turn")
    if len(measured) < len(results):
        page.heading("Not measured")
        page.items(f"{group_text(r.jobs)}, {r.sharing}: {r.problem}" for r in results if r.problem)
    published = published_collocations()
    if measured:
        page.heading("Guidelines (thesis, 4.3.5) on these rows")
        page.items(found.text for found in judge_guidelines(as_collocation_rows(results, gpus)))
    page.heading("Guidelines on published rows: AEGIS' pairs on an A100, and the thesis")
    page.items(found.text for found in judge_guidelines(published))
    add_figures(page, completed_rows(rows), path.parent, published)
    return page.write(path)
