"""What a journal amounts to, so that a start need not read all of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cotenant.core.job import Job


@dataclass(frozen=True, slots=True, kw_only=True)
class ManagerSnapshot:
    """The state of a manager that has taken in some events; everything else it holds follows from this.

    Attributes:
        last_at_s: time of the newest of them.
        jobs: all, by id.
        history: what attempts taught, as plain values.
    """

    last_at_s: float
    jobs: Sequence[Job]
    history: Mapping[str, Any]
