"""Which of the admitted GPUs a job gets: the one with the smallest key, then the first in display order."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from cotenant.scheduling.placement.gpu_view import GpuView

SMACT_DIGITS = 6
"""SM activities that agree to this many digits are equal: means of the same samples differ in the last bits."""


@dataclass(frozen=True, slots=True)
class Score:
    """An order of GPUs.

    Attributes:
        key: of a GPU, any number that depends on the view alone; smaller is better, NaN is worst. Equal keys are ties.
        rotates: among ties, the search continues behind the GPU that was taken last. Without, it starts at the first.
    """

    name: str
    key: Callable[[GpuView], float]
    rotates: bool = False


def more_memory(view: GpuView) -> int:
    """Smaller with more memory available."""
    return -(view.available_bytes or 0)


def less_memory(view: GpuView) -> int:
    """Smaller with less memory available."""
    return view.available_bytes or 0


def constant(_view: GpuView) -> int:
    """Equal for all GPUs."""
    return 0


ACTIVITY_FREE_KEYS = frozenset({more_memory, less_memory, constant})
"""These keys do not change with the activity of a GPU. Any other may."""


def _smact(view: GpuView) -> float:
    """Unknown counts as fully active; an empty GPU is idle, whatever its last resident did."""
    if not view.residents:
        return 0.0
    smact = view.smact
    return 1.0 if smact is None else round(smact, SMACT_DIGITS)


most_available_memory = Score("most available memory", more_memory)
"""Spreads jobs: the GPU with most bytes available (MAGM in the literature)."""

least_available_memory = Score("least available memory", less_memory)
"""Packs jobs: the fullest GPU that still fits (best fit)."""

first = Score("first", constant)
"""The first GPU in display order (first fit)."""

round_robin = Score("round robin", constant, rotates=True)
"""The next GPU behind the one that was taken last."""

least_active = Score("least SM activity", _smact)
"""The GPU whose SMs are least active (LUG)."""

most_active = Score("most SM activity", lambda view: -_smact(view))
"""The GPU whose SMs are most active, so that others stay idle (MUG)."""
