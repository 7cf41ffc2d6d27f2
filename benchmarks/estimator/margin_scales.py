"""Compares ways to scale the margin of networks with convolutions (decision 0011).

A way is a scale, and whether its margin is added to the interval or is an alternative to it. Each way is evaluated on
rows that were not used for its quantile; in the last row of the table they were not used to choose the way, either.
"""

from __future__ import annotations

import itertools
import random
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from cotenant.core.units import MiB
from cotenant.estimators.margin import FAMILIES, quantile

FOLDS = 5
COVERAGES = (0.95, 0.98, 0.99)


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """A measured network: see `margins.Scored` and `ReservedRange.split_bytes`."""

    network: str
    reserved_bytes: int
    spread_bytes: int
    split_bytes: int
    above_bytes: int
    device_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """Errors are counted in units of reserved bytes + a constant + a multiple of what split calls would add."""

    constant_mib: int
    split_weight: int
    on_top: bool = False

    @property
    def title(self) -> str:
        """Label of the table row."""
        split = f" + {self.split_weight} x split" if self.split_weight else ""
        return f"reserved + {self.constant_mib} MiB{split}, {'on top of' if self.on_top else 'or'} the interval"

    def scale_bytes(self, row: Network) -> int:
        return row.reserved_bytes + self.constant_mib * MiB + self.split_weight * row.split_bytes

    def score(self, row: Network) -> float:
        if self.on_top:
            return (row.above_bytes - row.spread_bytes) / self.scale_bytes(row)
        return row.above_bytes / self.scale_bytes(row) if row.above_bytes > row.spread_bytes else 0.0

    def margin_bytes(self, row: Network, score: float) -> float:
        beyond = score * self.scale_bytes(row)
        return max(0.0, row.spread_bytes + beyond) if self.on_top else max(row.spread_bytes, beyond)


BEFORE = Way(constant_mib=128, split_weight=0, on_top=True)
CONSTANTS_MIB = (128, 1024, 2048, 4096)
KNOWN, GUESSED = FAMILIES[1:]
SHIPPED = {
    KNOWN: Way(constant_mib=2048, split_weight=0, on_top=True),
    GUESSED: Way(constant_mib=1024, split_weight=4),
}
WAYS = {
    KNOWN: tuple(Way(constant_mib=constant, split_weight=0, on_top=True) for constant in CONSTANTS_MIB),
    GUESSED: tuple(
        Way(constant_mib=constant, split_weight=weight)
        for constant, weight in itertools.product(CONSTANTS_MIB, (0, 4, 8, 16))
    ),
}
"""Of each family, those that a way may be chosen from."""


def folds_of(rows: Sequence[Network]) -> Iterator[tuple[list[Network], list[Network]]]:
    """(Training rows, held-out rows) of each fold; families of networks are held out whole, in a fixed random order."""
    networks = list(dict.fromkeys(row.network for row in rows))
    random.Random(0).shuffle(networks)
    for fold in range(FOLDS):
        out = set(networks[fold::FOLDS])
        yield [row for row in rows if row.network not in out], [row for row in rows if row.network in out]


def judged(way: Way, known: Sequence[Network], rows: Sequence[Network], coverage: float) -> list[tuple[bool, float]]:
    """(Whether the peak exceeds the bound, margin / estimate) of `rows`, with the quantile of `known`."""
    score, _ = quantile(sorted(way.score(row) for row in known), coverage)
    margins = [way.margin_bytes(row, score) for row in rows]
    return [(row.above_bytes > margin, margin / row.device_bytes) for row, margin in zip(rows, margins, strict=True)]


def by_way(way: Way, rows: Sequence[Network], coverage: float) -> list[tuple[bool, float]]:
    """Cross-validated results of all `rows`."""
    return [result for known, fold in folds_of(rows) for result in judged(way, known, fold, coverage)]


def chosen(ways: Sequence[Way], rows: Sequence[Network], coverage: float) -> Way:
    """The way with the smallest mean margin in cross-validation."""
    return min(ways, key=lambda way: statistics.fmean(margin for _, margin in by_way(way, rows, coverage)))


def nested(ways: Sequence[Way], rows: Sequence[Network], coverage: float) -> list[tuple[bool, float]]:
    """Results of all `rows`, each with the way and the quantile chosen on the other folds."""
    return [
        result
        for known, fold in folds_of(rows)
        for result in judged(chosen(ways, known, coverage), known, fold, coverage)
    ]


def scale_lines(family: str, rows: Sequence[Network]) -> list[str]:
    """A table of the ways for a family with convolutions; empty if there are too few rows for nested validation."""
    if len(rows) < FOLDS**2:
        return []
    ways = WAYS[family]
    head = " | ".join(f"{coverage:.0%}: above the bound | mean margin" for coverage in COVERAGES)
    lines = ["", f"{family.capitalize()}, {len(rows)} rows, by scale of the errors:", ""]
    lines += [f"| scale | {head} |", "| --- |" + " ---: |" * (2 * len(COVERAGES))]
    for way in dict.fromkeys((BEFORE, ways[0], SHIPPED[family], *ways)):
        lines.append(_line(way.title, [by_way(way, rows, coverage) for coverage in COVERAGES]))
    last = f"best of those with `{'on top of' if SHIPPED[family].on_top else 'or'}`, chosen on the other folds"
    lines.append(_line(last, [nested(ways, rows, coverage) for coverage in COVERAGES]))
    return lines


def _line(title: str, columns: Sequence[Sequence[tuple[bool, float]]]) -> str:
    cells = []
    for results in columns:
        missed = sum(above for above, _ in results)
        cells.append(
            f"{missed} ({missed / len(results):.1%}) | {statistics.fmean(margin for _, margin in results):.1%}"
        )
    return f"| {title} | " + " | ".join(cells) + " |"
