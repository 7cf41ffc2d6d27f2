"""Our own journal as a trace: what policy X would have done with last week's jobs.

The file is only read, so a daemon may go on writing it. What nobody knows is said in the notes: a job's time alone is
taken from its last attempt, so one that was slowed down by company is replayed as slow as it was; its memory is the
most that was seen of it; its SM activity is not in the journal.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from cotenant.core.codec import CodecError, decode
from cotenant.core.errors import JournalError
from cotenant.core.events import AttemptExited, AttemptPlaced, EstimateReady, JobSubmitted, Journaled
from cotenant.core.job import JobSpec
from cotenant.sim.jobs import Profile, Trace, TraceJob
from cotenant.sim.traces.rows import Collected, stem

ASSUMED_SMACT = 0.5

NOTES = (
    "a job's time alone is that of its last attempt, slowed down by company or not",
    f"SM activity is not in the journal: {ASSUMED_SMACT:g} is assumed for every job",
)


class _Seen:
    """What the journal says of one job."""

    def __init__(self, event: JobSubmitted) -> None:
        self.submit_s = event.at_s
        self.spec: JobSpec = event.spec
        self.bound_bytes: int | None = None
        self.placed_s: float | None = None
        self.ended_s: float | None = None
        self.failed = False
        self.peak_bytes = 0


def read(path: Path) -> Trace:
    """The jobs of the journal whose last attempt ran to its end.

    Raises:
        JournalError: it cannot be read.
    """
    seen: dict[int, _Seen] = {}
    for event in _events(path):
        _note(seen, event)
    found = Collected()
    for job_id, each in sorted(seen.items()):
        if each.placed_s is None or each.ended_s is None or each.ended_s <= each.placed_s:
            found.skip("never ran to its end")
        elif not each.peak_bytes and each.bound_bytes is None and each.spec.declared_bytes is None:
            found.skip("nothing is known of its memory")
        else:
            found.add(_job(job_id, each, each.ended_s - each.placed_s))
    return found.trace(stem(path), path, *NOTES)


def _note(seen: dict[int, _Seen], event: Journaled) -> None:
    if isinstance(event, JobSubmitted):
        seen[event.job_id] = _Seen(event)
        return
    job = seen.get(event.job_id)
    if job is None:
        return
    if isinstance(event, EstimateReady) and event.estimate is not None:
        job.bound_bytes = event.estimate.bound_bytes
    elif isinstance(event, AttemptPlaced):
        job.placed_s, job.ended_s = event.at_s, None
    elif isinstance(event, AttemptExited):
        job.peak_bytes = max([job.peak_bytes, *event.peak_observed_bytes.values()])
        ran = event.exit.reason in ("exited", "timeout")
        job.ended_s = event.at_s if ran else None
        job.failed = ran and event.exit.exit_code != 0


def _job(job_id: int, seen: _Seen, duration_s: float) -> TraceJob:
    declared = seen.spec.declared_bytes
    size = seen.peak_bytes or declared or seen.bound_bytes or 0
    profile = Profile(
        workload=f"{seen.spec.name} (job {job_id})",
        first_peak_bytes=size,
        peak_bytes=size,
        smact=ASSUMED_SMACT,
        measured=False,
        told_bytes={"declared": declared, "cotenant": seen.bound_bytes},
    )
    return TraceJob(
        submit_s=seen.submit_s,
        duration_s=duration_s,
        gpus=seen.spec.gpus,
        profile=profile,
        user=seen.spec.user,
        failed=seen.failed,
    )


def _events(path: Path) -> Iterator[Journaled]:
    if not path.is_file():
        raise JournalError(f"no journal at `{path}`")
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=10)) as db:
            for seq, body in db.execute("SELECT seq, body FROM events ORDER BY seq"):
                try:
                    event: Journaled = decode(Journaled, json.loads(body))
                except (CodecError, ValueError) as error:
                    raise JournalError(f"{path}: event {seq} cannot be understood: {error}") from error
                yield event
    except sqlite3.Error as error:
        raise JournalError(f"cannot read {path}: {error}") from error
