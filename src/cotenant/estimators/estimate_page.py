"""An estimate as one HTML page: numbers, memory over time, what holds it at the peak, what would save some, what fits.

Nothing is loaded from elsewhere, so the page can be mailed, and Jupyter can show it.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from cotenant.core.estimate import Estimate
from cotenant.core.trace import CATEGORIES
from cotenant.core.units import GiB, format_bytes
from cotenant.estimators.allocation_history import AllocationHistory, allocation_history
from cotenant.estimators.fit import capability_of
from cotenant.estimators.whatif import notes_on, what_if
from cotenant.reporting.areas import Area, PhaseSpan, areas
from cotenant.reporting.charts import Bar, bars
from cotenant.reporting.page import Page, legend
from cotenant.reporting.style import tone

if TYPE_CHECKING:
    from cotenant.estimators.traced_result import TracedResult

MAX_MODULES = 25
_TONES = {name: tone(i) for i, name in enumerate(CATEGORIES)}


def estimate_page(result: TracedResult, title: str) -> Page:
    """The page of one estimate."""
    estimate, history = result.estimate, allocation_history(result.replay_input, result.capacity_bytes)
    page = Page(title)
    page.lead(f"{result.fit.sentence}{' (a lower bound)' if estimate.partial else ''}")
    _add_numbers(page, estimate)
    for warning in estimate.warnings:
        if not warning.startswith(result.fit.sentence):
            page.note(f"Warning: {warning}")
    _add_history(page, history, max(0, result.fit.usable_bytes - estimate.context_bytes))
    _add_peak(page, estimate, history)
    _add_changes(page, result)
    _add_fits(page, result)
    header = result.trace.header
    page.note(
        f"Estimator {estimate.estimator} {estimate.version}; {header.steps} optimizer steps, "
        f"{len(result.trace.events):,} events, torch {header.torch_version}."
    )
    return page


def _add_numbers(page: Page, estimate: Estimate) -> None:
    context = format_bytes(estimate.context_bytes)
    rows = [
        ("peak allocated", estimate.peak_allocated_bytes, "live tensors, rounded up to blocks"),
        ("peak reserved", estimate.peak_reserved_bytes, "held by the caching allocator"),
        ("device", estimate.device_bytes, f"what nvidia-smi shows: reserved plus {context} of CUDA context"),
        ("bound", estimate.bound_bytes, estimate.bound_meaning),
    ]
    cells = [(name, format_bytes(value), meaning) for name, value, meaning in rows]
    page.table(["", "Memory", "Meaning"], cells, prose=("Meaning",))


def _add_history(page: Page, history: AllocationHistory, usable_bytes: int) -> None:
    if not history.reserved_bytes:
        return
    layers = [
        Area(name, _TONES[name], [value / GiB for value in history.category_bytes[name]])
        for name in CATEGORIES
        if any(history.category_bytes[name])
    ]
    is_near = max(history.reserved_bytes) > 0.75 * usable_bytes
    chart = areas(
        layers,
        [value / GiB for value in history.reserved_bytes],
        phases=[PhaseSpan(first, name) for first, name in history.phases if name],
        limit=(usable_bytes / GiB, "memory of the GPU, less the context") if is_near else None,
        x_label="event of the trace",
        y_label="GiB",
    )
    page.heading("Memory over the traced steps")
    page.figure(chart, "Allocated by category; the line is what the allocator holds")
    page.paragraph(legend({layer.name: layer.tone for layer in layers}))


def _add_peak(page: Page, estimate: Estimate, history: AllocationHistory) -> None:
    """What holds the memory at the peak of allocated bytes, by category and by module."""
    parts = {name: value for name, value in estimate.breakdown_bytes.items() if value}
    if parts:
        page.heading("At the peak of allocated bytes")
        found = [Bar(name, _TONES.get(name, tone(9)), value / GiB) for name, value in parts.items()]
        page.figure(bars(sorted(found, key=lambda bar: -bar.value), unit="GiB", width=640), "By category, in GiB")
    modules = peak_by_module(history)
    if modules:
        rows = [(name, format_bytes(value)) for name, value in modules[:MAX_MODULES]]
        page.table(["Module of the script", "Requested"], rows)
        if len(modules) > MAX_MODULES:
            page.note(f"and {len(modules) - MAX_MODULES} modules with less")


def peak_by_module(history: AllocationHistory) -> list[tuple[str, int]]:
    """Requested bytes that are live at the peak of allocated bytes, by innermost module, largest first."""
    allocated = history.allocated_bytes
    if not allocated:
        return []
    peak = allocated.index(max(allocated))
    live: dict[int, tuple[str, int]] = {}
    for event in history.events[: peak + 1]:
        if event.action == "alloc":
            live[event.storage_id] = (event.module or "(outside of modules)", event.bytes)
        elif event.action == "free":
            live.pop(event.storage_id, None)
    found: Counter[str] = Counter()
    for module, size in live.values():
        found[module] += size
    return [(name, size) for name, size in found.most_common() if size]


def _add_changes(page: Page, result: TracedResult) -> None:
    changes = what_if(result)
    page.heading("What if")
    rows = [("as it is", format_bytes(result.fit.reserved_bytes), format_bytes(result.fit.bound_bytes), "")]
    rows += [
        (
            f"{change.name}{' *' if change.assumed else ''}",
            format_bytes(change.peak_reserved_bytes),
            format_bytes(change.bound_bytes),
            "no change" if not change.saves_bytes else format_bytes(change.saves_bytes),
        )
        for change in changes
    ]
    page.table(["Change", "Reserved", "Bound", "Saves"], rows)
    for line in notes_on(changes):
        page.note(line)


def _add_fits(page: Page, result: TracedResult) -> None:
    page.heading("Fits on")
    made_for = capability_of(result.trace)
    page.table(
        ["GPU", "Memory", "Bound", "Spare", "Verdict"],
        [
            (
                fit.gpu,
                format_bytes(fit.usable_bytes),
                format_bytes(fit.bound_bytes),
                format_bytes(fit.spare_bytes),
                fit.cell(made_for),
            )
            for fit in result.fits_on()
        ],
    )
