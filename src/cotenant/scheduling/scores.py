"""Which of the admitted GPUs a job gets: the largest score, then the first in display order."""

from __future__ import annotations

from collections.abc import Callable

from cotenant.scheduling.views import GpuView

Score = Callable[[GpuView], float]


def most_available_memory(view: GpuView) -> float:
    """Spreads jobs: the GPU with most bytes available (MAGM in the literature)."""
    return view.available_bytes or 0


def least_available_memory(view: GpuView) -> float:
    """Packs jobs: the fullest GPU that still fits (best fit)."""
    return -(view.available_bytes or 0)


def first(_view: GpuView) -> float:
    """The first GPU in display order (first fit)."""
    return 0.0
