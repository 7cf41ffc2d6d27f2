"""Options that several policies have: the preferred GPU, and sizes in GiB.

A module of its own: policies share it, one file for each policy.
"""

from __future__ import annotations

from typing import Literal

from cotenant.core.errors import UsageError
from cotenant.core.units import GiB
from cotenant.scheduling.placement import scores
from cotenant.scheduling.placement.scores import Score

Preference = Literal["most-memory", "best-fit", "first-fit", "least-utilized", "round-robin"]

PREFERENCES: dict[Preference, Score] = {
    "most-memory": scores.most_available_memory,
    "best-fit": scores.least_available_memory,
    "first-fit": scores.first,
    "least-utilized": scores.least_active,
    "round-robin": scores.round_robin,
}


def gib_to_bytes(value: float, what: str) -> int:
    """`value` GiB in bytes.

    Raises:
        UsageError: it is negative or not a number.
    """
    if not 0 <= value < 2**20:
        raise UsageError(f"{what} must be >= 0 GiB and finite, got {value:g}", hint="write e.g. `2`")
    return int(value * GiB)


def unknown_bytes(unknown_gib: float | None) -> int | None:
    """The promise of a job of unknown need; None: it runs exclusively."""
    return None if unknown_gib is None else max(1, gib_to_bytes(unknown_gib, "an unknown need"))
