"""How often each value of each setting was drawn, as a picture. Needs matplotlib (`pip install cotenant[plots]`)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cotenant.estimators.plot import new_figure
from cotenant.learn.configs import Config, family_of, fields_of
from cotenant.learn.ranges import Ranges, Span

_COLUMNS = 4
_BINS = 20
_MOST_WORDS = 12
_COLOR = "#4e79a7"


def save_spread(path: Path, configs: Sequence[Config], ranges: Ranges) -> None:
    """One panel for each setting: bars for words and short lists of numbers, a histogram for a range.

    A range that is drawn by doublings has its histogram over the logarithm, where it should be flat.

    Raises:
        UsageError: no matplotlib, or it does not know the format that `path` ends in.
    """
    figure = new_figure(path)
    names = list(fields_of(family_of(configs[0])))
    rows = -(-len(names) // _COLUMNS)
    figure.set_size_inches(3.2 * _COLUMNS, 2.2 * rows)
    panels: Any = figure.subplots(rows, _COLUMNS, squeeze=False)
    for name, axes in zip(names, panels.flat, strict=False):
        _panel(axes, [getattr(each, name) for each in configs], ranges.ranges[name])
        axes.set_title(name, loc="left", fontsize=9)
        axes.tick_params(labelsize=7)
    for axes in panels.flat[len(names) :]:
        axes.set_axis_off()
    figure.suptitle(f"{len(configs)} configurations from `{ranges.name}`", x=0.01, ha="left", fontsize=10)
    figure.savefig(path, dpi=110)


def _panel(axes: Any, values: Sequence[Any], drawn_from: Any) -> None:
    counted = Counter(values)
    if len(counted) <= _MOST_WORDS:
        keys = sorted(counted, key=lambda each: (isinstance(each, str), each))
        axes.bar([str(each) for each in keys], [counted[each] for each in keys], color=_COLOR)
        axes.tick_params(axis="x", labelrotation=90)
        return
    low, high = min(values), max(values)
    if isinstance(drawn_from, Span) and drawn_from.by == "log":
        edges = [low * (high / low) ** (i / _BINS) for i in range(_BINS + 1)]
        axes.set_xscale("log")
    else:
        edges = [low - 0.5 + i * (high + 1 - low) / _bins(high + 1 - low) for i in range(_bins(high + 1 - low) + 1)]
    axes.hist(values, bins=edges, color=_COLOR)


def _bins(count: int) -> int:
    """So many bins that each has as many whole numbers, of which there are `count`, where that can be."""
    return next((bins for bins in (20, 16, 24, 18, 13, 15, 17, 14, 22, 25, 10, 11, 12) if count % bins == 0), _BINS)
