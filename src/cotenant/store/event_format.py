"""Events in the names of earlier versions, brought to the names of today when they are read.

The journal is append-only, so no row is ever rewritten. Its table `event_formats` says from which event on bodies
have the names of which schema; those before the first entry have the names of schema 4. Whoever renames a class or a
field that is stored in events, or changes a field's default, adds a schema: a step in `store.schema.MIGRATIONS`, an
entry in `UPGRADES`, and a golden journal (tests/golden/journal).
"""

from __future__ import annotations

import json
import sqlite3
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from cotenant.core.codec import decode, to_json, to_lean_json_with
from cotenant.core.events import JobSubmitted, JobUpdated, Journaled
from cotenant.core.job import JobSpec

FIRST_FORMAT = 4
"""Schemas 1 to 4 added fields and events, and renamed nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rename:
    """New names in one part of an event's body.

    Attributes:
        events: class names of the events that have this part.
        path: fields that lead from the body to the part, in new names; a part that is an array is many parts.
        new_class: the class name of the part from now on; None leaves it.
        fields: old names to new ones.
    """

    events: tuple[str, ...]
    path: tuple[str, ...] = ()
    new_class: str | None = None
    fields: Mapping[str, str] = field(default_factory=dict)


def _to_format_5(event: dict[str, Any]) -> None:
    for rename in _IN_FORMAT_5:
        if event.get("type") in rename.events:
            _apply(rename, event, rename.path)


_IN_FORMAT_5: tuple[Rename, ...] = (
    Rename(
        events=("JobSubmitted", "JobUpdated"),
        path=("spec",),
        fields={"slowdown_bound": "max_slowdown", "slot_s": "time_slice_s", "share": "sharing"},
    ),
    Rename(events=("EstimateReady",), path=("estimate", "per_gpu"), new_class="GpuEstimate"),
    Rename(events=("AttemptExited",), fields={"spells": "co_runs"}),
    Rename(
        events=("AttemptExited",),
        path=("co_runs",),
        new_class="CoRun",
        fields={"mates": "neighbor_ids", "card_bytes": "gpu_memory_bytes"},
    ),
    Rename(events=("AttemptExited",), path=("usage",), new_class="ResourceUsage", fields={"part_s": "gpu_share_s"}),
)


def _to_format_6(_: dict[str, Any]) -> None:
    """The environment of a spec is a key of `environments`, or as before the environment itself: both are read."""


def _to_format_7(_: dict[str, Any]) -> None:
    """Fields that have their defaults are left out, or as before are there: both are read."""


UPGRADES: Mapping[int, Callable[[dict[str, Any]], None]] = {5: _to_format_5, 6: _to_format_6, 7: _to_format_7}
"""What changes an event's body, in place, from the format before to this one."""

NEWEST_FORMAT = max(UPGRADES)


def upgrade(event: dict[str, Any], version: int) -> dict[str, Any]:
    """`event`, an object that JSON gave, in the names of today; it is changed in place.

    `version` is the format it was written in.
    """
    for newer in range(version + 1, NEWEST_FORMAT + 1):
        UPGRADES[newer](event)
    return event


def create(db: sqlite3.Connection) -> None:
    """The table of formats: each entry holds from its event on, up to the next entry."""
    db.execute("CREATE TABLE event_formats (first_seq INTEGER PRIMARY KEY, version INTEGER NOT NULL)")


def begin(db: sqlite3.Connection, version: int) -> None:
    """Events appended from now on are in format `version`."""
    (newest,) = db.execute("SELECT coalesce(max(seq), 0) FROM events").fetchone()
    db.execute("INSERT OR REPLACE INTO event_formats VALUES (?, ?)", (newest + 1, version))


def formats(db: sqlite3.Connection) -> Sequence[tuple[int, int]]:
    """(First event, format) of each stretch of events, newest first; none in a file of schema 4 or less.

    Raises:
        sqlite3.Error: the file cannot be read.
    """
    (version,) = db.execute("PRAGMA user_version").fetchone()
    if version <= FIRST_FORMAT:
        return ()
    return db.execute("SELECT first_seq, version FROM event_formats ORDER BY first_seq DESC").fetchall()


Environments = Callable[[str], Mapping[str, str]]
"""The environment under a key; raises ValueError if there is none."""


def encode_event(event: Journaled, environment_key: Callable[[Mapping[str, str]], str]) -> str:
    """The body of an event, in the newest format; `environment_key` gives the key of the environment in it.

    Fields that have their defaults are left out, so a default that changes needs a format whose upgrade adds the old
    one: a test compares all defaults with recorded ones.

    Raises:
        CodecError, ValueError: it has no JSON form.
    """
    if isinstance(event, (JobSubmitted, JobUpdated)):
        return to_lean_json_with(event, JobSpec, "env", environment_key(event.spec.env))
    return to_json(event, lean=True)


def decode_event(
    seq: int,
    body: str,
    stretches: Sequence[tuple[int, int]],
    environments: Environments = lambda _: {},
) -> Journaled:
    """Event `seq` of a journal from its JSON, in whichever format it was written; `stretches` as `formats` gives them.

    Without `environments`, specs have empty ones.

    Raises:
        CodecError, ValueError: it is no event that this release knows.
    """
    event = json.loads(body)
    if not stretches or seq < stretches[0][0]:  # nearly all events are in the newest format
        version = next((version for first_seq, version in stretches if seq >= first_seq), FIRST_FORMAT)
        if isinstance(event, dict):
            upgrade(event, version)
    spec = event.get("spec") if isinstance(event, dict) else None
    if not isinstance(spec, dict) or not isinstance(spec.get("env"), str):
        return decode(Journaled, event)
    environment = environments(spec["env"])
    spec["env"] = {}
    found: JobSubmitted | JobUpdated = decode(JobSubmitted | JobUpdated, event)
    # Decoding copies a mapping: 10,000 tasks of an array would hold 10,000 copies of the one that they share.
    object.__setattr__(found.spec, "env", environment)
    return found


def _apply(rename: Rename, part: Any, path: Sequence[str]) -> None:
    if isinstance(part, list):
        for item in part:
            _apply(rename, item, path)
    elif not isinstance(part, dict):
        return  # an optional part that is absent; a damaged one is refused when it is decoded
    elif path:
        _apply(rename, part.get(path[0]), path[1:])
    else:
        if rename.new_class is not None:
            part["type"] = rename.new_class
        for old, new in rename.fields.items():
            if old in part:
                part[new] = part.pop(old)


def row_of(event: Journaled, body: str) -> tuple[float, str, int, str, int]:
    """The columns of an event: time, type, job, body and checksum."""
    return event.at_s, type(event).__name__, event.job_id, body, zlib.crc32(body.encode())
