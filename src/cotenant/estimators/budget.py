"""Checks of an estimate, for CI: is it within a budget, and is it more than a guess?"""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from cotenant.core.errors import UsageError
from cotenant.core.text import printable
from cotenant.core.trace import CATEGORIES, part_of
from cotenant.core.units import MiB, format_bytes
from cotenant.estimators.fit import COMPILED

if TYPE_CHECKING:
    from cotenant.estimators.traced_result import TracedResult

_MAX_LINES = 10
_MIN_CHANGE_BYTES = MiB


@dataclass(frozen=True, slots=True, kw_only=True)
class Baseline:
    """An earlier estimate, for comparison: its bound, and its requested bytes at the peak as of `parts_at_peak`."""

    bound_bytes: int
    parts: Mapping[str, int]

    @classmethod
    def read(cls, path: Path) -> Baseline:
        """The estimate that `cotenant estimate --json` printed into a file.

        Raises:
            UsageError: it cannot be read, or is not such an estimate.
        """
        try:
            found = json.loads(path.read_bytes())
        except OSError as error:
            raise UsageError(f"cannot read the baseline `{path}`: {(error.strerror or '').lower()}") from error
        except (ValueError, RecursionError):
            found = None  # reported below
        parts, bound = (found.get("parts_at_peak"), found.get("bound_bytes")) if isinstance(found, dict) else (None, 0)
        if not isinstance(parts, dict) or not all(type(size) is int and size >= 0 for size in (bound, *parts.values())):
            raise UsageError(
                f"`{path}` is no baseline: it has no `bound_bytes` and `parts_at_peak` in bytes",
                hint="wanted: what `cotenant estimate SCRIPT --json` printed for a script that was traced",
            )
        return cls(bound_bytes=int(bound or 0), parts=parts)


def change_report(result: TracedResult, baseline: Baseline) -> str:
    """How the bound and what is held at the peak differ from an earlier estimate's; several lines."""
    now, before = result.estimate.bound_bytes, baseline.bound_bytes
    sign = "-" if now < before else "+"
    head = (
        f"since the baseline: bound {format_bytes(before)} -> {format_bytes(now)} "
        f"({sign}{format_bytes(abs(now - before))}); changed at the peak:"
    )
    return "\n".join([head, *_part_lines(result, baseline.parts)])


def doubts(result: TracedResult, ratio: float) -> tuple[str, ...]:
    """Why the bound is not known to within `ratio` of itself; empty if it is.

    The margin covers guessed workspaces, the range of the reserved bytes, the context and NCCL. What a margin does not
    cover counts always: an estimate that is a lower bound, and code that runs otherwise on a GPU.
    """
    estimate, found = result.estimate, []
    if estimate.partial:
        found.append("a part of the script was not traced: the estimate is a lower bound")
    if estimate.eager:
        found.append("compiled code was traced eagerly: the estimate is an upper bound")
    kinds = result.trace.header.runs_otherwise
    found += [f"code of kind `{kind}` was left out" for kind in kinds if kind != COMPILED]
    if estimate.margin_bytes > ratio * estimate.bound_bytes:
        margin, share = format_bytes(estimate.margin_bytes), estimate.margin_bytes / estimate.bound_bytes
        found.append(f"the margin of {margin} is {share:.1%} of the bound, wanted at most {ratio:.1%}")
    return tuple(found)


def parts_at_peak(result: TracedResult) -> dict[str, int]:
    """Requested bytes at the peak by `category module`, largest first; the module is the one that allocated them."""
    sizes: dict[int, tuple[str, int]] = {}
    last = result.replay.peak_event_index
    for event in itertools.islice(result.replay_input.events, None if last is None else last + 1):
        if event.action == "alloc":
            sizes[event.storage_id] = part_of(event.category, event.module), event.bytes
        elif event.action == "free":
            sizes.pop(event.storage_id, None)
    parts: Counter[str] = Counter()
    for name, nbytes in sizes.values():
        parts[name] += nbytes
    return dict(parts.most_common())


def budget_report(result: TracedResult, limit_bytes: int, before: Mapping[str, int] | None = None) -> str:
    """Why an estimate exceeds a budget; empty if its bound does not.

    The lines after the first name the categories, and then the largest parts at the peak with the script's lines that
    allocate them; or, with the parts `before`, the categories and parts that changed most.
    """
    bound = result.estimate.bound_bytes
    if bound <= limit_bytes:
        return ""
    what = "changed at the peak" if before is not None else "at the peak"
    head = f"needs {format_bytes(bound)} with its margin, the budget is {format_bytes(limit_bytes)}; {what}:"
    return "\n".join([head, *_part_lines(result, before)])


def _part_lines(result: TracedResult, before: Mapping[str, int] | None) -> list[str]:
    """The categories and the largest parts at the peak; or, with the parts `before`, those that changed most."""
    parts, old = parts_at_peak(result), before or {}
    changes = {name: parts.get(name, 0) - old.get(name, 0) for name in {**parts, **old}}
    categories: Counter[str] = Counter()
    for name, change in changes.items():
        categories[_category_of(name)] += change
    signed = before is not None
    lines = [f"  {text}" for text in _largest(categories, {}, signed=signed)]
    lines += [f"    {text}" for text in _largest(changes, result.trace.header.lines, signed=signed)]
    return lines or ["  no part changed by 1 MiB or more"]


def _largest(changes: Mapping[str, int], places: Mapping[str, str], *, signed: bool) -> list[str]:
    """The largest of `changes` by name, in bytes, with their lines; those below 1 MiB are left out."""
    ordered = sorted(changes.items(), key=lambda item: (-abs(item[1]), item[0]))
    large = [(name, change) for name, change in ordered if abs(change) >= _MIN_CHANGE_BYTES][:_MAX_LINES]
    found = []
    for name, change in large:
        sign = ("+" if change > 0 else "-") if signed else ""
        place = f"  ({places[name]})" if name in places else ""
        found.append(f"{sign}{format_bytes(abs(change)):>{11 - len(sign)}}  {printable(name + place)}")
    return found


def _category_of(part: str) -> str:
    return next((category for category in CATEGORIES if f"{part} ".startswith(f"{category} ")), part)
