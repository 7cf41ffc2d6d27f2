"""A daemon's journal as a trace: what another policy would have done with the jobs of last week.

The journal is opened read-only, so a running daemon may keep writing to it. Assumptions, given in the trace's notes:

- A job's run time alone is that of its last attempt, slowdowns by neighbors included.
- Its memory is the largest observed amount, else the declared or estimated one.
- Its SM activity is the mean while a job of its workload was alone on a GPU, else the one expected from its memory.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from pathlib import Path

from cotenant.core.codec import CodecError
from cotenant.core.errors import UsageError
from cotenant.core.estimate import Estimate, SmactInterval
from cotenant.core.events import AttemptExited, AttemptPlaced, EstimateReady, JobSubmitted, Journaled
from cotenant.core.job import AttemptExit, CoRun, Job, JobSpec
from cotenant.scheduling.prediction.interference import expected_smact
from cotenant.scheduling.prediction.workloads import workload_key
from cotenant.sim.trace import JobProfile, Trace, TraceJob
from cotenant.sim.traces.rows import Collected, stem
from cotenant.store.compaction import body_text, load_dictionary
from cotenant.store.event_format import decode_event, formats
from cotenant.store.schema import check_file

NOTE = "a job's run time alone is that of its last attempt, slowdowns by neighbors included"


class _JobRecord:
    """What the journal has of one job."""

    def __init__(self, event: JobSubmitted) -> None:
        self.submit_s = event.at_s
        self.spec: JobSpec = event.spec
        self.bound_bytes: int | None = None
        self.reported_smact: SmactInterval | None = None
        self.placed_s: float | None = None
        self.ended_s: float | None = None
        self.failed = False
        self.peak_bytes = 0
        self.alone_s = self.active_s = 0.0  # time observed alone, and SM activity times that

    @property
    def size_bytes(self) -> int:
        """Its largest observed memory, else the declared or estimated one; 0 if none is known."""
        return self.peak_bytes or self.spec.declared_bytes or self.bound_bytes or 0

    @classmethod
    def of(cls, job: Job) -> _JobRecord:
        """The same from a job instead of its events."""
        record = cls(JobSubmitted(at_s=job.submitted_at_s, cause="", job_id=job.id, spec=job.spec))
        if job.estimate is not None:
            record.note_estimate(job.estimate)
        for attempt in job.attempts:
            record.note_placed(attempt.placed_at_s)
            if attempt.exit is not None and attempt.ended_at_s is not None:
                record.note_exit(attempt.ended_at_s, attempt.exit, attempt.peak_observed_bytes, attempt.co_runs)
        return record

    def note_estimate(self, estimate: Estimate) -> None:
        self.bound_bytes = estimate.bound_bytes
        self.reported_smact = estimate.smact_interval

    def note_placed(self, at_s: float) -> None:
        self.placed_s, self.ended_s = at_s, None

    def note_exit(
        self, at_s: float, end: AttemptExit, peaks_bytes: Mapping[str, int], co_runs: Iterable[CoRun]
    ) -> None:
        self.peak_bytes = max([self.peak_bytes, *peaks_bytes.values()])
        ran = end.reason in ("exited", "timeout")
        self.ended_s = at_s if ran else None
        self.failed = ran and end.exit_code != 0
        for co_run in co_runs:
            if not co_run.neighbor_ids and co_run.smact is not None:
                self.alone_s += co_run.seconds
                self.active_s += co_run.smact * co_run.seconds


def read(path: Path) -> Trace:
    """Read the jobs of the journal whose last attempt ran to its end.

    Raises:
        UsageError: the file cannot be read, or is not a journal.
    """
    records: dict[int, _JobRecord] = {}
    for event in _events(path):
        _note(records, event)
    return _trace(records, stem(path), path)


def of_jobs(jobs: Iterable[Job], name: str) -> Trace:
    """Those of `jobs` whose last attempt ran to its end, as a trace of that name.

    Raises:
        UsageError: there is none.
    """
    return _trace({job.id: _JobRecord.of(job) for job in jobs}, name, Path(name))


def _trace(records: Mapping[int, _JobRecord], name: str, source: Path) -> Trace:
    found = Collected()
    activity = _activity(records.values())
    expected = 0
    for job_id, record in sorted(records.items()):
        if record.placed_s is None or record.ended_s is None or record.ended_s <= record.placed_s:
            found.skip("did not run to its end")
        elif not record.size_bytes:
            found.skip("its memory is not known")
        else:
            smact = activity.get(workload_key(record.spec))
            expected += smact is None
            smact = expected_smact(record.size_bytes) if smact is None else smact
            found.add(_job(job_id, record, record.ended_s - record.placed_s, smact))
    notes = [NOTE]
    if expected:
        notes.append(f"SM activity of {expected} jobs is expected from their memory: none was observed alone")
    return found.trace(name, source, *notes)


def _activity(jobs: Iterable[_JobRecord]) -> dict[str, float]:
    """Mean SM activity of each workload while it was alone on a GPU, by its key."""
    sums: dict[str, tuple[float, float]] = {}
    for job in jobs:
        alone_s, active_s = sums.get(workload_key(job.spec), (0.0, 0.0))
        sums[workload_key(job.spec)] = (alone_s + job.alone_s, active_s + job.active_s)
    return {key: active_s / alone_s for key, (alone_s, active_s) in sums.items() if alone_s > 0}


def _note(records: dict[int, _JobRecord], event: Journaled) -> None:
    if isinstance(event, JobSubmitted):
        records[event.job_id] = _JobRecord(event)
        return
    job = records.get(event.job_id)
    if job is None:
        return
    if isinstance(event, EstimateReady) and event.estimate is not None:
        job.note_estimate(event.estimate)
    elif isinstance(event, AttemptPlaced):
        job.note_placed(event.at_s)
    elif isinstance(event, AttemptExited):
        job.note_exit(event.at_s, event.exit, event.peak_observed_bytes, event.co_runs)


def _job(job_id: int, record: _JobRecord, duration_s: float, smact: float) -> TraceJob:
    size = record.size_bytes
    profile = JobProfile(
        workload=f"{record.spec.name} (job {job_id})",
        first_peak_bytes=size,
        peak_bytes=size,
        smact=smact,
        measured=False,
        reported_bytes={"declared": record.spec.declared_bytes, "cotenant": record.bound_bytes},
        reported_smact=record.reported_smact,
    )
    return TraceJob(
        submit_s=record.submit_s,
        duration_s=duration_s,
        gpus=record.spec.gpus,
        profile=profile,
        user=record.spec.user,
        failed=record.failed,
    )


def _events(path: Path) -> Iterator[Journaled]:
    if not path.is_file():
        raise UsageError(f"no journal at `{path}`", hint="a daemon writes `journal.db` in its state directory")
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=10)) as db:
            check_file(db, path)
            stretches, dictionary = formats(db), load_dictionary(db)
            for seq, body in db.execute("SELECT seq, body FROM events ORDER BY seq"):
                try:
                    event = decode_event(seq, body_text(body, dictionary), stretches)
                except (CodecError, ValueError) as error:
                    raise UsageError(f"`{path}`: event {seq} cannot be decoded: {error}") from error
                yield event
    except sqlite3.Error as error:
        raise UsageError(f"`{path}` is no journal: {error}") from error
