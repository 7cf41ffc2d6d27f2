"""Draws a replay. Needs matplotlib (`pip install cotenant[plots]`), imported on the first drawing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from cotenant.core.errors import UsageError
from cotenant.core.trace import CATEGORIES
from cotenant.core.units import GiB, format_bytes
from cotenant.estimators.allocation_history import AllocationHistory

_COLORS = {
    "parameter": "#4e79a7",
    "gradient": "#f28e2b",
    "optimizer state": "#59a14f",
    "activation": "#76b7b2",
    "input": "#edc948",
    "buffer": "#b07aa1",
    "temporary": "#bab0ac",
    "workspace": "#e15759",
}
_PHASES = {"forward": "#dfe8f2", "backward": "#f5e6d8", "step": "#e0f0dc"}
_MAX_POINTS = 4000


def new_figure(path: Path) -> Any:
    """An empty figure that can be saved to `path`; made first, it fails before anything slow runs.

    Raises:
        UsageError: matplotlib is not installed, or does not know the format.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise UsageError("drawing needs matplotlib", hint="`pip install 'cotenant[plots]'`") from None
    figure = Figure(figsize=(11, 5.5), layout="constrained")
    known = FigureCanvasAgg(figure).get_supported_filetypes()
    if path.suffix.removeprefix(".").lower() not in known:
        raise UsageError(f"`{path.name}` names no known format", hint=f"end it in one of: {', '.join(sorted(known))}")
    return figure


def save_plot(path: Path, history: AllocationHistory, *, title: str, usable_bytes: int | None = None) -> None:
    """Draw allocated bytes by category and reserved bytes over the events; the file's suffix selects the format.

    `usable_bytes`: the GPU's memory without the context; drawn where the reserved bytes reach three quarters of it.

    Raises:
        UsageError: as `new_figure`, or there is no event to draw.
    """
    figure = new_figure(path)
    if not history.reserved_bytes:
        raise UsageError("the trace has no events to draw")
    axes: Any = figure.add_subplot()
    _draw(axes, history, usable_bytes)
    axes.set_title(title, loc="left", fontsize=10, parse_math=False)
    figure.savefig(path, dpi=130)


def _draw(axes: Any, history: AllocationHistory, usable_bytes: int | None) -> None:
    chosen = _points(history)
    used = [name for name in CATEGORIES if any(history.category_bytes[name])]
    stacks = [[history.category_bytes[name][i] / GiB for i in chosen] for name in used]
    reserved = [history.reserved_bytes[i] / GiB for i in chosen]
    axes.stackplot(chosen, *stacks, labels=used, colors=[_COLORS[name] for name in used], step="post")
    axes.step(chosen, reserved, where="post", color="black", linewidth=1.2, label="reserved")
    top = max(reserved)
    if usable_bytes is not None and top * GiB > 0.75 * usable_bytes:
        label = "memory of the GPU,\nless the context"
        axes.axhline(usable_bytes / GiB, color="crimson", linestyle="--", linewidth=1, label=label)
        top = max(top, usable_bytes / GiB)
    _shade(axes, history, top)
    _mark_peaks(axes, history, top)
    axes.set_xlim(0, len(history.reserved_bytes) - 1 or 1)
    axes.set_ylim(0, top * 1.22)
    axes.set_xlabel("event of the trace")
    axes.set_ylabel("GiB")
    axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), fontsize=8, frameon=False)


def _shade(axes: Any, history: AllocationHistory, top: float) -> None:
    """Shade the phases behind the curves, with their names where there is room."""
    ends = [start for start, _ in history.phases[1:]] + [len(history.reserved_bytes)]
    for (start, name), end in zip(history.phases, ends, strict=True):
        axes.axvspan(start, end, color=_PHASES.get(name, "#ffffff"), zorder=-2, linewidth=0)
        if name and end - start > 0.05 * len(history.reserved_bytes):
            axes.text((start + end) / 2, top * 1.17, name, ha="center", va="center", fontsize=8, color="#444444")


def _mark_peaks(axes: Any, history: AllocationHistory, top: float) -> None:
    allocated = history.allocated_bytes
    for values, name, height in ((allocated, "allocated", 1.04), (history.reserved_bytes, "reserved", 1.10)):
        peak = max(values)
        at = values.index(peak)
        axes.plot([at], [peak / GiB], marker="v", color="black", markersize=5)
        side = "right" if at > 0.6 * len(values) else "left"
        axes.annotate(
            f"peak {name} {format_bytes(peak)}",
            (at, peak / GiB),
            xytext=(at, top * height),
            fontsize=8,
            ha=side,
            va="center",
            arrowprops={
                "arrowstyle": "-",
                "linewidth": 0.5,
                "color": "#666666",
                "relpos": (1.0 if side == "right" else 0.0, 0.5),
            },
        )


def _points(history: AllocationHistory) -> list[int]:
    """Indices to draw: all, or the maximum of each run of events, so that no peak is lost."""
    count = len(history.reserved_bytes)
    stride = -(-count // _MAX_POINTS)
    if stride == 1:
        return list(range(count))
    allocated = history.allocated_bytes
    found = [max(range(i, min(i + stride, count)), key=allocated.__getitem__) for i in range(0, count, stride)]
    return sorted({0, *found, count - 1})
