"""What a policy decides: a placement for a job, or why it waits.

A module of its own: jobs hold placements and events hold jobs, so it stands below both.
"""

from __future__ import annotations

from dataclasses import dataclass

from cotenant.core.gpu import Sharing


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """The GPUs of an attempt, and how it shares them.

    Attributes:
        promised_bytes: memory reserved on each of the GPUs.
        memory_limit_bytes: limit to enforce where the platform can, or None.
    """

    job_id: int
    gpu_uuids: tuple[str, ...]
    sharing: Sharing
    promised_bytes: int
    memory_limit_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejection:
    """Why one GPU does not qualify for a job now: the rule's name, and a sentence with the numbers."""

    gpu_uuid: str
    rule: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Deferral:
    """A job that is not placed now.

    Attributes:
        reason: a sentence with the numbers, complete by itself.
        rejections: one for each GPU that was considered.
        rule: name of the rule that decides, e.g. `insufficient_memory` or `dependency`; empty if there is none.
    """

    job_id: int
    reason: str
    rejections: tuple[Rejection, ...] = ()
    rule: str = ""
