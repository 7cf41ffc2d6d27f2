"""Our own journal as a trace: what policy X would have done with last week's jobs.

The file is only read, so a daemon may go on writing it. What nobody knows is said in the notes: a job's time alone is
taken from its last attempt, so one that was slowed down by company is replayed as slow as it was; its memory is the
most that was seen of it; its SM activity is what was seen while it, or a job of the same work, was alone on a GPU, or
what is expected of a job that needs so much memory.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing
from pathlib import Path

from cotenant.core.codec import CodecError
from cotenant.core.errors import UsageError
from cotenant.core.events import AttemptExited, AttemptPlaced, EstimateReady, JobSubmitted, Journaled
from cotenant.core.job import JobSpec
from cotenant.scheduling.prediction.interference import expected_smact
from cotenant.scheduling.prediction.workloads import workload_key
from cotenant.sim.trace import JobProfile, Trace, TraceJob
from cotenant.sim.traces.rows import Collected, stem
from cotenant.store.event_format import decode_event, formats
from cotenant.store.schema import check_file

NOTE = "a job's time alone is that of its last attempt, slowed down by company or not"


class _JobRecord:
    """What the journal says of one job."""

    def __init__(self, event: JobSubmitted) -> None:
        self.submit_s = event.at_s
        self.spec: JobSpec = event.spec
        self.bound_bytes: int | None = None
        self.reported_smact: float | None = None
        self.placed_s: float | None = None
        self.ended_s: float | None = None
        self.failed = False
        self.peak_bytes = 0
        self.alone_s = self.active_s = 0.0  # seen alone, and of that with active SMs

    @property
    def size_bytes(self) -> int:
        """The most that was seen, or was said, of its memory; 0 where nothing is known."""
        return self.peak_bytes or self.spec.declared_bytes or self.bound_bytes or 0


def read(path: Path) -> Trace:
    """The jobs of the journal whose last attempt ran to its end.

    Raises:
        UsageError: it cannot be read, or is no journal.
    """
    seen: dict[int, _JobRecord] = {}
    for event in _events(path):
        _note(seen, event)
    found = Collected()
    activity = _activity(seen.values())
    expected = 0
    for job_id, each in sorted(seen.items()):
        if each.placed_s is None or each.ended_s is None or each.ended_s <= each.placed_s:
            found.skip("never ran to its end")
        elif not each.size_bytes:
            found.skip("nothing is known of its memory")
        else:
            smact = activity.get(workload_key(each.spec))
            expected += smact is None
            smact = expected_smact(each.size_bytes) if smact is None else smact
            found.add(_job(job_id, each, each.ended_s - each.placed_s, smact))
    notes = [NOTE]
    if expected:
        notes.append(f"SM activity of {expected} jobs was never seen alone: it is expected from their memory")
    return found.trace(stem(path), path, *notes)


def _activity(jobs: Iterable[_JobRecord]) -> dict[str, float]:
    """SM activity of each kind of work that was seen alone, by its key."""
    sums: dict[str, tuple[float, float]] = {}
    for each in jobs:
        alone_s, active_s = sums.get(workload_key(each.spec), (0.0, 0.0))
        sums[workload_key(each.spec)] = (alone_s + each.alone_s, active_s + each.active_s)
    return {key: active_s / alone_s for key, (alone_s, active_s) in sums.items() if alone_s > 0}


def _note(seen: dict[int, _JobRecord], event: Journaled) -> None:
    if isinstance(event, JobSubmitted):
        seen[event.job_id] = _JobRecord(event)
        return
    job = seen.get(event.job_id)
    if job is None:
        return
    if isinstance(event, EstimateReady) and event.estimate is not None:
        job.bound_bytes = event.estimate.bound_bytes
        job.reported_smact = event.estimate.smact
    elif isinstance(event, AttemptPlaced):
        job.placed_s, job.ended_s = event.at_s, None
    elif isinstance(event, AttemptExited):
        job.peak_bytes = max([job.peak_bytes, *event.peak_observed_bytes.values()])
        ran = event.exit.reason in ("exited", "timeout")
        job.ended_s = event.at_s if ran else None
        job.failed = ran and event.exit.exit_code != 0
        for each in event.co_runs:
            if not each.neighbor_ids and each.smact is not None:
                job.alone_s += each.seconds
                job.active_s += each.smact * each.seconds


def _job(job_id: int, seen: _JobRecord, duration_s: float, smact: float) -> TraceJob:
    size = seen.size_bytes
    profile = JobProfile(
        workload=f"{seen.spec.name} (job {job_id})",
        first_peak_bytes=size,
        peak_bytes=size,
        smact=smact,
        measured=False,
        reported_bytes={"declared": seen.spec.declared_bytes, "cotenant": seen.bound_bytes},
        reported_smact=seen.reported_smact,
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
        raise UsageError(f"no journal at `{path}`", hint="a daemon keeps its own as `journal.db` in its state folder")
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=10)) as db:
            check_file(db, path)
            stretches = formats(db)
            for seq, body in db.execute("SELECT seq, body FROM events ORDER BY seq"):
                try:
                    event = decode_event(seq, body, stretches)
                except (CodecError, ValueError) as error:
                    raise UsageError(f"`{path}`: event {seq} cannot be decoded: {error}") from error
                yield event
    except sqlite3.Error as error:
        raise UsageError(f"`{path}` is no journal: {error}") from error
