"""What `--json` prints of the verbs of administrators that change the daemon's records: prune, repair.

A module of its own: `json_outputs` would have more than 400 lines.
"""

from __future__ import annotations

from typing import Annotated, TypedDict


class PruneOutput(TypedDict):
    """How much was removed, or would be."""

    jobs: int
    bytes: int


class EventRepair(TypedDict):
    """What replays do with an event instead of reading it."""

    is_replaced: bool
    cause: str
    error: str
    trace: str


class RepairedEvent(TypedDict):
    """An event of the journal."""

    seq: int
    type: str
    job_id: int
    body: Annotated[str | None, "JSON as it was written; null where the row is gone"]
    problem: Annotated[str | None, "why it cannot be read or applied"]
    loses: Annotated[str, "what is lost without it"]
    repair: EventRepair | None


class RepairOutput(TypedDict, total=False):
    """`cotenant daemon repair`: `events`, or with --event `event` and `backup`."""

    events: list[RepairedEvent]
    event: RepairedEvent
    backup: Annotated[str | None, "copy of the journal before the change"]
