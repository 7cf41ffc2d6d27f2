"""Figure 3.1 of the thesis, published and measured, and what each metric says of a kernel."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from cotenant.core import stats
from cotenant.reporting.page import Page
from cotenant.reporting.plots import heatmap

PUBLISHED = Path(__file__).parent / "published" / "metrics.csv"
RATIOS = {
    "utilization": "utilization (nvidia-smi)",
    "gract": "GRACT",
    "smact": "SMACT",
    "smocc": "SMOCC",
    "tensor": "tensor activity",
    "fp32": "FP32 activity",
    "drama": "DRAM activity",
}
UNUSED = 0.05
"""A unit whose activity stays below this is not used: DCGM counts a few percent for other instructions."""

Row = Mapping[str, str]


class Verdict(NamedTuple):
    """What a metric says.

    Attributes:
        smallest: its value at one thread in one block; None if that was not measured.
        by_blocks, by_threads: rank correlation with the blocks at the same threads, and with the threads at the same
            blocks, in the mean; None where the metric never differs.
        text: the sentence of the report.
    """

    metric: str
    smallest: float | None
    by_blocks: float | None
    by_threads: float | None
    text: str


def published_rows() -> list[dict[str, str]]:
    """The 87 launch shapes of PMDLT, as rows of a study."""
    with PUBLISHED.open(newline="", encoding="utf-8") as file:
        return [
            {**row, "kernel": "square", "duty": "1.0", "source": "published", "outcome": "ok"}
            for row in csv.DictReader(file)
        ]


def verdicts(rows: Sequence[Row]) -> list[Verdict]:
    """A verdict on each metric that the rows have, of one kernel and one source."""
    found = []
    for metric, title in RATIOS.items():
        known = {(int(row["blocks"]), int(row["threads"])): float(row[metric]) for row in rows if row.get(metric)}
        if not known:
            continue
        by_blocks = _mean_correlation(known, fixed=1)
        by_threads = _mean_correlation(known, fixed=0)
        smallest = known.get((1, 1))
        text = f"{title} {_sentence(smallest, max(known.values()), by_blocks, by_threads)}"
        found.append(Verdict(metric, smallest, by_blocks, by_threads, text))
    return found


def _sentence(smallest: float | None, largest: float, by_blocks: float | None, by_threads: float | None) -> str:
    if largest < UNUSED:
        return f"stays below {UNUSED:g}: this kernel does not use it."
    if smallest is not None and smallest >= 0.5:
        return f"is {smallest:.2f} for a single thread: it says that something runs, not how much."
    if by_blocks is None and by_threads is None:
        return "has the same value for every launch."
    blocks, threads = by_blocks or 0.0, by_threads or 0.0
    if max(blocks, threads) < 0.5:
        return "follows neither the blocks nor the threads of this kernel."
    leading = "blocks and threads" if min(blocks, threads) >= 0.5 else "blocks" if blocks > threads else "threads"
    return f"follows {leading} (rank correlation {blocks:.2f} with blocks, {threads:.2f} with threads)."


def _mean_correlation(known: Mapping[tuple[int, int], float], *, fixed: int) -> float | None:
    """Mean over the values of one coordinate of the correlation of the metric with the other."""
    groups: dict[int, list[tuple[int, float]]] = {}
    for shape, value in known.items():
        groups.setdefault(shape[fixed], []).append((shape[1 - fixed], value))
    found = [rank_correlation(points) for points in groups.values() if len(points) > 2]
    known_ones = [value for value in found if value is not None]
    return stats.mean(known_ones) if known_ones else None


def rank_correlation(points: Sequence[tuple[float, float]]) -> float | None:
    """Spearman's rank correlation, ties with their mean rank; None where one side has a single value."""
    first, second = (_ranks([point[side] for point in points]) for side in (0, 1))
    middle = (len(points) + 1) / 2
    across = sum((a - middle) * (b - middle) for a, b in zip(first, second, strict=True))
    spread = sum((a - middle) ** 2 for a in first) * sum((b - middle) ** 2 for b in second)
    return across / spread**0.5 if spread > 0 else None


def _ranks(values: Sequence[float]) -> list[float]:
    ordered = sorted(values)
    return [ordered.index(value) + (ordered.count(value) + 1) / 2 for value in values]


def write_report(rows: Sequence[Row], path: Path) -> Path:
    """Write the page: verdicts and a heat map of each metric, for the published rows and those measured."""
    page = Page("What GPU metrics say of a kernel")
    measured = [row for row in rows if row["outcome"] == "ok"]
    gpus = ", ".join(dict.fromkeys(row["gpu"] for row in measured)) or "nothing was measured"
    page.lead(f"Published: PMDLT (EuroMLSys 2023), A100-40GB, DCGM and nvidia-smi. Here: {gpus}.")
    _section(page, "Published, kernel `square`", published_rows())
    for key in dict.fromkeys((row["kernel"], row["duty"], row["source"], row["gpu"]) for row in measured):
        kernel, duty, source, gpu = key
        of_key = [row for row in measured if (row["kernel"], row["duty"], row["source"], row["gpu"]) == key]
        _section(page, f"Kernel `{kernel}`, duty {float(duty):g}, by {source}, {gpu}", of_key)
        timing = [(row["period_s"], row["lag_s"]) for row in of_key]
        texts = [_timing("renewed every", [period for period, _ in timing]), _timing("lag", [lag for _, lag in timing])]
        page.note("; ".join(text for text in texts if text) or "No value changed while it was read.")
    failed = [row for row in rows if row["outcome"] != "ok"]
    if failed:
        page.heading("Failed")
        page.items(f"{row['kernel']} {row['blocks']} x {row['threads']}: {row['message']}" for row in failed)
    return page.write(path)


def _timing(words: str, texts: Sequence[str]) -> str:
    known = [float(text) for text in texts if text]
    return f"{words} {stats.median(known):.2f} s in the median" if known else ""


def _section(page: Page, title: str, rows: Sequence[Row]) -> None:
    page.heading(title)
    page.items(verdict.text for verdict in verdicts(rows))
    blocks = sorted({int(row["blocks"]) for row in rows})
    threads = sorted({int(row["threads"]) for row in rows})
    maps = []
    for metric, caption in RATIOS.items():
        known = {(int(row["blocks"]), int(row["threads"])): float(row[metric]) for row in rows if row.get(metric)}
        if known:
            cells = [[known.get((block, thread), 0.0) for thread in threads] for block in blocks]
            labels = [[_label(known.get((block, thread))) for thread in threads] for block in blocks]
            drawn = heatmap(
                cells, labels=labels, cell=36, row_names=list(map(str, blocks)), column_names=list(map(str, threads))
            )
            maps.append((f"{caption}: blocks down, threads across", drawn))
    page.grid(maps)


def _label(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"
