"""Table 3.2 and figures 3.2 to 3.4 of the thesis from measured rows, beside the published values."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from cotenant.core import stats
from cotenant.core.units import format_bytes
from cotenant.reporting.charts import Bar, Line, bars, lines
from cotenant.reporting.page import Page, legend
from cotenant.reporting.style import tone
from cotenant.study.overhead import GPU_METRICS
from cotenant.study.paired import Ratio, paired_ratio
from cotenant.study.tools import MONITORING_TOOLS, NO_TOOL

PUBLISHED = Path(__file__).parent / "published" / "overhead.csv"

SAME_READING_S = 0.1
"""The tool is read after the job, at most this much later."""

GPU_TITLES = {"smact": "SM activity", "smocc": "SM occupancy", "drama": "DRAM activity", "power_w": "Power, W"}

Row = Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCost:
    """What a tool costs a job; None where nothing was measured.

    Attributes:
        epoch: seconds per epoch over those of the job alone in the same repeat.
        cpu: CPU time of job and tool over that of the job alone.
        rss_bytes: median of the tool's memory and of what it adds to the job's.
        after_s, output_bytes: medians.
        gpu: medians of `GPU_METRICS`.
        published: overhead of the thesis as a ratio less 1.
        missing: why the tool did not run; empty if it did.
    """

    job: str
    tool: str
    title: str
    epoch: Ratio | None
    epoch_s: float | None
    cpu: Ratio | None
    rss_bytes: float | None
    after_s: float | None
    output_bytes: float | None
    published: float | None
    missing: str
    gpu: Mapping[str, float | None]


def tool_costs(rows: Sequence[Row]) -> list[ToolCost]:
    """The costs by job and tool, in the order of their first rows."""
    published = published_overheads()
    costs = []
    for job in dict.fromkeys(row["job"] for row in rows):
        of_job = [row for row in rows if row["job"] == job]
        alone = {row["repeat"]: row for row in of_job if row["tool"] == NO_TOOL and row["outcome"] == "ok"}
        names = dict.fromkeys((NO_TOOL, *(row["tool"] for row in of_job)))
        for tool in sorted(names, key=_order):
            of_tool = [row for row in of_job if row["tool"] == tool]
            ended = [row for row in of_tool if row["outcome"] == "ok"]
            pairs = [(row, alone[row["repeat"]]) for row in ended if row["repeat"] in alone]
            costs.append(
                ToolCost(
                    job=job,
                    tool=tool,
                    title=MONITORING_TOOLS.get(tool).title if tool in MONITORING_TOOLS else tool,
                    epoch=paired_ratio([(float(row["epoch_s"]), float(base["epoch_s"])) for row, base in pairs]),
                    epoch_s=_median(row["epoch_s"] for row in ended),
                    cpu=paired_ratio([(cpu_s(row), cpu_s(base)) for row, base in pairs]),
                    rss_bytes=_median(str(rss_bytes(row) - rss_bytes(base)) for row, base in pairs),
                    after_s=_median(row["after_s"] for row in ended),
                    output_bytes=_median(row["output_bytes"] for row in ended),
                    published=published.get((job, tool)),
                    gpu={name: _median(row[name] for row in ended) for name in GPU_METRICS},
                    missing="" if ended else next((row["message"] for row in of_tool if row["message"]), "not run"),
                )
            )
    return costs


def published_overheads() -> dict[tuple[str, str], float]:
    """Overheads of table 3.2 by job and tool, as a ratio less 1."""
    with PUBLISHED.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    return {
        (job, row["tool"]): float(row[f"{job}_overhead"])
        for row in rows
        for job in ("light", "heavy")
        if row[f"{job}_overhead"]
    }


def cpu_s(row: Row) -> float:
    """CPU seconds of job and tool."""
    return float(row["cpu_s"] or 0.0) + float(row["tool_cpu_s"] or 0.0)


def rss_bytes(row: Row) -> float:
    """Peak resident memory of job and tool."""
    return float(row["peak_rss_bytes"] or 0.0) + float(row["tool_peak_rss_bytes"] or 0.0)


def _order(tool: str) -> int:
    names = MONITORING_TOOLS.builtin_names
    return names.index(tool) if tool in names else len(names)


def _median(texts: Iterable[str]) -> float | None:
    found = stats.median(float(text) for text in texts if text)
    return found if math.isfinite(found) else None


HEAD = ("tool", "s/epoch", "overhead", "95 % interval", "published", "CPU", "memory", "after", "output", "note")


def table_cells(cost: ToolCost) -> tuple[str, ...]:
    """A row of the table, as text."""
    if cost.missing:
        return (cost.title, *[""] * (len(HEAD) - 2), cost.missing)
    is_base = cost.tool == NO_TOOL
    return (
        cost.title,
        "" if cost.epoch_s is None else f"{cost.epoch_s:.3f}",
        "" if is_base or cost.epoch is None else _percent(cost.epoch.mean),
        "" if is_base else interval_text(cost.epoch),
        "" if is_base or cost.published is None else _percent(1.0 + cost.published),
        "" if is_base or cost.cpu is None else _percent(cost.cpu.mean),
        "" if is_base or cost.rss_bytes is None else format_bytes(max(0, round(cost.rss_bytes))),
        "" if cost.after_s is None else f"{cost.after_s:.1f} s",
        "" if is_base or cost.output_bytes is None else format_bytes(round(cost.output_bytes)),
        "",
    )


def interval_text(ratio: Ratio | None) -> str:
    """The interval of a ratio in percent; empty without one."""
    if ratio is None or ratio.low is None or ratio.high is None:
        return ""
    return f"{_percent(ratio.low)} to {_percent(ratio.high)}"


def _percent(ratio: float) -> str:
    return f"{100.0 * (ratio - 1.0):+.1f} %"


def write_report(rows: Sequence[Row], out: Path) -> Path:
    """Write `DIR/overhead.html`: the table, the overheads as bars, CPU time and memory over time."""
    page = Page("What monitoring costs a training job")
    devices = ", ".join(sorted({row["device"] for row in rows}))
    page.lead(f"Measured on {devices}. Overheads compare runs of the same repeat; published: thesis, table 3.2, A100.")
    costs = tool_costs(rows)
    for job in dict.fromkeys(cost.job for cost in costs):
        of_job = [cost for cost in costs if cost.job == job]
        page.heading(f"Job `{job}`")
        page.table(HEAD[:-1], [table_cells(cost)[:-1] for cost in of_job if not cost.missing])
        page.items(f"{cost.title}: {cost.missing}" for cost in of_job if cost.missing)
        tones = {cost.title: tone(index) for index, cost in enumerate(of_job)}
        measured = [
            Bar(
                name=cost.title,
                tone=tones[cost.title],
                value=max(0.0, 100.0 * (cost.epoch.mean - 1.0)),
                low=None if cost.epoch.low is None else max(0.0, 100.0 * (cost.epoch.low - 1.0)),
                high=None if cost.epoch.high is None else max(0.0, 100.0 * (cost.epoch.high - 1.0)),
                mark=None if cost.published is None else max(0.0, 100.0 * cost.published),
            )
            for cost in of_job
            if cost.epoch is not None and cost.tool != NO_TOOL
        ]
        page.figure(
            bars(measured, unit="%", width=620, whisker="95 % interval"),
            "Overhead in percent of an epoch; diamond: published",
        )
        page.grid([*_over_time(of_job, tones, out), *_gpu_metrics(of_job, tones)])
        page.paragraph(legend({cost.title: tones[cost.title] for cost in of_job if not cost.missing}))
    page.note("Below zero is drawn as zero; the interval says whether a difference is more than noise.")
    return page.write(out / "overhead.html")


def _gpu_metrics(costs: Sequence[ToolCost], tones: Mapping[str, str]) -> list[tuple[str, str]]:
    """Figure 3.4: each metric of the GPU by tool, as (caption, SVG); none on a CPU."""
    found = []
    for metric in GPU_METRICS:
        values = [(cost.title, cost.gpu[metric]) for cost in costs]
        measured = [Bar(title, tones[title], value) for title, value in values if value is not None]
        if measured:
            found.append((GPU_TITLES[metric], bars(measured, unit="", width=440)))
    return found


def _over_time(costs: Sequence[ToolCost], tones: Mapping[str, str], out: Path) -> list[tuple[str, str]]:
    """CPU use and resident memory of the first run of each tool, as (caption, SVG)."""
    cpu, memory = [], []
    for cost in costs:
        samples = read_samples(out / cost.job / f"{cost.tool}-1" / "samples.csv")
        cpu.append(Line(cost.title, tones[cost.title], cpu_use(samples)))
        memory.append(Line(cost.title, tones[cost.title], [(at_s, rss / 2**20) for at_s, _, rss in samples]))
    return [
        _chart("CPU use of job and tool, cores", cpu, "cores"),
        _chart("Resident memory of job and tool, MiB", memory, "MiB"),
    ]


def _chart(caption: str, found: Sequence[Line], y_label: str) -> tuple[str, str]:
    top = max((y for line in found for _, y in line.points), default=1.0) * 1.05 or 1.0
    return caption, lines(found, x_label="seconds from the job's start", y_label=y_label, top=top)


def read_samples(path: Path) -> list[tuple[float, float, float]]:
    """(seconds from the job's start, CPU seconds, resident bytes) of job and tool together."""
    if not path.exists():
        return []
    with path.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    by_process: dict[str, list[tuple[float, float, float]]] = {"job": [], "tool": []}
    for row in rows:
        by_process[row["process"]].append((float(row["at_s"]), float(row["cpu_s"]), float(row["rss_bytes"])))
    found = []
    for at_s, cpu, rss in by_process["job"]:
        beside = [sample for sample in by_process["tool"] if sample[0] <= at_s + SAME_READING_S]
        _, tool_cpu, tool_rss = beside[-1] if beside else (0.0, 0.0, 0.0)
        found.append((at_s, cpu + tool_cpu, rss + tool_rss))
    return found


def cpu_use(samples: Sequence[tuple[float, float, float]]) -> list[tuple[float, float]]:
    """(seconds, cores in use since the sample before)."""
    return [
        (after[0], max(0.0, after[1] - before[1]) / (after[0] - before[0]))
        for before, after in pairwise(samples)
        if after[0] > before[0]
    ]
