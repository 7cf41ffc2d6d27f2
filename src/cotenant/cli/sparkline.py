"""The past of GPUs as lines of blocks."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from cotenant.cli.output import Column
from cotenant.core.units import format_bytes, format_energy

UNICODE_BLOCKS = "▁▂▃▄▅▆▇█"
ASCII_BLOCKS = "_.-~=+*#"
"""The same where blocks cannot be written."""

CELLS = 60
COLUMNS = (
    Column(key="gpu", title="GPU", right=True),
    Column(key="measure", title="MEASURE"),
    Column(key="mean", title="MEAN", right=True),
    Column(key="most", title="MOST", right=True),
    Column(key="past", title="PAST"),
)


def sparkline(values: Sequence[float | None], most: float, *, blocks: str | None = None) -> str:
    """A character for each value, the last block at `most` and above; a blank where a value is not known."""
    shown = blocks or (UNICODE_BLOCKS if "utf" in (sys.stdout.encoding or "").lower() else ASCII_BLOCKS)
    top = len(shown) - 1
    return "".join(
        " " if each is None or most <= 0 else shown[min(top, max(0, round(top * each / most)))] for each in values
    )


def time_buckets(
    points: Iterable[Mapping[str, Any]], key: str, *, since_s: float, until_s: float, count: int
) -> list[float | None]:
    """Means of `key` over `count` equal stretches of time, weighed by the time of the points; None without any."""
    width_s = (until_s - since_s) / count
    sums, weights = [0.0] * count, [0.0] * count
    for each in points:
        value = each[key]
        if value is None:
            continue
        begin_s, end_s = each["at_s"], each["at_s"] + max(each["seconds"], 1e-3)
        first, last = (int((at_s - since_s) / width_s) for at_s in (begin_s, end_s))
        for index in range(max(0, first), min(count - 1, last) + 1):
            low_s = since_s + index * width_s
            overlap_s = min(end_s, low_s + width_s) - max(begin_s, low_s)
            if overlap_s > 0:
                sums[index] += value * overlap_s
                weights[index] += overlap_s
    return [total / weight if weight else None for total, weight in zip(sums, weights, strict=True)]


def weighted_mean(points: Iterable[Mapping[str, Any]], key: str) -> float | None:
    """Of `key`, weighed by time; None where it was never read."""
    known = [(each[key], max(each["seconds"], 1e-3)) for each in points if each[key] is not None]
    weight = sum(seconds for _, seconds in known)
    return sum(value * seconds for value, seconds in known) / weight if weight else None


def history_rows(gpu: Mapping[str, Any], *, since_s: float, until_s: float) -> list[dict[str, str]]:
    """Memory, SM activity, power and energy of one GPU."""
    points = gpu["points"]
    powers = [each["power_w"] for each in points if each["power_w"] is not None]
    spent = [each["energy_j"] for each in points if each["energy_j"] is not None]
    seen = max((each["max_bytes"] for each in points if each["max_bytes"] is not None), default=None)
    activity = [each["smact"] for each in points if each["smact"] is not None]

    def line(key: str, most: float) -> str:
        return sparkline(time_buckets(points, key, since_s=since_s, until_s=until_s, count=CELLS), most)

    used, smact, power_w = (weighted_mean(points, key) for key in ("used_bytes", "smact", "power_w"))
    told = [
        ("memory", _bytes(used), _bytes(seen), line("used_bytes", gpu["memory_total_bytes"])),
        ("SMACT", _ratio(smact), _ratio(max(activity, default=None)), line("smact", 1.0)),
        ("power", _watts(power_w), _watts(max(powers, default=None)), line("power_w", max(powers, default=0.0))),
        ("energy", format_energy(sum(spent) if spent else None), "", ""),
    ]
    names = ("measure", "mean", "most", "past")
    return [{"gpu": str(gpu["index"]), **dict(zip(names, each, strict=True))} for each in told]


def _bytes(value: float | None) -> str:
    return format_bytes(None if value is None else int(value))


def _ratio(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _watts(value: float | None) -> str:
    return "-" if value is None else f"{value:.0f} W"
