"""What a manager is told besides its policy."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ManagerConfig:
    """Numbers of a manager; the defaults suit one reading of the GPUs a second.

    Attributes:
        estimate: ask for estimates. Without, a job that declares nothing has an unknown need and runs alone.
        stale_after_s: a reading older than this admits nothing.
        window_s: samples kept for policies.
        stop_grace_s: from the polite signal to the end of the process tree.
        eager_queue: with more jobs waiting than this, a new one is looked at with the next sample, not at once.
    """

    estimate: bool = True
    stale_after_s: float = 5.0
    window_s: float = 30.0
    stop_grace_s: float = 10.0
    eager_queue: int = 200
