"""Compares the allocations of a trace with the allocator history of the real run.

Allocations are compared by requested size, in program order. Frees are not compared one by one, because the order of
neighboring frees is up to the interpreter; instead the bytes alive at every common allocation are compared.
"""

from __future__ import annotations

import gzip
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from cotenant.core.trace import MemoryEvent

WINDOW = 200
"""Maximum number of unmatched allocations on one side before the comparison is aborted."""

MATCH = 4
"""Consecutive allocations that must match to resynchronize."""

REORDERED = 8
"""Maximum length of a permuted run: operators allocate their outputs in any order."""


class Alloc(NamedTuple):
    """An allocation of either side.

    Attributes:
        live_bytes: requested bytes alive after this allocation.
        where: module (traced) or line of the script (recorded).
    """

    size: int
    live_bytes: int
    phase: str
    where: str


class Difference(NamedTuple):
    """A run of allocations that only one side has; indices into both lists."""

    traced_index: int
    recorded_index: int
    only_traced: tuple[Alloc, ...]
    only_recorded: tuple[Alloc, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Result of comparing two lists of allocations.

    Attributes:
        matched: allocations in both.
        differences: in order; the first is the first mismatch.
        gave_up_at: index in the recorded list at which the comparison was aborted; None if it was complete.
        drift: first matched allocation at which the bytes alive differ by more than `drift_limit_bytes`, as
            (traced, recorded); None if there is none.
        traced_peak_bytes, recorded_peak_bytes: most requested bytes alive at an allocation.
    """

    matched: int
    differences: tuple[Difference, ...]
    gave_up_at: int | None
    drift: tuple[Alloc, Alloc] | None
    traced_peak_bytes: int
    recorded_peak_bytes: int


def traced_allocs(events: Iterable[MemoryEvent]) -> list[Alloc]:
    """Allocations of a trace whose library calls were lowered. Empty storages do not reach the allocator."""
    live: dict[int, int] = {}
    total = 0
    found = []
    for event in events:
        if event.action == "alloc" and event.bytes:
            live[event.storage_id] = event.bytes
            total += event.bytes
            where = event.module or ("" if event.category == "temporary" else event.category)
            found.append(Alloc(event.bytes, total, event.phase, f"{where} ({event.category})"))
        elif event.action == "free":
            total -= live.pop(event.storage_id, 0)
    return found


def recorded_allocs(history: Mapping[str, Any]) -> list[Alloc]:
    """Allocations of a `history.json.gz`."""
    texts, columns = history["texts"], history["columns"]
    marks = list(history["marks"])
    phase = "load"
    live: dict[int, int] = {}
    total = 0
    found = []
    rows = zip(columns["action"], columns["address"], columns["size"], columns["time_us"], columns["line"], strict=True)
    for action, address, size, time_us, line in rows:
        while marks and marks[0][1] <= time_us:
            phase = marks.pop(0)[0]
        if texts[action] == "alloc":
            live[address] = size
            total += size
            found.append(Alloc(size, total, phase, texts[line]))
        elif texts[action] == "free_requested":
            total -= live.pop(address, 0)
    return found


def read_history(path: Path) -> dict[str, Any]:
    """Read the columns that the probe wrote."""
    with gzip.open(path, "rt", encoding="utf-8") as file:
        history: dict[str, Any] = json.load(file)
    return history


def compare(traced: Sequence[Alloc], recorded: Sequence[Alloc], *, drift_limit_bytes: int = 2**20) -> Comparison:
    """Walk both lists in step and resynchronize after every difference."""
    differences = []
    drift = None
    gave_up_at = None
    i = j = matched = 0
    while i < len(traced) and j < len(recorded):
        if traced[i].size == recorded[j].size:
            if drift is None and abs(traced[i].live_bytes - recorded[j].live_bytes) > drift_limit_bytes:
                drift = (traced[i], recorded[j])
            i, j, matched = i + 1, j + 1, matched + 1
            continue
        swapped = _reordered(traced, recorded, i, j)
        if swapped:
            i, j, matched = i + swapped, j + swapped, matched + swapped
            continue
        step = _back_in_step(traced, recorded, i, j)
        if step is None:
            differences.append(Difference(i, j, tuple(traced[i : i + 5]), tuple(recorded[j : j + 5])))
            gave_up_at = j
            break
        differences.append(Difference(i, j, tuple(traced[i : i + step[0]]), tuple(recorded[j : j + step[1]])))
        i, j = i + step[0], j + step[1]
    return Comparison(
        matched=matched,
        differences=tuple(differences),
        gave_up_at=gave_up_at,
        drift=drift,
        traced_peak_bytes=max((alloc.live_bytes for alloc in traced), default=0),
        recorded_peak_bytes=max((alloc.live_bytes for alloc in recorded), default=0),
    )


def _reordered(traced: Sequence[Alloc], recorded: Sequence[Alloc], i: int, j: int) -> int:
    """Length of the shortest run from here that is a permutation of the other side's; 0 if there is none."""
    for count in range(2, REORDERED + 1):
        ours, theirs = traced[i : i + count], recorded[j : j + count]
        if len(ours) < count or len(theirs) < count:
            return 0
        if Counter(alloc.size for alloc in ours) == Counter(alloc.size for alloc in theirs):
            return count
    return 0


def _back_in_step(traced: Sequence[Alloc], recorded: Sequence[Alloc], i: int, j: int) -> tuple[int, int] | None:
    """The smallest numbers of allocations to skip on both sides so that the next `MATCH` agree."""
    for total in range(1, WINDOW + 1):
        for a in range(total + 1):
            b = total - a
            ours = [alloc.size for alloc in traced[i + a : i + a + MATCH]]
            theirs = [alloc.size for alloc in recorded[j + b : j + b + MATCH]]
            if ours and ours == theirs:
                return a, b
    return None


def describe(found: Comparison) -> list[str]:
    """The comparison as text; sizes are exact bytes, so that tensors can be recognized."""
    peaks = f"traced {found.traced_peak_bytes}, recorded {found.recorded_peak_bytes}"
    lines = [
        f"{found.matched} allocations match, {len(found.differences)} differences; peak live bytes: {peaks}",
    ]
    for difference in found.differences[:3]:
        lines.append(f"  at traced {difference.traced_index}, recorded {difference.recorded_index}:")
        lines += [f"    only traced    {one.size:>12} {one.phase:<9} {one.where}" for one in difference.only_traced[:4]]
        lines += [
            f"    only recorded  {one.size:>12} {one.phase:<9} {one.where}" for one in difference.only_recorded[:4]
        ]
    sums: Counter[tuple[str, int]] = Counter()
    for difference in found.differences:
        sums.update(("only traced", one.size) for one in difference.only_traced)
        sums.update(("only recorded", one.size) for one in difference.only_recorded)
    if len(found.differences) > 3:
        lines.append("  most frequent: " + "; ".join(f"{n} x {who} {size}" for (who, size), n in sums.most_common(5)))
    if found.drift is not None:
        ours, theirs = found.drift
        lines.append(
            f"  live bytes diverge at an allocation of {ours.size} ({ours.phase}, {ours.where}): "
            f"traced {ours.live_bytes}, recorded {theirs.live_bytes}"
        )
    if found.gave_up_at is not None:
        lines.append(f"  not compared after recorded {found.gave_up_at}")
    return lines
