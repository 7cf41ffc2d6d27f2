"""Draws how often each value of each setting was drawn. Needs matplotlib (`pip install cotenant[plots]`)."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cotenant.estimators.plot import new_figure
from cotenant.learn.data_collection.configs import Config, family_of, fields_of
from cotenant.learn.data_collection.ranges import Choice, Range, Ranges, Span

_COLUMNS = 4
_BINS = 20
_MAX_BARS = 40
_COLOR = "#4e79a7"


def save_spread(path: Path, configs: Sequence[Config], ranges: Ranges) -> None:
    """One panel for each setting: a bar for each word or number where they are few, else a histogram of its range.

    Counts are divided by the width of a bin, so that even draws are level although bins of whole numbers differ; a
    logarithmic range has logarithmic bins. Draws that another setting bounds are shown relative to that bound; zeros of
    `none`, and classes of `gpt`, which are its vocabulary, are left out.

    Raises:
        UsageError: matplotlib is not installed, or does not know the suffix of `path`.
    """
    figure = new_figure(path)
    names = list(fields_of(family_of(configs[0])))
    rows = -(-len(names) // _COLUMNS)
    figure.set_size_inches(3.2 * _COLUMNS, 2.2 * rows)
    panels: Any = figure.subplots(rows, _COLUMNS, squeeze=False)
    for name, axes in zip(names, panels.flat, strict=False):
        drawn_from = ranges.ranges[name]
        addition = _panel(axes, drawn(configs, name, drawn_from), drawn_from)
        axes.set_title(f"{name}{_left_out(configs, name, drawn_from)}{addition}", loc="left", fontsize=8)
        axes.tick_params(labelsize=7)
        axes.set_ylim(bottom=0)
    for axes in panels.flat[len(names) :]:
        axes.set_axis_off()
    figure.suptitle(f"{len(configs)} configurations from `{ranges.name}`", x=0.01, ha="left", fontsize=10)
    figure.savefig(path, dpi=110)


def drawn(configs: Sequence[Config], name: str, drawn_from: Range) -> list[Any]:
    """The draws of a setting: its values, or if it is bounded, positions from its minimum (0) to its bound (1)."""
    own = [config for config in configs if not _is_derived(config, name)]
    values = [getattr(config, name) for config in own]
    if not isinstance(drawn_from, Span):
        return values
    if drawn_from.of:
        bounds = [drawn_from.bounds({drawn_from.of: getattr(config, drawn_from.of)}) for config in own]
        return [(value - low + 0.5) / (high - low + 1) for value, (low, high) in zip(values, bounds, strict=True)]
    return [value for value in values if value or not drawn_from.none]


def parts(values: Sequence[int], span: Span) -> list[tuple[float, float, float]]:
    """For each bin: its ends, and its count divided by its share of the range times the number of bins."""
    low, high = span.low, span.high + 1
    ratio = high / low if span.by == "log" else 0.0
    places = [low * ratio ** (i / _BINS) if ratio else low + i * (high - low) / _BINS for i in range(_BINS + 1)]
    edges = sorted({round(index) for index in places})
    found = []
    for start, end in itertools.pairwise(edges):
        share = math.log(end / start) / math.log(ratio) if ratio else (end - start) / (high - low)
        count = sum(start <= value < end for value in values)
        found.append((start - 0.5, end - 0.5, count / (share * _BINS)))
    return found


def _panel(axes: Any, values: Sequence[Any], drawn_from: Range) -> str:
    """Draw one panel; returns the addition to its title."""
    counted = Counter(values)
    if isinstance(drawn_from, Span) and drawn_from.of:
        axes.hist(values, bins=_BINS, range=(0, 1), color=_COLOR)
        least = f"{drawn_from.low_share:g} x" if drawn_from.low_share else str(drawn_from.low)
        axes.set_xticks([0, 1], [least, f"{drawn_from.share:g} x"])
        return f", as shares of {drawn_from.of}"
    if isinstance(drawn_from, Choice) or drawn_from.high - drawn_from.low < _MAX_BARS:
        keys = sorted(counted, key=lambda key: (isinstance(key, str), key))
        places = range(len(keys)) if isinstance(drawn_from, Choice) else keys
        axes.bar(places, [counted[key] for key in keys], color=_COLOR)
        if isinstance(drawn_from, Choice):
            axes.set_xticks(places, [str(key) for key in keys], rotation=90)
        return ""
    found = parts(values, drawn_from)
    starts, ends, heights = zip(*found, strict=True)
    axes.bar(
        starts,
        heights,
        width=[end - start for start, end in zip(starts, ends, strict=True)],
        align="edge",
        color=_COLOR,
    )
    if drawn_from.by == "log":
        from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

        axes.set_xscale("log")
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if drawn_from.high < 100 * drawn_from.low else (1,)))
        axes.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
        axes.xaxis.set_minor_formatter(NullFormatter())
    return ""


def _left_out(configs: Sequence[Config], name: str, drawn_from: Range) -> str:
    derived = sum(_is_derived(config, name) for config in configs)
    if derived:
        return f", but for {derived} of `{_DERIVED[name]}`"
    none = isinstance(drawn_from, Span) and drawn_from.none and sum(not getattr(config, name) for config in configs)
    return f", but for {none} with none" if none else ""


_DERIVED = {"classes": "gpt", "heads": "conv1d"}
"""Settings that a shape does not draw, by the shape."""


def _is_derived(config: Config, name: str) -> bool:
    return config.shape == _DERIVED.get(name)
