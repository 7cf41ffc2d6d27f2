"""Which of the admitted GPUs a job gets: the smallest key, then the first in display order."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from cotenant.scheduling.placement.gpu_view import GpuView

Style = Literal["spread", "pack", "ring", "key"]


@dataclass(frozen=True, slots=True)
class Score:
    """An order of GPUs.

    Attributes:
        style: how GPUs are kept sorted where there are many: by most or least memory available, in a ring, by `key`.
        key: smaller is better.
        rotates: a ring goes on behind the GPU that was taken last.
    """

    name: str
    style: Style
    key: Callable[[GpuView], float]
    rotates: bool = False


def _available(view: GpuView) -> float:
    return view.available_bytes or 0


def _smact(view: GpuView) -> float:
    """Unknown counts as fully active; an empty GPU is idle, whatever its last resident did."""
    if not view.residents:
        return 0.0
    smact = view.smact
    return 1.0 if smact is None else smact


most_available_memory = Score("most available memory", "spread", lambda view: -_available(view))
"""Spreads jobs: the GPU with most bytes available (MAGM in the literature)."""

least_available_memory = Score("least available memory", "pack", _available)
"""Packs jobs: the fullest GPU that still fits (best fit)."""

first = Score("first", "ring", lambda _view: 0.0)
"""The first GPU in display order (first fit)."""

round_robin = Score("next in turn", "ring", lambda _view: 0.0, rotates=True)
"""The next GPU behind the one that was taken last (round robin)."""

least_active = Score("least SM activity", "key", _smact)
"""The GPU whose SMs are least active (LUG)."""

most_active = Score("most SM activity", "key", lambda view: 1.0 - _smact(view))
"""The GPU whose SMs are most active, so that others stay idle (MUG)."""
