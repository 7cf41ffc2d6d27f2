"""What a policy is: a pure function of the queue and the server."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from cotenant.core.gpu import ServerSnapshot
from cotenant.core.job import Job
from cotenant.core.placement import Placement, Wait


class Policy(Protocol):
    """Decides who starts now, and where.

    `queue` holds the jobs that may start (queued, dependencies met, memory need known), oldest first; the
    answer has exactly one entry for each, and no two placements together promise more than a GPU has.
    """

    @property
    def name(self) -> str:
        """The registered name."""
        ...

    def decide(self, queue: Sequence[Job], server: ServerSnapshot) -> list[Placement | Wait]:
        """One `Placement` or `Wait` for every job of `queue`, in the order they were considered."""
        ...
