"""State snapshot of a manager, so that startup replays only newer events.

A module of its own: `ports` and `scheduling` need the type, which needs `job`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cotenant.core.events import RepartitionStarted
from cotenant.core.job import Job


@dataclass(frozen=True, slots=True, kw_only=True)
class ManagerSnapshot:
    """The state of a manager after some events; all else that it holds follows from this.

    Attributes:
        last_at_s: time of the newest event.
        jobs: all jobs, by id.
        history: what was learned from attempts, as plain JSON values.
        repartitions: those of MIG GPUs that have not ended.
    """

    last_at_s: float
    jobs: Sequence[Job]
    history: Mapping[str, Any]
    repartitions: Sequence[RepartitionStarted] = ()
