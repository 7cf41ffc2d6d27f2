"""Time series of GPUs as lines of blocks."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from cotenant.cli.output import Column
from cotenant.core.units import format_bytes, format_energy

UNICODE_BLOCKS = "▁▂▃▄▅▆▇█"
ASCII_BLOCKS = "_.-~=+*#"
"""The same for terminals without UTF-8."""

CELLS = 60
COLUMNS = (
    Column(key="gpu", title="GPU", right=True),
    Column(key="measure", title="MEASURE"),
    Column(key="mean", title="MEAN", right=True),
    Column(key="max", title="MAX", right=True),
    Column(key="history", title="HISTORY"),
)


def sparkline(values: Sequence[float | None], maximum: float, *, blocks: str | None = None) -> str:
    """One character for each value, the last block from `maximum` on; a blank where a value is unknown."""
    shown = blocks or (UNICODE_BLOCKS if "utf" in (sys.stdout.encoding or "").lower() else ASCII_BLOCKS)
    top = len(shown) - 1
    return "".join(
        " " if value is None or maximum <= 0 else shown[min(top, max(0, round(top * value / maximum)))]
        for value in values
    )


def time_buckets(
    points: Iterable[Mapping[str, Any]], key: str, *, since_s: float, until_s: float, count: int
) -> list[float | None]:
    """Means of `key` in `count` equal intervals, weighted by the time of the points; None without any."""
    width_s = (until_s - since_s) / count
    sums, weights = [0.0] * count, [0.0] * count
    for point in points:
        value = point[key]
        if value is None:
            continue
        begin_s, end_s = point["at_s"], point["at_s"] + max(point["seconds"], 1e-3)
        first, last = (int((at_s - since_s) / width_s) for at_s in (begin_s, end_s))
        for index in range(max(0, first), min(count - 1, last) + 1):
            low_s = since_s + index * width_s
            overlap_s = min(end_s, low_s + width_s) - max(begin_s, low_s)
            if overlap_s > 0:
                sums[index] += value * overlap_s
                weights[index] += overlap_s
    return [total / weight if weight else None for total, weight in zip(sums, weights, strict=True)]


def weighted_mean(points: Iterable[Mapping[str, Any]], key: str) -> float | None:
    """Mean of `key`, weighted by time; None if it was never read."""
    known = [(point[key], max(point["seconds"], 1e-3)) for point in points if point[key] is not None]
    weight = sum(seconds for _, seconds in known)
    return sum(value * seconds for value, seconds in known) / weight if weight else None


def history_rows(gpu: Mapping[str, Any], *, since_s: float, until_s: float) -> list[dict[str, str]]:
    """Memory, SM activity, power and energy of one GPU."""
    points = gpu["points"]
    powers, energies, peaks, activities = (
        [point[key] for point in points if point[key] is not None]
        for key in ("power_w", "energy_j", "max_bytes", "smact")
    )

    def line(key: str, maximum: float) -> str:
        return sparkline(time_buckets(points, key, since_s=since_s, until_s=until_s, count=CELLS), maximum)

    used, smact, power_w = (weighted_mean(points, key) for key in ("used_bytes", "smact", "power_w"))
    lines = [
        ("memory", _bytes(used), _bytes(max(peaks, default=None)), line("used_bytes", gpu["memory_total_bytes"])),
        ("SMACT", _ratio(smact), _ratio(max(activities, default=None)), line("smact", 1.0)),
        ("power", _watts(power_w), _watts(max(powers, default=None)), line("power_w", max(powers, default=0.0))),
        ("energy", format_energy(sum(energies) if energies else None), "", ""),
    ]
    names = ("measure", "mean", "max", "history")
    return [{"gpu": str(gpu["index"]), **dict(zip(names, cells, strict=True))} for cells in lines]


def _bytes(value: float | None) -> str:
    return format_bytes(None if value is None else int(value))


def _ratio(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _watts(value: float | None) -> str:
    return "-" if value is None else f"{value:.0f} W"
