"""Journals on disk: events of every type and schema version, and damage to journal files."""

from __future__ import annotations

import sqlite3

from builders import a_spec, an_estimate
from cotenant.core.estimate import GpuEstimate
from cotenant.core.events import (
    AttemptBusy,
    AttemptExited,
    AttemptIdle,
    AttemptPlaced,
    AttemptStarted,
    EstimateReady,
    JobCancelled,
    JobHeld,
    JobReleased,
    JobRequeued,
    JobSubmitted,
    JobUpdated,
    RepartitionEnded,
    RepartitionStarted,
)
from cotenant.core.job import ArrayTask, AttemptExit, CoRun, OomEvidence, Overrun, ProcessId, ResourceUsage
from cotenant.core.placement import Placement
from cotenant.store.sqlite import SqliteJournal

PLACEMENT = Placement(job_id=1, gpu_uuids=("GPU-0", "GPU-1"), sharing="time-sliced", promised_bytes=2**34)
NEED_BYTES = {"peak_allocated_bytes": 5, "peak_reserved_bytes": 6, "device_bytes": 7, "bound_bytes": 8}
ONE_OF_EVERY_EVENT = (
    JobSubmitted(at_s=1.5, cause="api", job_id=1, spec=a_spec(env={"A": "ä\udc80"}, time_limit_s=60.0, after=(7, 8))),
    EstimateReady(at_s=2.0, cause="traced", job_id=1, estimate=an_estimate(8, breakdown_bytes={"weights": 5})),
    EstimateReady(at_s=2.5, cause="traced", job_id=1, estimate=None, error="no such script"),
    AttemptPlaced(at_s=3.0, cause="policy", job_id=1, attempt=1, placement=PLACEMENT),
    AttemptStarted(
        at_s=4.0, cause="engine", job_id=1, attempt=1, process=ProcessId(pid=9, start_ticks=2**40, boot_id="b")
    ),
    AttemptExited(
        at_s=5.0,
        cause="engine",
        job_id=1,
        attempt=1,
        exit=AttemptExit(exit_code=1, signal=None, reason="exited", oom=OomEvidence(exception=True, tried_bytes=2**33)),
        peak_observed_bytes={"GPU-0": 123},
    ),
    JobHeld(at_s=6.0, cause="api", job_id=1),
    JobReleased(at_s=7.0, cause="api", job_id=1),
    JobCancelled(at_s=8.0, cause="api", job_id=1),
)
NEW_IN_SCHEMA_2 = (
    JobSubmitted(
        at_s=1.0,
        cause="submit",
        job_id=2,
        spec=a_spec(
            after_any=(1,),
            after_failed=(1,),
            singleton=True,
            begin_at_s=5.0,
            hold=True,
            array=ArrayTask(array_id=2, index=7, limit=3),
            requeue=True,
            notify="mail ann",
        ),
    ),
    JobUpdated(at_s=2.0, cause="update by ann", job_id=2, spec=a_spec(priority=3)),
    JobRequeued(at_s=3.0, cause="requeue by root", job_id=2),
)
NEW_IN_SCHEMA_4 = (
    JobSubmitted(at_s=1.0, cause="submit", job_id=3, spec=a_spec(progress="tqdm")),
    AttemptExited(
        at_s=5.0,
        cause="engine",
        job_id=3,
        attempt=1,
        exit=AttemptExit(exit_code=0, signal=None, reason="exited"),
        peak_observed_bytes={"GPU-0": 5},
        co_runs=(CoRun(neighbor_ids=(2,), seconds=60.0, smact=0.5, steps_hz=4.0, slowdown=1.5),),
        usage=ResourceUsage(
            gpu_s=60.0, gpu_share_s=30.0, byte_s=6e10, sm_s=15.0, sm_known_s=60.0, energy_j=9e3, metered_s=60.0
        ),
    ),
)
RENAMED_IN_SCHEMA_5 = (
    JobSubmitted(
        at_s=1.0,
        cause="submit",
        job_id=4,
        spec=a_spec(
            env={"type": "Spell", "slot_s": "60"},  # variables of a user, which no migration may touch
            max_slowdown=1.5,
            time_slice_s=3600.0,
            sharing="mps",
            umask=0o22,
            limits={"nofile": (1024, 4096)},
        ),
    ),
    EstimateReady(
        at_s=2.0,
        cause="traced",
        job_id=4,
        estimate=an_estimate(8, per_gpu=tuple(GpuEstimate(index=i, **NEED_BYTES) for i in (1, 2))),
    ),
    JobUpdated(
        at_s=3.0,
        cause="update by ann",
        job_id=4,
        spec=a_spec(max_slowdown=2.0, time_slice_s=60.0, sharing="time"),
    ),
    AttemptExited(
        at_s=5.0,
        cause="engine",
        job_id=4,
        attempt=1,
        exit=AttemptExit(exit_code=0, signal=None, reason="exited"),
        peak_observed_bytes={"GPU-0": 5},
        co_runs=(
            CoRun(neighbor_ids=(2, 3), seconds=60.0, smact=0.5, steps_hz=4.0, slowdown=1.5, gpu_memory_bytes=2**34),
            CoRun(neighbor_ids=(), seconds=9.0),
        ),
        usage=ResourceUsage(gpu_s=60.0, gpu_share_s=30.0, byte_s=6e10),
    ),
)
"""Events with a value in every field that has another name since schema 5."""
NEW_IN_SCHEMA_6 = (
    JobSubmitted(at_s=1.0, cause="submit", job_id=5, spec=a_spec(slurm_env="all")),
    AttemptExited(
        at_s=5.0,
        cause="engine",
        job_id=5,
        attempt=1,
        exit=AttemptExit(exit_code=1, signal=None, reason="exited", oom=OomEvidence(exception=True, free_bytes=5)),
        peak_observed_bytes={"GPU-0": 5},
        overruns=(
            Overrun(job_id=4, attempt=1, uid=1001, gpu_uuid="GPU-0", promised_bytes=2**32, observed_bytes=2**35),
        ),
    ),
)
NEW_IN_SCHEMA_8 = (
    EstimateReady(at_s=2.0, cause="traced", job_id=6, estimate=an_estimate(8, eager=True)),
    AttemptIdle(at_s=9.0, cause="activity below 1 %", job_id=6, attempt=1, idle_since_s=5.0),
    AttemptBusy(at_s=12.0, cause="it computes again", job_id=6, attempt=1, idle_since_s=5.0),
)
NEW_IN_SCHEMA_9 = (
    JobSubmitted(at_s=1.0, cause="submit", job_id=7, spec=a_spec(checkpoint_signal="USR1", checkpoint_grace_s=30.0)),
    AttemptExited(
        at_s=5.0,
        cause="engine",
        job_id=7,
        attempt=1,
        exit=AttemptExit(exit_code=85, signal=None, reason="stopped", detail="moved: 0.5 gained", stopping_s=4.0),
        peak_observed_bytes={"GPU-0": 5},
        startup_s=8.0,
    ),
)


NEW_IN_SCHEMA_11 = (
    RepartitionStarted(
        at_s=6.0,
        cause="+0.71 jobs' worth of speed for 1 waiting job",
        job_id=8,
        gpu_uuid="GPU-0",
        gpu_index=0,
        before=("3g.20gb:0", "3g.20gb:4"),
        after=("7g.40gb:0",),
    ),
    RepartitionEnded(
        at_s=9.0,
        cause="repartition",
        job_id=8,
        gpu_uuid="GPU-0",
        gpu_index=0,
        layout=("3g.20gb:0",),
        error="`3g.20gb:4` is in use",
    ),
)
NEW_IN_SCHEMA_12 = (
    EstimateReady(
        at_s=2.0,
        cause="traced",
        job_id=9,
        estimate=an_estimate(8, smact=0.4, smact_low=0.2, smact_high=0.7),
    ),
)


def hold(number, padding=0):
    return JobHeld(at_s=float(number), cause="x" * padding, job_id=number)


def reopened(path):
    journal = SqliteJournal(path)
    try:
        return list(journal.replay())
    finally:
        journal.close()


def edit(path, *statements):
    """Run SQL on the file without the triggers that protect it."""
    db = sqlite3.connect(path)
    for statement in ("DROP TRIGGER no_update", "DROP TRIGGER no_delete", *statements):
        db.execute(statement)
    db.commit()
    db.close()


def written(path, *events):
    journal = SqliteJournal(path)
    journal.append(events)
    journal.close()
