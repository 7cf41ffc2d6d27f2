"""Memory of a job over the steps that were traced for its estimate.

A module of its own: one drawing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from markupsafe import Markup

from cotenant.core.text import encodable
from cotenant.core.trace import CATEGORIES
from cotenant.core.units import GiB
from cotenant.reporting.areas import Area, PhaseSpan, areas
from cotenant.reporting.style import tone

WIDTH, HEIGHT = 600, 250


def memory_profile_chart(profile: Mapping[str, Any]) -> tuple[Markup, dict[str, str]]:
    """The chart, and its legend as {category: CSS class}."""
    names = [name for name in CATEGORIES if name in profile["category_bytes"]]
    names += [name for name in profile["category_bytes"] if name not in names]
    tones = {encodable(name): tone(i) for i, name in enumerate(names)}
    columns = [profile["category_bytes"][name] for name in names]
    layers = [
        Area(name, css, [value / GiB for value in column])
        for (name, css), column in zip(tones.items(), columns, strict=True)
    ]
    chart = areas(
        layers,
        [sum(values) / GiB for values in zip(*columns, strict=True)],
        phases=[PhaseSpan(first, encodable(name)) for first, name in profile["phases"]],
        x_label="along the traced steps",
        y_label="GiB",
        outline_name="requested",
        width=WIDTH,
        height=HEIGHT,
    )
    return Markup(chart), tones
